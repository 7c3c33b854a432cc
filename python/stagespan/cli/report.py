"""``stagespan report``: shows times of stages."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from stagespan.cli.output import Output, PageCommand, output_options
from stagespan.pages.figures import document_schema
from stagespan.pages.result import Result
from stagespan.recording import Recording, finding
from stagespan.recording.process_page import ProcessPage, ProcessState
from stagespan.report.reader import read_timing_report, reports_in
from stagespan.report.side_by_side import ReportsFigures, StagesByRank, read_reports
from stagespan.report.stages import stage_entries, top_level_ns
from stagespan.report.tables import ReportFigures, Timing


def _schema() -> dict[str, Any]:
    from stagespan.report.changes_pages import ComparisonFigures

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
    help="Compare with an earlier report, as `stagespan compare OTHER.JSON TIMING.JSON` does. "
    "Exits with 1 if a stage is slower.",
)
@output_options(_schema)
@click.pass_context
def command(ctx: click.Context, timing: Path, against: Path | None, output: Output) -> None:
    """Show the times of stages as a table, or what changed since an earlier report.

    Reads a timing report, or the recording of a process. A folder with the reports of several ranks
    or workers is shown side by side. `stagespan ps --all` lists recordings.
    """
    if against is not None:
        # Comparing needs NumPy, which takes long to import.
        from stagespan.report.changes import compare_files
        from stagespan.report.changes_pages import ComparisonPage

        found = compare_files(against, timing)
        output.show(ComparisonPage(found))
        ctx.exit(1 if found.is_worse else 0)

    if _is_recording(timing):
        output.show(_RecordingPage(finding.open_recording(timing)))
    elif os.path.isdir(timing) and len(reports_in(timing)) > 1:
        output.show(StagesByRank(read_reports(reports_in(timing))).page(timing))
    else:
        output.show(Timing(read_timing_report(timing)).page())


def _is_recording(path: Path) -> bool:
    """Whether the argument is the file of a recording, or the id of a process."""
    name = str(path)
    if not os.path.exists(name):
        return name.isascii() and name.isdigit()
    return path.suffix == ".stagespan" or name.startswith("/proc/")


class _RecordingPage(ProcessPage):
    """The stages of a recording as a report, with what the process was doing."""

    words = ProcessPage.words._replace(page="Timing report", as_text="stagespan report FILE|PID")

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        self._report = Timing(_report_of(recording), [ProcessState(recording)])

    @property
    def results(self) -> dict[str, Result]:
        """The stages, with the tables about the process."""
        return {"timing_report": self._report}

    def to_dict(self) -> dict[str, object]:
        """Return the report."""
        return self._report.to_dict()


def _report_of(recording: Recording) -> dict[str, Any]:
    """Return the stages of a recording as a report."""
    figures = recording.snapshot().stages()
    until_ns = recording.read_ns if recording.state == "alive" else recording.end_ns
    until_ns = until_ns or recording.last_ns
    return {
        "schema_version": 1,
        "wall_clock_ms": None if until_ns is None else (until_ns - recording.begin_ns) / 1e6,
        "total_stages_ms": sum(top_level_ns(name, figures) for name in figures) / 1e6,
        "rank": recording.rank,
        "world_size": recording.world_size,
        "stages": stage_entries(figures, lambda name: None, {}),
        "lost": recording.lost(),
    }
