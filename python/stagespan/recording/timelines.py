"""Joins the segments of requests from the recordings of several processes."""

from __future__ import annotations

import gc
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from stagespan.live.span_kinds import KINDS
from stagespan.pages.figures import RecordedFigures
from stagespan.process import imports
from stagespan.recording.partition import UNATTRIBUTED, Part, pieces, time_by_owner
from stagespan.recording.segments import behind_others_ns
from stagespan.recording.source import latest_ns
from stagespan.recording.spans import (
    BATCH,
    OPEN_NS,
    Span,
    kinds_of,
    made,
    of_requests,
    with_open,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stagespan.recording.reading import Amounts, Segment
    from stagespan.recording.source import RequestSource

_QUEUE = KINDS.index("queue")


class Hop(RecordedFigures, frozen=True):
    """The hand-over of a request from one process to another. Unknown values are None."""

    state: str
    """``received``; ``unknown`` if another tracer was between sender and receiver, so that it is
    not known when it was sent; ``not_entered`` if it was received and dropped; or if no recording
    shows that it was received, ``waiting`` while its sender's part or the request is open,
    ``overwritten`` if a process has used its entries again since then, else ``lost``."""
    queue: str | None
    sender: int | None
    """Process id of the sender."""
    receiver: int | None
    hand_off_ns: int | None
    """From sent to received, without ``behind_others_ns``. Negative if the clocks or stamps are
    wrong."""
    error_ns: int
    """Of ``hand_off_ns``, if it is between two clocks."""
    queue_ns: int | None
    """From received to entered, and before that ``behind_others_ns``."""
    behind_others_ns: int | None
    """From sent to the end of the last work for others in the thread that received it; 0 if it did
    no such work meanwhile. None if it is not known when it was sent."""
    attempt: int | None
    branch: str | None
    is_return: bool
    is_repeated: bool


@dataclass(slots=True)
class Stretch:
    """A segment with what was open in it. Times are CLOCK_MONOTONIC of its process."""

    recording: RequestSource
    segment: Segment
    begin_ns: int
    end_ns: int
    process: Process = field(repr=False)
    """Its recording with what requests need of it."""
    has_all_links: bool = True
    """Whether no link of a batch that it can have been in has been overwritten."""
    depth: int = 0
    """The number of hops between the root and this segment."""
    offset_ns: int | None = 0
    """What is added to its times to get those of the root; None if unknown."""
    error_ns: int = 0
    is_discarded: bool = False
    """Whether it, or a segment that led to it, has the status discarded."""
    hop_parts: list[Part] = field(default_factory=list)
    """The hops to it and its waits before it was entered, on the clock of the root."""

    @property
    def spans(self) -> list[Span]:
        """The spans of it, and the batches that served it, on the clock of its process."""
        return self.process.spans_of(self.segment["number"])


class _Division(NamedTuple):
    """How the time of a request is divided among its spans, waits and hops."""

    where: dict[tuple[str, str], int]
    spent: dict[tuple[str, str], tuple[int, int]]
    parts: list[list[Part]]
    before_first_ns: int
    after_last_ns: int
    late_spans: int
    clipped_ns: int
    discarded_ns: int


class Timeline:
    """One request, from the recordings of all processes that it ran in. Times are in ns.

    Its spans are looked at when something that depends on them is asked for.
    """

    __slots__ = (
        "_divided",
        "begin_ns",
        "causes",
        "hops",
        "out_and_back_ns",
        "segments",
        "total_ns",
    )

    def __init__(
        self,
        segments: list[Stretch],
        hops: list[Hop],
        causes: list[str],
        out_and_back_ns: list[int],
    ) -> None:
        root = segments[0]
        self.segments = segments
        """The root first."""
        self.hops = hops
        self.causes = causes
        """Why it is not complete, if it is not."""
        self.out_and_back_ns = out_and_back_ns
        """For each round trip to another clock: both hand-offs together, which needs no common
        clock."""
        offset_ns, received_ns = root.recording.unix_offset_ns, root.segment["received_ns"]
        begin_ns = root.begin_ns + offset_ns
        self.begin_ns = begin_ns if received_ns is None else min(begin_ns, received_ns)
        """Unix time."""
        self.total_ns = root.end_ns + offset_ns - self.begin_ns
        """From the start to the end of the root; up to now for an open request."""
        self._divided: _Division | None = None

    @property
    def id(self) -> str:
        """The id that the program has given it."""
        return self.segments[0].segment["id"]

    @property
    def trace_id(self) -> str | None:
        """The id of its distributed trace."""
        return self.segments[0].segment["trace_id"]

    @property
    def status(self) -> str:
        """How it has ended, or open."""
        return self.segments[0].segment["status"]

    @property
    def pipeline(self) -> str:
        """The pipeline that it belongs to."""
        return self.segments[0].segment["pipeline"]

    @property
    def route(self) -> str | None:
        """The template of the route that served it, if it was a call by HTTP."""
        return self.segments[0].segment["route"]

    @property
    def exception(self) -> str | None:
        """The type of the exception that the root has ended with."""
        return self.segments[0].segment["exception"]

    @property
    def fields(self) -> dict[str, int | float | str]:
        """What its processes have recorded of its metadata; of one name, the earliest's value."""
        return {
            name: value
            for one in reversed(self.segments)
            for name, value in one.segment["fields"].items()
        }

    @property
    def complete(self) -> bool:
        """Whether all segments and spans of the request were found."""
        return not self.causes

    @property
    def _chunked(self) -> list[Stretch]:
        return [one for one in self.segments if one.segment["chunks"]]

    @property
    def chunks(self) -> int:
        """The number of its chunks."""
        return sum(one.segment["chunks"] for one in self.segments)

    @property
    def tokens(self) -> int:
        """The tokens of its chunks."""
        return sum(one.segment["chunk_amount"] for one in self._chunked)

    @property
    def first_chunk_ns(self) -> int | None:
        """From the start of the request to its first chunk; None if one of the two is unknown."""
        root = self.segments[0]
        begin_ns = self.begin_ns - root.recording.unix_offset_ns
        return _first_chunk_ns(root, begin_ns, self._chunked)

    @property
    def part_first_chunk_ns(self) -> int | None:
        """From the start of the segment that made the first chunk to the chunk.

        None if that segment is unknown.
        """
        return _part_first_chunk_ns(self._chunked)

    @property
    def _division(self) -> _Division:
        if self._divided is None:
            self._divided = _divided(self)
        return self._divided

    @property
    def where(self) -> dict[tuple[str, str], int]:
        """Where the time went, by kind (execution, handoff, queue, unattributed) and name.

        The sum is ``total_ns``.
        """
        return self._division.where

    @property
    def spent(self) -> dict[tuple[str, str], tuple[int, int]]:
        """What was spent, by kind and stage: the number of spans and the sum of their durations.

        The sum may exceed ``total_ns``. A batch of n counts as a n-th of its duration.
        """
        return self._division.spent

    @property
    def parts(self) -> list[list[Part]]:
        """The spans, waits and hops of each segment, on the clock of the root."""
        return self._division.parts

    @property
    def before_first_ns(self) -> int:
        """The part of the unattributed time before the first stage, wait or hop."""
        return self._division.before_first_ns

    @property
    def after_last_ns(self) -> int:
        """The part of it after the last one."""
        return self._division.after_last_ns

    @property
    def late_spans(self) -> int:
        """Spans that began after the request had ended. They are in no figure of `where`."""
        return self._division.late_spans

    @property
    def clipped_ns(self) -> int:
        """Time of spans and hops outside of the root's interval, which `where` leaves out."""
        return self._division.clipped_ns

    @property
    def discarded_ns(self) -> int:
        """Time of executions in discarded branches, which `where` leaves out."""
        return self._division.discarded_ns

    def where_sum(self, kind: str) -> int:
        """Return the time of all names of a kind in `where`."""
        return sum(ns for (of, _), ns in self.where.items() if of == kind)


def timelines(
    recordings: Iterable[RequestSource], id_: str | None = None, *, are_all: bool = True
) -> list[Timeline]:
    """Return the requests in recordings, ordered by begin; only those with an id if one is given.

    The recordings must have been opened with their spans. Of several copies of one recording, the
    latest counts. If they are not all that there are, the others may have what is missing.
    """
    with without_collections():
        requests = _joined_requests(recordings, id_, are_all)
    return sorted(requests, key=lambda one: one.begin_ns)


@contextmanager
def without_collections() -> Iterator[None]:
    """Let the garbage collector not look at a growing number of new objects again and again."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


def _joined_requests(
    recordings: Iterable[RequestSource], id_: str | None, are_all: bool
) -> list[Timeline]:
    processes = _without_copies([Process(one) for one in recordings])
    all_segments = _Segments(
        {}, defaultdict(list), defaultdict(list), defaultdict(list), {}, are_all
    )
    for process in processes:
        if process.is_full:
            since_ns = min((one.begin_ns for one in process.stretches), default=math.inf)
            clock = _clock(process.recording)
            all_segments.since_ns[clock] = max(
                since_ns, all_segments.since_ns.get(clock, -math.inf)
            )
        for stretch in process.stretches:
            segment = stretch.segment
            if segment["segment"] is not None:
                all_segments.by_id[segment["segment"]] = stretch
            if segment["parent_segment"] is not None:
                all_segments.by_parent[segment["parent_segment"]].append(stretch)
        for hop in process.returns:
            if hop["segment"] is not None:
                all_segments.returns[hop["segment"]].append((process, hop))
        for hop in process.dropped:
            if hop["parent_segment"] is not None:
                all_segments.dropped[hop["parent_segment"]].append((process, hop))
    adopted = _adopted(processes, all_segments)
    return [
        _joined(stretch, all_segments)
        for process in processes
        for stretch in process.stretches
        if _has_a_row(stretch, all_segments, adopted) and id_ in (None, stretch.segment["id"])
    ]


_DEEPEST = 64
"""Nested requests that are deeper have no row of their own. The time and the memory for the rows of
a chain grow with the square of its length, and a program that leaves no request makes long ones."""


def _has_a_row(stretch: Stretch, all_segments: _Segments, adopted: set[int]) -> bool:
    """Whether it is shown as a request: it has no known parent, or it is a nested one."""
    if _is_nested(stretch):
        return _depth_of_nesting(stretch, all_segments.by_id) <= _DEEPEST
    parent = stretch.segment["parent_segment"]
    return parent not in all_segments.by_id and id(stretch) not in adopted


def _depth_of_nesting(stretch: Stretch, by_id: dict[str, Stretch]) -> int:
    """Return how many known requests are around a nested one, counted up to one more than shown."""
    depth, outer = 0, by_id.get(stretch.segment["parent_segment"] or "")
    while outer is not None and depth <= _DEEPEST:
        depth += 1
        parent = outer.segment["parent_segment"] if _is_nested(outer) else None
        outer = by_id.get(parent or "")
    return depth


def _adopted(processes: Iterable[Process], all_segments: _Segments) -> set[int]:
    """Let segments whose sender is unknown join the root of their trace that encloses them.

    Another tracer was between the two. The times can be compared only on the same clock.
    """
    roots: defaultdict[tuple[object, str | None], list[Stretch]] = defaultdict(list)
    strays = []
    for process in processes:
        clock = _clock(process.recording)
        for stretch in process.stretches:
            segment = stretch.segment
            if segment["parent_segment"] is not None or segment["trace_id"] is None:
                continue
            roots[clock, segment["trace_id"]].append(stretch)
            if segment["origin"] == "remote":
                strays.append((clock, stretch))
    adopted = set()
    for clock, stretch in strays:
        outer = [
            outer_stretch
            for outer_stretch in roots[clock, stretch.segment["trace_id"]]
            if outer_stretch is not stretch
            and id(outer_stretch) not in adopted
            and outer_stretch.begin_ns <= stretch.begin_ns
            and outer_stretch.end_ns >= stretch.end_ns
            and outer_stretch.segment["segment"] is not None
        ]
        if outer:
            root = min(outer, key=lambda one: one.begin_ns)
            all_segments.by_parent[root.segment["segment"] or ""].append(stretch)
            adopted.add(id(stretch))
    return adopted


def _without_copies(processes: Sequence[Process]) -> list[Process]:
    taken: set[str | None] = set()
    kept = set()
    for process in sorted(processes, key=lambda one: one.last_ns, reverse=True):
        # These ids are random numbers of 64 bits.
        own_ids = {one["segment"] for one in process.recording.segments()} - {None}
        if not taken & own_ids:
            kept.add(id(process))
            taken |= own_ids
    return [process for process in processes if id(process) in kept]


class Process:
    """The segments of one recording, and the spans of their requests."""

    def __init__(self, recording: RequestSource) -> None:
        self.recording = recording
        self.offset_ns = recording.unix_offset_ns
        """What was added to its monotonic times to get Unix times."""
        segments = recording.segments()
        self.returns = [one for one in segments if one["origin"] == "return"]
        self.dropped = [
            one for one in segments if one["status"] == "unused" and one["origin"] != "return"
        ]
        self.last_ns = self._last_ns()
        """The latest monotonic time at which the process is known to have run."""
        rows = with_open(recording)
        self.rows = self._without_entries(of_requests((rows,)))
        """The spans of its requests, ordered by the number of their segment; times are Unix times,
        and open ones end at `OPEN_NS`."""
        self.batches = rows[kinds_of(rows) == BATCH]
        """The batches, in which links refer to spans."""
        self._links = recording.links() if len(self.batches) else []
        self._open = self._open_numbers()
        self.stretches = [
            self._stretch(one)
            for one in segments
            if one["status"] != "unused" and one["origin"] != "return"
        ]

    @property
    def is_full(self) -> bool:
        """Whether all entries are in use, so that earlier ones may have been used again."""
        return len(self.recording.segments()) >= self.recording.most_segments

    def _last_ns(self) -> int:
        recording = self.recording
        if recording.state in ("alive", "unknown") and recording.read_ns is not None:
            return recording.read_ns - self.offset_ns
        return latest_ns(recording) - self.offset_ns

    def _without_entries(self, rows: NDArray[np.void]) -> NDArray[np.void]:
        """Leave out the waits of received requests until they were entered.

        They are known from the segments, with more detail.
        """
        waits = ((kinds_of(rows) == _QUEUE) & (rows["end_ns"] != OPEN_NS)).nonzero()[0]
        if not len(waits):
            return rows
        entered = {
            (one["number"], one["begin_ns"])
            for one in self.recording.segments()
            if one["received_ns"] is not None and one["begin_ns"] is not None
        }
        numbers, ends_ns = rows["request"][waits].tolist(), rows["end_ns"][waits].tolist()
        is_entry = [one in entered for one in zip(numbers, ends_ns, strict=True)]
        if not any(is_entry):
            return rows
        others: NDArray[np.void] = imports.load("numpy").delete(rows, waits[is_entry])
        return others

    def _open_numbers(self) -> set[int]:
        """Return the numbers of the segments with a span or a batch that has not ended."""
        is_open = self.rows["end_ns"] == OPEN_NS
        open_batches = set(self.batches["id"][self.batches["end_ns"] == OPEN_NS].tolist())
        served = {number for id_, number, _ in self._links if id_ in open_batches}
        return served | set(self.rows["request"][is_open].tolist())

    def _stretch(self, segment: Segment) -> Stretch:
        # Batches, and waits in a list, go on after `with remote:` was left.
        if (
            segment["number"] in self._open
            and segment["origin"] != "root"
            and segment["status"] == "ok"
        ):
            has_ended = self.recording.state not in ("alive", "unknown")
            segment = segment.copy()
            segment["end_ns"] = None
            segment["status"] = "abandoned" if has_ended else "open"
        received_ns, end_ns = segment["received_ns"], segment["end_ns"]
        begin_ns = segment["begin_ns"] or received_ns or self.recording.begin_ns
        begin = begin_ns - self.offset_ns
        end = self.last_ns if end_ns is None else end_ns - self.offset_ns
        since = begin if received_ns is None else received_ns - self.offset_ns
        has_all_links = since >= self._links_since
        return Stretch(self.recording, segment, begin, max(begin, end), self, has_all_links)

    @cached_property
    def numbers(self) -> tuple[NDArray[np.uint64], NDArray[np.intp]]:
        """The numbers of the segments with spans, and the first row of each; then that of all."""
        numpy = imports.load("numpy")
        numbers, firsts = numpy.unique(self.rows["request"], return_index=True)
        return numbers, numpy.append(firsts, len(self.rows))

    @cached_property
    def batches_by_number(self) -> dict[int, list[tuple[int, int, int]]]:
        """The batches that served each segment: the row, the size, and the first of its places."""
        rows = {id_: row for row, id_ in enumerate(self.batches["id"].tolist())}
        by_number: defaultdict[int, dict[int, tuple[int, int, int]]] = defaultdict(dict)
        places: Counter[int] = Counter()
        for id_, number, size in self._links:
            if id_ in rows:
                by_number[number].setdefault(id_, (rows[id_], size, places[id_]))
                places[id_] += 1
        return {number: list(served.values()) for number, served in by_number.items()}

    def spans_of(self, number: int) -> list[Span]:
        """Return the spans of a segment, then the batches that served it.

        Their times are monotonic; open ones end at `last_ns`.
        """
        numbers, firsts = self.numbers
        at = int(numbers.searchsorted(numbers.dtype.type(number)))
        spans = []
        if at < len(numbers) and numbers[at] == number:
            spans = self._made(self.rows[firsts[at] : firsts[at + 1]])
        return spans + [
            self._batch_spans[row]._replace(size=size, place=place)
            for row, size, place in self.batches_by_number.get(number, ())
        ]

    @cached_property
    def _batch_spans(self) -> list[Span]:
        return self._made(self.batches)

    @cached_property
    def amounts(self) -> Amounts:
        """The work of its spans by span id."""
        return self.recording.amounts()

    def _made(self, rows: NDArray[np.void]) -> list[Span]:
        times = {"offset_ns": self.offset_ns, "until_ns": self.last_ns}
        return made(self.recording, rows, self.amounts, **times)

    @cached_property
    def _links_since(self) -> float:
        """The time from which no link has been overwritten."""
        if not self.recording.lost()["links"]:
            return -math.inf
        begins_ns = dict(
            zip(self.batches["id"].tolist(), self.batches["begin_ns"].tolist(), strict=True)
        )
        kept = (begins_ns.get(id_) for id_, _, _ in self.recording.links())
        return next((ns - self.offset_ns for ns in kept if ns is not None), math.inf)


# --- one request ----------------------------------------------------------------------------------

_Hops = list[tuple[Process, "Segment"]]


class _Segments(NamedTuple):
    """What all recordings contain, by the ids of segments."""

    by_id: dict[str, Stretch]
    by_parent: defaultdict[str, list[Stretch]]
    returns: defaultdict[str, _Hops]
    """The hops that came back to a segment."""
    dropped: defaultdict[str, _Hops]
    """The hops that a segment sent, and that were received and not entered."""
    since_ns: dict[object, float]
    """By clock: the time from which no process whose entries are all in use has used one again."""
    are_all: bool
    """Whether there are no other recordings."""

    def may_be_overwritten(self, stretch: Stretch) -> bool:
        """Whether a process may have used the entry of a segment of this request again."""
        since_ns = self.since_ns.get(_clock(stretch.recording), -math.inf)
        return stretch.begin_ns < since_ns


def _joined(root: Stretch, all_segments: _Segments) -> Timeline:
    if _is_alone(root, all_segments):
        return Timeline([root], [], _causes_of(root), [])
    # A nested request is a part of the outer one, too, where it has another depth.
    segments = _descendants(root, all_segments.by_parent, in_copies=_is_nested(root))
    root = segments[0]
    own_returns = [
        (stretch, process, one)
        for stretch in segments
        for process, one in all_segments.returns.get(stretch.segment["segment"] or "", ())
    ]
    _place(root, segments, own_returns)
    for stretch in segments:
        stretch.hop_parts = []
    hops, out_and_back_ns = _hops(root, segments, own_returns, all_segments.by_id)
    missing, missing_causes = _missing_hops(root, segments, own_returns, all_segments)
    causes = _causes(root, segments, own_returns, all_segments) + missing_causes
    return Timeline(segments, hops + missing, causes, out_and_back_ns)


def _is_alone(root: Stretch, all_segments: _Segments) -> bool:
    """Whether a request has one segment, and no hop is known, so that there is nothing to join."""
    segment, own_id = root.segment, root.segment["segment"] or ""
    return (
        segment["parent_segment"] is None
        and segment["received_ns"] is None
        and not segment["hops_sent"]
        and not _is_nested(root)
        and own_id not in all_segments.by_parent
        and own_id not in all_segments.returns
        and own_id not in all_segments.dropped
    )


def _divided(timeline: Timeline) -> _Division:
    """Divide the time of a request; `RequestSums` does the same for many, from columns."""
    segments = timeline.segments
    root = segments[0]
    begin_ns = timeline.begin_ns - root.recording.unix_offset_ns
    end_ns = root.end_ns
    spent: dict[tuple[str, str], tuple[int, int]] = {}
    parts: list[list[Part]] = []
    late = discarded_ns = 0
    for stretch in segments:
        own_parts = stretch.hop_parts.copy()
        parts.append(own_parts)
        if (around := part_of_nested(stretch, root)) is not None:
            own_parts.append(around)
        for span in stretch.spans:
            kind = "execution" if span.kind == "batch" else span.kind
            duration_ns = span.end_ns - span.begin_ns
            count, sum_ns = spent.get((kind, span.stage), (0, 0))
            spent[kind, span.stage] = (count + 1, sum_ns + span.share_ns)
            if stretch.is_discarded:
                discarded_ns += duration_ns if kind == "execution" else 0
                continue
            if stretch.offset_ns is None:
                continue
            begin, end = span.begin_ns + stretch.offset_ns, span.end_ns + stretch.offset_ns
            if begin >= end_ns:
                late += kind == "execution"
                continue
            reach = (stretch.depth, span.depth, span.begin_ns)
            own_parts.append(Part(kind, span.stage, begin, end, reach))
    all_parts = [part for own_parts in parts for part in own_parts]
    in_order = list(pieces(begin_ns, end_ns, all_parts))
    first, last = in_order[:1], in_order[1:][-1:]
    return _Division(
        where=dict(time_by_owner(in_order)),
        spent=spent,
        parts=parts,
        before_first_ns=sum(map(_unattributed_ns, first)),
        after_last_ns=sum(map(_unattributed_ns, last)),
        late_spans=late,
        clipped_ns=sum(_outside(part, begin_ns, end_ns) for part in all_parts),
        discarded_ns=discarded_ns,
    )


def part_of_nested(stretch: Stretch, root: Stretch) -> Part | None:
    """Return what a nested request is in the time of the outer one; None if it is the root.

    All of its time is execution of the outer one; what is known in it comes first.
    """
    if not _is_nested(stretch) or stretch is root or stretch.offset_ns is None:
        return None
    begin, end = stretch.begin_ns + stretch.offset_ns, stretch.end_ns + stretch.offset_ns
    name = f"request {stretch.segment['pipeline']}"
    return Part("execution", name, begin, end, (stretch.depth, -1, begin))


def _is_nested(stretch: Stretch) -> bool:
    return stretch.segment["origin"] == "nested"


def _begins(root: Stretch) -> bool:
    """Whether the request began with its root, as far as is known."""
    return root.segment["parent_segment"] is None or _is_nested(root)


def _unattributed_ns(piece: Part) -> int:
    return piece.end_ns - piece.begin_ns if piece.kind == UNATTRIBUTED else 0


def _first_chunk_ns(root: Stretch, begin_ns: int, chunked: Sequence[Stretch]) -> int | None:
    """Return when the earliest chunk that can be placed was made, since the request began."""
    firsts = []
    for stretch in chunked:
        first_ns, part_ns = stretch.segment["first_chunk_ns"], stretch.segment["begin_ns"]
        request_ns = stretch.segment["request_ns"]
        if first_ns is None or part_ns is None:
            continue
        if _begins(root) and stretch.offset_ns is not None:
            firsts.append(stretch.begin_ns + stretch.offset_ns + first_ns - part_ns - begin_ns)
        elif request_ns is not None:  # as the carrier has said
            firsts.append(first_ns - request_ns)
    return min(firsts, default=None)


def _part_first_chunk_ns(chunked: Sequence[Stretch]) -> int | None:
    """Return when the first chunk of some segments was made, since the start of its segment."""
    firsts = []
    for stretch in chunked:
        first_ns, begin_ns = stretch.segment["first_chunk_ns"], stretch.segment["begin_ns"]
        if first_ns is None or begin_ns is None or (stretch.offset_ns is None and len(chunked) > 1):
            return None
        after_ns = first_ns - begin_ns
        firsts.append((stretch.begin_ns + (stretch.offset_ns or 0) + after_ns, after_ns))
    return min(firsts)[1] if firsts else None


def _outside(part: Part, begin_ns: int, end_ns: int) -> int:
    if part.end_ns <= part.begin_ns:
        return 0
    inside_ns = min(part.end_ns, end_ns) - max(part.begin_ns, begin_ns)
    return part.end_ns - part.begin_ns - max(inside_ns, 0)


def _descendants(
    root: Stretch, by_parent: dict[str, list[Stretch]], *, in_copies: bool
) -> list[Stretch]:
    """Return the root and all segments that it has led to, with their depths."""
    if in_copies:
        root = replace(root)
    root.depth, root.is_discarded = 0, False
    descendants, seen = [root], {id(root)}
    for stretch in descendants:  # grows
        for child in by_parent.get(stretch.segment["segment"] or "", ()):
            if id(child) in seen:
                continue
            seen.add(id(child))
            if in_copies:
                child = replace(child)
            child.depth = stretch.depth + 1
            child.is_discarded = stretch.is_discarded or child.segment["status"] == "discarded"
            descendants.append(child)
    return descendants


_OwnReturns = Sequence[tuple[Stretch, Process, "Segment"]]


def _place(root: Stretch, segments: Sequence[Stretch], returns: _OwnReturns) -> None:
    """Find what must be added to the times of each segment to get those of the root.

    Processes with the same clock need nothing. For others, each hop bounds the offset, because
    nothing is received before it was sent. Without a bound on both sides the offset is unknown.
    """
    clocks = {id(one): _clock(one.recording) for one in segments}
    root_clock = clocks[id(root)]
    if len(set(clocks.values())) == 1:
        for stretch in segments:
            stretch.offset_ns, stretch.error_ns = 0, 0
        return
    bounds: dict[object, tuple[float, float]] = {root_clock: (0, 0)}
    hops = [(one.segment, one.recording) for one in segments]
    hops += [(one, process.recording) for _, process, one in returns]
    for _ in range(len(set(clocks.values()))):
        for segment, recording in hops:
            sent, received = segment["sent_monotonic_ns"], segment["received_ns"]
            sender, receiver = segment["sent_clock"] or None, _clock(recording)
            if sent is None or received is None or sender is None or sender == receiver:
                continue
            delay_ns = received - recording.unix_offset_ns - sent  # by two clocks
            # received + to >= sent + of_sender, for offsets of both clocks to the root's
            lowest, highest = bounds.get(sender, (-math.inf, math.inf))
            low, high = bounds.get(receiver, (-math.inf, math.inf))
            if receiver != root_clock:
                bounds[receiver] = max(low, lowest - delay_ns), high
            if sender != root_clock:
                bounds[sender] = lowest, min(highest, high + delay_ns)
    for stretch in segments:
        low, high = bounds.get(clocks[id(stretch)], (-math.inf, math.inf))
        if math.isfinite(low) and math.isfinite(high) and low <= high:
            stretch.offset_ns = (int(low) + int(high)) // 2
            stretch.error_ns = int(high) - stretch.offset_ns
        else:
            stretch.offset_ns = None


def _clock(recording: RequestSource) -> object:
    """Return what identifies the clock of a recording; its path if that is unknown."""
    return recording.clock or recording.path


def _hops(
    root: Stretch, segments: Sequence[Stretch], returns: _OwnReturns, senders: dict[str, Stretch]
) -> tuple[list[Hop], list[int]]:
    """Return the hops and round trips of a request, and add the parts of the hops."""
    hops, out_and_back_ns = [], []
    arrivals = [(one, one.recording, one.segment, False) for one in segments]
    arrivals += [(to, process.recording, one, True) for to, process, one in returns]
    for stretch, recording, segment, is_return in arrivals:
        received = segment["received_ns"]
        if received is None:
            continue
        received -= recording.unix_offset_ns
        entered = segment["begin_ns"]
        entered = None if entered is None else entered - recording.unix_offset_ns
        sender = senders.get(segment["parent_segment"] or "")
        hand_off_ns, error_ns, sent_ns = _hand_off(stretch, segment, sender, received)
        behind_ns = behind_others_ns(segment, hand_off_ns)
        is_repeated = segment["origin"] == "repeated"
        hops.append(
            Hop(
                state="received" if segment["sent_monotonic_ns"] or stretch is root else "unknown",
                queue=segment["queue"] or "",
                sender=None if sender is None else sender.recording.pid,
                receiver=recording.pid,
                hand_off_ns=None if hand_off_ns is None else hand_off_ns - (behind_ns or 0),
                error_ns=error_ns,
                queue_ns=None if entered is None else entered - received + (behind_ns or 0),
                behind_others_ns=behind_ns,
                attempt=segment["attempt"],
                branch=segment["branch"],
                is_return=is_return,
                is_repeated=is_repeated,
            )
        )
        if is_return and sender is not None and _clock(sender.recording) != _clock(recording):
            both_ns = _out_and_back(segment, sender, received)
            out_and_back_ns += [] if both_ns is None else [both_ns]
        if stretch.offset_ns is None or stretch.is_discarded:
            continue
        reach, queue = (stretch.depth, 0, received), segment["queue"] or ""
        at = received + stretch.offset_ns
        # What was before a root is in no recording.
        if sent_ns is not None and sent_ns < at and (stretch is not root or is_return):
            free_ns = sent_ns + (behind_ns or 0)
            stretch.hop_parts.append(Part("queue", queue, sent_ns, free_ns, reach))
            stretch.hop_parts.append(Part("handoff", queue, free_ns, at, reach))
        if segment["status"] == "unused":  # a reply of which only the arrival is recorded
            continue
        until = stretch.end_ns if entered is None else entered
        stretch.hop_parts.append(Part("queue", queue, at, until + stretch.offset_ns, reach))
    return hops, out_and_back_ns


def _hand_off(
    stretch: Stretch, segment: Segment, sender: Stretch | None, received_ns: int
) -> tuple[int | None, int, int | None]:
    """Return the time from sent to received, its error, and when that began on the root's clock."""
    sent = segment["sent_monotonic_ns"]
    if sent is None:
        return None, 0, None
    if segment["sent_clock"] == stretch.recording.clock:
        sent_ns = None if stretch.offset_ns is None else sent + stretch.offset_ns
        return received_ns - sent, 0, sent_ns
    if sender is None or sender.offset_ns is None or stretch.offset_ns is None:
        return None, 0, None
    sent_ns = sent + sender.offset_ns
    return received_ns + stretch.offset_ns - sent_ns, sender.error_ns + stretch.error_ns, sent_ns


def _out_and_back(back: Segment, remote: Stretch, received_ns: int) -> int | None:
    """Return both hand-offs of a round trip together: the trip, less the time at the remote."""
    out = remote.segment
    sent, there, sent_back = out["sent_monotonic_ns"], out["received_ns"], back["sent_monotonic_ns"]
    if sent is None or there is None or sent_back is None:
        return None
    return received_ns - sent - (sent_back - (there - remote.recording.unix_offset_ns))


def _missing_hops(
    root: Stretch, segments: Sequence[Stretch], returns: _OwnReturns, all_segments: _Segments
) -> tuple[list[Hop], list[str]]:
    """Return the hops that were sent, and that no process has received and entered.

    Also returns how many there are as causes. At most `_MOST_MISSING` of a segment are listed.
    """
    arrived: defaultdict[str, set[str | None]] = defaultdict(set)
    # A segment that has replied has received a hop, even if its recording is gone; and one that has
    # sent the first hop may have got a reply.
    removed = set() if _begins(root) else {root.segment["parent_segment"]}
    for _, _, hop in returns:
        parent = hop["parent_segment"]
        if parent is not None and parent not in all_segments.by_id:
            removed.add(parent)
        elif parent is not None:
            arrived[parent].add(hop["parent_hop"])
    explained = len(removed)
    hops = []
    causes: Counter[str] = Counter()
    for stretch in segments:
        segment, pid = stretch.segment, stretch.recording.pid
        own_id = segment["segment"] or ""
        dropped = all_segments.dropped.get(own_id, ())
        if not (segment["hops_sent"] or dropped):
            continue
        received = arrived[own_id] | {
            child.segment["parent_hop"]
            for child in all_segments.by_parent.get(own_id, ())
            if child.segment["received_ns"] is not None
        }
        for process, hop in dropped:
            if hop["parent_hop"] not in received:
                received.add(hop["parent_hop"])
                causes[_MISSING["not_entered"]] += 1
                hops.append(_hop_without_entry("not_entered", pid, process.recording.pid, hop))
        count = max(segment["hops_sent"] - len(received), 0)
        explained, count = max(explained - count, 0), max(count - explained, 0)
        is_open = "open" in (root.segment["status"], segment["status"])
        is_gone = all_segments.may_be_overwritten(root)
        state = "waiting" if is_open else ("overwritten" if is_gone else "lost")
        is_elsewhere = state == "lost" and not all_segments.are_all
        causes["receiver not among these recordings" if is_elsewhere else _MISSING[state]] += count
        hops += [_hop_without_entry(state, pid)] * min(count, _MOST_MISSING)
    return hops, _counted(causes)


def _counted(causes: Counter[str]) -> list[str]:
    return [f"{cause} ({n:,})" if n > 1 else cause for cause, n in causes.items() if n]


def _hop_without_entry(
    state: str, sender: int, receiver: int | None = None, segment: Segment | None = None
) -> Hop:
    return Hop(
        state=state,
        queue=None if segment is None else segment["queue"] or "",
        sender=sender,
        receiver=receiver,
        hand_off_ns=None,
        error_ns=0,
        queue_ns=None,
        behind_others_ns=None,
        attempt=None if segment is None else segment["attempt"],
        branch=None if segment is None else segment["branch"],
        is_return=False,
        is_repeated=False,
    )


_MOST_MISSING = 100
_MISSING = {
    "waiting": "message waiting to be received",
    "lost": "message not received",
    "not_entered": "message received and not entered",
    "overwritten": "request overwritten",
}


def _causes(
    root: Stretch,
    segments: Sequence[Stretch],
    returns: _OwnReturns,
    all_segments: _Segments,
) -> list[str]:
    causes: Counter[str] = Counter()
    gone = "recording removed" if all_segments.are_all else "sender not among these recordings"
    if all_segments.may_be_overwritten(root):
        gone = _MISSING["overwritten"]
    if not _begins(root):
        causes[gone] += 1  # the segment that has sent it
    parents = {one["parent_segment"] for _, _, one in returns} - {None}
    causes[gone] += sum(parent not in all_segments.by_id for parent in parents)
    for stretch in segments:
        causes.update(_causes_of(stretch))
    return _counted(causes)


def _causes_of(stretch: Stretch) -> list[str]:
    """Return why a segment is not complete."""
    causes = []
    segment, recording = stretch.segment, stretch.recording
    if segment["status"] == "abandoned" and segment["end_ns"] is None:
        causes.append("process ended")
    elif segment["end_ns"] is None:
        causes.append("not ended yet")
    if stretch.offset_ns is None:
        causes.append("unknown offset of clocks")
    if recording.complete_ns > (segment["begin_ns"] or segment["received_ns"] or 0):
        causes.append("spans overwritten")
    if not stretch.has_all_links:
        causes.append("links overwritten")
    return causes
