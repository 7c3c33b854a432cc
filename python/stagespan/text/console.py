"""The width of pages and tables, and output that does not go to a terminal."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_LEAST_COLUMN = 8
_READABLE_COLUMN = 16
"""A column that can be cut is cut to less than this only if no other column can be left out."""


def columns() -> int | None:
    """Return the width in ``COLUMNS``, or None."""
    text = os.environ.get("COLUMNS", "").strip()
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text) < 10_000 else None


def limit() -> int | None:
    """Return the width of the terminal, or ``COLUMNS``; None if the output has no width."""
    if (width := columns()) is not None:
        return width
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def wrapped(text: str, indent: str = "") -> str:
    """Return text in lines that fit into `limit`, the second and later ones after ``indent``."""
    width = limit()
    if width is None or len(text) <= width:
        return text
    return textwrap.fill(
        text,
        max(width, len(indent) + 20),
        subsequent_indent=indent,
        break_on_hyphens=False,
    )


def set_width(console: Console, width: int) -> None:
    """Make a console that is not a terminal ``width`` columns wide, or as wide as ``COLUMNS``."""
    if not console.is_terminal:
        console.width = columns() or width


@contextlib.contextmanager
def trimmed(console: Console) -> Iterator[None]:
    """Remove the blanks that tables put at the ends of lines, except on a terminal."""
    if console.is_terminal or console.is_jupyter:
        yield
        return
    with console.capture() as captured:
        yield
    text = "".join(f"{line.rstrip(' ')}\n" for line in captured.get().splitlines())
    console.file.write(text)
    console.file.flush()


class Column(NamedTuple):
    """One column of a table."""

    title: str
    cells: list[str]
    is_flexible: bool = False
    """Whether its cells are cut if the table is still too wide."""
    is_number: bool = False
    """Whether its cells are aligned to the right."""
    is_optional: bool = False
    """Whether it is left out if the table is too wide."""


def fitted_table(columns: Sequence[Column], width: int) -> Table:
    """Return a table that is at most ``width`` wide, if cutting cells and columns is enough."""
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    def width_of(column: Column) -> int:
        return max(map(cell_len, (column.title, *column.cells)))

    def least_width() -> int:
        return sum(
            3
            + (min(width_of(column), _READABLE_COLUMN) if column.is_flexible else width_of(column))
            for column in columns
        )

    while least_width() > width and any(column.is_optional for column in columns):
        last = max(i for i, column in enumerate(columns) if column.is_optional)
        columns = [column for i, column in enumerate(columns) if i != last]
    widths = [width_of(column) for column in columns]
    flexible = [i for i, column in enumerate(columns) if column.is_flexible]
    # Between two columns are three blanks.
    while sum(widths) + 3 * len(widths) > width and flexible:
        widest = max(flexible, key=widths.__getitem__)
        if widths[widest] <= _LEAST_COLUMN:
            break
        widths[widest] -= 1
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column, column_width in zip(columns, widths, strict=True):
        head = Text(column.title)
        head.truncate(column_width, overflow="ellipsis")
        table.add_column(
            head,
            no_wrap=True,
            overflow="ellipsis",
            width=column_width,
            justify="right" if column.is_number else "left",
        )
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(Text, row))
    return table
