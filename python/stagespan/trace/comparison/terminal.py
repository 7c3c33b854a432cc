"""A comparison on one screen: the change, the parts that sum to it, and the findings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stagespan.trace.analysis import Analysis
from stagespan.trace.analysis.names import kernel_label, labels
from stagespan.trace.analysis.result import Nothing, shortened, time_unit
from stagespan.trace.analysis.terminal import (
    print_analysis,
    print_block,
    print_page,
    screen,
    text_block,
)
from stagespan.trace.comparison.against import Against, Change, percent_of
from stagespan.trace.comparison.words import headline

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_PARTS, _KERNELS = 8, 5
# Letters that the columns behind the name take.
_FIGURES = 47
_LEAST_NAME = 20


def print_comparison(analysis: Analysis, console: Console | None = None) -> None:
    """Print the page on `console`, by default standard output; as much of it as fits a screen.

    Of traces that cannot be compared, why, and the page of the second; without a comparison that
    page alone.
    """
    console = screen(console)
    found = analysis.results.get("against")
    if not isinstance(found, Against):
        if isinstance(found, Nothing):
            print_block(text_block(found.reason, "bold yellow"), console)
        print_analysis(analysis, console)
        return
    names = _names(found.before.path, found.after.path)
    blocks: list[RenderableType] = [
        text_block(f"{names[1]} against {names[0]}", "bold"),
        text_block(headline(found), "bold"),
        *(text_block(remark, "yellow") for remark in found.remarks),
        _parts(found, console.width - _FIGURES),
    ]
    kernels = [each for each in found.kernels() or found.operators() if each.change_ns]
    if kernels:
        most = console.width - _FIGURES
        blocks += [text_block(""), _kernels(found, kernels[:_KERNELS], most)]
    print_page([*blocks, text_block("")], found.findings(), [], console)


def _names(*paths: str) -> list[str]:
    """The files' names, with as many folders as it takes to tell them apart."""
    parts = [Path(path).parts for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-count:]) for each in parts]
        if len(set(names)) == len(names):
            break
    return [shortened(name, 60) for name in names]


def _parts(found: Against, most: int) -> RenderableType:
    """A line a part; its name has at most so many letters, however narrow the screen."""
    parts = [part for part in found.parts() if part.change_ns]
    rows = [(part.name, part) for part in parts[:_PARTS]]
    rest = parts[_PARTS:]
    if rest:
        time = sum(p.before_ns for p in rest), sum(p.after_ns for p in rest)
        rows.append((f"{len(rest)} more", Change("", *time)))
    same = [part for part in found.parts() if not part.change_ns]
    if same:
        time = sum(p.before_ns for p in same), sum(p.after_ns for p in same)
        rows.append(("unchanged", Change("", *time)))
    rows.append(("all", Change("", found.before_ns, found.after_ns)))
    return _table("per step" if found.unit == "step" else "", rows, found, most, True)


def _kernels(found: Against, kernels: list[Change], most: int) -> RenderableType:
    named = [
        (f"{kernel_label(each.name)} (was {kernel_label(each.old_name)})", each)
        if each.old_name
        else (each.name, each)
        for each in kernels
    ]
    return _table("kernel" if found.on_device else "operator", named, found, most)


def _table(
    head: str, rows: list[tuple[str, Change]], found: Against, most: int, sums: bool = False
) -> RenderableType:
    """Rows with the time before and after, in one unit; the last in bold where it sums them up."""
    from rich.table import Table
    from rich.text import Text

    room = max(most, _LEAST_NAME)
    names = {name: shortened(name, room) for name, _ in rows}
    names = names if sums else labels(names, room)
    times = [time for _, row in rows for time in (row.before_ns, row.after_ns)]
    size, unit = time_unit([max(times, default=0)])
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(head)
    for name in ("before", "after", "change"):
        table.add_column(f"{name} ({unit})", justify="right", no_wrap=True)
    for at, (name, row) in enumerate(rows):
        change = row.change_ns
        colour = "" if not change else "red" if change > 0 else "green"
        percent = percent_of(change, row.before_ns, found.before_ns)
        table.add_row(
            text_block(names[name], "bold" if sums and at == len(rows) - 1 else ""),
            f"{row.before_ns / size:,.3f}",
            f"{row.after_ns / size:,.3f}",
            Text(f"{change / size:{'+' if change else ''},.3f}{percent}", colour),
        )
    return table
