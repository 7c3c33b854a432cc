"""``stagespan report``: prints a timing report, compares two, or writes a recording as a page."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("timing", metavar="TIMING.JSON|FOLDER|RECORDING", type=click.Path(path_type=Path))
@click.option(
    "--against",
    metavar="OTHER.JSON|FOLDER",
    type=click.Path(path_type=Path),
    help="Compare with an earlier report; prints Markdown.",
)
@click.option(
    "--html",
    metavar="FILE",
    help="Write the recording of a process as one page of HTML.",
)
def command(timing: Path, against: Path | None, html: str | None) -> None:
    """Show a timing report as a table, or what changed since another one.

    You can pass a folder if it contains only one timing report. With --html, pass the file or
    the process id of a recording. `stagespan ps --all` lists them.
    """
    if html is not None:
        if against is not None:
            raise click.UsageError("--html and --against cannot be used together.")
        from stagespan.cli.output import write_to
        from stagespan.recording import html_page, reading

        write_to(html, html_page.page(reading.open_recording(timing)))
        return
    if against is not None:
        from stagespan.report.compare import compare_timing_reports

        click.echo(compare_timing_reports(against, timing), nl=False)
        return
    from stagespan.report.reader import read_timing_report
    from stagespan.report.tables import print_report

    print_report(read_timing_report(timing))
