"""``stagespan show``: shows what a file, a process or a job contains, told by its content."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stagespan.cli.contents import Kind, kind_of
from stagespan.cli.numbers import FiniteRange
from stagespan.cli.output import Output, PageCommand, either, output_options
from stagespan.errors import NotJsonError, StagespanError

if TYPE_CHECKING:
    from stagespan.pages.page import Page

_ELSEWHERE = {
    Kind.PROGRAM: "run it with `stagespan run {what}`.",
    Kind.REQUESTS: "`stagespan requests {what}` shows them.",
    Kind.BREAKDOWN: "`stagespan compare BEFORE AFTER` compares two of them.",
    Kind.BASELINE: "`stagespan compare BEFORE AFTER` compares two of them.",
}
_READS = (
    "`stagespan show` reads process ids, jobs, recordings, timing reports, signature files, bench"
    " results, figures of Nsight Compute, and traces."
)


def _schema() -> dict[str, Any]:
    from stagespan.harness.result_page import ReplayFigures
    from stagespan.pages.figures import document_schema
    from stagespan.recording.ranks import JobFigures
    from stagespan.recording.summary import ProcessFigures
    from stagespan.report.side_by_side import ReportsFigures
    from stagespan.report.tables import ReportFigures
    from stagespan.sampling.result import Sampled
    from stagespan.signature.page import SignaturesFigures
    from stagespan.trace.json_schema import json_schema
    from stagespan.trace.nsight import NcuReport

    of_processes = ProcessFigures, JobFigures, Sampled
    of_files = ReportFigures, ReportsFigures, SignaturesFigures, ReplayFigures, NcuReport
    title = "What a file, a process or a job contains"
    return either(document_schema(*of_processes, *of_files, title=title), json_schema())


@click.command(cls=PageCommand)
@click.argument("what", metavar="[FILE|FOLDER|PID|JOB]", required=False)
@click.option("--job", metavar="JOB", help="Show the processes of a job side by side.")
@click.option(
    "--stages", is_flag=True, help="Of a process: only its stages, like those of a timing report."
)
@click.option(
    "--sample",
    "sample_s",
    metavar="SECONDS",
    type=FiniteRange(min=0.1, max=3600),
    help="Of a live process: sample it so long, and show where its time goes.",
)
@output_options(_schema)
def command(
    what: str | None, job: str | None, stages: bool, sample_s: float | None, output: Output
) -> None:
    """Show what a file, a process or a job contains.

    A process id, or the recording of a process: how it ended, or what it is doing now, with its
    statistics and open requests. A job: its processes side by side. Also a timing.json, a folder
    with those of several ranks, a signature file, a bench result, and figures of Nsight Compute.
    A trace is analysed. The content of the file decides, not its name.

    \b
    Examples:
      stagespan show 4711 --sample 5
      stagespan show out/timing.json
    """
    if (what is None) == (job is None):
        raise click.UsageError(
            "Pass one file, process id or job: `stagespan ps --all` lists processes."
        )
    if sample_s is not None:
        if what is None or stages:
            raise click.UsageError("--sample is for one process: pass its id, without --stages.")
        _show_samples(what, sample_s, output)
        return
    if job is not None:
        show_job(job, output)
        return
    assert what is not None
    kind = kind_of(what)
    if kind is None:
        try:
            show_job(what, output)
        except StagespanError as error:
            raise StagespanError(f"{what} is neither a file nor a process id. {error}") from None
    elif kind is Kind.RECORDING and _is_job(what):
        show_job(what, output)
    elif stages and kind is not Kind.RECORDING:
        raise click.UsageError(f"--stages is for processes and recordings; {what} is {kind.value}.")
    else:
        output.show(_page(what, kind, stages=stages))


def _page(what: str, kind: Kind, *, stages: bool) -> Page:
    if kind in _ELSEWHERE:
        raise StagespanError(f"{what} contains {kind.value}: {_ELSEWHERE[kind].format(what=what)}")
    if kind is Kind.RECORDING and not os.path.isdir(what):
        return stages_page(what) if stages else process_page(what)
    if kind is Kind.REPORT:
        return report_page(Path(what))
    if kind is Kind.SIGNATURES:
        from stagespan.signature.page import Signatures

        return Signatures.read(what).page()
    if kind is Kind.REPLAY:
        from stagespan.harness.output import read_result
        from stagespan.harness.result_page import Replay

        return Replay(read_result(Path(what))).page()
    if kind is Kind.KERNELS:
        from stagespan.cli.ncu import file_page

        return file_page(Path(what))
    if Path(what).is_fifo():
        raise StagespanError(f"{what} is not a file: a pipe is for `stagespan analyze`.")
    from stagespan.recording.any_path import analyze

    try:
        return analyze(what)
    except NotJsonError:
        raise StagespanError(f"{what} is not JSON. {_READS}") from None


def _show_samples(which: str, seconds: float, output: Output) -> None:
    """Have a live process take samples, and show them like `stagespan run`."""
    from stagespan.cli.progress import ProgressLine
    from stagespan.sampling.asking import Samples

    with ProgressLine() as progress:
        samples = Samples(which, seconds, progress)
    if output.form or output.html is not None:
        output.show(samples.page())
    else:
        samples.print()


def _is_job(number: str) -> bool:
    """Whether a number that is not the id of a process is the name of a job, as SLURM's are."""
    from stagespan.recording import finding

    if os.path.exists(number) or os.path.exists(f"/proc/{number}"):
        return False
    recordings = finding.recordings()
    return all(str(one.pid) != number for one in recordings) and any(
        one.job == number for one in recordings
    )


def show_job(job: str, output: Output) -> None:
    """Show the processes of a job side by side. Raises StagespanError if it has no recording."""
    from stagespan.recording.processes_page import JobState

    output.show(JobState(job).page())


def process_page(which: str) -> Page:
    """Return the page of a process, which its recording's file or its id names."""
    from stagespan.recording import finding
    from stagespan.recording.process_page import ProcessPage

    return ProcessPage(finding.open_recording(which))


def stages_page(which: str) -> Page:
    """Return the stages of a process as a report, with what the process was doing."""
    from stagespan.cli.process_stages import StagesPage
    from stagespan.recording import finding

    return StagesPage(finding.open_recording(which))


def report_page(path: Path) -> Page:
    """Return the page of a timing report, or of those in a folder side by side."""
    from stagespan.report.reader import read_timing_report, reports_in
    from stagespan.report.side_by_side import StagesByRank, read_reports
    from stagespan.report.tables import Timing

    if os.path.isdir(path) and len(reports_in(path)) > 1:
        return StagesByRank(read_reports(reports_in(path))).page(path)
    return Timing(read_timing_report(path)).page()
