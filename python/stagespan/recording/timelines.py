"""Joins the segments of requests from the recordings of several processes."""

from __future__ import annotations

import gc
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from stagespan import _core
from stagespan.pages.figures import RecordedFigures
from stagespan.process import imports
from stagespan.recording.partition import UNATTRIBUTED, Part, pieces, time_by_owner
from stagespan.recording.processes import Process
from stagespan.recording.segments import behind_others_ns, first_known_ns, name_of, texts
from stagespan.recording.spans import Span, are_in

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stagespan.recording.segments import Segment
    from stagespan.recording.source import RequestSource


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

    process: Process = field(repr=False)
    segment: Segment
    begin_ns: int
    end_ns: int
    has_all_links: bool
    """Whether no link of a batch that it can have been in has been overwritten."""
    depth: int
    """The number of hops between the root and this segment."""
    is_discarded: bool
    """Whether it, or a segment that led to it, has the status discarded."""
    offset_ns: int | None = 0
    """What is added to its times to get those of the root; None if unknown."""
    error_ns: int = 0
    hop_parts: list[Part] = field(default_factory=list)
    """The hops to it and its waits before it was entered, on the clock of the root."""
    children: list[Stretch] = field(default_factory=list)
    """The segments that it has sent the request to."""

    @property
    def recording(self) -> RequestSource:
        """The recording that it is from."""
        return self.process.recording

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

    def __init__(
        self,
        segments: list[Stretch],
        hops: list[Hop],
        causes: list[str],
        out_and_back_ns: list[int],
    ) -> None:
        root, segment = segments[0], segments[0].segment
        self.segments = segments
        """The root first."""
        self.hops = hops
        self.causes = causes
        """Why it is not complete, if it is not."""
        self.out_and_back_ns = out_and_back_ns
        """For each round trip to another clock: both hand-offs together, which needs no common
        clock."""
        self.id, self.trace_id = segment["id"], segment["trace_id"]
        """The id that the program has given it, and that of its distributed trace."""
        self.status, self.exception = segment["status"], segment["exception"]
        """How the root has ended, or open, and the type of the exception that it has ended with."""
        self.pipeline, self.route = segment["pipeline"], segment["route"]
        """The pipeline, and the template of the route that served it, if it was a call by HTTP."""
        offset_ns, received_ns = root.recording.unix_offset_ns, segment["received_ns"]
        begin_ns = root.begin_ns + offset_ns
        self.begin_ns = begin_ns if received_ns is None else min(begin_ns, received_ns)
        """Unix time."""
        self.total_ns = root.end_ns + offset_ns - self.begin_ns
        """From the start to the end of the root; up to now for an open request."""

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

    @cached_property
    def _division(self) -> _Division:
        return _divided(self)

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


class Timelines(Sequence[Timeline]):
    """Requests, ordered by begin. Each becomes an object when it is asked for."""

    def __init__(self, join: _Join, roots: NDArray[np.intp]) -> None:
        self.join = join
        self.roots = roots
        """The rows of their first segments in the join."""

    def __len__(self) -> int:
        return len(self.roots)

    @overload
    def __getitem__(self, at: int) -> Timeline: ...
    @overload
    def __getitem__(self, at: slice) -> Timelines: ...
    def __getitem__(self, at: int | slice) -> Timeline | Timelines:
        if isinstance(at, slice):
            return self.chosen(at)
        return self.join.timelines(self.roots[[at]])[0]

    def __iter__(self) -> Iterator[Timeline]:
        for first in range(0, len(self), AT_ONCE):
            yield from self.join.timelines(self.roots[first : first + AT_ONCE])

    def chosen(self, which: slice | NDArray[Any]) -> Timelines:
        """Return some of them, by their indices, or by whether each is one."""
        return Timelines(self.join, self.roots[which])

    def slowest(self, most: int) -> list[Timeline]:
        """Return those that took longest, the slowest first."""
        order = (-self.totals_ns).argsort(kind="stable")[:most]
        return self.join.timelines(self.roots[order])

    @property
    def begins_ns(self) -> NDArray[np.int64]:
        """When each began, as `Timeline.begin_ns`."""
        return self.join.roots_ns(self.roots)[0]

    @property
    def totals_ns(self) -> NDArray[np.int64]:
        """How long each took, as `Timeline.total_ns`."""
        return self.join.roots_ns(self.roots)[1]

    def selected(self, are: Iterable[bool]) -> Timelines:
        """Return those for which it is true."""
        return self.chosen(imports.load("numpy").array(list(are), bool))

    def began_in(self) -> list[RequestSource]:
        """Return the recording that each began in."""
        processes = self.join.processes
        return [processes[at].recording for at in self.join.process[self.roots].tolist()]

    def column(self, name: str) -> list[Any]:
        """Return the id, status or pipeline of each."""
        return self.join.column(name, self.roots)

    def recordings(self) -> list[RequestSource]:
        """Return the recordings that have a part of one of them, those of the first one first."""
        join = self.join
        seen: dict[int, None] = {}
        are_alone = join.is_alone[self.roots].tolist()
        for root, is_alone in zip(self.roots.tolist(), are_alone, strict=True):
            rows = (root,) if is_alone else [place.row for place in join.descendants(root)]
            seen.update(dict.fromkeys(join.process[list(rows)].tolist()))
            if len(seen) == len(join.processes):
                break
        return [join.processes[at].recording for at in seen]


AT_ONCE = 1024
"""Requests that are objects at the same time, while all are looked at."""


def timelines(
    recordings: Iterable[RequestSource], id_: str | None = None, *, are_all: bool = True
) -> Timelines:
    """Return the requests in recordings, ordered by begin; only those with an id if one is given.

    The recordings must have been opened with their spans. Of several copies of one recording, the
    latest counts. If they are not all that there are, the others may have what is missing.
    """
    join = _Join(_without_copies([Process(one) for one in recordings]), are_all)
    roots = join.roots()
    if id_ is not None:
        roots = roots[[one == id_ for one in join.column("id", roots)]]
    return Timelines(join, roots[join.roots_ns(roots)[0].argsort(kind="stable")])


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


def _without_copies(processes: list[Process]) -> list[Process]:
    if len(processes) < 2:
        return processes
    taken: set[int] = {0}
    kept = set()
    for process in sorted(processes, key=lambda one: one.last_ns, reverse=True):
        # These ids are random numbers of 64 bits.
        own_ids = set(process.segments["segment"].tolist()) - {0}
        if not taken & own_ids:
            kept.add(id(process))
            taken |= own_ids
    return [process for process in processes if id(process) in kept]


# --- the join -------------------------------------------------------------------------------------

_DEEPEST = 64
"""Nested requests that are deeper have no row of their own. The time and the memory for the rows of
a chain grow with the square of its length, and a program that leaves no request makes long ones."""


class _Place(NamedTuple):
    """Where a segment is in a request."""

    row: int
    parent: int
    """The index of the segment that has sent it among those of the request; -1 of the root."""
    depth: int
    is_discarded: bool


class _Join:
    """The segments of all processes, and how they refer to each other: by rows over all of them."""

    def __init__(self, processes: list[Process], are_all: bool) -> None:
        numpy = imports.load("numpy")
        self.processes = processes
        self.are_all = are_all
        """Whether there are no other recordings."""
        counts = [len(one.segments) for one in processes]
        self.firsts = numpy.cumsum([0, *counts])
        """The first row of each process, then the number of all rows."""
        self.process: NDArray[np.intp] = numpy.arange(len(processes)).repeat(counts)
        """The index of the process of each row."""
        self.numbers = self._read("number")
        self.ids, self.parents = self._read("segment"), self._read("parent_segment")
        origin, status = self._read("origin"), self._read("status")
        self.is_nested = origin == _core.ORIGINS.index("nested")
        self.is_discarded = status == _core.STATUSES.index("discarded")
        is_return = origin == _core.ORIGINS.index("return")
        is_dropped = ~is_return & (status == _core.STATUSES.index("unused"))
        self.is_segment = ~is_return & ~is_dropped
        self.begins_ns, self.ends_ns = (
            self._joined([one.times_ns[side] for one in processes], "i8") for side in (0, 1)
        )
        """On the clock of the process."""
        is_sender = self.is_segment & (self.ids != 0) & are_in(self.ids, self.parents)
        rows = is_sender.nonzero()[0]
        self.by_id = dict(zip(self.ids[rows].tolist(), rows.tolist(), strict=True))
        """The row of each segment that another one names as its parent."""
        self.by_parent = _grouped(self.parents, self.is_segment)
        self.returns = _grouped(self.ids, is_return)
        """The hops that came back to a segment."""
        self.dropped = _grouped(self.parents, is_dropped)
        """The hops that a segment sent, and that were received and not entered."""
        self.since_ns: dict[object, float] = {}
        """By clock: the time from which no process whose entries are all in use has used one again.
        """
        for at, process in enumerate(processes):
            if process.is_full:
                own = slice(self.firsts[at], self.firsts[at + 1])
                begins_ns = self.begins_ns[own][self.is_segment[own]]
                since_ns = float(begins_ns.min()) if len(begins_ns) else math.inf
                before_ns = self.since_ns.get(process.clock, -math.inf)
                self.since_ns[process.clock] = max(since_ns, before_ns)
        self._adopted = self._adopt(origin)
        named = [*self.by_parent, *self.returns, *self.dropped]
        is_named = are_in(self.ids, numpy.array(named, "u8"))
        received_ns = self._read("received_ns")
        self.is_alone: NDArray[np.bool_] = (
            (self.parents == 0) & (received_ns == _core.UNKNOWN_NS) & ~self.is_nested & ~is_named
        ) & (self._read("hops_sent") == 0)
        """Whether a request has one segment, and no hop is known: there is nothing to join."""
        complete_ns = numpy.array([one.recording.complete_ns for one in processes], "i8")
        begins_ns = self._joined(
            [first_known_ns(one.segments, "begin_ns") for one in processes], "i8"
        )
        self.is_plain = self.is_alone & (self._read("chunks") == 0)
        """Whether besides it has no chunks, and all of it is there."""
        self.is_plain &= self._read("end_ns") != _core.UNKNOWN_NS
        self.is_plain &= begins_ns >= complete_ns[self.process]
        self.is_plain &= self._joined([one.have_all_links for one in processes], bool)

    def _read(self, name: str) -> NDArray[Any]:
        dtype = _core.segment_type()[name]
        return self._joined([one.segments[name] for one in self.processes], dtype)

    def _joined(self, parts: list[NDArray[Any]], dtype: Any) -> NDArray[Any]:
        numpy = imports.load("numpy")
        whole = [numpy.empty(0, dtype), *parts]
        joined: NDArray[Any] = parts[0] if len(parts) == 1 else numpy.concatenate(whole)
        return joined

    def roots(self) -> NDArray[np.intp]:
        """Return the rows that are shown as requests: without a known parent, or nested."""
        numpy = imports.load("numpy")
        known = numpy.fromiter(self.by_id, "u8", len(self.by_id))
        is_root = self.is_segment & ~self.is_nested & ~are_in(self.parents, known)
        is_root[self._adopted] = False
        for row in (self.is_segment & self.is_nested).nonzero()[0].tolist():
            is_root[row] = self._depth_of_nesting(row) <= _DEEPEST
        rows: NDArray[np.intp] = is_root.nonzero()[0]
        return rows

    def _depth_of_nesting(self, row: int) -> int:
        """Return how many known requests are around a nested one, at most one more than shown."""
        depth, outer = 0, self.by_id.get(int(self.parents[row]))
        while outer is not None and depth <= _DEEPEST:
            depth += 1
            outer = self.by_id.get(int(self.parents[outer])) if self.is_nested[outer] else None
        return depth

    def _adopt(self, origin: NDArray[Any]) -> list[int]:
        """Let segments whose sender is unknown join the root of their trace that encloses them.

        Another tracer was between the two. The times can be compared only on the same clock.
        """
        numpy = imports.load("numpy")
        traces = self._read("trace_high"), self._read("trace_low")
        is_root = self.is_segment & (self.parents == 0) & ((traces[0] != 0) | (traces[1] != 0))
        is_stray = is_root & (origin == _core.ORIGINS.index("remote"))
        if not is_stray.any():
            return []
        codes = {clock: at for at, clock in enumerate(one.clock for one in self.processes)}
        clocks = numpy.array([codes[one.clock] for one in self.processes])[self.process]
        roots = is_root.nonzero()[0]
        in_order = roots[numpy.lexsort((clocks[roots], traces[1][roots], traces[0][roots]))]
        keys = clocks[in_order], traces[1][in_order], traces[0][in_order]
        is_new = numpy.any([key[1:] != key[:-1] for key in keys], axis=0)
        group_of: dict[int, list[int]] = {}
        for group in numpy.split(in_order, is_new.nonzero()[0] + 1):
            if len(group) > 1:
                rows = group.tolist()
                group_of.update(dict.fromkeys(rows, rows))
        begins_ns, ends_ns = self.begins_ns, self.ends_ns
        taken: set[int] = set()
        for stray in is_stray.nonzero()[0].tolist():
            outer = [
                row
                for row in group_of.get(stray, ())
                if row != stray
                and row not in taken
                and begins_ns[row] <= begins_ns[stray]
                and ends_ns[row] >= ends_ns[stray]
                and self.ids[row]
            ]
            if outer:
                root = min(outer, key=lambda row: int(begins_ns[row]))
                self.by_parent[int(self.ids[root])].append(stray)
                taken.add(stray)
        return list(taken)

    # --- roots ------------------------------------------------------------------------------------

    def roots_ns(self, roots: NDArray[np.intp]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return when requests began, as Unix times, and how long they took."""
        numpy = imports.load("numpy")
        offsets_ns = numpy.array([one.offset_ns for one in self.processes], "i8")
        offsets_ns = offsets_ns[self.process[roots]]
        received_ns = self._read("received_ns")[roots]
        begins_ns = self.begins_ns[roots] + offsets_ns
        is_received = received_ns != _core.UNKNOWN_NS
        begins_ns = numpy.where(is_received, numpy.minimum(begins_ns, received_ns), begins_ns)
        return begins_ns, self.ends_ns[roots] + offsets_ns - begins_ns

    def column(self, name: str, rows: NDArray[np.intp]) -> list[Any]:
        """Return the id, status or pipeline of some rows, as `Segment` has it."""
        column = self._read(name)[rows]
        if name == "id":
            return texts(column)
        values = column.tolist()
        if name == "status":
            return [_core.STATUSES[number] for number in values]
        names = [one.recording.stage_names() for one in self.processes]
        places = zip(self.process[rows].tolist(), values, strict=True)
        return [name_of(names[at], code) for at, code in places]

    # --- objects ----------------------------------------------------------------------------------

    def descendants(self, root: int) -> list[_Place]:
        """Return the root and all segments that it has led to."""
        places = [_Place(root, -1, 0, False)]
        seen = {root}
        for at, place in enumerate(places):  # grows
            for row in self.by_parent.get(int(self.ids[place.row]), ()):
                if row not in seen:
                    seen.add(row)
                    is_discarded = place.is_discarded or bool(self.is_discarded[row])
                    places.append(_Place(row, at, place.depth + 1, is_discarded))
        return places

    def timelines(self, roots: NDArray[np.intp]) -> list[Timeline]:
        """Return requests as objects."""
        requests = [
            [_Place(root, -1, 0, False)] if is_alone else self.descendants(root)
            for root, is_alone in zip(roots.tolist(), self.is_alone[roots].tolist(), strict=True)
        ]
        rows = [place.row for places in requests for place in places]
        for id_ in self.ids[rows].tolist() if self.returns or self.dropped else ():
            rows += (*self.returns.get(id_, ()), *self.dropped.get(id_, ()))
        segments = self._dicts(sorted(set(rows)))
        return [self._timeline(places, segments) for places in requests]

    def _dicts(self, rows: list[int]) -> dict[int, Segment]:
        numpy = imports.load("numpy")
        segments: dict[int, Segment] = {}
        bounds = numpy.searchsorted(rows, self.firsts).tolist()
        for at, process in enumerate(self.processes):
            of_process = rows[bounds[at] : bounds[at + 1]]
            if of_process:
                dicts = process.dicts([row - int(self.firsts[at]) for row in of_process])
                segments.update(zip(of_process, dicts, strict=True))
        return segments

    def process_of(self, row: int) -> Process:
        """Return the process that a row is from."""
        return self.processes[int(self.process[row])]

    def _stretch(self, place: _Place, segment: Segment) -> Stretch:
        row = place.row
        process = self.process_of(row)
        return Stretch(
            *(process, segment, int(self.begins_ns[row]), int(self.ends_ns[row])),
            bool(process.have_all_links[row - self.firsts[self.process[row]]]),
            *(place.depth, place.is_discarded),
        )

    def sender(self, hop: Segment, root: Stretch) -> Stretch | None:
        """Return a segment of another request that has sent a hop of one; None if it is unknown."""
        row = self.by_id.get(int(hop["parent_segment"] or "0", 16))
        if row is None:
            return None
        stretch = self._stretch(_Place(row, -1, 0, False), self._dicts([row])[row])
        stretch.offset_ns = 0 if stretch.process.clock == root.process.clock else None
        return stretch

    def _timeline(self, places: list[_Place], dicts: dict[int, Segment]) -> Timeline:
        segments = []
        for place in places:
            stretch = self._stretch(place, dicts[place.row])
            segments.append(stretch)
            if place.parent >= 0:
                segments[place.parent].children.append(stretch)
        root = segments[0]
        if self.is_alone[places[0].row]:
            return Timeline(segments, [], _causes_of(root), [])
        returns = [
            (stretch, self.process_of(row), dicts[row])
            for stretch, place in zip(segments, places, strict=True)
            for row in self.returns.get(int(self.ids[place.row]), ())
        ]
        _place(root, segments, returns)
        hops, out_and_back_ns = _hops(root, segments, returns, self)
        missing, missing_causes = _missing_hops(root, segments, returns, dicts, self)
        causes = _causes(root, segments, returns, self) + missing_causes
        return Timeline(segments, hops + missing, causes, out_and_back_ns)

    def knows(self, id_: str | None) -> bool:
        """Whether a segment with this id is among those that another one names as its parent."""
        return id_ is not None and int(id_, 16) in self.by_id

    def may_be_overwritten(self, stretch: Stretch) -> bool:
        """Whether a process may have used the entry of a segment of this request again."""
        return stretch.begin_ns < self.since_ns.get(stretch.process.clock, -math.inf)


def _grouped(ids: NDArray[np.uint64], is_one: NDArray[np.bool_]) -> defaultdict[int, list[int]]:
    """Return the rows of each id but 0, of some rows."""
    rows = (is_one & (ids != 0)).nonzero()[0]
    grouped: defaultdict[int, list[int]] = defaultdict(list)
    for id_, row in zip(ids[rows].tolist(), rows.tolist(), strict=True):
        grouped[id_].append(row)
    return grouped


# --- one request ----------------------------------------------------------------------------------


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


_OwnReturns = Sequence[tuple[Stretch, Process, "Segment"]]


def _place(root: Stretch, segments: Sequence[Stretch], returns: _OwnReturns) -> None:
    """Find what must be added to the times of each segment to get those of the root.

    Processes with the same clock need nothing. For others, each hop bounds the offset, because
    nothing is received before it was sent. Without a bound on both sides the offset is unknown.
    """
    clocks = {id(one): one.process.clock for one in segments}
    root_clock = clocks[id(root)]
    if len(set(clocks.values())) == 1:
        return
    bounds: dict[object, tuple[float, float]] = {root_clock: (0, 0)}
    hops = [(one.segment, one.process) for one in segments]
    hops += [(one, process) for _, process, one in returns]
    for _ in range(len(set(clocks.values()))):
        for segment, process in hops:
            sent, received = segment["sent_monotonic_ns"], segment["received_ns"]
            sender, receiver = segment["sent_clock"] or None, process.clock
            if sent is None or received is None or sender is None or sender == receiver:
                continue
            delay_ns = received - process.offset_ns - sent  # by two clocks
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


def _hops(
    root: Stretch, segments: Sequence[Stretch], returns: _OwnReturns, join: _Join
) -> tuple[list[Hop], list[int]]:
    """Return the hops and round trips of a request, and add the parts of the hops."""
    hops, out_and_back_ns = [], []
    senders = {one.segment["segment"]: one for one in segments}
    arrivals = [(one, one.process, one.segment, False) for one in segments]
    arrivals += [(to, process, one, True) for to, process, one in returns]
    for stretch, process, segment, is_return in arrivals:
        received = segment["received_ns"]
        if received is None:
            continue
        received -= process.offset_ns
        entered = segment["begin_ns"]
        entered = None if entered is None else entered - process.offset_ns
        sender = senders.get(segment["parent_segment"] or "") or join.sender(segment, root)
        hand_off_ns, error_ns, sent_ns = _hand_off(stretch, segment, sender, received)
        behind_ns = behind_others_ns(segment, hand_off_ns)
        is_repeated = segment["origin"] == "repeated"
        hops.append(
            Hop(
                state="received" if segment["sent_monotonic_ns"] or stretch is root else "unknown",
                queue=segment["queue"] or "",
                sender=None if sender is None else sender.recording.pid,
                receiver=process.recording.pid,
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
        if is_return and sender is not None and sender.process.clock != process.clock:
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
    root: Stretch,
    segments: Sequence[Stretch],
    returns: _OwnReturns,
    dicts: dict[int, Segment],
    join: _Join,
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
        if parent is not None and not join.knows(parent):
            removed.add(parent)
        elif parent is not None:
            arrived[parent].add(hop["parent_hop"])
    explained = len(removed)
    hops = []
    causes: Counter[str] = Counter()
    for stretch in segments:
        segment, pid = stretch.segment, stretch.recording.pid
        own_id = segment["segment"] or ""
        dropped = join.dropped.get(int(own_id or "0", 16), ())
        if not (segment["hops_sent"] or dropped):
            continue
        received = arrived[own_id] | {
            child.segment["parent_hop"]
            for child in stretch.children
            if child.segment["received_ns"] is not None
        }
        for row in dropped:
            hop = dicts[row]
            if hop["parent_hop"] not in received:
                received.add(hop["parent_hop"])
                causes[_MISSING["not_entered"]] += 1
                hops.append(
                    _hop_without_entry("not_entered", pid, join.process_of(row).recording.pid, hop)
                )
        count = max(segment["hops_sent"] - len(received), 0)
        explained, count = max(explained - count, 0), max(count - explained, 0)
        is_open = "open" in (root.segment["status"], segment["status"])
        is_gone = join.may_be_overwritten(root)
        state = "waiting" if is_open else ("overwritten" if is_gone else "lost")
        is_elsewhere = state == "lost" and not join.are_all
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
    root: Stretch, segments: Sequence[Stretch], returns: _OwnReturns, join: _Join
) -> list[str]:
    causes: Counter[str] = Counter()
    gone = "recording removed" if join.are_all else "sender not among these recordings"
    if join.may_be_overwritten(root):
        gone = _MISSING["overwritten"]
    if not _begins(root):
        causes[gone] += 1  # the segment that has sent it
    parents = {one["parent_segment"] for _, _, one in returns} - {None}
    causes[gone] += sum(not join.knows(parent) for parent in parents)
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
