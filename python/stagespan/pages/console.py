"""The width of output, and what its encoding has."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, TextIO

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


def width_of(file: TextIO, otherwise: int) -> int:
    """Return the width in ``COLUMNS``, or of the terminal to which ``file`` writes."""
    if (width := columns()) is not None:
        return width
    try:
        return os.get_terminal_size(file.fileno()).columns or otherwise
    except (AttributeError, OSError, ValueError):  # it is closed, or an object of a program
        return otherwise


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


def encodable(text: str, encoding: str) -> str:
    """Return ``text`` with characters that the encoding has, so that printing does not fail."""
    try:
        text.encode(encoding)
        return text
    except UnicodeEncodeError:
        return text.translate(_PLAIN_GUIDES).encode(encoding, "replace").decode(encoding)


_PLAIN_GUIDES = str.maketrans("├└│─", "|`|-")
