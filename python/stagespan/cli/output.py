"""Writing the output of a command to a file or to standard output."""

from __future__ import annotations

import click

from stagespan.errors import StagespanError


def write_to(file: str, text: str) -> None:
    """Write a text to a file, completely or not at all; ``-`` is standard output.

    Raises StagespanError if the file cannot be written.
    """
    from stagespan.files import write_whole

    if file == "-":
        click.echo(text, nl=False)
        return
    try:
        write_whole(file, text)
    except OSError as error:
        raise StagespanError(
            f"{file} cannot be written ({error.strerror or error}): choose another file."
        ) from error
