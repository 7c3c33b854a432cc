"""``stagespan dump``: writes the spans of recordings for Perfetto, as CSV, JSON or Parquet."""

from __future__ import annotations

import click

from stagespan.cli.output import write_to
from stagespan.recording import dump, finding, jobs


@click.command()
@click.argument("recording", metavar="[FILE|PID]", required=False)
@click.option("--job", metavar="JOB", help="Write the spans of all processes of a job, together.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["perfetto", "csv", "json", "parquet"]),
    default="perfetto",
    show_default=True,
    help="Format of the output.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    default="-",
    help="Write to this file instead of standard output, compressed if its name ends with .gz.",
)
def command(recording: str | None, job: str | None, format_: str, output: str) -> None:
    """Write the spans of a recording for other tools.

    A trace for https://ui.perfetto.dev has a track for each thread and each queue, and arrows along
    each request, also from process to process. Parquet needs pyarrow.
    """
    if (recording is None) == (job is None):
        raise click.UsageError("Pass a file or process id of a recording, or --job JOB.")
    if job is not None and format_ != "perfetto":
        raise click.UsageError("--job writes a trace for Perfetto: leave out --format.")

    if job is not None:
        write_to(output, dump.as_perfetto(*jobs.processes(job, spans=True)))
    else:
        write_to(output, dump.FORMATS[format_](finding.open_recording(str(recording))))
