"""Summarises a recording: how its process ended, where its threads were, and its rates."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from stagespan.live import statistics
from stagespan.live.span_kinds import OPEN, RUNS
from stagespan.live.statistics import DEVICE_FIGURES, FIGURES, StageStats, Stats

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stagespan.recording.reading import RecordedOpenSpan, Recording
    from stagespan.recording.source import RequestSource

_IDENTITY = (
    *(
        "state",
        "stop_signal",
        "pid",
        "program",
        "name",
        "pid_namespace",
        "worker",
        "worker_of_rank",
    ),
    *("rank", "world_size", "job", "pipeline", "host"),
)
_TIMES = ("begin_ns", "end_ns", "last_ns", "read_ns")
LATEST = 5
"""The number of latest spans of each thread in a summary."""


class Position(NamedTuple):
    """Where a thread currently is: its open stages, outermost first."""

    thread: int
    name: str
    stages: tuple[str, ...]
    begin_ns: int
    """When the innermost stage began, in Unix ns."""
    elapsed_ns: int | None
    """How long the innermost stage has been open; None if the process is not alive."""
    idle_ns: int | None
    """The time since the innermost stage, or one inside of it, last began or ended; None if it is
    not known, or if the stage is suspended."""
    request: str | None


def positions(recording: Recording) -> list[Position]:
    """Return the positions of threads with open spans, first that with the most finished spans."""
    by_thread: defaultdict[int, list[RecordedOpenSpan]] = defaultdict(list)
    for span in recording.open_spans():
        if not span["detached"]:
            by_thread[span["thread"]].append(span)
    finished = {thread["thread"]: thread["spans"] for thread in recording.threads()}
    open_positions = []
    for thread, spans in by_thread.items():
        # Spans of different asyncio tasks are not nested, so use the one that began last.
        innermost = max(spans, key=lambda span: (span["begin_ns"], span["depth"]))
        idle = None
        is_known = innermost["elapsed_ns"] is not None and not innermost["suspended"]
        if is_known and recording.read_ns is not None:
            idle = max(recording.read_ns - innermost["active_ns"], 0)
        open_positions.append(
            Position(
                thread,
                innermost["thread_name"] or "",
                _path(innermost, spans),
                innermost["begin_ns"],
                innermost["elapsed_ns"],
                idle,
                innermost["request"],
            )
        )
    return sorted(
        open_positions, key=lambda position: (-finished.get(position.thread, 0), position.thread)
    )


def _path(innermost: RecordedOpenSpan, spans: list[RecordedOpenSpan]) -> tuple[str, ...]:
    by_id = {span["id"]: span for span in spans}
    path = [innermost["stage"]]
    seen = {innermost["id"]}
    parent = by_id.get(innermost["parent"])
    while parent is not None and parent["id"] not in seen:
        path.append(parent["stage"])
        seen.add(parent["id"])
        parent = by_id.get(parent["parent"])
    return tuple(reversed(path))


def _latest_spans(recording: Recording) -> dict[int, NDArray[np.void]]:
    """Return the latest finished spans of each thread, newest first."""
    spans = recording.spans()
    order = spans["end_ns"].argsort(kind="stable")
    order = order[spans["thread"][order].argsort(kind="stable")]
    threads = spans["thread"][order]
    begins = [0, *((threads[1:] != threads[:-1]).nonzero()[0] + 1).tolist()]
    ends = [*begins[1:], len(threads)]
    return {
        int(threads[begin]): spans[order[max(begin, end - LATEST) : end][::-1]]
        for begin, end in zip(begins, ends, strict=True)
        if begin < end
    }


class Load(NamedTuple):
    """What runs and waits in processes that are alive. Times are None if nothing is open."""

    running: dict[str, int]
    """Open executions and batches by stage."""
    waiting: dict[str, int]
    """Requests that wait, by queue: received and not entered, or inside of `queued`."""
    longest_ns: dict[str, int]
    """How long the oldest of those waits, by queue."""
    open_requests: int
    unshown_requests: int
    """Requests that began when all entries of a process were those of open ones, and that may be
    open too. They are in no other figure."""
    oldest_request_ns: int | None
    """The time since the start of the oldest open request."""

    @property
    def oldest_waiter_ns(self) -> int | None:
        """How long the oldest waiter of all queues waits."""
        return max(self.longest_ns.values(), default=None)

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as JSON types."""
        return {**self._asdict(), "oldest_waiter_ns": self.oldest_waiter_ns}


def load(recordings: Iterable[Recording]) -> Load:
    """Return what runs and waits in processes at the time of their copies, all together."""
    running: Counter[str] = Counter()
    waits: defaultdict[str, list[int]] = defaultdict(list)
    ages_ns: defaultdict[object, int] = defaultdict(int)
    unshown = 0
    for recording in recordings:
        now_ns = recording.read_ns
        if recording.state not in ("alive", "unknown") or now_ns is None:
            continue
        for span in recording.open_spans():
            if OPEN.get(span["kind"]) == "waiting":
                waits[span["stage"]].append(now_ns - span["begin_ns"])
            elif OPEN.get(span["kind"]) == "running":
                running[span["stage"]] += 1
        if len(recording.open_segments) >= recording.most_segments:
            unshown += recording.lost()["requests"]
        for segment in recording.segments():
            if segment["status"] != "open":
                continue
            since_ns = segment["received_ns"] or segment["begin_ns"] or now_ns
            if segment["begin_ns"] is None:
                waits[segment["queue"] or ""].append(now_ns - since_ns)
            if segment["origin"] != "return":
                request = segment["trace_id"] or (recording.path, segment["number"])
                ages_ns[request] = max(ages_ns[request], now_ns - since_ns)
    return Load(
        running=dict(running.most_common()),
        waiting={queue: len(ages) for queue, ages in waits.items()},
        longest_ns={queue: max(ages) for queue, ages in waits.items()},
        open_requests=len(ages_ns),
        unshown_requests=unshown,
        oldest_request_ns=max(ages_ns.values(), default=None),
    )


def runs(recordings: Iterable[Recording]) -> Stats:
    """Return the statistics of stages in some processes together: of executions and of batches."""
    parts, lost = [], Counter[str]()
    for recording in recordings:
        parts += [recording.stats(kind=kind) for kind in RUNS]
        lost.update(recording.lost())
    merged = statistics.merged(parts, None, is_lifetime=True)
    return Stats(dict(merged), lost, None, is_lifetime=True)


def requests(recordings: Iterable[Recording]) -> StageStats | None:
    """Return the figures of the requests that began in some processes and have ended."""
    of_each = [recording.stats(kind="request").values() for recording in recordings]
    parts = [one for of_process in of_each for one in of_process]
    return statistics.merged_stage(parts) if parts else None


def finished_spans(recording: Recording) -> int:
    """Return the number of executions and batches that the process had finished."""
    return sum(stage.count for stage in runs([recording]).values())


def rates(recordings: list[Recording], interval_s: float = 0.25) -> dict[str, float]:
    """Return the spans per second of live processes by path, measured over ``interval_s``."""
    from stagespan.errors import StagespanError

    alive = [recording for recording in recordings if recording.state == "alive"]
    if not alive:
        return {}
    time.sleep(interval_s)
    by_recording = {}
    for recording in alive:
        try:
            later = recording.refresh()
        except StagespanError:  # the process has ended
            continue
        if later.read_ns is None or recording.read_ns is None:
            continue
        seconds = (later.read_ns - recording.read_ns) / 1e9
        if seconds > 0:
            spans = finished_spans(later) - finished_spans(recording)
            by_recording[recording.path] = max(spans, 0) / seconds
    return by_recording


def stalled(
    recording: Recording, seconds: float, stage: str | None = None
) -> list[RecordedOpenSpan]:
    """Return the open spans that have lasted for at least ``seconds``; none if the process ended.

    A process of another container, whose state is "unknown", counts as alive.

    Without ``stage``, only the innermost span of a thread is returned, and only if the thread has
    not finished any span in this time. A thread that serves requests inside one long span is
    therefore not stalled.
    """
    if recording.state not in ("alive", "unknown"):
        return []
    least_ns = seconds * 1e9
    long_open = [span for span in recording.open_spans() if (span["elapsed_ns"] or 0) >= least_ns]
    if stage is not None:
        return [span for span in long_open if span["stage"] == stage]
    waiting = {
        (position.thread, position.begin_ns)
        for position in positions(recording)
        if position.idle_ns is not None and position.idle_ns >= least_ns
    }
    return [span for span in long_open if (span["thread"], span["begin_ns"]) in waiting]


def as_dict(recording: Recording) -> dict[str, Any]:
    """Return what `stagespan recover` shows as plain data for JSON. Times are Unix ns."""
    names = recording.stage_names()
    ids = {request["number"]: request["id"] for request in recording.requests()}
    latest = {
        thread: [
            {
                "stage": names[int(row["stage"])],
                "begin_ns": int(row["begin_ns"]),
                "end_ns": int(row["end_ns"]),
                "request": ids.get(int(row["request"])),
            }
            for row in rows
        ]
        for thread, rows in _latest_spans(recording).items()
    }
    open_spans = recording.open_spans()
    return {
        "schema_version": 1,
        "path": path_text(recording),
        **identity(recording),
        "threads": [
            {
                **thread,
                "open_spans": [
                    span
                    for span in open_spans
                    if span["thread"] == thread["thread"] and not span["detached"]
                ],
                "latest_spans": latest.get(thread["thread"], []),
            }
            for thread in recording.threads()
        ],
        "detached_open_spans": [span for span in open_spans if span["detached"]],
        "stages": {name: stage_dict(stage) for name, stage in runs([recording]).items()},
        "open_requests": [request for request in recording.requests() if request["end_ns"] is None],
        "lost": recording.lost(),
        "warnings": recording.warnings(),
    }


def path_text(recording: Recording) -> str:
    """Return the path for JSON, in which bytes that are not text are escaped."""
    return recording.path.encode("utf-8", "backslashreplace").decode()


def identity(recording: RequestSource) -> dict[str, Any]:
    """Return the facts that identify a recording, and how its process ended."""
    return {
        **{name: getattr(recording, name) for name in _IDENTITY},
        "stagespan_version": recording.version or None,
        "python_version": recording.python_version or None,
        **{name: getattr(recording, name) for name in _TIMES},
    }


def stage_dict(stage: StageStats) -> dict[str, Any]:
    """Return the figures of one stage."""
    device = {name: getattr(stage, name) for name in DEVICE_FIGURES}
    return {
        **{key: getattr(stage, key) for key in FIGURES},
        "errors": stage.errors,
        "suspended_ns": stage.suspended_ns,
        "work": dict(stage.work),
        **{
            name: durations and {key: getattr(durations, key) for key in FIGURES}
            for name, durations in device.items()
        },
    }
