"""``stagespan report``: prints a timing report, or compares two."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("timing", metavar="TIMING.JSON|FOLDER", type=click.Path(path_type=Path))
@click.option(
    "--against",
    metavar="OTHER.JSON|FOLDER",
    type=click.Path(path_type=Path),
    help="Compare with an earlier report; prints Markdown.",
)
def command(timing: Path, against: Path | None) -> None:
    """Show a timing report as a table, or what changed since another one.

    You can pass a folder if it contains only one timing report.
    """
    if against is not None:
        from stagespan.report.compare import compare_timing_reports

        click.echo(compare_timing_reports(against, timing), nl=False)
        return
    from stagespan.report.reader import read_timing_report
    from stagespan.report.tables import print_report

    print_report(read_timing_report(timing))
