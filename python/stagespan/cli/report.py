"""``stagespan report``: shows times of stages, or writes a page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from stagespan.cli.output import write_to
from stagespan.errors import StagespanError
from stagespan.pages.console import wrapped
from stagespan.pages.escaping import one_line
from stagespan.pages.html import html_page
from stagespan.pages.terminal import print_page
from stagespan.recording import Recording, finding
from stagespan.recording.process_page import ProcessPage
from stagespan.recording.texts import ending
from stagespan.report.reader import read_timing_report, reports_in
from stagespan.report.side_by_side import print_reports
from stagespan.report.stages import stage_entries, top_level_ns
from stagespan.report.tables import print_report


@click.command()
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
@click.option(
    "--html",
    metavar="FILE",
    help="Write the recording of a process as one page of HTML.",
)
@click.pass_context
def command(ctx: click.Context, timing: Path, against: Path | None, html: str | None) -> None:
    """Show the times of stages as a table, or what changed since an earlier report.

    Reads a timing report, or the recording of a process. A folder with the reports of several ranks
    or workers is shown side by side. With --html, pass the file or the process id of a recording.
    `stagespan ps --all` lists them.
    """
    if html is not None:
        if against is not None:
            raise click.UsageError("--html and --against cannot be used together.")
        _write_page(timing, html)
        return
    if against is not None:
        # Comparing needs NumPy, which takes long to import.
        from stagespan.report import changes_pages
        from stagespan.report.changes import compare_files

        found = compare_files(against, timing)
        print_page(changes_pages.ComparisonPage(found))
        ctx.exit(1 if found.is_worse else 0)

    if _is_recording(timing):
        _print_recording(finding.open_recording(timing))
    elif os.path.isdir(timing) and len(reports_in(timing)) > 1:
        print_reports(timing)
    else:
        print_report(read_timing_report(timing))


def _is_recording(path: Path) -> bool:
    """Whether the argument is the file of a recording, or the id of a process."""
    name = str(path)
    if not os.path.exists(name):
        return name.isascii() and name.isdigit()
    return path.suffix == ".stagespan" or name.startswith("/proc/")


def _write_page(path: Path, html: str) -> None:
    if os.path.isdir(path) or path.suffix in (".json", ".gz"):
        raise StagespanError(
            f"--html writes the page of a recording, and {path} is a "
            f"{'folder' if os.path.isdir(path) else 'JSON file'}: pass the process id or the file "
            f"of a recording (`stagespan ps --all` lists them), or leave out --html."
        )
    write_to(html, html_page(ProcessPage(finding.open_recording(path))))


def _print_recording(recording: Recording) -> None:
    """Print the stages of a recording as a report."""
    click.echo(
        wrapped(f"Process {recording.pid} ({one_line(recording.name)}) {ending(recording)}.")
    )
    for warning in recording.warnings():
        click.echo(wrapped(f"  {warning}", "    "))
    figures = recording.snapshot().stages()
    until_ns = recording.read_ns if recording.state == "alive" else recording.end_ns
    until_ns = until_ns or recording.last_ns
    report: dict[str, Any] = {
        "wall_clock_ms": None if until_ns is None else (until_ns - recording.begin_ns) / 1e6,
        "total_stages_ms": sum(top_level_ns(name, figures) for name in figures) / 1e6,
        "rank": recording.rank,
        "world_size": recording.world_size,
        "stages": stage_entries(figures, lambda name: None, {}),
        "lost": recording.lost(),
    }
    print_report(report)
