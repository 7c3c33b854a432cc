"""``stagespan requests``: shows where the time of requests went, over all their processes."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from stagespan.cli.output import Output, PageCommand, output_options, write_to

if TYPE_CHECKING:
    from stagespan.recording.source import RequestSource
    from stagespan.recording.timelines import Timeline

_ALL = 1 << 31
_STATUSES = ("open", "ok", "error", "cancelled", "discarded", "abandoned")


def _schema() -> dict[str, Any]:
    from stagespan.recording.requests_page import json_schema

    return json_schema()


@click.command(cls=PageCommand)
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
@click.option("--pipeline", metavar="NAME", help="Show only requests of this pipeline.")
@click.option("--route", metavar="ROUTE", help="Show only calls that this route has served.")
@click.option(
    "--where",
    metavar="FIELD=VALUE",
    multiple=True,
    help="Show only requests with this value of a recorded field; give it once for each field.",
)
@click.option(
    "--perfetto",
    metavar="FILE",
    help="Write the spans of the processes of these requests to a trace for Perfetto instead.",
)
@output_options(_schema)
def command(
    recordings: tuple[str, ...],
    job: str | None,
    slowest: int,
    id_: str | None,
    status: str | None,
    pipeline: str | None,
    route: str | None,
    where: tuple[str, ...],
    perfetto: str | None,
    output: Output,
) -> None:
    """Show where the time of requests went: execution, hand-off, queue, or unattributed.

    Requests are joined from the recordings of all processes of this machine, or of those that are
    named. With --job, the parts of a request may be in other jobs. DIR has requests that `stagespan
    export --keep` has written, also on several machines; it may be a URL such as s3://bucket/kept,
    which is read with fsspec. The parts of a request sum to its time exactly.

    \b
    Examples:
      stagespan requests --slowest 3
      stagespan requests --id req-17 --html page.html
    """
    from stagespan.recording import Recording, jobs
    from stagespan.recording.timelines import timelines, without_collections

    if recordings and job is not None:
        raise click.UsageError("Name recordings, or a job with --job, but not both.")

    # All of the requests are needed until the end.
    click.get_current_context().with_resource(without_collections())
    wanted = _Wanted(pipeline, route, where)
    is_pattern = id_ is not None and "*" in id_
    pattern = None if id_ is None else ".*".join(map(re.escape, id_.split("*")))
    # Kept Parquet has no columns of them.
    most = slowest if wanted.is_all else _ALL
    read, count = _read(recordings, most, pattern, status)
    # With other recordings than those that are named, a message may have been received.
    are_all = not any(isinstance(source, Recording) for source in read) or not recordings
    requests = timelines(read, None if is_pattern else id_, are_all=are_all)
    if job is not None:
        local = [source for source in read if isinstance(source, Recording)]
        members = {id(process) for process in jobs.processes(job, spans=False, among=local)}
        requests = requests.selected(id(recording) in members for recording in requests.began_in())
    if pattern is not None and is_pattern:
        matches = re.compile(pattern, re.DOTALL).fullmatch
        requests = requests.selected(matches(one) is not None for one in requests.column("id"))
    if status is not None:
        requests = requests.selected(one == status for one in requests.column("status"))
    if not wanted.is_all:
        requests, count = requests.selected(map(wanted.matches, requests)), None
    ran_in = requests.recordings()
    lost = {
        cause: sum(recording.lost()[cause] for recording in ran_in)
        for cause in ("requests", "links", "overwritten")
    }
    if not requests and output.form != "json":
        from stagespan.pages.console import wrapped

        click.echo(wrapped(_why_none(len(read), job, id_, status, wanted)))
        return
    if perfetto is not None:
        from stagespan.recording import dump

        write_to(perfetto, dump.as_perfetto(*ran_in))
        return
    from stagespan.recording.requests_page import Requests, RequestsPage

    in_detail = id_ is not None and not is_pattern
    total = len(requests) if count is None else count
    output.show(RequestsPage(Requests(requests, requests.slowest(slowest), lost, total, in_detail)))


class _Wanted:
    """The requests that the user wants to see, by what is recorded of them."""

    def __init__(self, pipeline: str | None, route: str | None, where: tuple[str, ...]) -> None:
        """Raises click.UsageError if something of ``where`` is not FIELD=VALUE."""
        self._pipeline, self._route = pipeline, route
        self._fields: list[tuple[str, str]] = []
        for condition in where:
            name, separator, value = condition.partition("=")
            if not (name and separator):
                raise click.UsageError(f"--where {condition!r}: write FIELD=VALUE.")
            self._fields.append((name, value))

    @property
    def is_all(self) -> bool:
        return self._pipeline is None and self._route is None and not self._fields

    def matches(self, request: Timeline) -> bool:
        fields = request.fields
        return (
            self._pipeline in (None, request.pipeline)
            and self._route in (None, request.route)
            and all(name in fields and _is(fields[name], v) for name, v in self._fields)
        )

    def __str__(self) -> str:
        labels = {"pipeline": self._pipeline, "route": self._route}
        chosen = [(name, value) for name, value in labels.items() if value is not None]
        return ", ".join(f"{name} {value!r}" for name, value in (*chosen, *self._fields))


def _is(value: float | str, wanted: str) -> bool:
    """Whether a value is the one that a user has written: 60 is also 60.0."""
    if isinstance(value, str):
        return value == wanted
    try:
        return value == float(wanted)
    except ValueError:
        return False


def _why_none(
    count: int, job: str | None, id_: str | None, status: str | None, conditions: _Wanted
) -> str:
    """Return that there are no requests, and what the user can do."""
    from stagespan.pages.amounts import counted

    wanted = "" if id_ is None else f" with the id {id_!r}"
    if status is not None:
        wanted += f" with the status {status}"
    if not conditions.is_all:
        wanted += f" with {conditions}"
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
    from stagespan.recording import finding

    if named:
        from stagespan.export.stores import is_kept
        from stagespan.trace.read.remote import local_path

        paths = {source: local_path(source) for source in named}
        places = {source: path for source, path in paths.items() if is_kept(path)}
        opened = [
            finding.open_recording(os.fspath(path)).only_rows()
            for source, path in paths.items()
            if source not in places
        ]
        if not places:
            return opened, None
        from stagespan.export import kept

        of_places = kept.read(places, slowest, pattern, status)
        if opened and of_places.total is not None:
            raise click.UsageError("Name either recordings or kept Parquet, but not both.")
        return [*opened, *of_places.recordings], of_places.total
    return [recording.only_rows() for recording in finding.recordings(spans=True)], None
