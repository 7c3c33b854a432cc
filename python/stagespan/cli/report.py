"""``stagespan report``: the former name of `show` for timing reports, and of `compare`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from stagespan.cli import say_former
from stagespan.cli.output import Output, PageCommand, output_options
from stagespan.cli.show import report_page, stages_page
from stagespan.process.files import RECORDING_SUFFIX


def _schema() -> dict[str, Any]:
    from stagespan.pages.figures import document_schema
    from stagespan.report.changes_pages import ComparisonFigures
    from stagespan.report.side_by_side import ReportsFigures
    from stagespan.report.tables import ReportFigures

    figures = ReportFigures, ReportsFigures, ComparisonFigures
    return document_schema(*figures, title="A timing report, several, or what has changed")


@click.command(cls=PageCommand)
@click.argument(
    "timing", metavar="TIMING.JSON|FOLDER|RECORDING|PID", type=click.Path(path_type=Path)
)
@click.option(
    "--against",
    metavar="OTHER.JSON|FOLDER",
    type=click.Path(path_type=Path),
    help="Compare with an earlier report: `stagespan compare OTHER.JSON TIMING.JSON`.",
)
@output_options(_schema)
@click.pass_context
def command(ctx: click.Context, timing: Path, against: Path | None, output: Output) -> None:
    """Show the times of stages as a table: `stagespan show`."""
    if against is not None:
        say_former("report AFTER --against BEFORE", "compare BEFORE AFTER")
        # Comparing needs NumPy, which takes long to import.
        from stagespan.report.changes import compare_files
        from stagespan.report.changes_pages import ComparisonPage

        found = compare_files(against, timing)
        output.show(ComparisonPage(found))
        ctx.exit(1 if found.is_worse else 0)
    output.show(stages_page(str(timing)) if _is_recording(timing) else report_page(timing))


def _is_recording(path: Path) -> bool:
    """Whether the argument is the file of a recording, or the id of a process."""
    name = str(path)
    if not os.path.exists(name):
        return name.isascii() and name.isdigit()
    return path.suffix == RECORDING_SUFFIX or name.startswith("/proc/")
