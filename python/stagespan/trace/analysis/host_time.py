"""What the threads that launch were doing: how much of any stretch of time belongs to what."""

from __future__ import annotations

from collections.abc import Callable
from re import Pattern

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.analysis import causes
from stagespan.trace.analysis.axis import Axis, Cover, quiet_stretches
from stagespan.trace.arrays import Mask, Numbers
from stagespan.trace.model import Trace

Rows = NDArray[np.intp]
# A thread in which no operator and no call begins or ends for so long is not launching.
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
"""What a thread can be seen doing, the first of those that apply; or that nothing of it is seen."""
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
        """`holds` are the calls that `holders` finds, which are parts of the program."""
        self._events, self._axis = trace.events, axis
        self._lane = _thread_of_events(trace, lanes)
        work = (trace.rows_of(["cpu_op"]) & ~named(trace, causes.MARKS)) | calls
        begin, end = self._placed(np.flatnonzero(work & (self._lane >= 0)))
        self.busy = Cover(begin, end)
        overhead = trace.rows_of(["overhead"])
        loads = named(trace, causes.LOADS_KERNELS)
        marks = trace.rows_of(["user_annotation", "cpu_op"])
        sets = (
            self._cover(waits),
            self._cover(allocates),
            self._cover_of_all(overhead & loads) | self._cover(calls & loads),
            self._cover_of_all(overhead & ~loads),
            self._cover(calls & ~holds & (trace.events.dur_ns > QUIET_NS)),
            self._cover(
                (marks & named(trace, causes.LOADS_DATA))
                | (trace.rows_of(["python_function"]) & named(trace, causes.LOADS_DATA_FRAME))
            ),
            self._cover(marks & named(trace, causes.COMPILES)),
            self._unseen(marks | calls | trace.rows_of(["python_function"]), overhead),
            quiet_stretches(axis, begin, end, QUIET_NS),
        )
        self._nested = [sets[0]]
        for each in sets[1:]:
            self._nested.append(self._nested[-1] | each)
        blocking = np.flatnonzero((waits | allocates) & (self._lane >= 0))
        order = np.lexsort((self._events.begin_ns[blocking], self._placed(blocking)[0]))
        self._blocking = blocking[order]

    def classified(self, lane: Numbers, begin_ns: Numbers, end_ns: Numbers) -> NDArray[np.int64]:
        """Of each stretch on a thread the time in each of CLASSES, quiet, and the rest."""
        begin, end = self._axis.place(lane, begin_ns), self._axis.place(lane, end_ns)
        end = np.maximum(begin, end)
        reached = [cover.within(begin, end) for cover in self._nested]
        edges = np.stack([np.zeros_like(begin), *reached, end - begin], axis=1)
        result: NDArray[np.int64] = np.diff(edges, axis=1)
        return result

    def blocked_at(self, lane: Numbers, time_ns: Numbers, until_ns: Numbers) -> Rows:
        """The blocking call in which a thread was at a time, if it ended by another; or -1."""
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
        """How much of each event lies within stretches (thread, begin, end) of its thread."""
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
        """Where the outermost operator or call around a time on a thread begins."""
        place = self._axis.place(lane, time_ns)
        result: Numbers = time_ns - (place - self.busy.begin_around(place))
        return result

    def _placed(self, rows: Rows) -> tuple[Numbers, Numbers]:
        lane = self._lane[rows]
        place, events = self._axis.place, self._events
        return place(lane, events.begin_ns[rows]), place(lane, events.end_ns[rows])

    def _cover(self, which: Mask) -> Cover:
        return Cover(*self._placed(np.flatnonzero(which & (self._lane >= 0))))

    def _unseen(self, seen: Mask, of_all: Mask) -> Cover:
        """Where a thread has had no event at all for long."""
        known = self._cover(seen) | self._cover_of_all(of_all)
        starts = np.arange(self._axis.lanes, dtype=np.int64) * self._axis.stride
        begin = np.sort(np.concatenate((known.end, starts)))
        end = np.sort(np.concatenate((known.begin, starts + self._axis.stride - 2)))
        # A thread's first begin, and its last end, are the edges of its part.
        long = end - begin > QUIET_NS
        return Cover(begin[long], end[long])

    def _cover_of_all(self, which: Mask) -> Cover:
        """As if the events, which belong to no thread, were on every thread."""
        rows = np.flatnonzero(which)
        count = self._axis.lanes
        # On very many threads only the longest of very many, so that memory does not run out.
        most = max(_MOST_PLACES // max(count, 1), 1)
        rows = rows[np.argsort(-self._events.dur_ns[rows], kind="stable")[:most]]
        lane = np.repeat(np.arange(count, dtype=np.int64), len(rows))
        begin, end = self._events.begin_ns[rows], self._events.end_ns[rows]
        place = self._axis.place
        return Cover(place(lane, np.tile(begin, count)), place(lane, np.tile(end, count)))


def holders(trace: Trace, calls: Mask) -> Mask:
    """Which calls hold several other calls or operators of their thread.

    These are parts of the program that its runtime writes down like calls of its own.
    """
    events = trace.events
    found: Mask = np.zeros(len(events), dtype=np.bool_)
    rows = np.flatnonzero(calls & (events.dur_ns > QUIET_NS))
    if len(rows) == 0:
        return found
    inner = np.flatnonzero(calls | trace.rows_of(["cpu_op"]))
    _, lane = threads(trace, np.concatenate((rows, inner)))
    for number in np.unique(lane[: len(rows)]).tolist():
        here = rows[lane[: len(rows)] == number]
        begins = np.sort(events.begin_ns[inner[lane[len(rows) :] == number]])
        first = np.searchsorted(begins, events.begin_ns[here], side="right")
        last = np.searchsorted(begins, events.end_ns[here], side="left")
        found[here] = last - first > 1
    return found


def named(trace: Trace, pattern: Pattern[str]) -> Mask:
    """Rows whose name holds the pattern."""
    search: Callable[[str], object] = pattern.search
    chosen = np.array([search(name) is not None for name in trace.names] + [False])
    rows: Mask = chosen[trace.events.name]
    return rows


def processes(trace: Trace) -> Numbers:
    """The process of every event; Ascend's CANN, shown as one of its own, is part of Python's."""
    pid = trace.events.pid
    named = {name: pid for pid, name in trace.process_names.items()}
    if not {"CANN", "Python"} <= named.keys():
        return pid
    return np.where(pid == named["CANN"], named["Python"], pid)


def threads(trace: Trace, rows: Rows) -> tuple[NDArray[np.int64], Numbers]:
    """The threads of some events (process, thread), and which of them each belongs to."""
    return pairs(processes(trace)[rows], trace.events.tid[rows])


def pairs(first: Numbers, second: Numbers) -> tuple[NDArray[np.int64], Numbers]:
    """The different pairs of two columns, and which of them each row has.

    There are few: looking them up is faster than sorting the rows.
    """
    firsts, seconds = np.unique(first), np.unique(second)
    code = np.searchsorted(firsts, first) * len(seconds) + np.searchsorted(seconds, second)
    codes = np.unique(code)
    found = np.stack((firsts[codes // len(seconds)], seconds[codes % len(seconds)]), axis=1)
    return found, np.searchsorted(codes, code).astype(np.int64)


def _thread_of_events(trace: Trace, lanes: NDArray[np.int64]) -> Numbers:
    """Of every event the number of its thread among `lanes`, or -1."""
    events, process = trace.events, processes(trace)
    found: Numbers = np.full(len(events), -1, dtype=np.int64)
    if len(lanes) <= 16:
        for number, (pid, tid) in enumerate(lanes):
            found[(process == pid) & (events.tid == tid)] = number
        return found
    whole = np.concatenate((lanes, np.stack((process, events.tid), axis=1)))
    _, code = pairs(whole[:, 0], whole[:, 1])
    numbers: Numbers = np.full(int(code.max()) + 1, -1, dtype=np.int64)
    numbers[code[: len(lanes)]] = np.arange(len(lanes))
    return numbers[code[len(lanes) :]]
