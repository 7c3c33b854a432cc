"""The segments of one recording as columns, and the spans of their requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from stagespan import _core
from stagespan.live.span_kinds import KINDS
from stagespan.process import imports
from stagespan.recording.segments import as_dicts, first_known_ns
from stagespan.recording.source import RequestSource, latest_ns, with_open
from stagespan.recording.spans import BATCH, OPEN_NS, ReadSpans, Span, are_in, kinds_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stagespan.recording.segments import Segment
    from stagespan.recording.spans import Amounts

_EXECUTION, _QUEUE = KINDS.index("execution"), KINDS.index("queue")
_EXTREMES_NS = -(1 << 60), 3 << 61
"""Times of damaged files that are beyond become one of these, so that sums do not overflow."""


class Served(NamedTuple):
    """The batches that served segments, ordered by the number of the segment."""

    numbers: NDArray[np.uint64]
    rows: NDArray[np.intp]
    """In `Process.spans`."""
    sizes: NDArray[np.int64]
    places: NDArray[np.int64]
    """The first of the segment's places in the batch."""


class Process:
    """The segments of one recording, and the spans of their requests. Its clock is monotonic."""

    def __init__(self, recording: RequestSource) -> None:
        self.recording = recording
        self.offset_ns = recording.unix_offset_ns
        """What was added to its monotonic times to get Unix times."""
        self.spans = with_open(recording)
        """Its spans with Unix times; open ones end at `OPEN_NS`."""
        self.segments = recording.segment_rows()
        """Its segments and returned hops. Those with an open span or batch are open."""
        self.last_ns = self._last_ns()
        """The latest monotonic time at which the process is known to have run."""
        self.rows = self._rows_of_requests()
        """The rows in `spans` of the spans of its requests, ordered by the number of these."""
        self.batches: NDArray[np.intp] = (kinds_of(self.spans) == BATCH).nonzero()[0]
        """The rows of the batches, in which links refer to spans."""
        self._open_again()

    def _last_ns(self) -> int:
        recording = self.recording
        if recording.state in ("alive", "unknown") and recording.read_ns is not None:
            return recording.read_ns - self.offset_ns
        return latest_ns(recording) - self.offset_ns

    def _rows_of_requests(self) -> NDArray[np.intp]:
        """Return the rows of executions and waits, without the waits until requests were entered.

        These are known from the segments, with more detail.
        """
        spans, segments = self.spans, self.segments
        kinds, numbers = kinds_of(spans), spans["request"]
        is_of_request = (numbers != 0) & ((kinds == _EXECUTION) | (kinds == _QUEUE))
        rows: NDArray[np.intp] = is_of_request.nonzero()[0]
        rows = rows[numbers[rows].argsort(kind="stable")]
        waits = ((kinds[rows] == _QUEUE) & (spans["end_ns"][rows] != OPEN_NS)).nonzero()[0]
        entries = segments[(segments["received_ns"] != _core.UNKNOWN_NS)]
        if not len(waits) or not len(entries):
            return rows
        entered = set(zip(entries["number"].tolist(), entries["begin_ns"].tolist(), strict=True))
        ends_ns = spans["end_ns"][rows[waits]].tolist()
        ended = zip(numbers[rows[waits]].tolist(), ends_ns, strict=True)
        others: NDArray[np.intp] = imports.load("numpy").delete(
            rows, waits[[one in entered for one in ended]]
        )
        return others

    def _open_again(self) -> None:
        """Open the segments whose batches, or waits in a list, go on after they were left."""
        numpy = imports.load("numpy")
        spans = self.spans
        is_open = spans["end_ns"] == OPEN_NS
        if not is_open.any():
            return
        open_batches = spans["id"][self.batches[is_open[self.batches]]]
        served = self.links["request"][are_in(self.links["span"], open_batches)]
        numbers = numpy.append(spans["request"][self.rows[is_open[self.rows]]], served)
        goes_on = (
            are_in(self.segments["number"], numbers)
            & (self.segments["origin"] != _core.ORIGINS.index("root"))
            & (self.segments["status"] == _core.STATUSES.index("ok"))
        )
        has_ended = self.recording.state not in ("alive", "unknown")
        self.segments = self.segments.copy()
        self.segments["end_ns"][goes_on] = _core.UNKNOWN_NS
        status = "abandoned" if has_ended else "open"
        self.segments["status"][goes_on] = _core.STATUSES.index(status)

    @property
    def is_full(self) -> bool:
        """Whether all entries are in use, so that earlier ones may have been used again."""
        return len(self.segments) >= self.recording.most_segments

    @property
    def clock(self) -> object:
        """What identifies its clock; the path of its recording if that is unknown."""
        return self.recording.clock or self.recording.path

    @cached_property
    def links(self) -> NDArray[np.void]:
        """Which segments batches have served."""
        return self.recording.links()

    @cached_property
    def times_ns(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """When each segment began and ended; those that are open end at `last_ns`."""
        numpy, segments = imports.load("numpy"), self.segments
        first_ns = first_known_ns(segments, "begin_ns", "received_ns")
        begins_ns = numpy.where(first_ns == 0, self.recording.begin_ns, first_ns)
        is_open = segments["end_ns"] == _core.UNKNOWN_NS
        ends_ns = numpy.where(is_open, self.last_ns + self.offset_ns, segments["end_ns"])
        begins_ns, ends_ns = (
            numpy.clip(times_ns, *_EXTREMES_NS) - self.offset_ns
            for times_ns in (begins_ns, ends_ns)
        )
        return begins_ns, numpy.maximum(begins_ns, ends_ns)

    @cached_property
    def have_all_links(self) -> NDArray[np.bool_]:
        """Whether no link of a batch that each segment can have been in has been overwritten."""
        received_ns = self.segments["received_ns"]
        since_ns = imports.load("numpy").where(
            received_ns == _core.UNKNOWN_NS, self.times_ns[0], received_ns - self.offset_ns
        )
        have_all: NDArray[np.bool_] = since_ns >= self._links_since
        return have_all

    @cached_property
    def _links_since(self) -> float:
        """The time from which no link has been overwritten."""
        if not self.recording.lost()["links"]:
            return -math.inf
        batches = self.spans[self.batches]
        begins_ns = dict(zip(batches["id"].tolist(), batches["begin_ns"].tolist(), strict=True))
        kept = (begins_ns[id_] for id_ in self.links["span"].tolist() if id_ in begins_ns)
        return next((ns - self.offset_ns for ns in kept), math.inf)

    def dicts(self, rows: Sequence[int]) -> list[Segment]:
        """Return segments as dicts."""
        chosen, recording = self.segments[rows], self.recording
        return as_dicts(chosen, recording.stage_names(), recording.details(chosen))

    # --- spans ------------------------------------------------------------------------------------

    @cached_property
    def numbers(self) -> tuple[NDArray[np.uint64], NDArray[np.intp]]:
        """The numbers of the segments with spans, and where those of each begin in `rows`.

        Where the last ones end is the last element.
        """
        numpy = imports.load("numpy")
        numbers, firsts = numpy.unique(self.spans["request"][self.rows], return_index=True)
        return numbers, numpy.append(firsts, len(self.rows))

    @cached_property
    def served(self) -> Served:
        """The batches that served segments."""
        numpy = imports.load("numpy")
        ids = self.spans["id"][self.batches]
        links = self.links[are_in(self.links["span"], ids)]
        by_id = ids.argsort(kind="stable")
        rows = self.batches[by_id[ids[by_id].searchsorted(links["span"])]]
        by_batch = links["span"].argsort(kind="stable")
        _, firsts, counts = numpy.unique(
            links["span"][by_batch], return_index=True, return_counts=True
        )
        places = numpy.empty(len(links), "i8")
        places[by_batch] = numpy.arange(len(links)) - firsts.repeat(counts)
        # Of the links of one request to one batch, the first.
        at = numpy.lexsort((links["span"], links["request"]))
        pairs = links["request"][at], links["span"][at]
        is_first = numpy.ones(len(at), bool)
        is_first[1:] = (pairs[0][1:] != pairs[0][:-1]) | (pairs[1][1:] != pairs[1][:-1])
        at = numpy.sort(at[is_first])
        at = at[links["request"][at].argsort(kind="stable")]
        return Served(links["request"][at], rows[at], links["size"][at].astype("i8"), places[at])

    def spans_of(self, number: int) -> list[Span]:
        """Return the spans of a segment, then the batches that served it.

        Open ones end at `last_ns`.
        """
        numbers, firsts = self.numbers
        code = numbers.dtype.type(number)
        at = numbers.searchsorted(code)
        is_there = at < len(numbers) and numbers[at] == code
        spans = self._made(self.rows[firsts[at] : firsts[at + 1]]) if is_there else []
        served = self.served
        sides = (served.numbers.searchsorted(code, side) for side in ("left", "right"))
        chosen = slice(*sides)
        batches = self._made(served.rows[chosen])
        of_batches = zip(
            batches, served.sizes[chosen].tolist(), served.places[chosen].tolist(), strict=True
        )
        return spans + [span._replace(size=size, place=place) for span, size, place in of_batches]

    def _made(self, rows: NDArray[np.intp]) -> list[Span]:
        if not len(rows):
            return []
        read = self._read._replace(rows=self.spans[rows])
        return read.spans(offset_ns=self.offset_ns, until_ns=self.last_ns)

    @cached_property
    def _read(self) -> ReadSpans:
        of = self.recording
        texts = of.stage_names(), self.amounts, of.failures(), of.amounts_since_ns
        return ReadSpans(self.spans, *texts)

    @cached_property
    def amounts(self) -> Amounts:
        """The work of its spans by span id."""
        return self.recording.amounts()
