"""``stagespan recover``: the former name of `show` for processes and jobs."""

from __future__ import annotations

from typing import Any

import click

from stagespan.cli.output import Output, PageCommand, output_options
from stagespan.cli.show import process_page, show_job


def _schema() -> dict[str, Any]:
    from stagespan.pages.figures import document_schema
    from stagespan.recording.ranks import JobFigures
    from stagespan.recording.summary import ProcessFigures

    return document_schema(ProcessFigures, JobFigures, title="A process, or those of a job")


@click.command(cls=PageCommand)
@click.argument("recording", metavar="[FILE|PID]", required=False)
@click.option("--job", metavar="JOB", help="Show the processes of a job side by side.")
@output_options(_schema)
def command(recording: str | None, job: str | None, output: Output) -> None:
    """Show what a process was doing when it died, or what it is doing now: `stagespan show`."""
    if recording is None and job is None:
        raise click.UsageError(
            "Pass the file or process id of a recording, or --job JOB: `stagespan ps --all` lists "
            "them."
        )
    if recording is not None and job is not None:
        raise click.UsageError("Pass a file or process id, or --job, but not both.")
    if job is not None:
        show_job(job, output)
    else:
        output.show(process_page(str(recording)))
