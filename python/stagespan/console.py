"""The width of pages that are not printed on a terminal, without trailing blanks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def columns() -> int | None:
    """Return the width in ``COLUMNS``, or None."""
    text = os.environ.get("COLUMNS", "").strip()
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text) < 10_000 else None


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
