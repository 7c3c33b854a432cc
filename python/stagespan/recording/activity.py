"""What processes do now: their stages, queues, hand-offs, threads and requests of the last seconds.

`stagespan top` shows it, and so does the live page of `stagespan top --web`.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from msgspec import structs

from stagespan import _core
from stagespan.errors import StagespanError
from stagespan.live import statistics
from stagespan.live.span_kinds import RUNS, Kind, number_of
from stagespan.live.stage_figures import StageRunFigures
from stagespan.live.statistics import StageStats, Stats
from stagespan.pages.amounts import counted, duration
from stagespan.pages.figures import Count, RecordedFigures
from stagespan.pages.page import ResultPage, Words
from stagespan.pages.result import Block, Line, Result, Table
from stagespan.recording import ranks, summary
from stagespan.recording.reading import Recording
from stagespan.recording.request_figures import PART_NAMES, PlaceFigures
from stagespan.recording.segments import began_here
from stagespan.recording.source import RecordedOpenSpan
from stagespan.recording.summary import IdentityFigures, LoadFigures
from stagespan.recording.texts import ended_requests, open_requests
from stagespan.recording.timelines import Timeline, timelines
from stagespan.sampling.result import Sampled

SAMPLES_OF = "Samples of the "
"""Begins the titles of tables of samples."""
WINDOW_S = 10.0
"""The length of the time that figures are about."""
_REQUESTS_WINDOW_NS = 60 * 10**9
_MOST_REQUESTS = 10
_SHARE_OF_REQUESTS = 0.2
"""The most of its time that an observer spends on the parts of requests."""
_KINDS: tuple[Kind, ...] = (*RUNS, "queue", "handoff")


# --- figures --------------------------------------------------------------------------------------


class _OfService(RecordedFigures, frozen=True):
    """The processes that figures are about together."""

    service: str
    pipeline: str


class RecentFigures(_OfService, frozen=True):
    """What has ended in the last seconds, per second, and its durations; None without any.

    Of several ranks, the durations are those of the slowest one.
    """

    name: str
    """Of the stage or queue."""
    per_s: float
    p50_ns: float | None
    p95_ns: float | None
    p99_ns: float | None
    count: Count
    """Of all that have ended since the processes began."""


class StageActivity(RecentFigures, frozen=True):
    """The runs of a stage: executions and batches."""

    share: float
    """Of the time of all stages, each without the stages inside of it, in percent."""
    errors_per_s: float
    errors: Count
    """Since the processes began."""
    running: Count
    longest_ns: int | None
    """How long the oldest of those that run has lasted."""
    cpu_ns: float | None
    """The mean CPU time of the runs of the last seconds that have measured it."""
    device_ns: float | None
    """The mean device time of the last seconds."""


class QueueActivity(RecentFigures, frozen=True):
    """The waits in a queue."""

    waiting: Count
    longest_ns: int | None
    """How long the oldest of those that wait has waited."""


class OpenRequestFigures(RecordedFigures, frozen=True):
    """A request that has not ended."""

    request_id: str
    trace_id: str | None
    age_ns: int
    process: str
    """Where the innermost of its open stages is, or where it waits."""
    stages: list[str]
    """Outermost first; empty if none is open."""
    queue: str | None
    """What it waits in, if no stage is open."""


class EndedRequestFigures(RecordedFigures, frozen=True):
    """A request that ended in the last minute."""

    request_id: str
    trace_id: str | None
    status: str
    total_ns: int
    where: list[PlaceFigures] | None
    """Where its time went, the largest part first; None if that was not read yet, or if a part of
    the request is missing."""


class PlaceOfThread(RecordedFigures, frozen=True):
    """Where a thread is."""

    process: str
    pid: int
    thread: int
    thread_name: str
    stages: list[str]
    """Its open stages, outermost first."""
    elapsed_ns: int | None
    """How long the innermost of them has been open."""


class ActivityFigures(RecordedFigures, frozen=True):
    """What processes do now. Rates, durations and shares are those of the last seconds."""

    window_ns: int
    """The length of that time, which is shorter for younger processes; never 0."""
    processes: list[IdentityFigures]
    findings: list[str]
    """Which ranks have ended, are behind, or take longer."""
    stages: list[StageActivity]
    queues: list[QueueActivity]
    hand_offs: list[RecentFigures]
    """By the queue that was sent to."""
    threads: list[PlaceOfThread]
    """Of several processes only the busiest thread of each."""
    load: LoadFigures
    ended_requests: StageRunFigures | None
    """Of all since the processes began."""
    open_requests: list[OpenRequestFigures]
    """The oldest ones, which come first."""
    slowest_requests: list[EndedRequestFigures]
    """Of those that ended in the last minute, the slowest first."""
    lost: dict[str, Count]
    """What has been lost since the processes began, by cause."""
    samples: Sampled | None = None
    """Where the time of a process goes that has no stages, or listens to commands."""


# --- reading --------------------------------------------------------------------------------------


class _Window(NamedTuple):
    """What the spans in a copy tell of the last seconds."""

    stats: dict[Kind, Stats]
    seconds: float
    self_ns: dict[Kind, dict[str, int]]
    """The time of each stage without that of its children."""


class _Observed:
    """A process, and its readings in the last seconds."""

    def __init__(self) -> None:
        self.snapshots: deque[tuple[float, _core.Snapshot]] = deque()
        """With the times when they were made."""
        self.latest: Recording
        self.window: _Window | None = None
        """From the spans of the latest copy, if they tell more than the earlier readings."""

    @property
    def since_s(self) -> float:
        return self.snapshots[0][0]

    def take(self, copy: Recording, now_s: float) -> None:
        observed_s = now_s - self.since_s if self.snapshots else 0.0
        self.latest, self.window = copy, _window(copy, observed_s)
        self.snapshots.append((now_s, copy.snapshot()))
        # The figures are those since the oldest stored reading.
        while len(self.snapshots) > 2 and now_s - self.snapshots[1][0] >= WINDOW_S:
            self.snapshots.popleft()

    @property
    def seconds(self) -> float:
        """The time that its figures are about."""
        if self.window is not None:
            return self.window.seconds
        between_s = self.snapshots[-1][0] - self.since_s
        return between_s if between_s > 0 else _lifetime_s(self.latest)

    def recent(self, kind: Kind) -> tuple[Stats, dict[str, int]]:
        """Return the figures of stages in this time, and their times without their children."""
        if self.window is not None:
            return self.window.stats[kind], self.window.self_ns[kind]
        last = self.snapshots[-1][1]
        if self.snapshots[-1][0] > self.since_s:
            last = last.since(self.snapshots[0][1])
            stats = statistics.of_recording(last, {}, 0, kind)
        else:
            stats = self.latest.stats(kind=kind)
        stages = last.stages(number_of(kind)).items()
        return stats, {name: stage.total_ns - stage.children_ns for name, stage in stages}


class Observer:
    """Reads processes again and again, and tells what they do."""

    def __init__(self) -> None:
        self._processes: dict[str, _Observed] = {}
        self._requests = _SlowestRequests()

    def needs_spans(self, path: str) -> bool:
        """Whether a process has been observed for less than its figures are to be about."""
        observed = self._processes.get(path)
        return observed is None or time.monotonic() - observed.since_s < WINDOW_S

    def take(self, copies: Sequence[Recording]) -> None:
        """Take new copies of the recordings; processes without one are not shown any more."""
        now_s = time.monotonic()
        before, self._processes = self._processes, {}
        for copy in copies:
            copy.snapshot()  # taken now, so that snapshots can be subtracted in this order
            observed = before.get(copy.path) or _Observed()
            observed.take(copy, now_s)
            self._processes[copy.path] = observed

    @property
    def recordings(self) -> list[Recording]:
        """The latest copies."""
        return [observed.latest for observed in self._processes.values()]

    def activity(self, lost: dict[str, int] | None = None) -> ActivityFigures:
        """Return what the processes do, and what was lost, also beside their recordings."""
        recordings = self.recordings
        by_job: defaultdict[str | None, list[Recording]] = defaultdict(list)
        groups: defaultdict[tuple[str, str], list[_Observed]] = defaultdict(list)
        for observed in self._processes.values():
            by_job[observed.latest.job].append(observed.latest)
            groups[observed.latest.service, observed.latest.pipeline].append(observed)
        total_ns = _self_ns(self._processes.values()) or 1
        stages: list[StageActivity] = []
        queues: list[QueueActivity] = []
        hand_offs: list[RecentFigures] = []
        for (service, pipeline), processes in groups.items():
            labels: dict[str, Any] = {"service": service, "pipeline": pipeline}
            load = summary.load(observed.latest for observed in processes)
            stages += _stages(processes, load, total_ns, labels)
            queues += _queues(processes, load, labels)
            hand_offs += [
                RecentFigures(**labels, **_recent(name, changes))
                for name, changes in _changes(processes, ("handoff",)).items()
            ]
        ended = summary.requests(recordings)
        losses = Counter(lost or {})
        for copy in recordings:
            losses.update(copy.lost())
        return ActivityFigures(
            round(1e9 * max((one.seconds for one in self._processes.values()), default=WINDOW_S)),
            [summary.identity(copy) for copy in recordings],
            [
                sentence
                for of_job in by_job.values()
                if len(of_job) > 1
                for sentence in ranks.findings(ranks.ranks(of_job))
            ],
            sorted(stages, key=lambda stage: (-stage.share, stage.name)),
            sorted(queues, key=lambda queue: (-queue.waiting, queue.name)),
            sorted(hand_offs, key=lambda queue: (-queue.per_s, queue.name)),
            _threads(recordings),
            summary.load(recordings),
            None if ended is None else StageRunFigures.of_stage(ended),
            _open_requests(recordings),
            self._requests.of(recordings),
            {cause: count for cause, count in losses.items() if count},
        )


def _window(copy: Recording, observed_s: float) -> _Window | None:
    """Return the figures of the last seconds from the latest spans in a recording.

    Returns None if the recording was read without spans, or if its rings reach back less far than
    ``observed_s`` seconds.
    """
    if not copy.has_spans:
        return None
    spans = copy.spans()
    until_ns = _until_ns(copy)
    if until_ns is None:
        return None
    since_ns = max(until_ns - round(WINDOW_S * 1e9), copy.complete_ns)
    spans = spans[spans["end_ns"] > since_ns]
    # A young process, which may have recorded spans that were timed before its first one.
    first_ns = min(copy.begin_ns, int(spans["end_ns"].min()) if len(spans) else until_ns)
    seconds = (until_ns - max(since_ns, first_ns)) / 1e9
    if seconds <= observed_s:
        return None
    names = copy.stage_names()
    numbers = (spans["flags"] >> _core.KIND_SHIFT).tolist()
    lengths = (spans["end_ns"] - spans["begin_ns"]).tolist()
    ids, stages, parents = (spans[name].tolist() for name in ("id", "stage", "parent"))
    places = {id_: place for place, id_ in enumerate(ids)}
    self_ns: dict[int, Counter[str]] = {number_of(kind): Counter() for kind in _KINDS}
    for number, stage, parent, length in zip(numbers, stages, parents, lengths, strict=True):
        if number not in self_ns:
            continue
        self_ns[number][names[stage]] += length
        around = places.get(parent)
        if around is not None and numbers[around] in self_ns:
            self_ns[numbers[around]][names[stages[around]]] -= length
    of_kind = {
        kind: spans[spans["flags"] >> _core.KIND_SHIFT == number_of(kind)] for kind in _KINDS
    }
    stats = {kind: statistics.of_spans(of, names, {}, seconds) for kind, of in of_kind.items()}
    return _Window(stats, seconds, {kind: self_ns[number_of(kind)] for kind in _KINDS})


def _until_ns(copy: Recording) -> int | None:
    """Return the Unix time up to which a copy has spans; None if it is not known."""
    until_ns = copy.read_ns if copy.state in ("alive", "unknown") else copy.end_ns
    return until_ns or copy.last_ns


def _lifetime_s(copy: Recording) -> float:
    return max((_until_ns(copy) or copy.begin_ns) - copy.begin_ns, 1) / 1e9


# --- stages and queues ----------------------------------------------------------------------------


class _Change(NamedTuple):
    """The activity of one stage in one process."""

    seconds: float
    """The time in which the recent runs ended."""
    recent: StageStats | None
    since_begin: StageStats | None
    self_ns: int
    has_rank: bool


def _changes(processes: Iterable[_Observed], kinds: Sequence[Kind]) -> dict[str, list[_Change]]:
    """Return the activity of each stage of some kinds."""
    by_name: defaultdict[str, list[_Change]] = defaultdict(list)
    for observed in processes:
        has_rank = observed.latest.rank is not None
        for kind in kinds:
            recent, self_ns = observed.recent(kind)
            for name, stage in observed.latest.stats(kind=kind).items():
                own_ns = max(self_ns.get(name, 0), 0)
                change = _Change(observed.seconds, recent.get(name), stage, own_ns, has_rank)
                by_name[name].append(change)
    return by_name


def _self_ns(processes: Iterable[_Observed]) -> int:
    by_name = _changes(processes, RUNS)
    return sum(change.self_ns for changes in by_name.values() for change in changes)


def _per_s(changes: Sequence[_Change], field: str) -> float:
    recent = [change for change in changes if change.recent is not None]
    return sum((getattr(change.recent, field) / change.seconds for change in recent), start=0.0)


def _recent_stats(changes: Sequence[_Change]) -> list[StageStats]:
    """Return the recent figures of each rank, or of all processes together."""
    recent = [change.recent for change in changes if change.recent is not None]
    if len(recent) > 1 and not any(change.has_rank for change in changes):
        return [statistics.merged_stage(recent)]
    return recent


def _recent(name: str, changes: Sequence[_Change]) -> dict[str, Any]:
    recent = _recent_stats(changes)
    return {
        "name": name,
        "per_s": _per_s(changes, "count"),
        **{
            key: max((getattr(stats, key) for stats in recent if stats.count), default=None)
            for key in ("p50_ns", "p95_ns", "p99_ns")
        },
        "count": sum(change.since_begin.count for change in changes if change.since_begin),
    }


def _stages(
    processes: Sequence[_Observed], load: LoadFigures, total_ns: int, labels: dict[str, Any]
) -> Iterator[StageActivity]:
    by_name = _changes(processes, RUNS)
    for name in dict.fromkeys([*by_name, *load.running]):  # also those of which no run has ended
        changes = by_name.get(name, [])
        recent = _recent_stats(changes)
        cpu = [stats.cpu_mean_ns for stats in recent if stats.cpu_mean_ns is not None]
        device = [
            stats.device_elapsed_ns.mean_ns
            for stats in recent
            if stats.device_elapsed_ns is not None
        ]
        yield StageActivity(
            **labels,
            **_recent(name, changes),
            share=100 * sum(change.self_ns for change in changes) / total_ns,
            errors_per_s=_per_s(changes, "errors"),
            errors=sum(change.since_begin.errors for change in changes if change.since_begin),
            running=load.running.get(name, 0),
            longest_ns=load.longest_run_ns.get(name),
            cpu_ns=max(cpu, default=None),
            device_ns=max(device, default=None),
        )


def _queues(
    processes: Sequence[_Observed], load: LoadFigures, labels: dict[str, Any]
) -> Iterator[QueueActivity]:
    by_name = _changes(processes, ("queue",))
    for name in dict.fromkeys([*by_name, *load.waiting]):
        yield QueueActivity(
            **labels,
            **_recent(name, by_name.get(name, [])),
            waiting=load.waiting.get(name, 0),
            longest_ns=load.longest_ns.get(name),
        )


def _process_name(copy: Recording) -> str:
    return f"rank {copy.rank}" if copy.rank is not None else f"{copy.name} {copy.pid}"


def _threads(recordings: Sequence[Recording]) -> list[PlaceOfThread]:
    most = 1 if len(recordings) > 1 else None
    return [
        PlaceOfThread(
            *(_process_name(copy), copy.pid, position.thread, position.name),
            *(list(position.stages), position.elapsed_ns),
        )
        for copy in recordings
        for position in summary.positions(copy)[:most]
    ]


# --- requests -------------------------------------------------------------------------------------


def _open_requests(recordings: Iterable[Recording]) -> list[OpenRequestFigures]:
    """Return the oldest open requests, and where each of them is."""
    parts: defaultdict[object, list[tuple[int, Recording, Any]]] = defaultdict(list)
    spans: dict[tuple[str, int], list[RecordedOpenSpan]] = {}
    for copy in recordings:
        if copy.state not in ("alive", "unknown") or copy.read_ns is None:
            continue
        for segment in copy.open_segments:
            since_ns = segment["received_ns"] or segment["begin_ns"] or copy.read_ns
            key = segment["trace_id"] or (copy.path, segment["number"])
            parts[key].append((copy.read_ns - since_ns, copy, segment))
        for span in copy.open_spans():
            if span["request_number"] is not None:
                spans.setdefault((copy.path, span["request_number"]), []).append(span)
    oldest = heapq.nlargest(
        _MOST_REQUESTS, parts.values(), key=lambda of: max(age_ns for age_ns, *_ in of)
    )
    requests = []
    for of_request in oldest:
        age_ns, _, first = max(of_request, key=lambda part: part[0])
        places = [
            (max(inside, key=lambda span: (span["begin_ns"], span["depth"])), inside, copy)
            for _, copy, segment in of_request
            if (inside := spans.get((copy.path, segment["number"])))
        ]
        # Its latest part is the one that it is in, or waits for.
        _, copy, last = min(of_request, key=lambda part: part[0])
        stages: list[str] = []
        if places:
            innermost, inside, copy = max(places, key=lambda place: place[0]["begin_ns"])
            stages = list(summary.path_to(innermost, inside))
        requests.append(
            OpenRequestFigures(
                *(first["id"], first["trace_id"], age_ns, _process_name(copy), stages),
                None if stages or last["begin_ns"] is not None else last["queue"] or "",
            )
        )
    return requests


class _SlowestRequests:
    """The slowest requests of the last minute, with their parts."""

    def __init__(self) -> None:
        self._where: dict[object, list[PlaceFigures] | None] = {}
        self._due_s = 0.0

    def of(self, recordings: Sequence[Recording]) -> list[EndedRequestFigures]:
        """Return the slowest requests that ended in the last minute."""
        ended = []
        for copy in recordings:
            since_ns = (copy.read_ns or copy.begin_ns) - _REQUESTS_WINDOW_NS
            for segment in copy.segments():
                begin_ns, end_ns = segment["received_ns"] or segment["begin_ns"], segment["end_ns"]
                if begin_ns is None or end_ns is None or end_ns < since_ns:
                    continue
                if began_here(segment) and segment["status"] != "unused":
                    ended.append((end_ns - begin_ns, copy, segment))
        slowest = heapq.nlargest(_MOST_REQUESTS, ended, key=lambda request: request[0])
        keys = {_key(copy.identity, segment) for _, copy, segment in slowest}
        self._where = {key: where for key, where in self._where.items() if key in keys}
        if keys - self._where.keys() and time.monotonic() >= self._due_s:
            began_s = time.monotonic()
            self._read(recordings, keys)
            now_s = time.monotonic()
            self._due_s = now_s + (now_s - began_s) / _SHARE_OF_REQUESTS
        return [
            EndedRequestFigures(
                *(segment["id"], segment["trace_id"], segment["status"], total_ns),
                self._where.get(_key(copy.identity, segment)),
            )
            for total_ns, copy, segment in slowest
        ]

    def _read(self, recordings: Sequence[Recording], keys: set[object]) -> None:
        """Read where the time of the requests went, from the processes with a part of them."""
        traces = {key for key in keys if isinstance(key, str)}
        with_part = []
        for copy in recordings:
            if any(
                segment["trace_id"] in traces or _key(copy.identity, segment) in keys
                for segment in copy.segments()
            ):
                with suppress(StagespanError):  # the process has ended, and its file is gone
                    with_part.append(copy if copy.has_spans else Recording(copy.path))
        for timeline in timelines(with_part, are_all=False):
            root = timeline.segments[0]
            key = _key(root.recording.identity, root.segment)
            if key in keys:
                self._where[key] = _where(timeline)


def _key(identity: str, segment: Any) -> object:
    return segment["trace_id"] or (identity, segment["number"])


def _where(timeline: Timeline) -> list[PlaceFigures] | None:
    is_whole = all(
        part.recording.complete_ns <= part.begin_ns + part.recording.unix_offset_ns
        for part in timeline.segments
    )
    if timeline.causes or not is_whole:
        return None
    where = sorted(timeline.where.items(), key=lambda part: -part[1])
    return [PlaceFigures(kind, name, ns) for (kind, name), ns in where]


# --- the result -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Activity(Result):
    """What processes do now."""

    of: ActivityFigures

    def figures(self) -> ActivityFigures:
        """Return all figures."""
        return self.of

    def sentences(self) -> list[str]:
        """Return what to know first: ranks that are behind, requests, and losses."""
        of = self.of
        lost = ", ".join(f"{cause} {count:,}" for cause, count in of.lost.items())
        return [
            *of.findings,
            *filter(
                None,
                (
                    open_requests(of.load),
                    ended_requests(of.ended_requests),
                    f"Lost since the start: {lost}." if lost else None,
                    f"Samples: {of.samples.verdict()}" if of.samples is not None else None,
                ),
            ),
        ]

    def head(self) -> list[Block]:
        """Return the sentences and all tables."""
        return [*map(Line, self.sentences()), *self.tables()]

    def tables(self) -> list[Table]:
        """Return stages, queues, hand-offs, threads and requests, important columns first."""
        of = self.of
        tables = (
            *(_stages_table(of), *_sampled_tables(of)),
            *(_queues_table(of), _hand_offs_table(of), _threads_table(of)),
            *(_open_requests_table(of), _slowest_table(of)),
        )
        return [table for table in tables if table.rows]

    def page(self, subject: str, amount: str, remarks: Sequence[str] = ()) -> ResultPage:
        """Return the page of `stagespan top`."""
        words = Words(page="Activity", as_text="stagespan top --once")
        return ResultPage(words, self, subject, amount, remarks)


_QUANTILES = tuple((f"p{q}_ns", f"p{q}", "rounded ns") for q in (50, 95, 99))


def _labels(of: ActivityFigures) -> list[tuple[str, str, str]]:
    """Return the columns that tell the processes of the rows apart."""
    columns = ("service", "pipeline")
    rows = [*of.stages, *of.queues, *of.hand_offs]
    return [(name, name, "") for name in columns if len({getattr(row, name) for row in rows}) > 1]


def _window_text(of: ActivityFigures) -> str:
    return f"the last {duration(of.window_ns)}"


def _stages_table(of: ActivityFigures) -> Table:
    return Table.of(
        "Stages",
        of.stages,
        ("name", "stage", ""),
        ("per_s", "runs/s", "rate"),
        *_QUANTILES,
        ("share", "share", "%"),
        ("errors_per_s", "errors/s", "rate"),
        *(("errors", "errors", ""), ("running", "running", "")),
        ("longest_ns", "longest", "rounded ns"),
        *(("cpu_ns", "CPU", "rounded ns"), ("device_ns", "device", "rounded ns")),
        ("count", "runs", ""),
        *_labels(of),
        note=f"Rates, percentiles and shares are those of {_window_text(of)}.",
    ).filled(("runs/s", "p50", "p95", "p99", "share"))


def _sampled_tables(of: ActivityFigures) -> list[Table]:
    if of.samples is None:
        return []
    tables = of.samples.tables()
    note = f"{of.samples.line()}."
    return [
        structs.replace(
            table, title=f"{SAMPLES_OF}{table.title}", note=f"{note} {table.note}".strip()
        )
        for table in tables
    ]


def _queues_table(of: ActivityFigures) -> Table:
    return Table.of(
        "Queues",
        of.queues,
        *(("name", "queue", ""), ("waiting", "waiting", "")),
        *(("longest_ns", "longest", "rounded ns"), ("per_s", "waits/s", "rate")),
        *_QUANTILES,
        *_labels(of),
    ).filled(("waiting", "waits/s"))


def _hand_offs_table(of: ActivityFigures) -> Table:
    return Table.of(
        "Hand-offs",
        of.hand_offs,
        ("name", "sent to", ""),
        ("per_s", "per s", "rate"),
        *_QUANTILES,
        *_labels(of),
    ).filled(("per s",))


def _threads_table(of: ActivityFigures) -> Table:
    is_one = len(of.processes) == 1
    heading = "thread" if is_one else "rank" if _are_ranks(of) else "process"
    return Table.of(
        "Threads" if is_one else "Ranks" if _are_ranks(of) else "Processes",
        of.threads,
        (
            lambda place: f"{place.thread} {place.thread_name}" if is_one else place.process,
            heading,
            "",
        ),
        (lambda place: " > ".join(place.stages), "in", ""),
        ("elapsed_ns", "for", "rounded ns"),
    )


def _open_requests_table(of: ActivityFigures) -> Table:
    return Table.of(
        "Oldest open requests",
        of.open_requests,
        ("request_id", "request", ""),
        ("age_ns", "open for", "rounded ns"),
        (
            lambda request: (
                " > ".join(request.stages)
                if request.queue is None
                else f"waits in {request.queue}".strip()
            ),
            "in",
            "",
        ),
        ("process", "process", ""),
    )


def _slowest_table(of: ActivityFigures) -> Table:
    def part(kind: str) -> Any:
        return lambda request: (
            None
            if request.where is None
            else sum(place.ns for place in request.where if place.kind == kind)
        )

    def mostly(request: EndedRequestFigures) -> str | None:
        longest = next(iter(request.where or ()), None)
        return None if longest is None else f"{PART_NAMES[longest.kind]} {longest.name}".strip()

    return Table.of(
        "Slowest requests of the last minute",
        of.slowest_requests,
        *(("request_id", "request", ""), ("total_ns", "total", "rounded ns")),
        *((part(kind), name, "rounded ns") for kind, name in PART_NAMES.items()),
        *((mostly, "mostly", ""), ("status", "status", "")),
    ).filled()


def _are_ranks(of: ActivityFigures) -> bool:
    return any(process.rank is not None for process in of.processes)


def amount_of(of: ActivityFigures, recording: Recording | None = None) -> str:
    """Return how many processes there are, or the state of a single one."""
    if recording is None:
        count = len(of.processes)
        return counted(count, "rank") if _are_ranks(of) else counted(count, "process", "processes")
    rank = "" if recording.rank is None else f", rank {recording.rank}"
    until_ns = recording.read_ns if recording.state == "alive" else recording.end_ns
    age = f", {duration(until_ns - recording.begin_ns)}" if until_ns else ""
    return f"{recording.state}{rank}{age}"
