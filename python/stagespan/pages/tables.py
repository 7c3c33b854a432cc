"""Tables of text, and in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from stagespan.pages.escaping import escaped

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

    fitted = [_Fitted(column, [title := column.title], size(column, [title])) for column in filled]
    if width is None:
        return fitted

    def least_width(most_name: int) -> int:
        first = next((col for col in fitted if col.column.is_flexible), None)
        return sum(
            gap + min(col.width, most_name if col is first else _READABLE_COLUMN)
            if col.column.is_flexible
            else gap + col.width
            for col in fitted
        )

    most_name = max(width // 2, _READABLE_COLUMN)
    if least_width(most_name) > width:
        fitted = [_with_folded_title(col, length) for col in fitted]
    while least_width(most_name) > width:
        at = max(range(len(fitted)), key=lambda i: (fitted[i].column.optional, i))
        if not fitted[at].column.optional:
            break
        del fitted[at]
    while least_width(_READABLE_COLUMN) > width:
        numbers = [i for i, col in enumerate(fitted) if col.column.is_number]
        if len(numbers) < 2:
            break
        del fitted[numbers[-1]]
    # The widest columns are cut first.
    while sum(col.width + gap for col in fitted) > width:
        flexible = [i for i, col in enumerate(fitted) if col.column.is_flexible]
        at = max(flexible, key=lambda i: fitted[i].width, default=-1)
        if at < 0 or fitted[at].width <= _LEAST_COLUMN:
            break
        fitted[at] = fitted[at]._replace(width=fitted[at].width - 1)
    return fitted


def _with_folded_title(col: _Fitted, length: Callable[[str], int]) -> _Fitted:
    """Return a column; if it has numbers, its title has the lines that make it narrowest."""
    if not col.column.is_number:
        return col
    widest = max(map(length, col.column.cells), default=0)
    lines: list[str] = []
    for word in col.column.title.split():
        if lines and length(f"{lines[-1]} {word}") <= widest:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return col._replace(title=lines, width=max(widest, *map(length, lines or [""])))


def plain_table(
    columns: Sequence[Column], width: int | None = None, *, is_ruled: bool = False
) -> str:
    """Return a table as lines of text, at most ``width`` wide if leaving out and cutting helps.

    With ``is_ruled``, a line stands below the titles, columns are further apart, and characters
    that a terminal shows twice as wide are counted so.
    """
    gap, margin = (3, " ") if is_ruled else (2, "")
    length: Callable[[str], int] = len
    if is_ruled:
        from rich.cells import cell_len as length
    fitted = _fitted(columns, width, gap, length)

    def cell(text: str, col: _Fitted) -> str:
        if length(text) > col.width:
            while length(text) >= col.width:
                text = text[:-1]
            text += "…"
        blanks = " " * (col.width - length(text))
        return blanks + text if col.column.is_number else text + blanks

    def line(texts: Sequence[str]) -> str:
        return margin + (" " * gap).join(map(cell, texts, fitted)).rstrip()

    lines = max((len(col.title) for col in fitted), default=0)
    titles = zip(*([""] * (lines - len(col.title)) + col.title for col in fitted), strict=True)
    rows = zip(*(col.column.cells for col in fitted), strict=True)
    rule = margin + "─" * (sum(col.width + gap for col in fitted) - gap)
    return "\n".join([*map(line, titles), *([rule] if is_ruled else []), *map(line, rows)])


def markdown_table(columns: Sequence[Column]) -> list[str]:
    """Return the lines of a table in Markdown. Its cells are escaped here."""
    rows = (
        [column.title for column in columns],
        ["---:" if column.is_number else "---" for column in columns],
        *zip(*([escaped(cell) for cell in column.cells] for column in columns), strict=True),
    )
    return [f"| {' | '.join(row)} |" for row in rows]
