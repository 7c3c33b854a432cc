"""A comparison on one screen: the change, the parts that sum to it, and the findings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stagespan.trace.analysis import Analysis
from stagespan.trace.analysis.result import Nothing, in_words, share, shortened
from stagespan.trace.analysis.terminal import print_analysis, print_page, screen, text_block
from stagespan.trace.comparison.against import Against, Change, signed
from stagespan.trace.comparison.words import headline

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

_PARTS, _KERNELS = 8, 5
# Letters that the columns behind the name take.
_FIGURES = 47


def print_comparison(analysis: Analysis, console: Console | None = None) -> None:
    """Print the page on `console`, by default standard output; as much of it as fits a screen.

    Of traces that cannot be compared, why, and the page of the second; without a comparison that
    page alone.
    """
    console = screen(console)
    found = analysis.results.get("against")
    if not isinstance(found, Against):
        if isinstance(found, Nothing):
            console.print(text_block(found.reason, "bold yellow"))
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
        blocks += [text_block(""), _kernels(found, kernels[:_KERNELS])]
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
    table = _table("per step" if found.unit == "step" else "", "before", "after", "change")
    parts = [part for part in found.parts() if part.change_ns]
    for part in parts[:_PARTS]:
        _row(table, shortened(part.name, max(most, 20)), part)
    rest = parts[_PARTS:]
    if rest:
        _row(
            table,
            f"{len(rest)} more",
            Change("", sum(p.before_ns for p in rest), sum(p.after_ns for p in rest)),
        )
    same = [part for part in found.parts() if not part.change_ns]
    if same:
        time = sum(p.before_ns for p in same)
        _row(table, "unchanged", Change("", time, time))
    _row(table, "all", Change("", found.before_ns, found.after_ns), "bold")
    return table


def _kernels(found: Against, kernels: list[Change]) -> RenderableType:
    table = _table("kernel" if found.on_device else "operator", "before", "after", "change")
    for kernel in kernels:
        name = shortened(kernel.name, 46)
        if kernel.old_name:
            name += f" (was {shortened(kernel.old_name, 30)})"
        _row(table, name, kernel)
    return table


def _table(*heads: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for at, head in enumerate(heads):
        table.add_column(head, justify="right" if at else "left")
    return table


def _row(table: Table, name: str, change: Change, style: str = "") -> None:
    from rich.text import Text

    colour = "" if not change.change_ns else "red" if change.change_ns > 0 else "green"
    percent = f" ({share(change.change_ns, change.before_ns):+.0f} %)" if change.before_ns else ""
    table.add_row(
        text_block(name, style),
        in_words(change.before_ns, "ns"),
        in_words(change.after_ns, "ns"),
        Text(signed(change.change_ns) + percent, colour),
    )
