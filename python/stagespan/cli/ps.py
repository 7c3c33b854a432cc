"""``stagespan ps``: lists the processes that record on this machine, with their stages."""

from __future__ import annotations

import time
from typing import Any

import click

from stagespan.cli.numbers import FiniteRange
from stagespan.cli.output import print_json
from stagespan.cli.recover import print_job
from stagespan.pages.amounts import duration
from stagespan.pages.console import wrapped
from stagespan.pages.escaping import one_line
from stagespan.pages.tables import Column, print_table
from stagespan.recording import Recording, finding, jobs, ranks, summary


@click.command()
@click.option("--all", "show_all", is_flag=True, help="Also show processes that have ended.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
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
@click.pass_context
def command(
    ctx: click.Context,
    show_all: bool,
    as_json: bool,
    stalled: float | None,
    stage: str | None,
    job: str | None,
) -> None:
    """List the processes that record on this machine, and their current stages.

    With --stalled, the exit status is 1 if a process is stalled, otherwise 0, so that you can use
    it as a liveness probe.
    """
    if stage is not None and stalled is None:
        raise click.UsageError("--stage needs --stalled SECONDS.")

    if job is not None and stalled is None:
        print_job(job, as_json)
        return
    with_spans = stalled is not None
    found = finding.recordings(spans=with_spans) if job is None else ranks.of_job(job)
    if stalled is not None:
        ctx.exit(_stalled(found, stalled, stage, as_json))
    if not show_all:
        found = [one for one in found if one.state in ("alive", "unknown")]
    # The spans of those that have ended say when that was.
    rows = _rows([one if one.state == "alive" else jobs.with_spans(one) for one in found])
    if as_json:
        print_json({"schema_version": 1, "processes": rows})
    elif rows:
        _print(rows)
    else:
        click.echo("No process records here." if not show_all else "There are no recordings here.")
        others = finding.folders_of_others()
        if others:
            click.echo(
                wrapped(
                    f"Other users record in {', '.join(others)}: only they and root can read "
                    "these folders."
                )
            )


def _rows(found: list[Recording]) -> list[dict[str, Any]]:
    rates = summary.rates(found)
    rows = []
    for recording in found:
        positions = summary.positions(recording)
        position = positions[0] if positions else None
        requests = summary.requests([recording])
        rows.append(
            {
                **summary.identity(recording),
                "path": summary.path_text(recording),
                "spans": summary.finished_spans(recording),
                "spans_per_s": rates.get(recording.path),
                "errors": sum(stage.errors for stage in summary.runs([recording]).values()),
                "ended_requests": 0 if requests is None else requests.count,
                "failed_requests": 0 if requests is None else requests.errors,
                "stage": position.stages[-1] if position else None,
                "stages": list(position.stages) if position else [],
                "elapsed_ns": position.elapsed_ns if position else None,
                **summary.load([recording]).as_dict(),
                "warnings": recording.warnings(),
            }
        )
    return rows


def _print(rows: list[dict[str, Any]]) -> None:
    now_ns = time.time_ns()
    names = "pid state program rank job pipeline age spans spans/s errors in for"
    names += " ended failed requests oldest running waiting longest"
    columns: dict[str, list[str]] = {name: [] for name in names.split()}
    for row in rows:
        rate, elapsed = row["spans_per_s"], row["elapsed_ns"]
        until = row["end_ns"] or (now_ns if row["state"] == "alive" else row["last_ns"])
        cells = (
            str(row["pid"]),
            row["state"],
            row["name"],
            "" if row["rank"] is None else str(row["rank"]),
            row["job"] or "",
            "" if row["pipeline"] == "default" else row["pipeline"],
            duration(max(until - row["begin_ns"], 0)) if until else "",
            f"{row['spans']:,}",
            "" if rate is None else f"{rate:,.0f}",
            f"{row['errors']:,}" if row["errors"] else "",
            row["stage"] or "",
            "" if elapsed is None else duration(elapsed),
            f"{row['ended_requests']:,}" if row["ended_requests"] else "",
            f"{row['failed_requests']:,}" if row["failed_requests"] else "",
            *_load_cells(row),
        )
        for column, cell in zip(columns.values(), cells, strict=True):
            column.append(one_line(cell))
    shown = [
        Column(
            name,
            column,
            is_flexible=name in ("program", "job", "pipeline", "in", "running", "waiting"),
            is_number=name in ("spans", "spans/s", "errors", "ended", "failed", "requests"),
            optional=2 if name == "running" else name in _OPTIONAL,
        )
        for name, column in columns.items()
        if any(column)
    ]
    print_table(shown)
    for row in rows:
        if row["unshown_requests"]:
            most = row["open_requests"] + row["unshown_requests"]
            click.echo(
                wrapped(
                    f"{row['pid']}: {row['open_requests']:,} of up to {most:,} open requests are "
                    "shown: set STAGESPAN_REQUESTS to a larger number when you start the process."
                )
            )
        for warning in row["warnings"]:
            click.echo(wrapped(f"{row['pid']}: {warning}"))


_OPTIONAL = ("rank", "job", "pipeline", "age", "spans", "requests", "ended")


def _load_cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Return the open requests of a process, what runs and waits, and the ages of the oldest."""
    if not row["open_requests"] and not row["waiting"]:
        return ("",) * 5
    oldest, longest = row["oldest_request_ns"], row["oldest_waiter_ns"]
    return (
        f"{row['open_requests']:,}{'+' if row['unshown_requests'] else ''}",
        "" if oldest is None else duration(oldest),
        ", ".join(f"{name} {n:,}" for name, n in row["running"].items()),
        ", ".join(f"{name} {n:,}" for name, n in row["waiting"].items()),
        "" if longest is None else duration(longest),
    )


def _stalled(found: list[Recording], seconds: float, stage: str | None, as_json: bool) -> int:
    rows = []
    for recording in found:
        spans = summary.stalled(recording, seconds, stage)
        if spans:
            rows.append({**summary.identity(recording), "open_spans": spans})
    if as_json:
        print_json({"schema_version": 1, "stalled": rows})
    for row in [] if as_json else rows:
        for span in row["open_spans"]:
            rank = "" if row["rank"] is None else f", rank {row['rank']}"
            click.echo(
                f"process {row['pid']}{rank}: thread {span['thread']} has been in "
                f"`{one_line(span['stage'])}` for {duration(span['elapsed_ns'] or 0)}"
            )
    return 1 if rows else 0
