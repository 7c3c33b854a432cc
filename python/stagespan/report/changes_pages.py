"""Shows a comparison of two files of times as a table on the terminal or as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagespan.process.imports import importing
from stagespan.report.changes import OTHER_INPUTS, WORDS, Change, Comparison
from stagespan.text.amounts import signed
from stagespan.text.console import set_width, trimmed
from stagespan.text.escaping import code, escaped, one_line

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH = 120
_HEADER = ("stage", "before ms", "after ms", "change", "noise", "runs", "verdict")
_STYLES = {"slower": "red", "removed": "red", "faster": "green", "unknown": "yellow"}


def show(found: Comparison, console: Console | None = None) -> None:
    """Print the comparison, by default on standard output."""
    with importing():
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

    console = console or Console(highlight=False)
    set_width(console, _WIDTH)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for number, name in enumerate(_HEADER):
        table.add_column(name, justify="left" if number in (0, 6) else "right", no_wrap=number > 0)
    for change in found.changes:
        cells = [Text(cell) for cell in _cells(change)]
        cells[-1].stylize(_STYLES.get(change.verdict, ""))
        table.add_row(*cells)
    with trimmed(console):
        console.print(
            Text(f"{found.after} against {found.before}: {found.summary}"), soft_wrap=True
        )
        console.print()
        console.print(table)
        for warning in found.warnings:
            console.print(Text(f"warning: {warning}"), soft_wrap=True)
        for note in found.notes:
            console.print(Text(note), soft_wrap=True)


def markdown(found: Comparison) -> str:
    """Return the comparison as Markdown."""
    rows = [_cells(change) for change in found.changes]
    lines = [
        "# Comparison",
        "",
        f"{code(found.after)} against {code(found.before)}: {found.summary}.",
        "",
        *(f"**Warning:** {warning}\n" for warning in found.warnings),
        "| " + " | ".join(_HEADER) + " |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
        *("| " + " | ".join(map(escaped, row)) + " |" for row in rows),
        "",
        *(f"{note}\n" for note in found.notes),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _cells(change: Change) -> tuple[str, ...]:
    name = one_line(change.name)
    if change.signature is not None:
        name = f"{name} ({one_line(change.signature)})"
    verdict = "other inputs" if change.reason == OTHER_INPUTS else WORDS[change.verdict]
    return (
        name,
        _ms(change.before_ms),
        _ms(change.after_ms),
        "" if change.change is None else f"{signed(100 * change.change, 1)} %",
        _noise(change),
        _runs(change),
        verdict,
    )


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:,.3f}"


def _noise(change: Change) -> str:
    return "" if change.noise is None else f"±{change.noise:.1%}".replace("%", " %")


def _runs(change: Change) -> str:
    counts = [times.count for times in (change.before, change.after) if times is not None]
    shown = ["?" if count is None else f"{count}" for count in counts]
    return " / ".join(shown)
