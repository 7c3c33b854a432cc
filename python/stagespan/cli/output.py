"""Writing the output of a command to a file or to standard output."""

from __future__ import annotations

import gzip
import sys
from typing import Any

import click

from stagespan.errors import StagespanError
from stagespan.process.files import json_bytes, write_whole


def write_to(file: str, text: str | bytes) -> None:
    """Write text or bytes to a file, completely or not at all; ``-`` is standard output.

    The file is compressed if its name ends with ``.gz``.

    Raises StagespanError if the file cannot be written, or if bytes would go to a terminal.
    """
    if file == "-" and isinstance(text, bytes) and sys.stdout.isatty():
        raise StagespanError("A binary format cannot be shown on a terminal: pass a file with -o.")

    if file == "-":
        click.echo(text, nl=False)
        return
    if file.endswith(".gz"):
        text = gzip.compress(text if isinstance(text, bytes) else text.encode(), mtime=0)
    try:
        write_whole(file, text)
    except OSError as error:
        raise StagespanError(
            f"{file} cannot be written ({error.strerror or error}): choose another file."
        ) from error


def print_json(page: dict[str, Any]) -> None:
    """Print a page as JSON, with indentation."""
    click.echo(json_bytes(page, indent=2).decode())
