"""The width of pages, and output that does not go to a terminal."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


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


def encodable(text: str, encoding: str) -> str:
    """Return ``text`` with characters that the encoding has, so that printing does not fail."""
    try:
        text.encode(encoding)
        return text
    except UnicodeEncodeError:
        return text.translate(_PLAIN_GUIDES).encode(encoding, "replace").decode(encoding)


_PLAIN_GUIDES = str.maketrans("├└│─", "|`|-")
