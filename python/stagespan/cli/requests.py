"""``stagespan requests``: shows where the time of requests went, over all their processes."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import click

from stagespan.cli.output import print_json, write_to
from stagespan.pages.amounts import amount, counted
from stagespan.pages.console import wrapped
from stagespan.pages.escaping import one_line
from stagespan.pages.tables import Column, print_table
from stagespan.recording import Recording, finding, jobs, request_summary
from stagespan.recording.source import RequestSource
from stagespan.recording.texts import clock
from stagespan.recording.timelines import Timeline, timelines

_STATUSES = ("open", "ok", "error", "cancelled", "discarded", "abandoned")


@click.command()
@click.argument("recordings", metavar="[FILE|PID|DIR]...", nargs=-1)
@click.option("--job", metavar="JOB", help="Show the requests that began in a process of a job.")
@click.option(
    "--slowest",
    metavar="N",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="List this many requests, the slowest first.",
)
@click.option(
    "--id",
    "id_",
    metavar="ID",
    help="Show the timeline of the requests with this id, or list those that a pattern such as "
    "'session-1/*' matches.",
)
@click.option("--status", type=click.Choice(_STATUSES), help="Show only requests that ended so.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--html", metavar="FILE", help="Write a page with timelines (needs plotly) instead.")
@click.option(
    "--perfetto",
    metavar="FILE",
    help="Write the spans of the processes of these requests to a trace for Perfetto instead.",
)
def command(
    recordings: tuple[str, ...],
    job: str | None,
    slowest: int,
    id_: str | None,
    status: str | None,
    as_json: bool,
    html: str | None,
    perfetto: str | None,
) -> None:
    """Show where the time of requests went: execution, hand-off, queue, and the rest.

    Requests are joined from the recordings of all processes of this machine, or of those that are
    named. With --job, the parts of a request may be in other jobs. DIR has requests that `stagespan
    export --keep` has written, also on several machines; it may be a URL such as s3://bucket/kept,
    which is read with fsspec. The parts of a request sum to its time exactly.
    """
    if recordings and job is not None:
        raise click.UsageError("Name recordings, or a job with --job, but not both.")

    is_pattern = id_ is not None and "*" in id_
    pattern = None if id_ is None else ".*".join(map(re.escape, id_.split("*")))
    read, count = _read(recordings, slowest, pattern, status)
    # With other recordings than those that are named, a message may have been received.
    are_all = not any(isinstance(one, Recording) for one in read) or not recordings
    found = timelines(read, None if is_pattern else id_, are_all=are_all)
    if job is not None:
        local = [one for one in read if isinstance(one, Recording)]
        members = {id(one) for one in jobs.processes(job, spans=False, among=local)}
        found = [one for one in found if id(one.segments[0].recording) in members]
    if pattern is not None and is_pattern:
        matches = re.compile(pattern, re.DOTALL).fullmatch
        found = [one for one in found if matches(one.id)]
    if status is not None:
        found = [one for one in found if one.status == status]
    ran_in = {id(part.recording): part.recording for one in found for part in one.segments}
    lost = {
        cause: sum(one.lost()[cause] for one in ran_in.values())
        for cause in ("requests", "links", "overwritten")
    }
    shown = sorted(found, key=lambda one: -one.total_ns)[:slowest]
    if as_json:
        print_json(
            {
                "schema_version": 1,
                "count": len(found) if count is None else count,
                "requests": [request_summary.as_dict(one) for one in shown],
                "stages": request_summary.stages(found),
                "hops": request_summary.hops(found),
                "lost": lost,
            }
        )
        return
    if not found:
        click.echo(wrapped(_why_none(len(read), job, id_, status)))
        return
    if html is not None or perfetto is not None:
        if html is not None:
            from stagespan.recording import requests_page

            write_to(html, requests_page.page(found, shown, lost))
        if perfetto is not None:
            from stagespan.recording import dump

            write_to(perfetto, dump.as_perfetto(*ran_in.values()))
        return
    if id_ is not None and not is_pattern:
        for one in shown:
            _print_timeline(one)
        return
    _print_requests(shown, len(found) if count is None else count)
    which = "all" if count is None else "these"
    _print_stages(found, which)
    _print_hops(found, which)
    if any(lost.values()):
        texts = (f"{cause} {n:,}" for cause, n in lost.items() if n)
        click.echo(f"lost: {', '.join(texts)}")


def _why_none(count: int, job: str | None, id_: str | None, status: str | None) -> str:
    """Return that there are no requests, and what the user can do."""
    wanted = "" if id_ is None else f" with the id {id_!r}"
    if status is not None:
        wanted += f" with the status {status}"
    if job is not None:
        wanted += f" that began in a process of the job {job!r}"
    advice = (
        ": run the work for each one inside of `with stagespan.request():`" if not wanted else ""
    )
    return f"There are no requests{wanted} in {counted(count, 'recording')}{advice}."


def _read(
    named: tuple[str, ...], slowest: int, pattern: str | None, status: str | None
) -> tuple[Sequence[RequestSource], int | None]:
    """Return recordings, and the number of requests if they contain only the slowest of them."""
    if named:
        from stagespan.export import kept
        from stagespan.trace.read.remote import local_path

        paths = {one: local_path(one) for one in named}
        places = {one: path for one, path in paths.items() if kept.is_kept(path)}
        found = [
            finding.open_recording(os.fspath(path))
            for one, path in paths.items()
            if one not in places
        ]
        if not places:
            return found, None
        of_places = kept.read(places, slowest, pattern, status)
        if found and of_places.total is not None:
            raise click.UsageError("Name either recordings or kept Parquet, but not both.")
        return [*found, *of_places.recordings], of_places.total
    return finding.recordings(spans=True), None


def _print_requests(shown: Sequence[Timeline], count: int) -> None:
    click.echo(f"{count:,} requests, the {len(shown):,} slowest:" if count != 1 else "1 request:")
    columns = [
        Column("request", [one.id for one in shown], is_flexible=True),
        Column("status", [one.status for one in shown]),
        Column("total ms", [_ms(one.total_ns) for one in shown], is_number=True),
    ]
    entries = request_summary.entries(shown)
    has_queues = any(
        kind == "queue" and name not in entries for one in shown for kind, name in one.where
    )
    for title, kind, optional in (
        *(("execution ms", "execution", 0), ("hand-off ms", "handoff", 1)),
        *(("queue ms", "queue", 2), ("rest ms", "unattributed", 3)),
    ):
        if kind != "queue" or has_queues:
            columns.append(_times(title, [one.where_sum(kind) for one in shown], optional))
    processes = [len({segment.recording.path for segment in one.segments}) for one in shown]
    if max(processes) > 1:
        columns.append(Column("processes", [*map(str, processes)], is_number=True, optional=4))
    _print_table(columns)
    for one in shown:
        if one.causes:
            click.echo(wrapped(f"{one_line(one.id)} is incomplete: {', '.join(one.causes)}"))
    if any(one.causes for one in shown):
        click.echo()


def _print_stages(found: Sequence[Timeline], which: str) -> None:
    entries = request_summary.entries(found)
    rows = [
        row for row in request_summary.stages(found) if row["count"] or row["stage"] not in entries
    ]
    if not rows:
        return
    click.echo(f"Stages of {which} requests:")
    columns = [
        Column("stage", [row["stage"] for row in rows], is_flexible=True),
        Column("count", [f"{row['count']:,}" for row in rows], is_number=True),
    ]
    for title, key, optional in (
        *(("queue ms", "queue_ns", 2), ("execution ms", "execution_ns", 0)),
        *(("p50 ms", "p50_ns", 1), ("p95 ms", "p95_ns", 0), ("max ms", "max_ns", 3)),
    ):
        columns.append(_times(title, [row[key] for row in rows], optional))
    parallel = ["" if row["parallel"] is None else f"{row['parallel']:.1f}" for row in rows]
    columns.append(Column("at once", parallel, is_number=True, optional=4))
    _print_table(columns)


def _print_hops(found: Sequence[Timeline], which: str) -> None:
    rows = request_summary.hops(found)
    if all(row["unknown"] == row["count"] for row in rows):
        return  # none was sent by a process that is known, as in a plain web service
    click.echo(f"Hand-offs of {which} requests:")
    columns = [
        Column("queue", [row["queue"] for row in rows], is_flexible=True),
        Column("count", [f"{row['count']:,}" for row in rows], is_number=True),
    ]
    for title, key, optional in (
        *(("p50 ms", "p50_ns", 0), ("p95 ms", "p95_ns", 1), ("max ms", "max_ns", 0)),
        *(("queue p50 ms", "queue_p50_ns", 2), ("queue max ms", "queue_max_ns", 3)),
    ):
        columns.append(_times(title, [row[key] for row in rows], optional))
    if any(row["mean_bytes"] is not None for row in rows):
        sizes = [row["mean_bytes"] for row in rows]
        cells = ["" if size is None else f"{size:,.0f}" for size in sizes]
        columns.append(Column("mean bytes", cells, is_number=True, optional=4))
    for title in ("unknown", "negative"):
        if any(row[title] for row in rows):
            cells = [f"{row[title]:,}" if row[title] else "" for row in rows]
            columns.append(Column(title, cells, is_number=True))
    _print_table(columns)


def _print_timeline(one: Timeline) -> None:
    page = request_summary.as_dict(one)
    click.echo(
        wrapped(
            f"Request {one_line(one.id)}, {one.status}, trace {one.trace_id}, began "
            f"{clock(one.begin_ns)}, {_ms(one.total_ns)} ms"
        )
    )
    rows = page["where"]
    kinds = ({"handoff": "hand-off"}.get(row["kind"], row["kind"]) for row in rows)
    where = [f"{kind} {row['name']}".rstrip() for kind, row in zip(kinds, rows, strict=True)]
    _print_table(
        [
            Column("where the time went", where, is_flexible=True),
            Column("ms", [_ms(row["ns"]) for row in rows], is_number=True),
            Column(
                "%", [f"{100 * row['ns'] / max(one.total_ns, 1):.1f}" for row in rows], False, True
            ),
        ]
    )
    lines: list[tuple[str, str, str, str]] = []
    for segment in page["segments"]:
        name = f"{segment['name']} {segment['pid']}"
        lines.append((_at(segment["at_ns"]), _ms(segment["duration_ns"]), name, segment["status"]))
        for span in segment["spans"]:
            what = "" if span["kind"] == "execution" else f"{span['kind']} "
            size = f" of {span['size']:,}" if span["kind"] == "batch" else ""
            work = "".join(f", {unit} {amount(n)}" for unit, n in (span["work"] or {}).items())
            text = f"{'  ' * (span['depth'] + 1)}{what}{span['stage']}{size}{work}"
            state = "open" if span["open"] else ""
            lines.append((_at(span["at_ns"]), _ms(span["duration_ns"]), text, state))
    _print_table(
        [
            Column("at ms", [line[0] for line in lines], is_number=True),
            Column("ms", [line[1] for line in lines], is_number=True),
            Column("process and stage", [line[2] for line in lines], is_flexible=True),
            Column("", [line[3] for line in lines]),
        ]
    )
    _print_hops([one], "all")
    if one.chunks:
        first = (
            ""
            if one.part_first_chunk_ns is None
            else f", the first {_ms(one.part_first_chunk_ns)} ms since this part was entered"
        )
        click.echo(f"{one.chunks:,} chunks, {one.tokens:,} tokens{first}")
    if one.discarded_ns:
        click.echo(f"discarded branches: {_ms(one.discarded_ns)} ms of executions")
    if one.late_spans:
        click.echo(f"{one.late_spans:,} spans began after the end of the request")
    if one.clipped_ns:
        click.echo(f"{_ms(one.clipped_ns)} ms of spans and hops are outside of the request")
    if one.causes:
        click.echo(f"incomplete: {', '.join(one.causes)}")


def _print_table(columns: list[Any]) -> None:
    print_table([one._replace(cells=[*map(one_line, one.cells)]) for one in columns])


def _times(title: str, values_ns: Sequence[int | None], optional: int) -> Column:
    """Return a column of times, which is empty if all of them are 0 or unknown."""
    cells = [*map(_ms, values_ns)] if any(values_ns) else [""] * len(values_ns)
    return Column(title, cells, is_number=True, optional=optional)


def _ms(ns: int | None) -> str:
    return "" if ns is None else f"{ns / 1e6:,.3f}"


def _at(ns: int | None) -> str:
    return "?" if ns is None else _ms(ns)
