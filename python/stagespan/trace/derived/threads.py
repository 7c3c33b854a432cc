"""The threads of a program on one axis, and their activity: calls, waits and quiet time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from re import Pattern

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.derived import idle_causes as causes
from stagespan.trace.read.groups import pairs, parts
from stagespan.trace.read.intervals import Mask, Numbers, Rows, merged
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once

_MOST = 1 << 61


@dataclass(frozen=True, slots=True)
class Axis:
    """The times of several threads on one axis.

    Each thread has its own part of the axis, so the intervals of all threads can be processed
    together and never overlap.
    """

    begin_ns: int
    end_ns: int
    lanes: int

    @property
    def stride(self) -> int:
        """Length of a thread's part in ns, including a margin at its end that nothing covers."""
        return self.end_ns - self.begin_ns + 2

    @property
    def fits(self) -> bool:
        """Whether all places fit into 64 bits; invalid times in a trace can be too large."""
        return self.stride * (self.lanes + 1) < _MOST

    def place(self, lane: Numbers | NDArray[np.int32], time_ns: Numbers) -> Numbers:
        """Convert times to places on the axis; times outside the window are moved to its edge."""
        result: Numbers = np.clip(time_ns, self.begin_ns, self.end_ns)
        result -= self.begin_ns
        result += lane * np.int64(self.stride)
        return result

    def time_ns(self, place: Numbers) -> Numbers:
        """Convert places on the axis to times in ns."""
        result: Numbers = place % self.stride + self.begin_ns
        return result


class Cover:
    """A set of intervals on an axis, which computes how much of any range it covers."""

    def __init__(self, begin: Numbers, end: Numbers) -> None:
        longer = end > begin
        self.begin, self.end = merged(begin[longer], end[longer])
        self._before = np.concatenate(([0], np.cumsum(self.end - self.begin)))

    def __or__(self, other: Cover) -> Cover:
        return Cover(
            np.concatenate((self.begin, other.begin)), np.concatenate((self.end, other.end))
        )

    def within(self, begin: Numbers, end: Numbers) -> Numbers:
        """The covered length of each range in ns; 0 for a range that ends before it begins."""
        result: Numbers = self._until(np.maximum(begin, end)) - self._until(begin)
        return result

    def next_from(self, place: Numbers) -> Numbers:
        """Each place if it is covered, else the begin of the next interval (`_MOST` if none)."""
        if len(self.begin) == 0:
            return np.full(len(place), _MOST, dtype=np.int64)
        at = np.searchsorted(self.begin, place, side="right")
        covered = (at > 0) & (self.end[at - 1] > place)
        following = np.append(self.begin, _MOST)[at]
        result: Numbers = np.where(covered, place, following)
        return result

    def begin_around(self, place: Numbers) -> Numbers:
        """Where the interval that covers each place begins; the place if none does."""
        if len(self.begin) == 0:
            return place
        at = np.searchsorted(self.begin, place, side="right") - 1
        covered = (at >= 0) & (self.end[at] >= place)
        return np.where(covered, self.begin[at], place)

    def _until(self, place: Numbers) -> Numbers:
        if len(self.begin) == 0:
            return np.zeros(len(place), dtype=np.int64)
        at = np.searchsorted(self.begin, place, side="right") - 1
        inside = np.minimum(place, self.end[at]) - self.begin[at]
        result: Numbers = np.where(at >= 0, self._before[at] + inside, 0)
        return result


def quiet_stretches(axis: Axis, begin: Numbers, end: Numbers, longer_than_ns: int) -> Cover:
    """Return long intervals in which no interval of a thread begins or ends."""
    starts = np.arange(axis.lanes, dtype=np.int64) * axis.stride
    # A stable sort is fast if long parts are already sorted.
    edges: NDArray[np.int64] = np.concatenate((begin, end, starts, starts + axis.stride - 2))
    edges.sort(kind="stable")
    # The distance from one thread's last place to the next thread's first place is 2.
    quiet = np.diff(edges) > max(longer_than_ns, 2)
    return Cover(edges[:-1][quiet], edges[1:][quiet])


class TimeIndex:
    """Events in the order of their begins, to find those in an interval quickly."""

    _BLOCK = 256

    def __init__(self, trace: Trace, rows: Rows) -> None:
        self._events = trace.events
        order = np.argsort(self._events.begin_ns[rows], kind="stable")
        self._rows = rows[order].astype(np.int32)
        firsts = np.arange(0, len(rows), self._BLOCK)
        self._first_begin = self._events.begin_ns[self._rows[firsts]]
        end = self._events.end_ns[self._rows]
        self._last_end = np.maximum.reduceat(end, firsts) if len(rows) else end

    def overlapping(self, begin_ns: int, end_ns: int) -> Rows:
        """Return the events that begin before the end of a range and end after its begin."""
        return self._between(end_ns - 1, begin_ns + 1)

    def around(self, begin_ns: int, end_ns: int) -> Rows:
        """Return the events that begin no later than a range and end no sooner."""
        return self._between(begin_ns, end_ns)

    def _between(self, last_begin_ns: int, first_end_ns: int) -> Rows:
        """Return the events that begin no later and end no sooner, as ascending rows."""
        begun = np.searchsorted(self._first_begin, last_begin_ns, side="right")
        # Most blocks of events have ended long before.
        blocks = np.flatnonzero(self._last_end[:begun] >= first_end_ns)
        places = (blocks[:, None] * self._BLOCK + np.arange(self._BLOCK)).ravel()
        rows = self._rows[places[places < len(self._rows)]]
        found = (self._events.begin_ns[rows] <= last_begin_ns) & (
            self._events.end_ns[rows] >= first_end_ns
        )
        return np.sort(rows[found]).astype(np.intp)


# --- What a thread did: calls, waits, and quiet time ---


# A thread in which no operator or call begins or ends for this long is not launching.
QUIET_NS = 200_000
# How far the clocks of host and device may differ.
CLOCKS_NS = 5_000
CLASSES = (
    causes.SYNCHRONISATION,
    causes.MEMORY_ALLOCATION,
    causes.KERNEL_LOADING,
    causes.PROFILER,
    causes.RUNTIME_CALL,
    causes.DATA_LOADING,
    causes.COMPILATION,
    causes.HOST_UNSEEN,
)
"""The visible activity of a thread: the first that applies, or that nothing is visible."""
_MOST_PLACES = 4_000_000


class HostTime:
    """The launching threads' events by class, on one axis."""

    def __init__(
        self,
        trace: Trace,
        axis: Axis,
        lanes: NDArray[np.int64],
        calls: Mask,
        waits: Mask,
        allocates: Mask,
        holds: Mask,
    ) -> None:
        """`holds` are the calls found by `holders`, which are parts of the program."""
        self._events, self._axis = trace.events, axis
        self._lane = _thread_of_events(trace, lanes)
        work = (trace.rows_of(["cpu_op"]) & ~named(trace, causes.MARKS)) | calls
        begin, end = self._placed(np.flatnonzero(work & (self._lane >= 0)))
        self.busy = Cover(begin, end)
        quiet = quiet_stretches(axis, begin, end, QUIET_NS)
        del begin, end
        self._nested: list[Cover] = []
        for each in self._of_classes(trace, calls, waits, allocates, holds):
            self._nested.append(self._nested[-1] | each if self._nested else each)
        self._nested.append(self._nested[-1] | quiet)
        blocking = np.flatnonzero((waits | allocates) & (self._lane >= 0))
        order = np.lexsort((self._events.begin_ns[blocking], self._placed(blocking)[0]))
        self._blocking = blocking[order]

    def _of_classes(
        self, trace: Trace, calls: Mask, waits: Mask, allocates: Mask, holds: Mask
    ) -> Iterator[Cover]:
        """Yield the intervals of each of CLASSES. One at a time, because they take much memory."""
        overhead = trace.rows_of(["overhead"])
        loads = named(trace, causes.LOADS_KERNELS)
        marks = trace.rows_of(["user_annotation", "cpu_op"])
        frames = trace.rows_of(["python_function"])
        yield self._cover(waits)
        yield self._cover(allocates)
        yield self._cover_of_all(overhead & loads) | self._cover(calls & loads)
        yield self._cover_of_all(overhead & ~loads)
        yield self._cover(calls & ~holds & (trace.events.dur_ns > QUIET_NS))
        yield self._cover(
            (marks & named(trace, causes.LOADS_DATA))
            | (frames & named(trace, causes.LOADS_DATA_FRAME))
        )
        yield self._cover(marks & named(trace, causes.COMPILES))
        yield self._unseen(marks | calls | frames, overhead)

    def classified(self, lane: Numbers, begin_ns: Numbers, end_ns: Numbers) -> NDArray[np.int64]:
        """Return the time of each interval in each of CLASSES, the quiet time, and the rest."""
        begin, end = self._axis.place(lane, begin_ns), self._axis.place(lane, end_ns)
        end = np.maximum(begin, end)
        reached = [cover.within(begin, end) for cover in self._nested]
        edges = np.stack([np.zeros_like(begin), *reached, end - begin], axis=1)
        result: NDArray[np.int64] = np.diff(edges, axis=1)
        return result

    def blocked_at(self, lane: Numbers, time_ns: Numbers, until_ns: Numbers) -> Rows:
        """Return the blocking call of a thread at a time, if it ended by another time; or -1."""
        if len(self._blocking) == 0:
            return np.full(len(time_ns), -1, dtype=np.intp)
        events = self._events
        begin, _ = self._placed(self._blocking)
        at = np.searchsorted(begin, self._axis.place(lane, time_ns), side="left") - 1
        row = self._blocking[at]
        inside = (
            (at >= 0)
            & (self._lane[row] == lane)
            & (events.begin_ns[row] < time_ns)
            & (events.end_ns[row] >= time_ns - CLOCKS_NS)
            & (events.begin_ns[row] < until_ns)
        )
        return np.where(inside, row, -1)

    def time_in(self, rows: Rows, stretches: list[tuple[Numbers, Numbers, Numbers]]) -> Numbers:
        """Return the part of each event within intervals (thread, begin, end) of its thread."""
        places = [
            (self._axis.place(lane, begin), self._axis.place(lane, end))
            for lane, begin, end in stretches
        ]
        cover = Cover(
            np.concatenate([begin for begin, _ in places]),
            np.concatenate([end for _, end in places]),
        )
        time = np.zeros(len(rows), dtype=np.int64)
        known = self._lane[rows] >= 0
        time[known] = cover.within(*self._placed(rows[known]))
        return time

    def operator_begin(self, lane: Numbers, time_ns: Numbers) -> Numbers:
        """Return the begin of the outermost operator or call around a time on a thread."""
        place = self._axis.place(lane, time_ns)
        result: Numbers = time_ns - (place - self.busy.begin_around(place))
        return result

    def _placed(self, rows: Rows) -> tuple[Numbers, Numbers]:
        events = self._events
        begin, end = (np.empty(len(rows), dtype=np.int64) for _ in range(2))
        # In parts, because the intermediate results take several times the memory.
        for some in parts(len(rows)):
            lane = self._lane[rows[some]]
            begin[some] = self._axis.place(lane, events.begin_ns[rows[some]])
            end[some] = self._axis.place(lane, events.end_ns[rows[some]])
        return begin, end

    def _cover(self, which: Mask) -> Cover:
        return Cover(*self._placed(np.flatnonzero(which & (self._lane >= 0))))

    def _unseen(self, seen: Mask, of_all: Mask) -> Cover:
        """Return long intervals without any event of a thread."""
        known = self._cover(seen) | self._cover_of_all(of_all)
        starts = np.arange(self._axis.lanes, dtype=np.int64) * self._axis.stride
        begin = np.sort(np.concatenate((known.end, starts)), kind="stable")
        ends = np.concatenate((known.begin, starts + self._axis.stride - 2))
        end = np.sort(ends, kind="stable")
        # The first begin and the last end of a thread are the edges of its part.
        long = end - begin > QUIET_NS
        return Cover(begin[long], end[long])

    def _cover_of_all(self, which: Mask) -> Cover:
        """Return a cover with these events, which belong to no thread, on every thread."""
        rows = np.flatnonzero(which)
        count = self._axis.lanes
        # With many threads and events, use only the longest events, to limit the memory.
        most = max(_MOST_PLACES // max(count, 1), 1)
        rows = rows[np.argsort(-self._events.dur_ns[rows], kind="stable")[:most]]
        lane = np.repeat(np.arange(count, dtype=np.int64), len(rows))
        begin, end = self._events.begin_ns[rows], self._events.end_ns[rows]
        place = self._axis.place
        return Cover(place(lane, np.tile(begin, count)), place(lane, np.tile(end, count)))


@once
def holders(trace: Trace, calls: Mask) -> Mask:
    """Return which calls contain several other calls or operators of their thread.

    These are parts of the program that a runtime records like its own calls.
    """
    events = trace.events
    found: Mask = np.zeros(len(events), dtype=np.bool_)
    rows = np.flatnonzero(calls & (events.dur_ns > QUIET_NS))
    if len(rows) == 0:
        return found
    inner = calls | trace.rows_of(["cpu_op"])
    owners, lane = threads(trace, rows)
    for number, (process, tid) in enumerate(owners):
        here = rows[lane == number]
        same = inner & (events.tid == tid) & (processes(trace) == process)
        begins = np.sort(events.begin_ns[same], kind="stable")
        first = np.searchsorted(begins, events.begin_ns[here], side="right")
        last = np.searchsorted(begins, events.end_ns[here], side="left")
        found[here] = last - first > 1
    return found


def named(trace: Trace, pattern: Pattern[str]) -> Mask:
    """Return which rows have a name that contains the pattern."""
    rows: Mask = names_with(trace, pattern)[trace.events.name]
    return rows


@once
def names_with(trace: Trace, pattern: Pattern[str]) -> Mask:
    """Return which of the trace's names contain the pattern; the last element is for no name."""
    search: Callable[[str], object] = pattern.search
    return np.array([search(name) is not None for name in trace.names] + [False])


@once
def processes(trace: Trace) -> Numbers:
    """Return the process of every event. Ascend's CANN counts as part of the Python process."""
    pid = trace.events.pid
    named = {name: pid for pid, name in trace.process_names.items()}
    if not {"CANN", "Python"} <= named.keys():
        return pid
    return np.where(pid == named["CANN"], named["Python"], pid)


def threads(trace: Trace, rows: Rows) -> tuple[NDArray[np.int64], Numbers]:
    """Return the threads (process, thread) of some events, and the thread of each event."""
    return pairs(processes(trace)[rows], trace.events.tid[rows])


def threads_of(chosen: NDArray[np.int64], trace: Trace, rows: Rows) -> Numbers:
    """Return the number of each event's thread among `chosen`, or -1."""
    return numbers_of(chosen, processes(trace)[rows], trace.events.tid[rows])


def numbers_of(chosen: NDArray[np.int64], process: Numbers, tid: Numbers) -> Numbers:
    """Return the number of each thread among `chosen` (process, thread), or -1."""
    found, code = pairs(
        np.concatenate((chosen[:, 0], process)), np.concatenate((chosen[:, 1], tid))
    )
    number = np.full(len(found), -1, dtype=np.int64)
    number[code[: len(chosen)]] = np.arange(len(chosen))
    result: Numbers = number[code[len(chosen) :]]
    return result


def _thread_of_events(trace: Trace, lanes: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the number of every event's thread among `lanes`, or -1."""
    events, process = trace.events, processes(trace)
    found = np.full(len(events), -1, dtype=np.int32)
    if len(lanes) <= 16:
        for number, (pid, tid) in enumerate(lanes):
            found[(process == pid) & (events.tid == tid)] = number
        return found
    return numbers_of(lanes, process, events.tid).astype(np.int32)


class ThreadIndex:
    """The threads of some events as lanes of one axis; events of other threads have no lane."""

    def __init__(self, trace: Trace, *groups: Rows, process: Numbers | None = None) -> None:
        """``process`` is the process of each event, if it differs from `processes`."""
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
        """The lane of each row, by group."""

    @property
    def fits(self) -> bool:
        """False if the events are years apart, which means that their times are damaged."""
        return self.axis.fits

    def places_of_flows(self, trace: Trace, flows: Rows) -> Numbers:
        """Return the places of ends of flows on the axis; -1 on threads without a lane."""
        table = trace.flows
        return self.places(table.pid[flows], table.tid[flows], table.begin_ns[flows])

    def places(self, pid: Numbers, tid: Numbers, begin_ns: Numbers) -> Numbers:
        """Return the places of times on the axis; -1 on threads without a lane."""
        lane = numbers_of(self.threads, pid, tid)
        result: Numbers = np.where(lane >= 0, self.axis.place(lane, begin_ns), -1)
        return result
