"""Takes the parts of requests that have ended from the recordings of processes, each one once."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from stagespan import _core
from stagespan.process import imports
from stagespan.recording.spans import (
    BATCH,
    ReadSpans,
    Span,
    by_number,
    joined,
    kinds_of,
    made,
    of_requests,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stagespan.recording.reading import Amounts, Failures, Recording, Segment
    from stagespan.recording.slowness import Slowness

QUIET_NS = 10**9
"""A request that was received can be entered again. It counts as ended after this time."""
_READINGS = 4
_DEEPEST = 64
"""The most levels of spans inside of a batch that are taken."""
_MOST_SAVED = 1 << 17
"""The most spans of a process that are saved while their requests go on."""
UNREAD = ("requests_unread", "spans_unread", "amounts_unread")
"""Causes of losses: what later entries of a recording displaced before it was read."""
AWAITED_CHOICE, AWAITED_OTLP, AWAITED_KEEP = "choice", "otlp", "keep"
"""What can be awaited for a part: the choice by the rules, its delivery, and its file."""


class Resource(NamedTuple):
    """The process that a part of a request ran in."""

    service: str
    pipeline: str
    rank: str
    pid: int
    host: str
    program: str
    identity: str
    name: str = ""
    """What commands call the process; it is no attribute or label."""


@dataclass
class Batch:
    """A batch with the spans in it, and the requests that it served."""

    span: Span
    inner: list[Span]
    links: list[tuple[str, str]]
    """The trace and the segment of each request."""
    size: int
    is_exported: bool = False


@dataclass
class Part:
    """A segment that has ended, with its spans."""

    resource: Resource
    segment: Segment
    read_spans: ReadSpans | None = None
    """Its spans as they were read; None if there are none."""
    returns: list[Segment] = field(default_factory=list)
    """Hops that have come back to this segment."""
    batches: list[Batch] = field(default_factory=list)
    is_whole: bool = True
    """Whether no span of it was overwritten before it was read. The work of its spans can be
    unknown nevertheless."""
    clock: int = 0
    """The identity of the process's CLOCK_MONOTONIC."""
    unix_offset_ns: int = 0
    """What was added to CLOCK_MONOTONIC to get the Unix times."""
    slowness: Slowness | None = None
    """What is noted if the request was too slow."""
    awaited: set[str] = field(default_factory=lambda: {AWAITED_CHOICE})
    """What has still to be done with it; each name is removed when it is done. What is left when
    the exporter is killed is done by the next one."""

    @cached_property
    def spans(self) -> list[Span]:
        """Its spans."""
        return [] if self.read_spans is None else self.read_spans.spans()

    @property
    def number_of_spans(self) -> int:
        """How many spans it has."""
        return 0 if self.read_spans is None else len(self.read_spans.rows)

    @property
    def has_all_work(self) -> bool:
        """Whether the work of all of its spans is known."""
        return self.read_spans is None or self.read_spans.has_all_work

    @property
    def begin_ns(self) -> int:
        """When it was received, or else begun."""
        segment = self.segment
        return segment["received_ns"] or segment["begin_ns"] or segment["end_ns"] or 0

    @property
    def end_ns(self) -> int:
        """When it ended; of an abandoned one the latest time that is known."""
        end_ns = self.segment["end_ns"]
        if end_ns or self.read_spans is None:
            return end_ns or self.begin_ns
        return max(int(self.read_spans.rows["end_ns"].max(initial=0)), self.begin_ns)

    @property
    def is_root(self) -> bool:
        """Whether the request came from no other process that records."""
        return self.segment["parent_segment"] is None


class _Balance:
    """The number of rows or spans that were overwritten before they were read.

    In a process that runs, one reading can be wrong by a few, because its parts are not copied at
    the same moment. So only what several readings in a row confirm is counted.
    """

    def __init__(self) -> None:
        self.number = 0
        """Those that were not counted yet."""
        self._latest: deque[int] = deque(maxlen=_READINGS)

    def reset(self, difference: int) -> None:
        """Take the difference of a reading that shows that nothing was missed before it."""
        self.number = min(self.number + difference, 0)
        self._latest.clear()

    def add(self, difference: int, is_last: bool) -> int:
        """Take the difference of a reading, and return how many more count as missed."""
        self.number += difference
        self._latest.append(self.number)
        is_sure = is_last or len(self._latest) == _READINGS
        missed = max(self.number if is_last else min(self._latest), 0) if is_sure else 0
        self.number -= missed
        self._latest = deque((one - missed for one in self._latest), _READINGS)
        return missed


class Taker:
    """What was already taken from the recording of one process."""

    def __init__(self, taken: Iterable[int] = (), unsent: Iterable[int] = ()) -> None:
        """``unsent`` are the numbers of segments that were taken, but not sent."""
        self.taken = set(taken)
        """The keys of the segments that were taken, and are still in the recording."""
        self._again = set(unsent)
        self._parts: dict[int, Part] = {}
        self._batches: dict[int, Batch] = {}
        self._highest = max(self.taken, default=0)
        self.known: frozenset[int] | None = None
        """The keys that the latest call of `ended` has seen."""
        self.new = 0
        """How many of them no earlier call had seen."""
        self._are_left_open = False  # whether all rows that the last call did not take are open
        self._missed_rows, self._missed_spans = _Balance(), _Balance()
        self.missed: Counter[str] = Counter()
        """What was overwritten before it was taken, by cause."""
        self._overwritten = 0
        self._amounts_written: int | None = None
        self._previous: NDArray[np.void] | None = None
        """The spans of the latest copy."""
        self._saved: NDArray[np.void] | None = None
        """Spans that were overwritten since they were read, of segments that were not taken."""
        self._complete_ns: int | None = None
        """The Unix time from which all spans were read; None before the first reading."""
        self._ending: dict[int, Segment] = {}
        """Segments that have ended, and may be displaced before they can be taken."""
        self._untaken: set[int] = set()
        """The numbers of the segments that had not been taken before the latest call of `ended`."""
        self._names: list[str] = []

    def ended(self, copy: Recording, *, at_end: bool = False) -> list[Segment]:
        """Return the segments that have ended since the last call, also those of hops.

        Those that ended less than `QUIET_NS` ago are left for a later call, unless ``at_end`` is
        true, or they are displaced by then.
        """
        known = copy.segment_keys
        ends_ns = {key: ns for key, ns, _ in copy.segment_ends if key not in self.taken}
        seen: Set[int] | None = self.known
        if seen is None:  # an earlier exporter may have seen them
            seen = {key for key in known if key in self.taken or 0 < key <= self._highest}
        highest = max(known, default=self._highest)
        found = {key: self._ending.pop(key) for key in self._ending.keys() - known}
        least_ns = 0 if at_end else QUIET_NS
        quiet = {
            key
            for key, end_ns in ends_ns.items()
            if copy.has_gone or _is_quiet(end_ns, copy.read_ns, least_ns)
        }
        # Those that may be displaced before the next reading are read now.
        first = highest + 2 * (highest - self._highest) - copy.most_segments
        soon = {key for key, end_ns in ends_ns.items() if end_ns and 0 < key <= first}
        soon -= quiet | self._ending.keys()
        rows = copy.segments_by_key(quiet | soon)
        for key, one in rows.items():
            (found if key in quiet else self._ending)[key] = one
        for key in quiet & self._ending.keys():
            del self._ending[key]
        self._untaken = {key for key in (*ends_ns, *found) if key > 0}
        if self._highest:
            self._count_unseen(copy, highest, len(known - seen))
            # Those that had not ended for long enough when they were last seen.
            if len(known) >= copy.most_segments:
                gone = seen - self.taken - known - found.keys()
                self.missed["requests_unread"] += len(gone)
        self._highest = highest
        self.taken = (self.taken & known) | found.keys()
        self.known, self.new = known, len(known - seen)
        self._are_left_open = not any(ns for key, ns in ends_ns.items() if key not in found)
        return list(found.values())

    @property
    def is_settled(self) -> bool:
        """Whether another call with the same recording would take and count nothing more."""
        to_come = self._missed_rows.number, self._missed_spans.number
        return self._are_left_open and max(to_come) <= 0

    def _count_unseen(self, copy: Recording, highest: int, new: int) -> None:
        """Count the rows that were displaced before any call has seen them.

        Each row has used up a number. A hop that has come back does not show its own one, which may
        be later than those of all other rows, and a row may be written after later ones.
        """
        difference = highest - self._highest - new
        if copy.has_free_entries:
            self._missed_rows.reset(difference)  # none was displaced: these numbers were not used
        else:
            missed = self._missed_rows.add(difference, is_last=copy.has_gone)
            self.missed["requests_unread"] += missed

    @property
    def unsent(self) -> set[int]:
        """The numbers of segments whose parts are awaited by something."""
        return self._again | {number for number, part in self._parts.items() if part.awaited}

    def parts(self, copy: Recording, resource: Resource, ended: list[Segment]) -> list[Part]:
        """Return the spans of segments; the copy must contain the spans of the process.

        Those that an earlier exporter has taken and not sent are also returned, once.
        """
        own = [one for one in ended if one["origin"] != "return"]
        if self._again:
            again = copy.segments(self._again)
            self.missed["requests_unread"] += len(self._again) - len(again)
            self._again.clear()
            own = [*again, *own]
        if not own:
            return []
        spans = self._spans_of(copy, [one["number"] for one in own])
        by_segment: dict[str | None, list[Segment]] = {one["segment"]: [] for one in own}
        for one in copy.segments([key for key in copy.segment_keys if key < 0]):
            if one["segment"] in by_segment:
                by_segment[one["segment"]].append(one)
        batches = self._batches_of(copy)
        complete_ns = copy.complete_ns if self._complete_ns is None else self._complete_ns
        found = []
        for one in own:
            number = one["number"]
            part = Part(
                *(resource, one, spans.get(number), by_segment[one["segment"]]),
                batches.get(number, []),
            )
            part.is_whole = complete_ns <= part.begin_ns
            part.clock, part.unix_offset_ns = copy.clock, copy.unix_offset_ns
            found.append(part)
        self._parts = {number: part for number, part in self._parts.items() if part.awaited}
        self._parts.update((part.segment["number"], part) for part in found)
        return found

    def _spans_of(self, copy: Recording, numbers: list[int]) -> dict[int, ReadSpans]:
        spans = copy.spans()
        if self._saved is not None and len(self._saved):
            spans = joined((self._saved, spans))
        rows = of_requests(spans, numbers)
        if not len(rows):
            return {}
        names = copy.stage_names()
        if names != self._names:  # else parts of many readings share one list
            self._names = names
        amounts = copy.amounts(set(rows["id"].tolist()))
        has_failed = bool((rows["flags"] & _core.FLAG_ERROR).any())
        failures = copy.failures() if has_failed else {}
        since_ns = copy.amounts_since_ns
        found = {}
        for number, of in by_number(rows).items():
            own = rows[of].copy()  # of many rows, those of a few requests may be kept for long
            work: Amounts = {}
            errors: Failures = {}
            if amounts or failures:
                ids = own["id"].tolist()
                errors = {id_: failures[id_] for id_ in ids if id_ in failures}
                if since_ns:
                    ids = own["id"][own["begin_ns"] > since_ns].tolist()
                work = {id_: amounts[id_] for id_ in ids if id_ in amounts}
            found[number] = ReadSpans(own, self._names, work, errors, since_ns)
        return found

    def count_spans(self, copy: Recording) -> None:
        """Count the spans and amounts that were overwritten since the last call, and not seen."""
        before, self._amounts_written = self._amounts_written, copy.amounts_written
        if before is not None:
            unread = copy.amounts_written - before - copy.most_amounts
            if unread > 0:
                self.missed["amounts_unread"] += unread
        spans, overwritten = copy.spans(), copy.lost()["overwritten"]
        if self._previous is None:
            self._complete_ns = copy.complete_ns
        else:
            gone = 0
            if overwritten > self._overwritten or self._missed_spans.number > 0:
                gone = self._save(copy, self._previous, spans)
            missed = self._missed_spans.add(overwritten - self._overwritten - gone, copy.has_gone)
            self.missed["spans_unread"] += missed
        self._overwritten, self._previous = overwritten, spans

    def _save(self, copy: Recording, before: NDArray[np.void], spans: NDArray[np.void]) -> int:
        """Save what was overwritten since it was read, and return how many spans were."""
        numpy = imports.load("numpy")
        gone = before[~numpy.isin(before["id"], spans["id"])]
        rows = gone if self._saved is None else joined((self._saved, gone))
        self._saved = saved = of_requests(rows, self._untaken)
        if len(saved) > _MOST_SAVED:
            by_end = saved[saved["end_ns"].argsort(kind="stable")]
            dropped, self._saved = by_end[:-_MOST_SAVED], by_end[-_MOST_SAVED:]
            self._complete_ns = max(self._complete_ns or 0, int(dropped["end_ns"].max()))
            self.missed["spans_unread"] += len(dropped)
        # A thread of whose spans none was there before may have overwritten some in between.
        is_known = numpy.isin(spans["id"], before["id"])
        _, of_thread, counts = numpy.unique(
            spans["thread"], return_inverse=True, return_counts=True
        )
        known = numpy.bincount(of_thread, is_known, len(counts))
        if (known[counts + 1 >= copy.ring_spans] == 0).any():
            self._complete_ns = max(self._complete_ns or 0, copy.complete_ns)
        return len(gone)

    def _batches_of(self, copy: Recording) -> dict[int, list[Batch]]:
        numbers: defaultdict[int, dict[int, None]] = defaultdict(dict)
        sizes = {}
        for span_id, number, size in copy.links():
            numbers[span_id][number] = None
            sizes[span_id] = size
        self._batches = {id_: one for id_, one in self._batches.items() if id_ in numbers}
        new = numbers.keys() - self._batches.keys()
        if new:
            served = {number for id_ in new for number in numbers[id_]}
            segments = copy.segments(served & copy.segment_keys)
            ids = {one["number"]: (one["trace_id"], one["segment"]) for one in segments}
            for span, *inner in _batches(copy, new):
                known = [ids[number] for number in numbers[span.id] if number in ids]
                links = [(trace, segment) for trace, segment in known if trace and segment]
                self._batches[span.id] = Batch(span, inner, links, sizes[span.id])
        found: defaultdict[int, list[Batch]] = defaultdict(list)
        for span_id, of in numbers.items():
            for number in of:
                if span_id in self._batches:
                    found[number].append(self._batches[span_id])
        return found


def _made(copy: Recording, rows: NDArray[np.void]) -> list[Span]:
    return made(copy, rows, copy.amounts(set(rows["id"].tolist())) if len(rows) else {})


def _batches(copy: Recording, ids: Collection[int]) -> Iterator[list[Span]]:
    """Yield each batch with one of the ids, and the spans inside that belong to no request."""
    numpy = imports.load("numpy")
    spans = copy.spans()
    loose = spans[spans["request"] == 0]
    # Of the column's own type: numpy would compare ids and Python integers as doubles.
    is_new = numpy.isin(spans["id"], numpy.array(list(ids), numpy.uint64))
    is_batch = (kinds_of(spans) == BATCH) & is_new
    for i in numpy.flatnonzero(is_batch).tolist():
        levels = [spans[i : i + 1]]
        while len(levels[-1]) and len(levels) <= _DEEPEST:
            levels.append(loose[numpy.isin(loose["parent"], levels[-1]["id"])])
        yield _made(copy, joined(levels))


def _is_quiet(end_ns: int, now_ns: int | None, least_ns: int) -> bool:
    return end_ns != 0 and now_ns is not None and now_ns - end_ns >= least_ns
