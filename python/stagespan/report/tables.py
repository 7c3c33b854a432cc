"""The timing report as a table on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from stagespan.pages.amounts import counted
from stagespan.pages.console import columns, encodable, trimmed
from stagespan.pages.escaping import one_line
from stagespan.pages.tables import Column, fitted_table
from stagespan.process.imports import importing, load
from stagespan.report import tree
from stagespan.report.reader import number

if TYPE_CHECKING:
    from rich.console import Console

_Cell = Callable[[dict[str, Any]], str]


def print_report(report: Mapping[str, Any], console: Console | None = None) -> None:
    """Print a report to ``console``, by default to standard output.

    If a terminal, or ``COLUMNS``, is too narrow, the less important columns are left out. The width
    is not limited in a file or a pipe.
    """
    with importing():
        from rich.console import Console

    console = console or Console()
    with trimmed(console):
        _print_report(report, console)


def _print_report(report: Mapping[str, Any], console: Console) -> None:
    with importing():
        from rich.text import Text

    is_limited = console.is_terminal or columns() is not None
    head = encodable(one_line(_headline(report)), console.encoding)
    console.print(Text(head), soft_wrap=not is_limited)
    if report["stages"]:
        if not is_limited:
            # rich would cut the table at 80 columns.
            console.width = 10_000
        table = fitted_table(_columns(report, console.encoding), console.width)
        console.print(table, highlight=False)
    lost = encodable(_lost(report.get("lost")), console.encoding)
    if lost:
        console.print(Text(f"lost: {lost}"), soft_wrap=not is_limited)


def _lost(lost: object) -> str:
    """Return what was lost, by cause; empty if nothing was."""
    counts = {cause: number(n) for cause, n in lost.items()} if isinstance(lost, dict) else {}
    return ", ".join(f"{one_line(cause)} {n:,.0f}" for cause, n in counts.items() if n)


def print_timing_summary() -> None:
    """Print the report of this process as a table, with the stages as a tree."""
    print_report(load("stagespan.report.timing").timing_report())


def _headline(report: Mapping[str, Any]) -> str:
    stages = report["stages"]
    request = report.get("request_id")
    parts = [f"Timing report{f' of request {request}' if request else ''}"]
    world_size = number(report.get("world_size"))
    if world_size is not None and world_size > 1:
        parts.append(f"rank {report.get('rank')} of {world_size:.0f}")
    parts.append(counted(len(stages), "stage"))
    for label, key in (("wall clock", "wall_clock_ms"), ("in stages", "total_stages_ms")):
        value = number(report.get(key))
        if value is not None:
            parts.append(f"{label} {value:,.1f} ms")
    return ", ".join(parts)


def _columns(report: Mapping[str, Any], encoding: str) -> list[Column]:
    rows = list(tree.rows(report))
    names = [
        row.guide + one_line(row.label) + (" (all its runs)" if row.is_sum else "") for row in rows
    ]
    styles = ["dim" if row.count is None and row.stage is None else "" for row in rows]
    shares = ["" if row.share is None else f"{100 * row.share:.1f} %" for row in rows]
    columns = [
        Column("stage", names, is_flexible=True, is_folded=True, styles=styles),
        Column("total ms", [f"{row.duration_ms:,.3f}" for row in rows], is_number=True),
        Column("share", shares, is_number=True),
        Column(
            "runs",
            ["" if row.count is None else f"{row.count:,}" for row in rows],
            is_number=True,
        ),
    ]
    for title, cell in _COLUMNS:
        cells = ["" if row.stage is None else cell(row.stage) for row in rows]
        if any(cells):
            rank = _LEAST_IMPORTANT.index(title) if title in _LEAST_IMPORTANT else None
            optional = 0 if rank is None else len(_LEAST_IMPORTANT) - rank
            columns.append(Column(title, cells, is_number=True, optional=optional))
    return [
        column._replace(cells=[encodable(cell, encoding) for cell in column.cells])
        for column in columns
    ]


# --- columns that only some reports need --------------------------------------------------------


def _figure(key: str, digits: int = 3, *, zero: bool = True) -> _Cell:
    """Return a function for the cells of a figure; without ``zero``, those of 0 are empty."""

    def cell(stage: dict[str, Any]) -> str:
        value = number(stage.get(key))
        return "" if value is None or not (value or zero) else f"{value:,.{digits}f}"

    return cell


def _on_device(stage: dict[str, Any]) -> str:
    """Return the device time, with the number of runs if it does not cover all of them."""
    elapsed, runs = number(stage.get("device_elapsed_ms")), number(stage.get("device_runs"))
    if elapsed is None:
        return ""
    is_part = runs is not None and runs != number(stage.get("count"))
    return f"{elapsed:,.3f}" + (f" ({runs:,.0f} runs)" if is_part else "")


def _peak(stage: dict[str, Any]) -> str:
    memory = stage.get("memory")
    if not isinstance(memory, dict):
        return ""
    for key in ("peak_allocated_mb", "peak_rss_mb"):
        value = number(memory.get(key))
        if value is not None:
            return f"{value:,.1f}"
    return ""


def _rates(stage: dict[str, Any]) -> str:
    rates = stage.get("work_per_s")
    if not isinstance(rates, dict):
        return ""
    numbers = ((what, number(rate)) for what, rate in rates.items())
    return ", ".join(
        f"{rate:,.0f} {one_line(what)}/s" if rate >= 1000 else f"{rate:.4g} {one_line(what)}/s"
        for what, rate in numbers
        if rate is not None
    )


_COLUMNS: list[tuple[str, _Cell]] = [
    ("mean ms", _figure("mean_ms")),
    ("p50 ms", _figure("p50_ms")),
    ("p95 ms", _figure("p95_ms")),
    ("p99 ms", _figure("p99_ms")),
    ("max ms", _figure("max_ms")),
    ("suspended ms", _figure("suspended_ms", zero=False)),
    ("device ms", _on_device),
    ("queue ms", _figure("device_queue_ms")),
    ("tail ms", _figure("device_tail_ms")),
    ("peak MB", _peak),
    ("work", _rates),
    ("errors", _figure("errors", 0, zero=False)),
]

_LEAST_IMPORTANT = [
    *("max ms", "tail ms", "queue ms", "suspended ms", "mean ms", "p99 ms", "peak MB", "work"),
    *("p50 ms", "p95 ms"),
]
