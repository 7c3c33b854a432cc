"""Prints one table of all figures, at most 100 columns wide."""

from __future__ import annotations

import importlib.metadata
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks import cases, rows

_NARROWEST = 100
_VERDICTS = {"": "", "within": "[green]within[/]", "OVER": "[bold red]OVER[/]"}


def _figure(value: float) -> str:
    return (
        f"{value:,.2f}" if abs(value) < 2 else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"
    )


def _special(measured: dict[str, Any]) -> list[tuple[str, ...]]:
    """Rows whose figures are not nanoseconds per statement."""
    processes, startup = measured["processes"], measured["startup"]
    grown = max(process["growth_bytes"] / process["growth_spans"] for process in processes)
    heavy = ", ".join(startup["imported_too"])
    imported = startup["import_ms"]
    return [
        (
            "memory, a span",
            f"{grown:.3f} B",
            "",
            f"in {processes[0]['growth_spans']:,}",
            "",
            "0 B",
            # The interpreter itself takes a page or two, which does not count as growth.
            "within" if grown < 0.05 else "OVER",
        ),
        (
            "import stagespan",
            f"{imported:.1f} ms",
            f"{startup['import_spread_ms']:.1f}",
            heavy or "without torch",
            "",
            "50 ms",
            "within" if imported < 50 and "torch" not in heavy else "OVER",
        ),
    ]


def _reading(measured: dict[str, Any]) -> list[tuple[str, ...]]:
    process = measured["processes"][0]
    return [
        (f"stats() of {process['stages']} stages", f"{process['stats_ms']:.2f} ms", *[""] * 5),
        (f"spans(), {process['spans_read']:,} of them", f"{process['spans_ms']:.2f} ms", *[""] * 5),
    ]


def show(figures: dict[str, Any]) -> bool:
    """Print the table, and return whether every budget is met."""
    console = Console()
    if console.width < _NARROWEST or not console.is_terminal:
        console = Console(width=_NARROWEST)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), width=_NARROWEST)
    table.add_column("ns, median of the processes", no_wrap=True, ratio=1)
    for title in ("cost", "+-"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("reference", no_wrap=True)
    table.add_column("ratio", justify="right", no_wrap=True)
    table.add_column("budget", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    runs = rows.medians(figures["processes"])
    verdicts = []
    for title, lines in rows.SECTIONS:
        table.add_row(f"[bold]{title}[/]")
        made = [rows.row_of(line, runs) for line in lines]
        cells = [
            (
                row.what,
                _figure(row.ns),
                _figure(row.spread_ns),
                row.reference,
                "" if row.ratio is None else f"{row.ratio:.2f}",
                row.budget,
                row.verdict,
            )
            for row in made
            if row is not None
        ]
        if title == "Budgets":
            cells += _special(figures)
        elif title == "The rest of stagespan":
            cells += _reading(figures)
        for cell in cells:
            verdicts.append(cell[-1])
            shown = "" if figures["quick"] else _VERDICTS[cell[-1]]
            table.add_row(*cell[:-1], shown)
        table.add_section()
    console.print(table)
    _foot(console, figures)
    return "OVER" not in verdicts


def _foot(console: Console, figures: dict[str, Any]) -> None:
    for name, module in figures["processes"][0]["skipped"].items():
        package = cases.PACKAGES.get(module, module)
        console.print(f"Skipped: {name}; pip install {package}", highlight=False)
    if figures["cpp_skipped"]:
        console.print(f"Skipped: C++ spans; {figures['cpp_skipped']}", highlight=False)
    if figures["quick"]:
        console.print("Quick: every case ran, but too short for its figures to mean anything.")
    machine = figures["machine"]
    console.print(
        f"{figures['spans']:,} spans were timed, and the statistics have every one of them. "
        f"Medians of {len(figures['processes'])} processes, each the median of {figures['turns']} "
        f"turns; +- is half the range over the processes.\n"
        f"Python {machine['python']}, {machine['build']}; {machine['cpu']}, {machine['cores']} "
        f"cores, load {machine['load']:.1f}, clock {machine['clock']}.",
        highlight=False,
    )


def versions() -> dict[str, str | None]:
    """Return the versions of the measured packages."""
    result: dict[str, str | None] = {}
    needed = {case.needs for case in cases.CASES if case.needs}
    for module in ("stagespan", *sorted(needed)):
        try:
            result[module] = importlib.metadata.version(cases.PACKAGES.get(module, module))
        except importlib.metadata.PackageNotFoundError:
            result[module] = None
    return result
