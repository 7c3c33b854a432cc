"""What sampling found, on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stagespan.pages.console import columns, encodable, trimmed
from stagespan.pages.escaping import one_line
from stagespan.pages.result import Table
from stagespan.pages.tables import Column, fitted_table
from stagespan.process.imports import importing
from stagespan.sampling.result import Sampled

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH = 100


def print_sampled(sampled: Sampled, command: str, console: Console) -> None:
    """Print the tables of all roles, and the command that times the suggested stages."""
    with importing():
        from rich.text import Text

    def show(text: str, style: str = "") -> None:
        console.print(Text(encodable(text, console.encoding), style), soft_wrap=True)

    if not console.is_terminal:
        console.width = columns() or _WIDTH
    with trimmed(console):
        show(f"Where the time went: {sampled.line()}", "bold")
        for table in sampled.tables():
            cells = _columns(table, console.encoding)
            console.print(fitted_table(cells, console.width), highlight=False)
            if table.note:
                show(f"{table.note}\n")
        if sampled.suggested_stages:
            show("To time these functions as stages:\n")
            show(command)


def _columns(table: Table, encoding: str) -> list[Column]:
    function, share, time, mostly = zip(*table.rows, strict=True)

    def texts(cells: Sequence[Any]) -> list[str]:
        return [encodable(one_line(str(cell)), encoding) for cell in cells]

    return [
        Column(one_line(table.title), texts(function), is_flexible=True),
        Column("share", [f"{cell:.1f} %" for cell in share], is_number=True),
        Column("time", [f"{cell / 1e9:,.2f} s" for cell in time], is_number=True),
        Column("mostly", texts(mostly), optional=1),
    ]
