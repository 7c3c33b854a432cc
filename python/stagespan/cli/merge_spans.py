"""``stagespan merge-spans``: adds the spans of a recording to a trace."""

from __future__ import annotations

import gzip
from pathlib import Path

import click

from stagespan.errors import StagespanError
from stagespan.pages.amounts import counted
from stagespan.process.files import write_whole
from stagespan.recording.into_trace import merge_spans


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
    """Add the spans of a recording to TRACE, a trace of torch.profiler.

    They appear as a separate process, with a track for each thread.
    """
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
