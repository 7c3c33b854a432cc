"""What commands show while a process does what they have asked for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click

from stagespan.pages.escaping import one_line


class ProgressLine:
    """Shows on standard error what a process does: lines, and on a terminal also its progress."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *error: object) -> None:
        self.clear()

    def __call__(self, answer: Mapping[str, Any]) -> None:
        """Show what it does at the moment."""
        if self._is_terminal:
            doing = one_line(str(answer.get("doing", "")))
            click.echo(f"\r\033[K{doing[:1].upper()}{doing[1:]}", err=True, nl=False)

    def line(self, text: str) -> None:
        """Print a line that stays."""
        self.clear()
        click.echo(one_line(text), err=True)

    def clear(self) -> None:
        """Remove the line of the progress."""
        if self._is_terminal:
            click.echo("\r\033[K", err=True, nl=False)
