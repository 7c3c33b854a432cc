"""Tables of text: for a terminal, as plain text, and in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from stagespan.pages.escaping import escaped

if TYPE_CHECKING:
    from rich.table import Table

_LEAST_COLUMN = 8
_READABLE_COLUMN = 16
"""A column that can be cut is cut to less than this only if no number can be left out."""


class Column(NamedTuple):
    """One column of a table."""

    title: str
    cells: Sequence[str]
    is_flexible: bool = False
    """Whether its cells are cut if the table is still too wide. The first such column has the names
    of the rows."""
    is_number: bool = False
    """Whether its cells are aligned to the right."""
    optional: int = 0
    """If above 0, it is left out of a table that is too wide; the largest number first. Other
    numbers are left out after that, from the right, except for the first one."""
    is_folded: bool = False
    """Whether cells that are too long continue on the next line instead of being cut."""
    styles: Sequence[str] = ()
    """The style of each cell on a terminal, as rich calls it."""


class _Fitted(NamedTuple):
    """A column of a table that fits."""

    column: Column
    title: list[str]
    """The lines of its title."""
    width: int


def _fitted(
    columns: Sequence[Column], width: int | None, gap: int, length: Callable[[str], int]
) -> list[_Fitted]:
    """Return the columns that fit into ``width``, if leaving out and cutting is enough.

    Columns without a text are left out. Titles that are wider than their cells continue on the next
    line if that saves space. Then numbers are left out until the names of the rows take no more
    than half of the table, and then the columns that can be cut are. ``gap`` is the number of
    blanks after each column.
    """
    filled = [column for column in columns if any(column.cells) or not column.cells]

    def size(column: Column, title: Sequence[str]) -> int:
        return max(map(length, (*title, *column.cells)))

    fitted = [_Fitted(column, [one := column.title], size(column, [one])) for column in filled]
    if width is None:
        return fitted

    def least_width(most_name: int) -> int:
        first = next((one for one in fitted if one.column.is_flexible), None)
        return sum(
            gap + min(one.width, most_name if one is first else _READABLE_COLUMN)
            if one.column.is_flexible
            else gap + one.width
            for one in fitted
        )

    most_name = max(width // 2, _READABLE_COLUMN)
    if least_width(most_name) > width:
        fitted = [_with_folded_title(one, length) for one in fitted]
    while least_width(most_name) > width:
        at = max(range(len(fitted)), key=lambda i: (fitted[i].column.optional, i))
        if not fitted[at].column.optional:
            break
        del fitted[at]
    while least_width(_READABLE_COLUMN) > width:
        numbers = [i for i, one in enumerate(fitted) if one.column.is_number]
        if len(numbers) < 2:
            break
        del fitted[numbers[-1]]
    # The widest columns are cut first.
    while sum(one.width + gap for one in fitted) > width:
        flexible = [i for i, one in enumerate(fitted) if one.column.is_flexible]
        at = max(flexible, key=lambda i: fitted[i].width, default=-1)
        if at < 0 or fitted[at].width <= _LEAST_COLUMN:
            break
        fitted[at] = fitted[at]._replace(width=fitted[at].width - 1)
    return fitted


def _with_folded_title(one: _Fitted, length: Callable[[str], int]) -> _Fitted:
    """Return a column; if it has numbers, its title has the lines that make it narrowest."""
    if not one.column.is_number:
        return one
    widest = max(map(length, one.column.cells), default=0)
    lines: list[str] = []
    for word in one.column.title.split():
        if lines and length(f"{lines[-1]} {word}") <= widest:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return one._replace(title=lines, width=max(widest, *map(length, lines or [""])))


def fitted_table(columns: Sequence[Column], width: int | None) -> Table:
    """Return a table for rich, at most ``width`` wide if leaving out and cutting is enough."""
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    fitted = _fitted(columns, width, 3, cell_len)
    title_lines = max((len(title) for _, title, _ in fitted), default=1)
    for column, title, column_width in fitted:
        # The last lines of all titles stand beside each other, and the first lines of all cells.
        head = [Text(line) for line in [*[""] * (title_lines - len(title)), *title]]
        for line in head:
            line.truncate(column_width, overflow="ellipsis")
        table.add_column(
            Text("\n").join(head),
            no_wrap=not column.is_folded,
            overflow="fold" if column.is_folded else "ellipsis",
            width=column_width,
            justify="right" if column.is_number else "left",
        )
    cells = (
        map(Text, column.cells, column.styles or [""] * len(column.cells))
        for column, _, _ in fitted
    )
    for row in zip(*cells, strict=True):
        table.add_row(*row)
    return table


def plain_table(columns: Sequence[Column], width: int | None = None) -> str:
    """Return a table as lines of text, at most ``width`` wide if leaving out and cutting helps."""
    fitted = _fitted(columns, width, 2, len)

    def line(texts: Sequence[str]) -> str:
        return "  ".join(
            cut.rjust(one.width) if one.column.is_number else cut.ljust(one.width)
            for text, one in zip(texts, fitted, strict=True)
            for cut in [text if len(text) <= one.width else f"{text[: one.width - 1]}…"]
        ).rstrip()

    lines = max((len(one.title) for one in fitted), default=0)
    titles = ([""] * (lines - len(one.title)) + one.title for one in fitted)
    rows = zip(*(one.column.cells for one in fitted), strict=True)
    return "\n".join(map(line, (*zip(*titles, strict=True), *rows)))


def markdown_table(columns: Sequence[Column]) -> list[str]:
    """Return the lines of a table in Markdown. Its cells are escaped here."""
    rows = (
        [column.title for column in columns],
        ["---:" if column.is_number else "---" for column in columns],
        *zip(*([escaped(cell) for cell in column.cells] for column in columns), strict=True),
    )
    return [f"| {' | '.join(row)} |" for row in rows]
