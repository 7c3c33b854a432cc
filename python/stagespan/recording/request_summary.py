"""Figures of requests as data: each request, the stages of all of them, and their hops."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from stagespan.live.quantiles import quantile
from stagespan.recording.timelines import Stretch, TimedSpan, Timeline

if TYPE_CHECKING:
    from stagespan.recording.source import RequestSource


def as_dict(timeline: Timeline) -> dict[str, Any]:
    """Return one request as JSON types, with its timeline. Times are in ns."""
    root = timeline.segments[0]
    return {
        "request_id": timeline.id,
        "trace_id": timeline.trace_id,
        "status": timeline.status,
        "begin_ns": timeline.begin_ns,
        "total_ns": timeline.total_ns,
        "execution_ns": timeline.where_sum("execution"),
        "handoff_ns": timeline.where_sum("handoff"),
        "queue_ns": timeline.where_sum("queue"),
        "unattributed_ns": timeline.where_sum("unattributed"),
        "where": [
            {"kind": kind, "name": name, "ns": ns}
            for (kind, name), ns in sorted(timeline.where.items(), key=lambda one: -one[1])
        ],
        "spent": [
            {"kind": kind, "stage": name, "count": count, "ns": ns}
            for (kind, name), (count, ns) in timeline.spent.items()
        ],
        "complete": timeline.complete,
        "causes": timeline.causes,
        "chunks": timeline.chunks,
        "tokens": timeline.tokens,
        "part_first_chunk_ns": timeline.part_first_chunk_ns,
        "late_spans": timeline.late_spans,
        "clipped_ns": timeline.clipped_ns,
        "discarded_ns": timeline.discarded_ns,
        "out_and_back_ns": timeline.out_and_back_ns,
        "hops": [hop._asdict() for hop in timeline.hops],
        "segments": [_segment(one, root) for one in timeline.segments],
    }


def _segment(one: Stretch, root: Stretch) -> dict[str, Any]:
    offset_ns = None if one.offset_ns is None else one.offset_ns - root.begin_ns
    return {
        "pid": one.recording.pid,
        "program": one.recording.program,
        "name": one.recording.name,
        "host": one.recording.host,
        "segment": one.segment["segment"],
        "parent_segment": one.segment["parent_segment"],
        "parent_hop": one.segment["parent_hop"],
        "status": one.segment["status"],
        "attempt": one.segment["attempt"],
        "branch": one.segment["branch"],
        # On the root's clock, from its begin; null if the offset of the clocks is unknown.
        "at_ns": None if offset_ns is None else one.begin_ns + offset_ns,
        "duration_ns": one.end_ns - one.begin_ns,
        "error_ns": one.error_ns,
        "spans": [
            {
                "kind": span.kind,
                "stage": span.stage,
                "at_ns": None if offset_ns is None else span.begin_ns + offset_ns,
                "duration_ns": span.end_ns - span.begin_ns,
                "depth": span.depth,
                "open": span.is_open,
                "size": span.size,
                "work": span.work,
            }
            for span in sorted(one.spans, key=lambda span: (span.begin_ns, span.depth))
        ],
    }


def stages(timelines: Sequence[Timeline]) -> list[dict[str, Any]]:
    """Return a row for each stage: what was spent in it, and where the requests' time went to it.

    ``parallel`` is how many spans ran at once on average while the stage was on the requests'
    timelines; None if it never was.
    """
    durations: defaultdict[str, list[int]] = defaultdict(list)
    batches: set[tuple[str, TimedSpan]] = set()
    queue: Counter[str] = Counter()
    where: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    for timeline in timelines:
        for (kind, name), ns in timeline.where.items():
            if kind == "execution":
                where[name] += ns
        for (kind, name), (_, ns) in timeline.spent.items():
            if kind == "queue":
                queue[name] += ns
            else:
                spent[name] += ns
        for hop in timeline.hops:
            if hop.queue is not None:
                queue[hop.queue] += hop.queue_ns or 0
        for stretch in timeline.segments:
            for span in stretch.spans:
                if span.kind == "batch":
                    one = (stretch.recording.path, span._replace(place=0, work=None))
                    if one in batches:
                        continue  # counted with another of its requests
                    batches.add(one)
                if span.kind != "queue":
                    durations[span.stage].append(span.end_ns - span.begin_ns)
    return [
        {
            "stage": name,
            "count": len(durations[name]),
            "queue_ns": queue[name],
            "execution_ns": spent[name],
            "where_ns": where[name],
            "parallel": spent[name] / where[name] if where[name] else None,
            **distribution(durations[name]),
        }
        for name in sorted({*durations, *queue}, key=lambda name: -(spent[name] + queue[name]))
    ]


def entries(timelines: Sequence[Timeline]) -> set[str]:
    """Return the queues to which only unknown senders have sent, such as ``http``."""
    known, unknown = set[str](), set[str]()
    for timeline in timelines:
        for hop in timeline.hops:
            (unknown if hop.sender is None else known).add(hop.queue or "")
    return unknown - known


def hops(timelines: Sequence[Timeline]) -> list[dict[str, Any]]:
    """Return a row for each queue that requests were sent to.

    ``mean_bytes`` is the mean size of all messages of these processes, if `extract` was told it.
    """
    known: defaultdict[str, list[int]] = defaultdict(list)
    counts: Counter[str] = Counter()
    recordings = {
        id(one.recording): one.recording for timeline in timelines for one in timeline.segments
    }.values()
    waits: defaultdict[str, list[int]] = defaultdict(list)
    for timeline in timelines:
        for hop in timeline.hops:
            if hop.is_repeated or hop.queue is None or hop.state != "received":
                continue
            counts[hop.queue] += 1
            if hop.hand_off_ns is not None:
                known[hop.queue].append(hop.hand_off_ns)
            if hop.queue_ns is not None:
                waits[hop.queue].append(hop.queue_ns)
    return [
        {
            "queue": name,
            "count": count,
            "unknown": count - len(known[name]),
            "negative": sum(ns < 0 for ns in known[name]),
            **distribution(known[name]),
            "queue_p50_ns": distribution(waits[name])["p50_ns"],
            "queue_max_ns": distribution(waits[name])["max_ns"],
            "mean_bytes": _mean_bytes(recordings, name),
        }
        for name, count in counts.most_common()
    ]


def _mean_bytes(recordings: Iterable[RequestSource], queue: str) -> float | None:
    found = [one.stats(kind="queue").get(queue) for one in recordings]
    told = [stage for stage in found if stage is not None and "bytes" in stage.work]
    count = sum(stage.count for stage in told)
    return sum(stage.work["bytes"] for stage in told) / count if count else None


def distribution(values: Sequence[int]) -> dict[str, int | None]:
    """Return p50, p95 and the maximum of values in ns; None without values."""
    ordered = sorted(values)
    if not ordered:
        return {"p50_ns": None, "p95_ns": None, "max_ns": None}
    p50_ns, p95_ns = (quantile(ordered, q) for q in (0.5, 0.95))
    return {"p50_ns": p50_ns, "p95_ns": p95_ns, "max_ns": ordered[-1]}
