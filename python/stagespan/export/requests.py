"""Takes the parts of requests that have ended from the recordings of processes, each one once."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from stagespan import _core
from stagespan.export.parts import Awaited, Batch, Parts, Resource
from stagespan.process import imports
from stagespan.recording.segments import Details, trace_id, traces_of
from stagespan.recording.spans import (
    BATCH,
    Amounts,
    ReadSpans,
    Span,
    are_in,
    joined,
    kinds_of,
    of_requests,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stagespan.recording.reading import Recording
    from stagespan.recording.segments import Failures

_Detail = TypeVar("_Detail")
QUIET_NS = 10**9
"""A request that was received can be entered again. It counts as ended after this time."""
_READINGS = 4
_DEEPEST = 64
"""The most levels of spans inside of a batch that are taken."""
_MOST_SAVED = 1 << 17
"""The most spans of a process that are saved while their requests go on."""
_MOST_PIECES = 64
UNREAD = ("requests_unread", "spans_unread", "amounts_unread")
"""Causes of losses: what later entries of a recording displaced before it was read."""


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
        self._taken: Sequence[int] | NDArray[np.int64] = list(taken)
        self._again = list(unsent)
        self._given: list[Awaited] = []
        self._batches: dict[int, Batch] = {}
        self._highest = max(self._taken, default=0)
        self._read_keys: NDArray[np.int64] | None = None
        """The keys that the latest call of `ended` has seen."""
        self.new = 0
        """How many of them no earlier call had seen."""
        self.open_traces: list[NDArray[np.uint64]] = []
        """The halves of the traces of the segments that were seen, and left for a later call."""
        self._are_left_open = False  # whether all rows that the last call did not take are open
        self._missed_rows, self._missed_spans = _Balance(), _Balance()
        self.missed: Counter[str] = Counter()
        """What was overwritten before it was taken, by cause."""
        self._overwritten = 0
        self._amounts_written: int | None = None
        self._previous: NDArray[np.void] | None = None
        """The spans of the latest copy."""
        self._saved: list[NDArray[np.void]] = []
        """Spans that were overwritten since they were read, of segments that were not taken."""
        self._complete_ns: int | None = None
        """The Unix time from which all spans were read; None before the first reading."""
        self._ending: NDArray[np.void] | None = None
        """Segments that have ended, and may be displaced before they can be taken."""
        self._details = Details({}, {})
        """What these refer to."""
        self._untaken: NDArray[np.int64]
        """The numbers of the segments that had not been taken before the latest call of `ended`."""
        self._names: list[str] = []

    def ended(self, copy: Recording, *, at_end: bool = False) -> NDArray[np.void]:
        """Return the segments that have ended since the last call, also those of hops, as rows.

        Those that ended less than `QUIET_NS` ago are left for a later call, unless ``at_end`` is
        true, or they are displaced by then.
        """
        numpy = imports.load("numpy")
        ends = copy.segment_ends()
        present, ends_ns = numpy.ascontiguousarray(ends["key"]), ends["end_ns"]
        taken = numpy.asarray(self._taken, "i8")
        is_new = ~are_in(present, taken)
        seen = self._read_keys
        if seen is None:  # an earlier exporter may have seen them
            seen = present[~is_new | ((present > 0) & (present <= self._highest))]
        highest = int(present.max(initial=self._highest))
        ending = copy.segment_rows(present[:0]) if self._ending is None else self._ending
        is_gone = ~are_in(ending["key"], present)
        # Indexing by a mask would copy field by field.
        gone, ending = ending.compress(is_gone), ending.compress(~is_gone)
        is_quiet = is_new & self._are_quiet(copy, ends_ns, 0 if at_end else QUIET_NS)
        # Those that may be displaced before the next reading are read now.
        first = highest + 2 * (highest - self._highest) - copy.most_segments
        is_soon = is_new & (ends_ns != 0) & (present > 0) & (present <= first) & ~is_quiet
        is_soon &= ~are_in(present, ending["key"])
        rows = joined((gone, copy.segment_rows(present[is_quiet])))
        keys = rows["key"]
        soon = copy.segment_rows(present[is_soon])
        self._ending = joined((ending.compress(~are_in(ending["key"], keys)), soon))
        self._untaken = numpy.append(present[is_new & (present > 0)], gone["key"][gone["key"] > 0])
        self.new = int((~are_in(present, seen)).sum())
        if self._highest:
            has_free_entries = len(present) < copy.most_segments
            self._count_unseen(highest, has_free_entries, is_last=copy.has_gone)
            # Those that had not ended for long enough when they were last seen.
            if not has_free_entries:
                is_lost = ~(are_in(seen, taken) | are_in(seen, present) | are_in(seen, keys))
                self.missed["requests_unread"] += int(is_lost.sum())
        self._highest, self._read_keys = highest, present
        self._taken = numpy.append(taken[are_in(taken, present)], keys)
        is_left = is_new & ~is_quiet
        self._are_left_open = not ends_ns[is_left].any()
        self.open_traces = [_traces_in(ends.compress(is_left & (present > 0)))]
        return rows

    def look(self, copy: Recording) -> None:
        """See which requests are open, without taking any."""
        ends = copy.segment_ends()
        keys = ends["key"]
        taken = imports.load("numpy").asarray(self._taken, "i8")
        self.open_traces = [_traces_in(ends[(keys > 0) & ~are_in(keys, taken)])]

    def _are_quiet(
        self, copy: Recording, ends_ns: NDArray[np.int64], least_ns: int
    ) -> NDArray[np.bool_]:
        numpy = imports.load("numpy")
        now_ns = copy.read_ns
        are_quiet: NDArray[np.bool_] = (
            numpy.full(len(ends_ns), copy.has_gone)
            if copy.has_gone or now_ns is None
            else (ends_ns != 0) & (now_ns - ends_ns >= least_ns)
        )
        return are_quiet

    @property
    def taken(self) -> list[int]:
        """The keys of the segments that were taken, and are still in the recording."""
        return list(map(int, self._taken))

    @property
    def is_settled(self) -> bool:
        """Whether another call with the same recording would take and count nothing more."""
        to_come = self._missed_rows.number, self._missed_spans.number
        return self._are_left_open and max(to_come) <= 0

    def _count_unseen(self, highest: int, has_free_entries: bool, *, is_last: bool) -> None:
        """Count the rows that were displaced before any call has seen them.

        Each row has used up a number. A hop that has come back does not show its own one, which may
        be later than those of all other rows, and a row may be written after later ones.
        """
        difference = highest - self._highest - self.new
        if has_free_entries:
            self._missed_rows.reset(difference)  # none was displaced: these numbers were not used
        else:
            missed = self._missed_rows.add(difference, is_last)
            self.missed["requests_unread"] += missed

    @property
    def unsent(self) -> set[int]:
        """The numbers of segments whose parts are awaited by something."""
        unsent = set(self._again)
        for given in self._given:
            unsent.update(given.unsent)
        return unsent

    def parts(self, copy: Recording, resource: Resource, ended: NDArray[np.void]) -> Parts | None:
        """Return segments with their spans, or None; the copy must contain the process's spans.

        Those that an earlier exporter has taken and not sent are also returned, once.
        """
        numpy = imports.load("numpy")
        rows = ended.compress(ended["origin"] != _core.ORIGINS.index("return"))
        if self._again:
            again = copy.segment_rows(numpy.array(self._again, "i8"))
            self.missed["requests_unread"] += len(self._again) - len(again)
            self._again = []
            rows = joined((again, rows))
        details = self._details_of(copy, rows)
        if not len(rows):
            return None
        rows = rows.take(rows["number"].argsort(kind="stable"))
        keys = copy.segment_ends()["key"] if self._read_keys is None else self._read_keys
        of_numbers = self._batches_of(copy)
        numbers = rows["number"].tolist() if of_numbers else ()
        parts = Parts(
            *(resource, rows, self._spans_of(copy, numpy.ascontiguousarray(rows["number"]))),
            *(copy.segment_rows(keys[keys < 0]), details),
            batches={at: of_numbers[n] for at, n in enumerate(numbers) if n in of_numbers},
            complete_ns=copy.complete_ns if self._complete_ns is None else self._complete_ns,
            clock=copy.clock,
            unix_offset_ns=copy.unix_offset_ns,
        )
        self._given = [given for given in self._given if given.flags.any()]
        self._given.append(parts.awaited)
        return parts

    def _details_of(self, copy: Recording, ended: NDArray[np.void]) -> Details:
        """Return what these rows refer to, and save it of those that are ending."""
        ending = ended[:0] if self._ending is None else self._ending
        rows = joined((ended, ending))
        numbers = rows["number"].tolist()
        fields, failures = copy.details(rows)
        details = Details(
            {**self._details.fields, **fields}, {**self._details.failures, **failures}
        )
        saved = set(numbers[len(ended) :])
        self._details = Details(_only(details.fields, saved), _only(details.failures, saved))
        return details

    def _spans_of(self, copy: Recording, numbers: NDArray[np.uint64]) -> ReadSpans:
        rows = of_requests((*self._saved, copy.spans()), numbers)
        names = copy.stage_names()
        if names != self._names:  # else parts of many readings share one list
            self._names = names
        work: Amounts = copy.amounts(set(rows["id"].tolist())) if copy.amounts_written else {}
        failures: Failures = {}
        failed = rows["id"][(rows["flags"] & _core.FLAG_ERROR) != 0].tolist()
        if failed:
            known = copy.failures()
            failures = {id_: known[id_] for id_ in failed if id_ in known}
        return ReadSpans(rows, self._names, work, failures, copy.amounts_since_ns)

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
        ids_before, ids = (numpy.ascontiguousarray(rows["id"]) for rows in (before, spans))
        gone = before.compress(~are_in(ids_before, ids))
        saved = (self._still_untaken(rows) for rows in (*self._saved, of_requests((gone,))))
        self._saved = [rows for rows in saved if len(rows)]
        if len(self._saved) > _MOST_PIECES:
            self._saved = [joined(self._saved)]
        if sum(map(len, self._saved)) > _MOST_SAVED:
            rows = joined(self._saved)
            by_end = rows[rows["end_ns"].argsort(kind="stable")]
            dropped, self._saved = by_end[:-_MOST_SAVED], [by_end[-_MOST_SAVED:]]
            self._complete_ns = max(self._complete_ns or 0, int(dropped["end_ns"].max()))
            self.missed["spans_unread"] += len(dropped)
        # A thread of whose spans none was there before may have overwritten some in between.
        was_there = are_in(ids, ids_before)
        if numpy.count_nonzero(~was_there) + 1 >= copy.ring_spans:
            threads = spans["thread"].astype("u8")
            strange = threads[~are_in(threads, threads[was_there])]
            _, counts = numpy.unique(strange, return_counts=True)
            if (counts + 1 >= copy.ring_spans).any():
                self._complete_ns = max(self._complete_ns or 0, copy.complete_ns)
        return len(gone)

    def _still_untaken(self, rows: NDArray[np.void]) -> NDArray[np.void]:
        """Return the rows of segments that were not taken, and perhaps as many others."""
        stay = are_in(rows["request"], self._untaken)
        return rows.compress(stay) if 2 * stay.sum() <= len(rows) else rows

    def _batches_of(self, copy: Recording) -> dict[int, list[Batch]]:
        numbers: defaultdict[int, dict[int, None]] = defaultdict(dict)
        sizes = {}
        for span_id, number, size in copy.links().tolist():
            numbers[span_id][number] = None
            sizes[span_id] = size
        self._batches = {id_: one for id_, one in self._batches.items() if id_ in numbers}
        new = numbers.keys() - self._batches.keys()
        if new:
            served = {number for id_ in new for number in numbers[id_]}
            rows = copy.segment_rows(imports.load("numpy").array(list(served), "i8"))
            ids = {
                number: (trace, f"{segment:016x}")
                for number, segment, of in zip(
                    rows["number"].tolist(), rows["segment"].tolist(), traces_of(rows), strict=True
                )
                if (trace := trace_id(of)) and segment
            }
            for span, *inner in _batches(copy, new):
                links = [ids[number] for number in numbers[span.id] if number in ids]
                self._batches[span.id] = Batch(span, inner, links, sizes[span.id])
        by_number: defaultdict[int, list[Batch]] = defaultdict(list)
        for span_id, of in numbers.items():
            for number in of:
                if span_id in self._batches:
                    by_number[number].append(self._batches[span_id])
        return by_number


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
        rows = joined(levels)
        failures = copy.failures() if (rows["flags"] & _core.FLAG_ERROR).any() else {}
        texts = copy.stage_names(), copy.amounts(set(rows["id"].tolist())), failures
        yield ReadSpans(rows, *texts, copy.amounts_since_ns).spans()


def _only(details: dict[int, _Detail], numbers: set[int]) -> dict[int, _Detail]:
    return {number: details[number] for number in numbers & details.keys()}


def _traces_in(ends: NDArray[np.void]) -> NDArray[np.uint64]:
    high, low = ends["trace_high"], ends["trace_low"]
    is_one = (high | low) != 0
    traces: NDArray[np.uint64] = imports.load("numpy").stack((high[is_one], low[is_one]), axis=1)
    return traces
