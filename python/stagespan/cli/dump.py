"""``stagespan dump``: writes the spans of a recording for Perfetto, as CSV, JSON or Parquet."""

from __future__ import annotations

import click


@click.command()
@click.argument("recording", metavar="FILE|PID")
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
def command(recording: str, format_: str, output: str) -> None:
    """Write the spans of a recording for other tools.

    A trace for https://ui.perfetto.dev has a track for each thread and arrows along each request.
    Parquet needs pyarrow.
    """
    import gzip

    from stagespan.cli.output import write_to
    from stagespan.recording import dump, reading

    content = dump.FORMATS[format_](reading.open_recording(recording))
    if output.endswith(".gz"):
        content = gzip.compress(content if isinstance(content, bytes) else content.encode())
    write_to(output, content)
