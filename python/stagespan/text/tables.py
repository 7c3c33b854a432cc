"""Tables of text: for a terminal, as plain text, and in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from stagespan.text.escaping import escaped

if TYPE_CHECKING:
    from rich.table import Table

_LEAST_COLUMN = 8
_READABLE_COLUMN = 16
"""A column that can be cut is cut to less than this only if no other column can be left out."""


class Column(NamedTuple):
    """One column of a table."""

    title: str
    cells: Sequence[str]
    is_flexible: bool = False
    """Whether its cells are cut if the table is still too wide."""
    is_number: bool = False
    """Whether its cells are aligned to the right."""
    optional: int = 0
    """If above 0, it is left out of a table that is too wide; the largest number first."""
    is_folded: bool = False
    """Whether cells that are too long continue on the next line instead of being cut."""
    styles: Sequence[str] = ()
    """The style of each cell on a terminal, as rich calls it."""


def _fitted(
    columns: Sequence[Column], width: int | None, gap: int, length: Callable[[str], int]
) -> list[tuple[Column, int]]:
    """Return the columns that fit into ``width``, if leaving out and cutting is enough.

    Each comes with its width. ``gap`` is the number of blanks after each column.
    """
    found = [(column, max(map(length, (column.title, *column.cells)))) for column in columns]
    if width is None:
        return found

    def least_width() -> int:
        return sum(
            gap + (min(size, _READABLE_COLUMN) if column.is_flexible else size)
            for column, size in found
        )

    while least_width() > width:
        at = max(range(len(found)), key=lambda i: (found[i][0].optional, i))
        if not found[at][0].optional:
            break
        del found[at]
    # The widest columns are cut first.
    while sum(size + gap for _, size in found) > width:
        flexible = [i for i, (column, _) in enumerate(found) if column.is_flexible]
        at = max(flexible, key=lambda i: found[i][1], default=-1)
        if at < 0 or found[at][1] <= _LEAST_COLUMN:
            break
        found[at] = found[at][0], found[at][1] - 1
    return found


def fitted_table(columns: Sequence[Column], width: int | None) -> Table:
    """Return a table for rich, at most ``width`` wide if leaving out and cutting is enough."""
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    fitted = _fitted(columns, width, 3, cell_len)
    for column, column_width in fitted:
        head = Text(column.title)
        head.truncate(column_width, overflow="ellipsis")
        table.add_column(
            head,
            no_wrap=not column.is_folded,
            overflow="fold" if column.is_folded else "ellipsis",
            width=column_width,
            justify="right" if column.is_number else "left",
        )
    cells = (
        map(Text, column.cells, column.styles or [""] * len(column.cells)) for column, _ in fitted
    )
    for row in zip(*cells, strict=True):
        table.add_row(*row)
    return table


def print_table(columns: Sequence[Column]) -> None:
    """Print a table on standard output, at most as wide as the terminal or ``COLUMNS``."""
    from rich.console import Console

    from stagespan.text.console import set_width, trimmed

    console = Console()
    set_width(console, 10_000)  # a pipe has no width, so print one line per row
    with trimmed(console):
        console.print(fitted_table(columns, console.width), highlight=False)


def plain_table(columns: Sequence[Column], width: int | None = None) -> str:
    """Return a table as lines of text, at most ``width`` wide if leaving out and cutting helps."""
    fitted = _fitted(columns, width, 2, len)

    def line(texts: Sequence[str]) -> str:
        return "  ".join(
            cut.rjust(size) if column.is_number else cut.ljust(size)
            for text, (column, size) in zip(texts, fitted, strict=True)
            for cut in [text if len(text) <= size else f"{text[: size - 1]}…"]
        ).rstrip()

    rows = zip(*(column.cells for column, _ in fitted), strict=True)
    return "\n".join(map(line, ([column.title for column, _ in fitted], *rows)))


def markdown_table(columns: Sequence[Column]) -> list[str]:
    """Return the lines of a table in Markdown. Its cells are escaped here."""
    rows = (
        [column.title for column in columns],
        ["---:" if column.is_number else "---" for column in columns],
        *zip(*([escaped(cell) for cell in column.cells] for column in columns), strict=True),
    )
    return [f"| {' | '.join(row)} |" for row in rows]
