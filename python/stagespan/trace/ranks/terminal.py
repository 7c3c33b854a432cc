"""Many ranks on one screen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stagespan.trace.analysis.result import in_cell, printable
from stagespan.trace.analysis.terminal import print_page, text_block
from stagespan.trace.ranks.report import Ranks
from stagespan.trace.ranks.words import headline, verdict

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from stagespan.trace.analysis.result import Table as Figures

_ROWS = 8


def print_ranks(found: Ranks, console: Console | None = None) -> None:
    """Print the page on `console`, by default standard output; as much of it as fits a screen."""
    blocks: list[RenderableType] = [
        text_block(f"{Path(found.folder).name}: {len(found.summaries)} ranks", "bold"),
        text_block(verdict(found)[1], "bold"),
        text_block(headline(found)),
        *(text_block(remark, "yellow") for remark in found.remarks),
    ]
    tables = found.tables()
    # Of the ranks without the length of trace, step, shares and the clocks; of collectives all.
    blocks.append(_table(tables[0], (0, 1, 4, 5, 6, 8, 12)))
    if len(tables) > 1:
        groups = (1,) if any(row[1] is not None for row in tables[1].rows) else ()
        blocks += [text_block(""), _table(tables[1], (0, *groups, 2, 3, 4, 7))]
    print_page([*blocks, text_block("")], found.findings(), [], console)


def _table(figures: Figures, columns: tuple[int, ...]) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for at in columns:
        table.add_column(figures.columns[at][0], justify="right" if at else "left")
    for row in figures.rows[:_ROWS]:
        table.add_row(*(printable(in_cell(row[at], figures.columns[at][1], 40)) for at in columns))
    return table
