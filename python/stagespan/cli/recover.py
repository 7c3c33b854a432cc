"""``stagespan recover``: shows what a process was doing when it died, or does now."""

from __future__ import annotations

from collections import defaultdict

import click

from stagespan.cli.output import print_json
from stagespan.live.statistics import Stats
from stagespan.pages.amounts import counted, duration
from stagespan.pages.console import limit, wrapped
from stagespan.pages.escaping import one_line
from stagespan.pages.tables import Column, print_table
from stagespan.recording import Recording, finding, jobs, ranks, summary
from stagespan.recording.ranks import Rank
from stagespan.recording.reading import RecordedOpenSpan
from stagespan.recording.texts import clock, ending, open_requests, waiting


@click.command()
@click.argument("recording", metavar="[FILE|PID]", required=False)
@click.option("--job", metavar="JOB", help="Show the processes of a job side by side.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(recording: str | None, job: str | None, as_json: bool) -> None:
    """Show what a process was doing when it died, or what it is doing now.

    Shows how it ended, in which stages its threads were, the last spans of each thread, statistics,
    and the open requests. `stagespan ps --all` lists the recordings.
    """
    if recording is None and job is None:
        raise click.UsageError(
            "Pass the file or process id of a recording, or --job JOB: `stagespan ps --all` lists "
            "them."
        )
    if recording is not None and job is not None:
        raise click.UsageError("Pass a file or process id, or --job, but not both.")
    if job is not None:
        print_job(job, as_json)
        return

    found = finding.open_recording(str(recording))
    if as_json:
        print_json(summary.as_dict(found))
    else:
        _print(found)


def _print(recording: Recording) -> None:
    page = summary.as_dict(recording)
    click.echo(
        wrapped(f"Process {recording.pid} ({one_line(recording.name)}) {ending(recording)}.")
    )
    facts = [f"host {recording.host}", f"pipeline {recording.pipeline}"]
    if recording.rank is not None:
        of = f" of {recording.world_size}" if recording.world_size else ""
        facts.insert(0, f"rank {recording.rank}{of}")
    if recording.job:
        facts.append(f"job {recording.job}")
    click.echo(wrapped(f"  {one_line(', '.join(facts))}", "    "))
    times = f"  first span {clock(recording.begin_ns)}, last event {clock(page['last_ns'])}"
    click.echo(wrapped(times, "    "))
    for warning in recording.warnings():
        click.echo(wrapped(f"  {warning}", "    "))

    click.echo("\nThreads")
    if not page["threads"]:
        click.echo("  none")
    last = page["last_ns"]
    for thread in page["threads"]:
        ended = "" if thread["is_alive"] else ", ended"
        click.echo(f"  {thread['thread']} {one_line(thread['name'])}{ended}")
        for depth, span in _nested(thread["open_spans"]):
            request = f", request {one_line(span['request'])}" if span["request"] else ""
            since = f"since {clock(span['begin_ns'])}"
            if span["elapsed_ns"] is not None:
                since += f", for {duration(span['elapsed_ns'])}"
            elif recording.end_ns is not None and recording.end_ns > span["begin_ns"]:
                since += f", for {duration(recording.end_ns - span['begin_ns'])}"
            elif last is not None and last > span["begin_ns"]:
                since += f", for at least {duration(last - span['begin_ns'])}"
            line = f"    {'  ' * depth}in {one_line(span['stage'])} ({since}{request})"
            click.echo(wrapped(line, f"    {'  ' * min(depth, 8)}  "))
        if not thread["open_spans"]:
            click.echo("    in no stage")
        if thread["latest_spans"]:
            latest = ", ".join(
                f"{one_line(span['stage'])} {duration(span['end_ns'] - span['begin_ns'])}"
                for span in thread["latest_spans"]
            )
            click.echo(wrapped(f"    finished last, newest first: {latest}", "      "))
    for span in page["detached_open_spans"]:
        click.echo(f"  on no thread: {one_line(span['stage'])} (since {clock(span['begin_ns'])})")
    if page["open_requests"]:
        click.echo("\nOpen requests")
        for request in page["open_requests"]:
            trace = f", trace {request['trace_id']}" if request["trace_id"] else ""
            # A request without a start was received, and waits.
            begin_ns = request["begin_ns"]
            state = "waiting" if begin_ns is None else f"since {clock(begin_ns)}"
            click.echo(wrapped(f"  {one_line(request['id'])} ({state}{trace})", "    "))
    click.echo("\nStatistics")
    width = limit()
    for line in summary.runs([recording]).table(None if width is None else width - 2).splitlines():
        click.echo(wrapped(f"  {line}", "    "))


def _nested(spans: list[RecordedOpenSpan]) -> list[tuple[int, RecordedOpenSpan]]:
    """Return the spans of a thread with their depths, each below its parent.

    Spans of asyncio tasks that take turns are not nested.
    """
    ids = {span["id"] for span in spans}
    children: defaultdict[int, list[RecordedOpenSpan]] = defaultdict(list)
    for span in spans:
        children[span["parent"] if span["parent"] in ids else 0].append(span)
    found: list[tuple[int, RecordedOpenSpan]] = []
    left = [(0, span) for span in reversed(children.pop(0, []))]
    while left:
        depth, span = left.pop()
        found.append((depth, span))
        left.extend((depth + 1, child) for child in reversed(children.pop(span["id"], [])))
    # In a damaged file, spans can be parents of each other.
    return found + [(0, span) for siblings in children.values() for span in siblings]


def print_job(job: str, as_json: bool) -> None:
    """Print the ranks of a job side by side."""
    job_ranks = ranks.ranks(ranks.of_job(job))
    of_job = jobs.job(job)
    stats = summary.runs(of_job.recordings)
    load = summary.load(of_job.recordings)
    if as_json:
        stages = {name: summary.stage_dict(stage) for name, stage in stats.items()}
        page = {**ranks.as_dict(job_ranks), "load": load.as_dict(), "stages": stages}
        print_json({"schema_version": 1, "job": job, **page})
        return
    _print_ranks(job_ranks)
    for sentence in (open_requests(load), waiting(load)):
        if sentence is not None:
            click.echo(wrapped(sentence, "  "))
    click.echo("Statistics of all processes")
    _print_stats(stats)


def _print_stats(stats: Stats) -> None:
    """Print the merged statistics of a job in the width of the terminal."""
    columns = [
        Column("stage", [one_line(name) for name in stats], is_flexible=True),
        Column("count", [f"{stage.count:,}" for stage in stats.values()], is_number=True),
    ]
    for title in ("total", "mean", "p50", "p95", "p99", "max"):
        times = [getattr(stage, f"{title}_ns") for stage in stats.values()]
        optional = title in ("total", "mean", "max")
        cells = [duration(round(ns)) for ns in times]
        columns.append(Column(title, cells, is_number=True, optional=optional))
    errors = [f"{stage.errors:,}" for stage in stats.values()]
    columns.append(Column("errors", errors, is_number=True))
    print_table(columns)


def _print_ranks(job_ranks: list[Rank]) -> None:
    """Print which ranks are behind, where each rank is, and the stages it has finished."""
    for sentence in ranks.findings(job_ranks):
        click.echo(wrapped(one_line(sentence), "  "))
    positions = [rank.position for rank in job_ranks]
    elapsed = [None if position is None else position.elapsed_ns for position in positions]
    recordings = [rank.recording for rank in job_ranks]
    columns = [
        Column("rank", ["" if one.rank is None else str(one.rank) for one in recordings]),
        Column("worker", [one.worker or "" for one in recordings]),
        Column("pid", [str(one.pid) for one in recordings]),
        Column("state", [one.state for one in recordings]),
        Column(
            "in",
            [one_line(" > ".join(position.stages)) if position else "" for position in positions],
            is_flexible=True,
        ),
        Column("for", ["" if ns is None else duration(ns) for ns in elapsed]),
    ]
    columns[:2] = [column for column in columns[:2] if any(column.cells)]
    names = ranks.stages(job_ranks)
    shown = _as_fit(names, limit() or 10_000)
    columns += [
        Column(one_line(name), [_runs(rank, name) for rank in job_ranks], is_flexible=True)
        for name in shown
    ]
    print_table(columns)
    if len(shown) < len(names):
        more = counted(len(names) - len(shown), "more stage")
        click.echo(f"{more}: --json shows {'them' if len(names) - len(shown) > 1 else 'it'}.")


def _runs(rank: Rank, stage: str) -> str:
    """Return how often a rank has finished a stage, and the mean time: ``20 x 1.2 ms``."""
    mean_ns = ranks.mean_ns(rank, stage)
    return "0" if mean_ns is None else f"{rank.counts[stage]:,} x {duration(round(mean_ns))}"


_WIDEST_STAGE = 20
_RUNS_WIDTH = 12
_WIDTH_WITHOUT_STAGES = 50


def _as_fit(names: list[str], width: int) -> list[str]:
    """Return the first stages that fit into the width of the terminal."""
    left = width - _WIDTH_WITHOUT_STAGES
    shown = []
    for name in names:
        left -= min(max(len(name), _RUNS_WIDTH), _WIDEST_STAGE) + 3
        if left < 0:
            break
        shown.append(name)
    return shown
