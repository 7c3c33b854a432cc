"""The figures of a process: how it ended, where its threads were, its load and its rates."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from stagespan.live import statistics
from stagespan.live.span_kinds import OPEN, RUNS
from stagespan.live.stage_figures import StageRunFigures, stage_figures
from stagespan.live.statistics import StageStats, Stats
from stagespan.pages.figures import Count, Flat, RecordedFigures
from stagespan.recording.backlog import Backlog
from stagespan.recording.reading import Recording
from stagespan.recording.segments import Request
from stagespan.recording.source import RecordedOpenSpan, RequestSource, State

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


LATEST = 5
"""The number of latest spans of each thread in a summary."""


class IdentityFigures(RecordedFigures, frozen=True):
    """What identifies a recording, and how its process ended. Times are Unix ns."""

    state: State
    stop_signal: str | None
    pid: int
    program: str
    name: str
    pid_namespace: int | None
    worker: str | None
    worker_of_rank: int | None
    rank: int | None
    world_size: int | None
    job: str | None
    pipeline: str
    host: str
    stagespan_version: str | None
    python_version: str | None
    begin_ns: int
    end_ns: int | None
    last_ns: int | None
    read_ns: int | None


def identity(recording: RequestSource) -> IdentityFigures:
    """Return the facts that identify a recording, and how its process ended."""
    return IdentityFigures.taken(
        recording,
        stagespan_version=recording.version or None,
        python_version=recording.python_version or None,
    )


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
                path_to(innermost, spans),
                innermost["begin_ns"],
                innermost["elapsed_ns"],
                idle,
                innermost["request"],
            )
        )
    return sorted(
        open_positions, key=lambda position: (-finished.get(position.thread, 0), position.thread)
    )


def path_to(innermost: RecordedOpenSpan, spans: list[RecordedOpenSpan]) -> tuple[str, ...]:
    """Return the stages around an open span that are among some open spans, and its own stage."""
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


class LoadFigures(RecordedFigures, frozen=True):
    """What runs and waits in processes that are alive. Times are None if nothing is open."""

    running: dict[str, int]
    """Open executions and batches by stage."""
    longest_run_ns: dict[str, int]
    """How long the oldest of those has lasted, by stage."""
    waiting: dict[str, int]
    """Requests that wait, by queue: sent and not received, received and not entered, or inside of
    `queued`."""
    longest_ns: dict[str, int]
    """How long the oldest of those waits, by queue."""
    open_requests: Count
    unshown_requests: Count
    """Requests that began when all entries of a process were those of open ones, and that may be
    open too. They are in no other figure."""
    oldest_request_ns: int | None
    """The time since the start of the oldest open request."""
    oldest_waiter_ns: int | None
    """How long the oldest waiter of all queues waits."""


def load(recordings: Iterable[Recording], backlog: Backlog | None = None) -> LoadFigures:
    """Return what runs and waits in processes at the time of their copies, all together.

    ``backlog`` is that of all processes, if there are others.
    """
    recordings = list(recordings)
    backlog = backlog or Backlog(recordings)
    running: Counter[str] = Counter()
    longest_run_ns: dict[str, int] = {}
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
                stage = span["stage"]
                running[stage] += 1
                ns = now_ns - span["begin_ns"]
                longest_run_ns[stage] = max(ns, longest_run_ns.get(stage, 0))
        for message in backlog.waiting(recording):
            waits[message.queue].append(max(now_ns - message.sent_ns, 0))
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
    longest_ns = {queue: max(ages) for queue, ages in waits.items()}
    return LoadFigures(
        running=dict(running.most_common()),
        longest_run_ns=longest_run_ns,
        waiting={queue: len(ages) for queue, ages in waits.items()},
        longest_ns=longest_ns,
        open_requests=len(ages_ns),
        unshown_requests=unshown,
        oldest_request_ns=max(ages_ns.values(), default=None),
        oldest_waiter_ns=max(longest_ns.values(), default=None),
    )


def runs(recordings: Iterable[RequestSource]) -> Stats:
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


class LatestSpan(RecordedFigures, frozen=True):
    """A span that has ended. Times are Unix ns."""

    stage: str
    begin_ns: int
    end_ns: int
    request: str | None


class ThreadFigures(RecordedFigures, frozen=True):
    """A thread, and what it was doing."""

    thread: int
    name: str
    is_alive: bool
    spans: Count
    """The number of its finished spans."""
    open_spans: list[RecordedOpenSpan]
    latest_spans: list[LatestSpan]
    """Newest first."""


class ProcessFigures(RecordedFigures, frozen=True):
    """What a process was doing when it died, or does now. Times are Unix ns."""

    path: str
    identity: Flat[IdentityFigures]
    threads: list[ThreadFigures]
    detached_open_spans: list[RecordedOpenSpan]
    """Those that no thread is inside of."""
    stages: dict[str, StageRunFigures]
    open_requests: list[Request]
    lost: dict[str, Count]
    """What the recording has lost, by cause."""
    warnings: list[str]

    @classmethod
    def of(cls, recording: Recording) -> ProcessFigures:
        """Return the figures of a process."""
        names = recording.stage_names()
        requests = recording.requests()
        ids = {request["number"]: request["id"] for request in requests}
        latest = {
            thread: [
                LatestSpan(
                    names[int(row["stage"])],
                    int(row["begin_ns"]),
                    int(row["end_ns"]),
                    ids.get(int(row["request"])),
                )
                for row in rows
            ]
            for thread, rows in _latest_spans(recording).items()
        }
        inside: defaultdict[int, list[RecordedOpenSpan]] = defaultdict(list)
        detached: list[RecordedOpenSpan] = []
        for span in recording.open_spans():
            (detached if span["detached"] else inside[span["thread"]]).append(span)
        return cls(
            path_text(recording),
            identity(recording),
            [
                ThreadFigures(
                    **thread,
                    open_spans=inside[thread["thread"]],
                    latest_spans=latest.get(thread["thread"], []),
                )
                for thread in recording.threads()
            ],
            detached,
            stage_figures(runs([recording])),
            [request for request in requests if request["end_ns"] is None],
            recording.lost(),
            recording.warnings(),
        )


def path_text(recording: Recording) -> str:
    """Return the path for JSON, in which bytes that are not text are escaped."""
    return recording.path.encode("utf-8", "backslashreplace").decode()
