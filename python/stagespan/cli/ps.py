"""``stagespan ps``: lists the processes that record on this machine, with their stages."""

from __future__ import annotations

from typing import Any

import click

from stagespan.cli.numbers import FiniteRange
from stagespan.cli.output import Output, PageCommand, output_options


def _schema() -> dict[str, Any]:
    from stagespan.pages.figures import document_schema
    from stagespan.recording.processes_page import ProcessesFigures, StalledFigures
    from stagespan.recording.ranks import JobFigures

    figures = ProcessesFigures, StalledFigures, JobFigures
    return document_schema(*figures, title="Processes, those that are stalled, or those of a job")


@click.command(cls=PageCommand)
@click.option("--all", "show_all", is_flag=True, help="Also show processes that have ended.")
@click.option(
    "--stalled",
    metavar="SECONDS",
    type=FiniteRange(min=0),
    help="Show only processes in which a thread has an open span, in which no span has begun or "
    "ended for this long.",
)
@click.option(
    "--stage", metavar="NAME", help="With --stalled: consider only open spans of this stage."
)
@click.option("--job", metavar="JOB", help="Show the processes of a job side by side.")
@output_options(_schema)
@click.pass_context
def command(
    ctx: click.Context,
    show_all: bool,
    stalled: float | None,
    stage: str | None,
    job: str | None,
    output: Output,
) -> None:
    """List the processes that record on this machine, and their current stages.

    With --stalled, the exit status is 1 if a process is stalled, otherwise 0, so that you can use
    it as a liveness probe.

    \b
    Examples:
      stagespan ps --all
      stagespan ps --stalled 60
    """
    if stage is not None and stalled is None:
        raise click.UsageError("--stage needs --stalled SECONDS.")

    from stagespan.recording import finding, jobs, ranks
    from stagespan.recording.processes_page import JobState, Processes, Stalled

    if job is not None and stalled is None:
        output.show(JobState(job).page())
        return
    recordings = finding.recordings(spans=stalled is not None) if job is None else ranks.of_job(job)
    if stalled is not None:
        result = Stalled.of(recordings, stalled, stage)
        output.show(result.page())
        ctx.exit(1 if result.stalled else 0)
    if not show_all:
        recordings = [one for one in recordings if one.state in ("alive", "unknown")]
    # The latest span of a process that has ended is the last time that is known of it.
    recordings = [one if one.state == "alive" else jobs.with_spans(one) for one in recordings]
    output.show(Processes.of(recordings, with_ended=show_all).page())
