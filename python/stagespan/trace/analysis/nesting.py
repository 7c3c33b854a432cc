"""Which event of a thread lies within which, and what is innermost at a time."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.analysis.axis import Axis
from stagespan.trace.analysis.host_time import pairs, processes
from stagespan.trace.arrays import Mask, Numbers
from stagespan.trace.intervals import exclusive
from stagespan.trace.model import Flows, Trace

Rows = NDArray[np.intp]
# Depth by depth is faster than one by one, unless there are so many.
_DEEP = 1000
_MOST_TURNS = 100


def joined(flows: Flows, chosen: Mask) -> tuple[Rows, Rows]:
    """The chosen arrows that have both ends: of each end the start, and the end."""
    starts, ends = np.flatnonzero(chosen & flows.starts), np.flatnonzero(chosen & ~flows.starts)
    starts = starts[np.argsort(flows.id[starts], kind="stable")]
    at = np.searchsorted(flows.id[starts], flows.id[ends])
    hit = np.flatnonzero(at < len(starts))
    hit = hit[flows.id[starts[at[hit]]] == flows.id[ends[hit]]]
    return starts[at[hit]], ends[hit]


class Lanes:
    """The threads of some events as lanes of one axis; events of other threads have none."""

    def __init__(self, trace: Trace, *groups: Rows, process: Numbers | None = None) -> None:
        """`process` may tell of every event another process than `host_time.processes`."""
        events = trace.events
        rows = np.concatenate(groups)
        process = processes(trace) if process is None else process
        found, lane = pairs(process[rows], events.tid[rows])
        begin = int(events.begin_ns[rows].min()) if len(rows) else 0
        end = int(events.end_ns[rows].max()) if len(rows) else 0
        self.axis = Axis(begin, end, len(found))
        self.threads = found
        """(process, thread) of each lane."""
        ends = np.cumsum([0, *map(len, groups)])
        self.of = [lane[first:last] for first, last in itertools.pairwise(ends)]
        """Of each group the lane of each row."""

    @property
    def fits(self) -> bool:
        """False when the events lie so far apart that nothing can be said about them."""
        return self.axis.fits

    def places_of_flows(self, trace: Trace, flows: Rows) -> Numbers:
        """Where ends of arrows lie on the axis; -1 on threads that have no lane."""
        table = trace.flows
        return self.places(table.pid[flows], table.tid[flows], table.begin_ns[flows])

    def places(self, pid: Numbers, tid: Numbers, begin_ns: Numbers) -> Numbers:
        """Where times of threads lie on the axis; -1 on threads that have no lane."""
        found, code = pairs(
            np.concatenate((self.threads[:, 0], pid)), np.concatenate((self.threads[:, 1], tid))
        )
        lane = np.full(len(found), -1, dtype=np.int64)
        lane[code[: len(self.threads)]] = np.arange(len(self.threads))
        lane = lane[code[len(self.threads) :]]
        result: Numbers = np.where(lane >= 0, self.axis.place(lane, begin_ns), -1)
        return result


class Nesting:
    """Events on an axis as a forest: each within the innermost one that is open as it begins.

    Events without a duration hold nothing. `rows` are the events with one, by place.
    """

    def __init__(self, axis: Axis, rows: Rows, begin: Numbers, end: Numbers) -> None:
        longer = end > begin
        rows, begin, end = rows[longer], begin[longer], end[longer]
        order = np.lexsort((-end, begin))
        self.axis = axis
        self.rows = rows[order]
        self.begin, self.end = begin[order], end[order]
        # Of each the next outwards that ends later: as it ends, all between have ended.
        self._longer: Rows = np.empty(0, dtype=np.intp)
        self.parent = self._parents()
        """Of each of `rows` the index in `rows` of the one around it, or -1."""

    @classmethod
    def of(cls, trace: Trace, axis: Axis, rows: Rows, lane: Numbers) -> Nesting:
        """The forest of some rows of `trace.events`."""
        events = trace.events
        return cls(
            axis,
            rows,
            axis.place(lane, events.begin_ns[rows]),
            axis.place(lane, events.end_ns[rows]),
        )

    def __len__(self) -> int:
        return len(self.rows)

    def at(self, place: Numbers) -> Rows:
        """Index in `rows` of what is innermost at each place, or -1."""
        found = np.searchsorted(self.begin, place, side="right") - 1
        return self._climb(found, place)

    def own_ns(self) -> Numbers:
        """Of each of `rows` its time less that of those within it; their sum is the union."""
        if not self._nested:
            return exclusive(self.begin, self.end, np.zeros(len(self), dtype=np.int64))
        time = self.end - self.begin
        inner = self.parent >= 0
        # Whole numbers below 2**53: doubles add them exactly.
        within = np.bincount(self.parent[inner], weights=time[inner], minlength=len(self))
        own: Numbers = time - within.astype(np.int64)
        return own

    def first_around(self, chosen: NDArray[np.bool_]) -> Rows:
        """Of each of `rows` the innermost around it (itself too) that is chosen, or -1."""
        found = np.where(chosen, np.arange(len(self), dtype=np.intp), self.parent)
        # Each turn doubles how far up an event has looked.
        while len(other := np.flatnonzero(found >= 0)):
            other = other[found[other] != found[found[other]]]
            if len(other) == 0:
                break
            found[other] = found[found[other]]
        return found

    def _climb(self, found: Rows, place: Numbers) -> Rows:
        """From each found one outwards, to the first that has not ended at the place."""
        found = found.copy()
        for _ in range(_MOST_TURNS):
            over = np.flatnonzero(found >= 0)
            over = over[self.end[found[over]] <= place[over]]
            if len(over) == 0:
                return found
            found[over] = self._longer[found[over]]
        found[over] = self._swept(place[over])
        return found

    def _swept(self, place: Numbers) -> Rows:
        """As `at`, one by one in the order of the places: where the way outwards is long."""
        begins, ends, longer = self.begin.tolist(), self.end.tolist(), self._longer.tolist()
        order = np.argsort(place, kind="stable")
        found = []
        last, coming = -1, 0
        for where in place[order].tolist():
            while coming < len(begins) and begins[coming] <= where:
                last = coming
                coming += 1
            # What has ended is never innermost again.
            while last >= 0 and ends[last] <= where:
                last = longer[last]
            found.append(last)
        result = np.empty(len(place), dtype=np.intp)
        result[order] = found
        return result

    def _parents(self) -> Rows:
        index = np.arange(len(self), dtype=np.int64)
        ended = np.searchsorted(np.sort(self.end), self.begin, side="right")
        depth = index - ended
        self._nested = True
        if len(self) == 0:
            return index
        if depth.max() > _DEEP:
            self._nested = False
            return self._parents_of_crossing()
        # What holds an event was the last to begin at the depth above.
        small = depth.astype(np.int16) if depth.max() < 30_000 else depth
        by_depth = np.argsort(small, kind="stable")
        counts = np.bincount(depth)
        firsts = np.concatenate(([0], np.cumsum(counts)))
        parent = np.full(len(self), -1, dtype=np.intp)
        for level in range(1, len(counts)):
            above = by_depth[firsts[level - 1] : firsts[level]]
            here = by_depth[firsts[level] : firsts[level + 1]]
            parent[here] = above[np.searchsorted(above, here) - 1]
        inner = parent >= 0
        if np.all(self.end[parent[inner]] >= self.end[inner]):
            self._longer = parent
            return parent
        self._nested = False
        return self._parents_of_crossing()

    def _parents_of_crossing(self) -> Rows:
        """Where some events begin in others and end behind them: the last begun that is open."""
        begins, ends = self.begin.tolist(), self.end.tolist()
        parent, longer = [-1] * len(self), [-1] * len(self)
        last = -1
        for at, begin in enumerate(begins):
            while last >= 0 and ends[last] <= begin:
                last = longer[last]
            parent[at] = above = last
            while above >= 0 and ends[above] <= ends[at]:
                above = longer[above]
            longer[at] = above
            last = at
        self._longer = np.array(longer, dtype=np.intp)
        return np.array(parent, dtype=np.intp)
