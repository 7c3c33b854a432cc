"""``stagespan merge-spans``: the former name of `dump --into`."""

from __future__ import annotations

from pathlib import Path

import click

from stagespan.cli.dump import add_to


@click.command("merge-spans")
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "--recording",
    metavar="FILE|PID",
    help="Recording with the spans. [default: the recording of the process that wrote the trace]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write to this file. [default: the trace's name with _spans]",
)
def command(trace: Path, recording: str | None, output: Path | None) -> None:
    """Add the spans of a recording to TRACE: `stagespan dump --into TRACE`."""
    add_to(trace, recording, output)
