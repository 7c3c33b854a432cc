"""The threads of a program on one axis, and the events of a time, a name or a process."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from re import Pattern

import msgspec
import numpy as np
from numpy.typing import NDArray

from stagespan import _core
from stagespan.trace.read.groups import pairs, parts, values_of
from stagespan.trace.read.intervals import (
    FARTHEST,
    ROW,
    Codes,
    Cover,
    Mask,
    Numbers,
    Rows,
    looked_up,
    merged,
    union_of,
    used_codes,
)
from stagespan.trace.read.model import IdColumn, Trace, id_pairs
from stagespan.trace.read.view import once


class Axis(msgspec.Struct, frozen=True):
    """The times of several threads on one axis.

    Each thread has its own part of the axis, so the intervals of all threads can be processed
    together and never overlap.
    """

    begin_ns: int
    end_ns: int
    threads: int

    @property
    def stride(self) -> int:
        """Length of a thread's part in ns, including a margin at its end that nothing covers."""
        return self.end_ns - self.begin_ns + 2

    @property
    def fits(self) -> bool:
        """Whether all places fit into 64 bits; invalid times in a trace can be too large."""
        return self.stride * (self.threads + 1) < FARTHEST

    def place(self, thread: Numbers | NDArray[np.int32], time_ns: Numbers) -> Numbers:
        """Convert times to places on the axis; times outside the window are moved to its edge."""
        # np.clip takes much longer for the few times of a small trace.
        result: Numbers = np.maximum(time_ns, self.begin_ns)
        np.minimum(result, self.end_ns, out=result)
        result -= self.begin_ns
        result += np.multiply(thread, self.stride, dtype=np.int64)
        return result

    def placed_events(
        self, trace: Trace, owners: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], Rows, Numbers, Numbers]:
        """Return the thread of every event, or -1, and the events that touch the window.

        `owners` are the threads of the axis, as `threads` returns them. The last two arrays are the
        places where these events begin and end.
        """
        events = trace.events
        chosen, number = _threads_of_all(trace)
        number_of = numbers_of(owners, chosen[:, 0], chosen[:, 1]).astype(np.int32)
        thread = number_of[number]
        # The system gives no memory for what is not written.
        row = np.empty(len(events), dtype=ROW)
        first, last = np.empty((2, len(events)), dtype=np.int64)
        axis = (self.begin_ns, self.end_ns, self.stride)
        begin, dur = (np.ascontiguousarray(each) for each in (events.begin_ns, events.dur_ns))
        count = _core.trace_place_events(thread, begin, dur, axis, row, first, last)
        return thread, row[:count], first[:count], last[:count]

    def time_ns(self, place: Numbers) -> Numbers:
        """Convert places on the axis to times in ns."""
        result: Numbers = place % self.stride + self.begin_ns
        return result


def quiet_stretches(
    axis: Axis, begin: Numbers, end: Numbers, which: Mask, longer_than_ns: int
) -> Cover:
    """Return long intervals in which none of the intervals in `which` begins or ends."""
    starts = np.arange(axis.threads, dtype=np.int64) * axis.stride
    # The distance from one thread's last place to the next thread's first place is 2.
    longest = max(longer_than_ns, 2)
    # Edges that are closer together than this make one interval.
    edges = [starts, starts + axis.stride - 2]
    unions = [merged(each, each + longest) for each in edges]
    for some in parts(len(begin)):
        edges = [begin[some][which[some]], end[some][which[some]]]
        unions += [merged(each, each + longest) for each in edges]
    begin, end = union_of(unions)
    return Cover(end[:-1] - longest, begin[1:])


class TimeIndex:
    """Events in the order of their begins, to find those in an interval quickly."""

    _BLOCK = 256

    def __init__(self, trace: Trace, rows: Rows) -> None:
        self._events = trace.events
        order = np.argsort(self._events.begin_ns[rows], kind="stable")
        self._rows = rows[order].astype(ROW)
        firsts = np.arange(0, len(rows), self._BLOCK)
        self._first_begin = self._events.begin_ns[self._rows[firsts]]
        last_ends = [np.empty(0, dtype=np.int64)]
        for some in parts(len(rows)):
            end = self._events.end_ns[self._rows[some]]
            last_ends.append(np.maximum.reduceat(end, firsts[firsts < len(end)]))
        self._last_end = np.concatenate(last_ends)

    def overlapping(self, begin_ns: int, end_ns: int) -> Rows:
        """Return the events that begin before the end of a range and end after its start."""
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
        is_between = (self._events.begin_ns[rows] <= last_begin_ns) & (
            self._events.end_ns[rows] >= first_end_ns
        )
        return np.sort(rows[is_between]).astype(np.intp)


@once
def time_index(trace: Trace) -> TimeIndex:
    """Return the index of all events, whose results are filtered by what asks for some of them."""
    return TimeIndex(trace, np.arange(len(trace.events), dtype=ROW))


def outermost(trace: Trace, rows: Rows) -> Rows:
    """Return those of a thread's events that are not within an earlier one, by begin."""
    events = trace.events
    rows = rows[np.lexsort((-events.end_ns[rows], events.begin_ns[rows]))]
    reach = np.maximum.accumulate(events.end_ns[rows])
    outer: Rows = rows[np.append(-FARTHEST, reach)[: len(rows)] <= events.begin_ns[rows]]
    return outer


def named(trace: Trace, pattern: Pattern[str], rows: Rows | None = None) -> Mask:
    """Return which rows, by default all events, have a name that contains the pattern."""
    name = trace.events.name if rows is None else trace.events.name[rows]
    if rows is None:
        with_pattern = names_with(trace, pattern)
    else:
        with_pattern = _with_pattern(trace, pattern, lambda: values_of(name))
    # Most patterns occur in no name of a trace.
    return looked_up(with_pattern, name) if with_pattern.any() else np.zeros(len(name), np.bool_)


def among(which: Mask, trace: Trace, pattern: Pattern[str]) -> Mask:
    """Return which of some events have a name that contains the pattern."""
    name, count = trace.events.name, len(trace.names) + 1
    with_pattern = _with_pattern(
        trace, pattern, lambda: np.flatnonzero(used_codes(name, which, count))
    )
    return which & looked_up(with_pattern, name) if with_pattern.any() else np.zeros_like(which)


# To search a name takes as long as to look at this many events.
_EVENTS_OF_SEARCH = 1_000


def _with_pattern(trace: Trace, pattern: Pattern[str], used: Callable[[], Rows]) -> Mask:
    """Return which names contain the pattern, at least of those that some events have.

    The names of Python frames are many and long, so that all names are searched only if there are
    few.
    """
    if len(trace.names) * _EVENTS_OF_SEARCH < len(trace.events):
        return names_with(trace, pattern)
    return _containing(trace, pattern, used())


# More names are not remembered.
_MOST_NAMES = 50_000


class _SearchedNames:
    """Names of the traces that were read, and which of them contain a pattern.

    Ranks of a job have nearly the same names, and a search takes some microseconds.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number: dict[str, int] = {}
        self._contains: dict[Pattern[str], bytearray] = {}

    def numbers(self, names: Sequence[str]) -> list[int] | None:
        """Return the number of each name; None if there are too many."""
        with self._lock:
            if len(self._number) + len(names) > _MOST_NAMES:
                return None
            return [self._number.setdefault(name, len(self._number)) for name in names]

    def results(self, pattern: Pattern[str]) -> bytearray:
        """Return for each number whether its name contains the pattern: 1 if not, 2 if it does.

        0 means that the name has not been searched.
        """
        with self._lock:
            known = self._contains.setdefault(pattern, bytearray())
            known += bytes(len(self._number) - len(known))
            return known


_searched = _SearchedNames()


@once
def _numbers_of_names(trace: Trace) -> list[int] | None:
    return _searched.numbers(trace.names)


def _containing(trace: Trace, pattern: Pattern[str], codes: Rows) -> Mask:
    """Return which names, of those with some codes, contain the pattern; the last is for none."""
    names, numbers = trace.names, _numbers_of_names(trace)
    contains = np.zeros(len(names) + 1, dtype=np.bool_)
    search: Callable[[str], object] = pattern.search
    if numbers is None:
        contains[codes] = [search(names[code]) is not None for code in codes.tolist()]
        return contains
    states = _searched.results(pattern)
    for code in codes.tolist():
        state = states[numbers[code]]
        if not state:
            state = states[numbers[code]] = 1 if search(names[code]) is None else 2
        contains[code] = state == 2
    return contains


@once
def names_with(trace: Trace, pattern: Pattern[str]) -> Mask:
    """Return which of the trace's names contain the pattern; the last element is for no name."""
    return _containing(trace, pattern, np.arange(len(trace.names)))


def name_codes(trace: Trace, rows: Rows) -> Codes:
    """Return the codes of the names of some events; -1 for an event of -1."""
    if len(trace.events) == 0:
        return np.full(len(rows), -1, dtype=np.int32)
    return np.where(rows >= 0, trace.events.name[rows], -1)


# --- Processes ---


ASCEND_HOST = "CANN"
"""The name of a process in traces of torch_npu.profiler."""


def in_processes(trace: Trace, *names: str) -> Mask:
    """Return which rows are of a process with one of these names."""
    pids = [pid for pid, name in trace.process_names.items() if name in names]
    return trace.events.pid.having(np.array(pids, dtype=np.int64))


@once
def processes(trace: Trace) -> IdColumn:
    """Return the process of every event. Ascend's CANN counts as part of the Python process."""
    pid = trace.events.pid
    named = {name: pid for pid, name in trace.process_names.items()}
    if not {ASCEND_HOST, "Python"} <= named.keys():
        return pid
    ids = pid.all()
    return IdColumn(np.where(ids == named[ASCEND_HOST], named["Python"], ids))


@once
def _threads_of_all(trace: Trace) -> tuple[NDArray[np.int64], Numbers]:
    """Return the threads (process, thread) of all events, and the number of each event's."""
    owners, number = id_pairs(processes(trace), trace.events.tid, slice(None))
    return owners, number.astype(np.min_scalar_type(len(owners)), copy=False)


def threads(trace: Trace, rows: Rows) -> tuple[NDArray[np.int64], Numbers]:
    """Return the threads (process, thread) of some events, and the thread of each event."""
    return id_pairs(processes(trace), trace.events.tid, rows)


def threads_of(chosen: NDArray[np.int64], trace: Trace, rows: Rows) -> Numbers:
    """Return the number of each event's thread among `chosen`, or -1."""
    return numbers_of(chosen, processes(trace)[rows], trace.events.tid[rows])


def numbers_of(chosen: NDArray[np.int64], process: Numbers, tid: Numbers) -> Numbers:
    """Return the number of each thread among `chosen` (process, thread), or -1."""
    processes, code = pairs(
        np.concatenate((chosen[:, 0], process)), np.concatenate((chosen[:, 1], tid))
    )
    number = np.full(len(processes), -1, dtype=np.int64)
    number[code[: len(chosen)]] = np.arange(len(chosen))
    result: Numbers = number[code[len(chosen) :]]
    return result


class ThreadIndex:
    """The threads of some events on one axis; events of other threads have no place."""

    def __init__(self, trace: Trace, *groups: Rows) -> None:
        events = trace.events
        rows = np.concatenate(groups)
        owners, thread = id_pairs(processes(trace), events.tid, rows)
        begin = int(events.begin_ns[rows].min()) if len(rows) else 0
        end = int(events.end_ns[rows].max()) if len(rows) else 0
        self.axis = Axis(begin, end, len(owners))
        self.threads = owners
        """Process and thread of each number."""
        ends = np.cumsum([0, *map(len, groups)])
        self.of = [thread[first:last].astype(ROW) for first, last in itertools.pairwise(ends)]
        """The number of each row's thread, by group."""

    @property
    def fits(self) -> bool:
        """False if the timestamps span several years, so they are not valid."""
        return self.axis.fits

    def places_of_flows(self, trace: Trace, flows: Rows) -> Numbers:
        """Return the places of ends of flows on the axis; -1 on other threads."""
        table = trace.flows
        return self.places(table.pid[flows], table.tid[flows], table.begin_ns[flows])

    def places(self, pid: Numbers, tid: Numbers, begin_ns: Numbers) -> Numbers:
        """Return the places of times on the axis; -1 on other threads."""
        thread = numbers_of(self.threads, pid, tid)
        result: Numbers = np.where(thread >= 0, self.axis.place(thread, begin_ns), -1)
        return result
