"""``stagespan capture``: captures a kernel trace of some runs of one stage of a live process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from stagespan.cli.numbers import FiniteRange
from stagespan.cli.output import schema_option
from stagespan.cli.progress import ProgressLine

if TYPE_CHECKING:
    from stagespan.profiling.capture_result import CaptureResult

_SCHEMA_VERSION = 1


def _schema() -> dict[str, Any]:
    from stagespan.pages.figures import document_schema
    from stagespan.profiling.capture_result import CaptureResult, CaptureResults

    title = "What a capture has recorded"
    return document_schema(CaptureResult, CaptureResults, title=title, version=_SCHEMA_VERSION)


@click.command()
@click.argument("pid", metavar="[PID]", required=False)
@click.option("--job", metavar="JOB", help="Capture the same runs in all ranks of a job.")
@click.option("--rank", metavar="R", type=click.IntRange(min=0), help="Only this rank of the job.")
@click.option("--stage", metavar="NAME", help="The stage whose next runs are captured.")
@click.option("--runs", metavar="N", type=click.IntRange(min=1), help="How many runs; default: 1.")
@click.option(
    "--steps",
    metavar="N",
    type=click.IntRange(min=1),
    help="In place of --runs: from the start of one run to the start of the next one, N times.",
)
@click.option(
    "--max-events",
    metavar="E",
    type=click.IntRange(min=1),
    help="The most operators and annotations, which bound the pause; default: 20,000.",
)
@click.option(
    "--max-seconds",
    metavar="S",
    type=FiniteRange(min=0.1, max=86400),
    help="The capture ends so many seconds from now at the latest; default: 120.",
)
@click.option("--shapes", is_flag=True, help="Record the shapes of the operators' inputs.")
@click.option("--stacks", is_flag=True, help="Record Python stacks, which make the pause longer.")
@click.option("--memory", is_flag=True, help="Record each allocation.")
@click.option("--no-probe", is_flag=True, help="Leave out the first window, so no bound is known.")
@click.option("--analyze", is_flag=True, help="Show where the time of the trace went.")
@click.option("--cancel", is_flag=True, help="End the capture that is in progress.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures of the capture as JSON.")
@schema_option(_schema)
@click.option("-o", "file", metavar="FILE", help="The file of the trace; with --job, a folder.")
def command(
    pid: str | None,
    job: str | None,
    rank: int | None,
    stage: str | None,
    analyze: bool,
    cancel: bool,
    as_json: bool,
    file: str | None,
    no_probe: bool,
    **options: Any,
) -> None:
    """Capture a kernel trace of the next runs of one stage of a live process.

    The process goes on, except for a pause at the end of the capture, whose bound is shown before.
    It must have imported torch. An interrupt (Ctrl-C) ends the capture.

    \b
    Examples:
      stagespan capture 4711 --stage denoise --runs 2
      stagespan capture --job train-7 --stage step --steps 3 --analyze
    """
    if (pid is None) == (job is None):
        raise click.UsageError("Pass a process id, or --job: `stagespan ps` lists processes.")
    if rank is not None and job is None:
        raise click.UsageError("--rank chooses a process of --job.")
    from stagespan.recording import captures

    members = None if job is None else captures.members(job, rank)
    if members is not None and len(members) == 1:
        pid, members = members[0].recording.path, None
    if cancel:
        for which in [str(pid)] if members is None else [m.recording.path for m in members]:
            click.echo(captures.cancelled(which), err=True)
        return
    if stage is None:
        raise click.UsageError("Name the stage with --stage: `stagespan top` shows the stages.")
    if options["runs"] is not None and options["steps"] is not None:
        raise click.UsageError("Pass --runs or --steps, but not both.")
    asked = {name: value for name, value in options.items() if value is not None}
    asked |= {"stage": stage, "probe": not no_probe}
    output = None if file is None else os.path.abspath(file)
    with ProgressLine() as show:
        progress = _Bounds(show)
        if no_probe:
            show.line("The pause at its end is not known before, because of --no-probe.")
        if members is None:
            results = [captures.captured(str(pid), {**asked, "output": output}, progress)]
        else:
            results = captures.captured_together(members, asked, output, progress)
    _show(results, as_json=as_json)
    if analyze:
        from stagespan.pages.terminal import print_page
        from stagespan.recording.any_path import analyze as analysis_of

        paths = [result.path for result in results]
        print_page(analysis_of(paths[0] if len(paths) == 1 else os.path.dirname(paths[0])))


class _Bounds:
    """Shows the bound of each process's pause as soon as it is known, and what they do."""

    def __init__(self, show: ProgressLine) -> None:
        self._show = show
        self._told: set[str] = set()

    def __call__(self, label: str, answer: Mapping[str, Any]) -> None:
        from stagespan.pages.amounts import in_words

        of = f"{label}: " if label else ""
        bound_ns = answer.get("bound_ns")
        if isinstance(bound_ns, int) and label not in self._told:
            self._told.add(label)
            self._show.line(f"{of}The pause at its end is at most {in_words(bound_ns, 'ns')}.")
        self._show({"doing": f"{of}{answer.get('doing', '')}"})


def _show(results: Sequence[CaptureResult], *, as_json: bool) -> None:
    from stagespan.cli.output import print_json
    from stagespan.pages.page import ResultPage, Words
    from stagespan.pages.terminal import print_page

    if as_json:
        from stagespan.profiling.capture_result import CaptureResults

        figures = results[0] if len(results) == 1 else CaptureResults(list(results))
        print_json({"schema_version": _SCHEMA_VERSION, **figures.to_dict()})
        return
    words = Words(page="Capture", as_text="stagespan capture")
    for result in results:
        print_page(ResultPage(words, result, os.path.basename(result.path), result.line()))
