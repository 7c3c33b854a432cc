"""Shows a comparison of two files of times, as tables on the terminal or as Markdown."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from stagespan.pages.amounts import signed, signed_percent
from stagespan.pages.console import set_width, trimmed
from stagespan.pages.escaping import code, escaped, one_line
from stagespan.pages.tables import Column, fitted_table, markdown_table
from stagespan.process.imports import importing
from stagespan.report.changes import (
    WORDS,
    TimingChange,
    TimingComparison,
    Tolerance,
    compare,
)
from stagespan.report.timed import read

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH = 120
_COLUMNS = {
    **dict.fromkeys(("stage", "before ms", "after ms", "change", "interval", "runs", "verdict"), 0),
    "computing ms": 1,
    "waiting ms": 1,
    "mean ms": 4,
    "mean change": 2,
    "total ms": 5,
    "total change": 3,
}
"""The columns; those with the largest number are left out first on a terminal."""
_STYLES = {
    "slower": "red",
    "worse": "red",
    "removed": "red",
    "faster": "green",
    "unknown": "yellow",
}


def compare_timing_reports(path_a: str | os.PathLike[str], path_b: str | os.PathLike[str]) -> str:
    """Compare two ``timing.json`` files, ``path_a`` (before) and ``path_b`` (after).

    Returns the page of ``stagespan compare`` in Markdown: which stages are slower or faster than
    before by more than 5 %, 0.01 ms and the noise, with their medians, means and totals. If the
    reports have no stage in common, the page says so. Also reads TeleFuser's files. Raises
    ReportError if a file cannot be read.
    """
    return markdown(compare(read(path_a), read(path_b), Tolerance()))


def show(comparison: TimingComparison, console: Console | None = None) -> None:
    """Print the comparison, by default on standard output."""
    with importing():
        from rich.console import Console
        from rich.text import Text

    console = console or Console(highlight=False)
    set_width(console, _WIDTH)
    after, before = (
        path if request is None else f"{path} (request {request})"
        for path, request in zip(
            (comparison.after, comparison.before), reversed(comparison.requests), strict=True
        )
    )
    with trimmed(console):
        console.print(
            Text(one_line(f"{after} against {before}: {comparison.summary}")), soft_wrap=True
        )
        for table in filter(None, (_changes(comparison), _totals(comparison))):
            console.print(fitted_table(table, console.width))
        for line in (
            *(f"warning: {warning}" for warning in comparison.warnings),
            *comparison.notes,
        ):
            console.print(Text(line), soft_wrap=True)


def markdown(comparison: TimingComparison) -> str:
    """Return the comparison as Markdown."""
    after, before = (
        code(path) if request is None else f"{code(path)} (request {code(request)})"
        for path, request in zip(
            (comparison.after, comparison.before), reversed(comparison.requests), strict=True
        )
    )
    problem = [] if comparison.problem is None else [comparison.problem]
    parts = [
        "# Comparison",
        f"{after} against {before}: {escaped(comparison.summary)}.",
        *(f"**Warning:** {escaped(warning)}" for warning in (*problem, *comparison.warnings)),
    ]
    for title, table in (
        ("", _changes(comparison)),
        ("## Totals", _totals(comparison)),
        ("## Environment", _environment(comparison)),
    ):
        if table:
            parts += [title] if title else []
            parts.append("\n".join(markdown_table(table)))
    return "\n\n".join([*parts, *map(escaped, comparison.notes)]) + "\n"


# --- tables -------------------------------------------------------------------------------------


def _changes(comparison: TimingComparison) -> list[Column]:
    titles = tuple(_COLUMNS)
    rows = [_cells(change) for change in comparison.changes]
    styles = [_STYLES.get(change.verdict, "") for change in comparison.changes]
    return [
        Column(
            title,
            cells,
            is_flexible=title == "stage",
            is_folded=title == "stage",
            is_number=title not in ("stage", "verdict"),
            optional=_COLUMNS[title],
            styles=styles if title == "verdict" else (),
        )
        for title, *cells in zip(titles, *rows, strict=True)
        if any(cells) or (cells and not _COLUMNS[title])
    ]


def _cells(change: TimingChange) -> tuple[str, ...]:
    sides = [times for times in (change.before, change.after) if times is not None]
    means, totals = [times.mean_ms for times in sides], [times.total_ms for times in sides]
    name = one_line(change.name)
    return (
        name if change.signature is None else f"{name} ({one_line(change.signature)})",
        _ms(change.before_ms),
        _ms(change.after_ms),
        _share(change.before_ms, change.after_ms),
        change.bounds,
        " / ".join("?" if times.count is None else f"{times.count}" for times in sides),
        change.label or WORDS[change.verdict],
        *(_ms_of(change, part) for part in ("computing", "waiting")),
        _pair(means),
        _share(*means) if len(means) == 2 else "",
        _pair(totals),
        _share(*totals) if len(totals) == 2 else "",
    )


def _totals(comparison: TimingComparison) -> list[Column]:
    rows = [
        (
            one_line(total.name),
            _ms(total.before_ms),
            _ms(total.after_ms),
            "" if total.change_ms is None else signed(total.change_ms, 3),
            _share(total.before_ms, total.after_ms),
        )
        for total in comparison.totals
        if (total.before_ms, total.after_ms) != (None, None)
    ]
    titles = ("total", "before ms", "after ms", "change ms", "change")
    return [
        Column(title, cells, is_number=title != "total", is_flexible=title == "total")
        for title, *cells in zip(titles, *rows, strict=True)
        if rows
    ]


def _environment(comparison: TimingComparison) -> list[Column]:
    rows = [
        (key, *("-" if value is None else str(value) for value in values))
        for key, values in comparison.environment.items()
    ]
    titles = ("what", "before", "after")
    return [Column(title, cells) for title, *cells in zip(titles, *rows, strict=True) if rows]


# --- cells --------------------------------------------------------------------------------------


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:,.3f}"


def _share(before: float | None, after: float | None) -> str:
    """Return a relative change; empty if one of the two is unknown or nothing took time before."""
    return signed_percent((after - before) / before) if before and after is not None else ""


def _ms_of(change: TimingChange, name: str) -> str:
    """Return a part of the runs before and after."""
    return "".join(
        f"{_ms(part.before_ms)} / {_ms(part.after_ms)}"
        for part in change.parts
        if part.name == name
    )


def _pair(times_ms: list[float | None]) -> str:
    """Return times as text, ``12.000 / 10.000`` or ``? / 10.000``; empty if none is known."""
    if all(ms is None for ms in times_ms):
        return ""
    return " / ".join("?" if ms is None else _ms(ms) for ms in times_ms)
