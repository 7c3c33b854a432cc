"""``stagespan dump``: writes the spans of recordings for Perfetto, as CSV, JSON or Parquet."""

from __future__ import annotations

from pathlib import Path

import click

from stagespan.cli.output import write_to
from stagespan.errors import StagespanError


@click.command()
@click.argument("recording", metavar="[FILE|PID]", required=False)
@click.option("--job", metavar="JOB", help="Write the spans of all processes of a job, together.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["perfetto", "csv", "json", "parquet"]),
    help="Format of the output. [default: perfetto]",
)
@click.option(
    "--into",
    metavar="TRACE",
    type=click.Path(path_type=Path),
    help="Write this trace of torch.profiler with the spans as a separate process. Without FILE or "
    "PID, they are those of the process that wrote the trace.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write to this file, compressed if its name ends with .gz. [default: standard output; "
    "with --into, the trace's name with _spans]",
)
def command(
    recording: str | None,
    job: str | None,
    format_: str | None,
    into: Path | None,
    output: str | None,
) -> None:
    """Write the spans of a recording for other tools.

    A trace for https://ui.perfetto.dev has a track for each thread and each queue, and arrows along
    each request, also from process to process. Parquet needs pyarrow.

    \b
    Examples:
      stagespan dump 4711 -o spans.json.gz
      stagespan dump --into trace.json.gz
    """
    if into is not None:
        if job is not None or format_ is not None:
            raise click.UsageError("--into writes the trace again: leave out --job and --format.")
        add_to(into, recording, None if output is None else Path(output))
        return
    if (recording is None) == (job is None):
        raise click.UsageError("Pass a file or process id of a recording, or --job JOB.")
    format_ = format_ or "perfetto"
    if job is not None and format_ != "perfetto":
        raise click.UsageError("--job writes a trace for Perfetto: leave out --format.")
    from stagespan.recording import dump, finding, jobs

    target = output or "-"
    if job is not None:
        recordings = jobs.processes(job, spans=True)
    else:
        recordings = [finding.open_recording(str(recording))]
    write_to(target, dump.FORMATS[format_](*recordings))


def add_to(trace: Path, recording: str | None, output: Path | None) -> None:
    """Write a trace with the spans of a recording, and say where.

    Raises StagespanError or TraceError if the trace or the spans cannot be read, or the file cannot
    be written.
    """
    import gzip

    from stagespan.pages.amounts import counted
    from stagespan.process.files import write_whole
    from stagespan.recording.into_trace import merge_spans

    merged = merge_spans(trace, recording)
    stem = trace.name.removesuffix(".gz").removesuffix(".json")
    path = output or trace.with_name(f"{stem}_spans.json.gz")
    is_packed = path.suffix == ".gz"
    try:
        write_whole(path, merged.trace if is_packed else gzip.decompress(merged.trace))
    except OSError as error:
        raise StagespanError(
            f"{path} cannot be written ({error.strerror or error}): choose another file with -o."
        ) from error
    click.echo(f"Added {counted(merged.spans, 'span')} of process {merged.pid}: {path}")
