"""The figures of requests: each request, the stages of all of them, and their hand-offs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from stagespan.live import statistics
from stagespan.live.quantiles import quantile
from stagespan.live.span_kinds import TITLES
from stagespan.pages.figures import Count, RecordedFigures
from stagespan.recording.segments import began_here, open_meanwhile
from stagespan.recording.slow_causes import SlowFigures, slow_figures
from stagespan.recording.spans import Span
from stagespan.recording.timelines import Hop, Stretch, Timeline

if TYPE_CHECKING:
    from stagespan.recording.request_sums import RequestSums
    from stagespan.recording.source import RequestSource

_Number = TypeVar("_Number", int, float)

PART_NAMES = {
    "execution": TITLES["execution"],
    "handoff": TITLES["handoff"],
    "queue": TITLES["queue"],
    "unattributed": "unattributed",
}
"""What pages call the kinds of parts of a request."""


class PlaceFigures(RecordedFigures, frozen=True):
    """Where a part of a request's time went."""

    kind: str
    """execution, handoff, queue or unattributed."""
    name: str
    ns: int


class SpentFigures(RecordedFigures, frozen=True):
    """What was spent in a stage, which may exceed the time of the request."""

    kind: str
    stage: str
    count: Count
    ns: int


class SpanFigures(RecordedFigures, frozen=True):
    """A span of a segment."""

    kind: str
    stage: str
    at_ns: int | None
    """From the start of the request, on the clock of its root; None if the offset of the clocks is
    unknown."""
    duration_ns: int
    cpu_ns: int | None
    """The CPU time of its thread meanwhile; None if it was not measured."""
    depth: int
    open: bool
    size: int | None
    """The number of requests of a batch."""
    work: dict[str, int | float] | None
    """What was added to the span, by unit; None if newer amounts have displaced it."""
    median_ns: float | None
    """The median of the runs of its stage in its process; None if it is not known."""
    exception: str | None
    """The type of the exception that it has ended with, and its message if that is recorded."""
    exception_message: str | None


class SegmentFigures(RecordedFigures, frozen=True):
    """The part of a request in one process."""

    pid: int
    program: str
    name: str
    host: str
    segment: str | None
    parent_segment: str | None
    parent_hop: str | None
    status: str
    attempt: int | None
    branch: str | None
    at_ns: int | None
    """As that of spans."""
    duration_ns: int
    error_ns: int
    spans: list[SpanFigures]


class UnattributedFigures(RecordedFigures, frozen=True):
    """Where the time is in which nothing of the request was open, by position."""

    before_first_ns: int
    """Before the first stage, wait or hop."""
    between_ns: int
    after_last_ns: int

    @classmethod
    def of(cls, timeline: Timeline) -> UnattributedFigures:
        """Return those of one request."""
        outside_ns = timeline.before_first_ns + timeline.after_last_ns
        return cls(
            timeline.before_first_ns,
            timeline.where_sum("unattributed") - outside_ns,
            timeline.after_last_ns,
        )


class RequestFigures(RecordedFigures, frozen=True):
    """One request with its timeline."""

    request_id: str
    trace_id: str | None
    status: str
    pipeline: str
    route: str | None
    fields: dict[str, int | float | str]
    """What was recorded of its metadata."""
    exception: str | None
    """The type of the exception that it has ended with."""
    slow: SlowFigures | None
    """Why it was kept as slow; None if it was not."""
    begin_ns: int
    """Unix time."""
    total_ns: int
    execution_ns: int
    handoff_ns: int
    queue_ns: int
    unattributed_ns: int
    unattributed: UnattributedFigures
    open_meanwhile: Count | None
    """How many other requests that began in the process of the root were open at some time; None if
    it is not known."""
    where: list[PlaceFigures]
    """The sum is `total_ns`."""
    spent: list[SpentFigures]
    complete: bool
    causes: list[str]
    """Why it is not complete."""
    chunks: Count
    tokens: Count
    first_chunk_ns: int | None
    """Since the request began."""
    part_first_chunk_ns: int | None
    """Since the part that made it was entered."""
    late_spans: Count
    clipped_ns: int
    discarded_ns: int
    out_and_back_ns: list[int]
    hops: list[Hop]
    segments: list[SegmentFigures]
    """The root first."""

    @classmethod
    def of(cls, timeline: Timeline) -> RequestFigures:
        """Return the figures of one request."""
        root = timeline.segments[0]
        where = sorted(timeline.where.items(), key=lambda item: -item[1])
        return cls.taken(
            timeline,
            request_id=timeline.id,
            slow=slow_figures(timeline),
            execution_ns=timeline.where_sum("execution"),
            handoff_ns=timeline.where_sum("handoff"),
            queue_ns=timeline.where_sum("queue"),
            unattributed_ns=timeline.where_sum("unattributed"),
            unattributed=UnattributedFigures.of(timeline),
            open_meanwhile=_open_meanwhile(timeline),
            where=[PlaceFigures(kind, name, ns) for (kind, name), ns in where],
            spent=[
                SpentFigures(kind, name, count, ns)
                for (kind, name), (count, ns) in timeline.spent.items()
            ],
            segments=[_segment(stretch, root) for stretch in timeline.segments],
        )


def _segment(stretch: Stretch, root: Stretch) -> SegmentFigures:
    offset_ns = None if stretch.offset_ns is None else stretch.offset_ns - root.begin_ns
    segment, recording = stretch.segment, stretch.recording
    return SegmentFigures(
        pid=recording.pid,
        program=recording.program,
        name=recording.name,
        host=recording.host,
        segment=segment["segment"],
        parent_segment=segment["parent_segment"],
        parent_hop=segment["parent_hop"],
        status=segment["status"],
        attempt=segment["attempt"],
        branch=segment["branch"],
        at_ns=None if offset_ns is None else stretch.begin_ns + offset_ns,
        duration_ns=stretch.end_ns - stretch.begin_ns,
        error_ns=stretch.error_ns,
        spans=[
            SpanFigures.taken(
                span,
                at_ns=None if offset_ns is None else span.begin_ns + offset_ns,
                duration_ns=span.end_ns - span.begin_ns,
                open=span.is_open,
                median_ns=_median_ns(stretch, span),
            )
            for span in sorted(stretch.spans, key=lambda span: (span.begin_ns, span.depth))
        ],
    )


def _median_ns(stretch: Stretch, span: Span) -> float | None:
    noted = stretch.recording.slowness().get(stretch.segment["number"])
    if noted is not None and noted.usual and span.kind == "execution":
        # Other slow requests, which are kept too, do not tell what is usual.
        return noted.usual[span.stage].median_ns if span.stage in noted.usual else None
    if (surroundings := stretch.recording.surroundings) is not None:
        return surroundings.medians_ns.get((span.kind, span.stage))
    stage = stretch.recording.stats(kind=span.kind).get(span.stage)
    # That of one run is its own time.
    return stage.p50_ns if stage is not None and stage.count > 1 else None


def _open_meanwhile(timeline: Timeline) -> int | None:
    root = timeline.segments[0]
    recording, number = root.recording, root.segment["number"]
    noted = recording.slowness().get(number)
    if noted is not None and noted.neighbours is not None:
        return noted.neighbours
    end_ns = timeline.begin_ns + timeline.total_ns
    if (surroundings := recording.surroundings) is not None:
        if surroundings.times_ns is None:
            return None
        begins_ns, ends_ns = surroundings.times_ns
        is_open = (begins_ns < end_ns) & (ends_ns > timeline.begin_ns)
        return int(is_open.sum()) - (began_here(root.segment) and timeline.total_ns > 0)
    return open_meanwhile(recording.segment_rows(), number, timeline.begin_ns, end_ns)


class StageFigures(RecordedFigures, frozen=True):
    """What was spent in a stage, and where the requests' time went to it."""

    stage: str
    count: Count
    queue_ns: int
    execution_ns: int
    where_ns: int
    parallel: float | None
    """How many of its spans in one request ran at once, on average over the time in which one did;
    None without such time."""
    p50_ns: int | None
    p95_ns: int | None
    max_ns: int | None


class HandOffFigures(RecordedFigures, frozen=True):
    """A queue that requests were sent to. The times are those of hand-offs: from sent, or from the
    end of the work for others in the thread that received it, to received."""

    queue: str
    count: Count
    unknown: Count
    """How many of them have no known time."""
    negative: Count
    p50_ns: int | None
    p95_ns: int | None
    max_ns: int | None
    queue_p50_ns: int | None
    """Behind others, and from received to entered."""
    queue_max_ns: int | None
    behind_others_ns: int
    """The part of all waits that was behind others."""
    mean_bytes: float | None
    """Of all messages of these processes, if `extract` was told their size."""


class WorkFigures(RecordedFigures, frozen=True):
    """What single requests of a pipeline have done in one unit, or the sizes of batches."""

    name: str
    """The pipeline, or the stage of the batches."""
    unit: str
    count: Count
    p50: float | None
    p95: float | None
    max: float | None


class RequestsFigures(RecordedFigures, frozen=True):
    """What `stagespan requests --json` prints. Times are in ns, as the processes recorded them."""

    count: Count
    """Of all requests, of which the slowest are in `requests`."""
    requests: list[RequestFigures]
    stages: list[StageFigures]
    hops: list[HandOffFigures]
    work: list[WorkFigures]
    lost: dict[str, Count]
    """What the recordings have lost, by cause, so that figures can be incomplete."""


def stages(sums: RequestSums) -> list[StageFigures]:
    """Return the figures of each stage, with the one that most was spent in first."""
    durations = sums.durations()
    spent, queue = sums.executions_ns, sums.waits_ns.copy()
    where = {name: ns for (kind, name), ns in sums.where.items() if kind == "execution"}
    at_once = sums.at_once()
    for hop in sums.hops:
        if hop.queue is not None:
            queue[hop.queue] += hop.queue_ns or 0
    none = 0, None, None, None
    rows = []
    for name in sorted({*durations, *queue}, key=lambda name: -(spent[name] + queue[name])):
        count, *times_ns = durations.get(name, none)
        rows.append(
            StageFigures(
                *(name, count, queue[name], spent[name], where.get(name, 0), at_once.get(name)),
                *times_ns,
            )
        )
    return rows


def entries(hops: Iterable[Hop]) -> set[str]:
    """Return the queues to which only unknown senders have sent, such as ``http``."""
    named, unknown = set[str](), set[str]()
    for hop in hops:
        (unknown if hop.sender is None else named).add(hop.queue or "")
    return unknown - named


def hand_offs(hops: Iterable[Hop], recordings: Sequence[RequestSource]) -> list[HandOffFigures]:
    """Return the figures of each queue that requests were sent to, the most used one first.

    ``recordings`` are those that the requests have parts in.
    """
    times: defaultdict[str, list[int]] = defaultdict(list)
    counts: Counter[str] = Counter()
    waits: defaultdict[str, list[int]] = defaultdict(list)
    behind_ns: Counter[str] = Counter()
    for hop in hops:
        if hop.is_repeated or hop.queue is None or hop.state != "received":
            continue
        counts[hop.queue] += 1
        behind_ns[hop.queue] += hop.behind_others_ns or 0
        if hop.hand_off_ns is not None:
            times[hop.queue].append(hop.hand_off_ns)
        if hop.queue_ns is not None:
            waits[hop.queue].append(hop.queue_ns)
    rows = []
    for name, count in counts.most_common():
        p50_ns, p95_ns, max_ns = distribution(times[name])
        wait_p50_ns, _, wait_max_ns = distribution(waits[name])
        rows.append(
            HandOffFigures(
                queue=name,
                count=count,
                unknown=count - len(times[name]),
                negative=sum(ns < 0 for ns in times[name]),
                p50_ns=p50_ns,
                p95_ns=p95_ns,
                max_ns=max_ns,
                queue_p50_ns=wait_p50_ns,
                queue_max_ns=wait_max_ns,
                behind_others_ns=behind_ns[name],
                mean_bytes=_mean_bytes(recordings, name),
            )
        )
    return rows


def _mean_bytes(recordings: Iterable[RequestSource], queue: str) -> float | None:
    of_queue = [recording.stats(kind="queue").get(queue) for recording in recordings]
    told = [stage for stage in of_queue if stage is not None and "bytes" in stage.work]
    count = sum(stage.count for stage in told)
    return sum(stage.work["bytes"] for stage in told) / count if count else None


def distribution(
    values: Sequence[_Number],
) -> tuple[_Number, _Number, _Number] | tuple[None, None, None]:
    """Return p50, p95 and the maximum of values; None without values."""
    ordered = sorted(values)
    if not ordered:
        return None, None, None
    return quantile(ordered, 0.5), quantile(ordered, 0.95), ordered[-1]


def work(sums: RequestSums) -> list[WorkFigures]:
    """Return the work of single requests, by pipeline and unit, and the sizes of their batches."""
    return [
        WorkFigures(name, unit, len(of), *distribution(of))
        for (name, unit), of in sorted(sums.work.items())
    ]


class ChunkFigures(RecordedFigures, frozen=True):
    """The chunks of the requests of a pipeline."""

    pipeline: str
    count: Count
    """Requests with chunks."""
    first_p50_ns: float | None
    """From the start of a request to its first chunk; None if it is not known of any."""
    first_p95_ns: float | None
    token_p50_ns: float | None
    """From one chunk to the next, divided by its tokens, in the processes of these requests."""
    token_p95_ns: float | None


def chunks(sums: RequestSums) -> list[ChunkFigures]:
    """Return the figures of chunks by pipeline, the most requests first."""
    if not sums.first_chunks_ns:
        return []
    tokens = statistics.merged(
        [one.stats(kind="per_token") for one in sums.recordings], None, is_lifetime=True
    )
    rows = []
    for pipeline, times_ns in sums.first_chunks_ns.items():
        first_p50_ns, first_p95_ns, _ = distribution([ns for ns in times_ns if ns is not None])
        token = tokens.get(pipeline)
        rows.append(
            ChunkFigures(
                *(pipeline, len(times_ns), first_p50_ns, first_p95_ns),
                *((token.p50_ns, token.p95_ns) if token is not None else (None, None)),
            )
        )
    return sorted(rows, key=lambda row: -row.count)
