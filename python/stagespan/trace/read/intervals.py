"""Types of columns, and arithmetic on intervals of integer nanoseconds."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagespan import _core

Codes = NDArray[np.int32]
"""Indices into a list of names."""
Rows = NDArray[np.intp]
"""Indices of events, rows of `trace.events`."""
ROW: Any = np.int32
"""The type in which analyses keep rows, which are fewer than 2**31."""
Numbers = NDArray[np.int64]
"""Times in ns, ids, counts."""
Mask = NDArray[np.bool_]
"""A mask of rows."""
Intervals = tuple[Numbers, Numbers]
"""The begins and the ends of intervals."""
FARTHEST = 1 << 61
"""A place after all places on an axis, in ns."""


_PART_ROWS = 1 << 16


def merged(begin: Numbers, end: Numbers, *, which: Mask | None = None) -> tuple[Numbers, Numbers]:
    """Return the union as ascending, disjoint intervals. Adjacent intervals are joined.

    `which` chooses some of the intervals.
    """
    if len(begin) > _PART_ROWS:
        # Most intervals are within others, so the unions of parts are small, and sorted faster.
        unions = []
        for first in range(0, len(begin), _PART_ROWS):
            some = slice(first, first + _PART_ROWS)
            chosen = None if which is None else which[some]
            unions.append(merged(begin[some], end[some], which=chosen))
        return union_of(unions)
    if which is not None:
        begin, end = begin[which], end[which]
    begin, end = (np.ascontiguousarray(each, np.int64) for each in (begin, end))
    union = np.empty((2, len(begin)), dtype=np.int64)
    count = _core.trace_merge(begin, end, union)
    # Copies, so that no more memory than needed is kept.
    return union[0, :count].copy(), union[1, :count].copy()


def united(first: Intervals, second: Intervals) -> Intervals:
    """Return the union of two sets of ascending, disjoint intervals."""
    both = np.empty((2, len(first[0]) + len(second[0])), dtype=np.int64)
    count = _core.trace_unite(*first, *second, both)
    return both[0, :count].copy(), both[1, :count].copy()


def union_of(sets: list[Intervals]) -> Intervals:
    """Return the union of at least one set of ascending, disjoint intervals.

    The list is used up, so that the memory of what has been united is free.
    """
    while len(sets) > 1:
        sets.append(united(sets.pop(0), sets.pop(0)))
    return sets.pop()


# So few codes are compared with many elements at a time.
_FEW_CODES = 3


def looked_up(table: Mask, codes: Codes) -> Mask:
    """Return the element of a table for each code, as ``table[codes]``, but in one pass."""
    chosen = np.flatnonzero(table).tolist()
    if len(chosen) <= _FEW_CODES:
        result = np.zeros(len(codes), dtype=np.bool_)
        for code in chosen:
            result |= codes == code
        return result
    result = np.empty(len(codes), dtype=np.bool_)
    _core.trace_look_up(table, np.ascontiguousarray(codes), result)
    return result


def used_codes(codes: Codes, which: Mask, count: int) -> Mask:
    """Return which of `count` codes the rows of a mask have."""
    used = np.zeros(count, dtype=np.bool_)
    _core.trace_mark(np.ascontiguousarray(codes), np.ascontiguousarray(which), used)
    return used


def joined(first: Intervals, second: Intervals) -> Intervals:
    """Return all intervals of both."""
    return np.concatenate((first[0], second[0])), np.concatenate((first[1], second[1]))


def minus(whole: Intervals, part: Intervals) -> Intervals:
    """Return the parts of disjoint ascending intervals that other such intervals do not cover."""
    time = np.concatenate((*whole, *part))
    count, other = len(whole[0]), len(part[0])
    step = np.repeat([1, -1, -2, 2], [count, count, other, other])
    order = np.argsort(time, kind="stable")
    time, state = time[order], np.cumsum(step[order])
    # 1: within the whole (+1) and outside the part, which counts -2.
    inside = np.flatnonzero((state[:-1] == 1) & (time[1:] > time[:-1])) if len(time) else state
    return merged(time[inside], time[inside + 1])


def outermost_first(begin: Numbers, end: Numbers, *ties: NDArray[Any]) -> Rows:
    """Sort intervals by begin; of those that begin together, the longest comes first.

    Those that also end together are sorted by `ties`.
    """
    return order_of(begin, -end, *ties)


def order_of(column: Numbers, *ties: NDArray[Any]) -> Rows:
    """Sort a column, of which long parts may be sorted; equal elements are sorted by `ties`."""
    order: Rows = np.argsort(column, kind="stable")
    ordered = column[order]
    same = ordered[1:] == ordered[:-1]
    # Only the few that are equal need the slower sort.
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    few = order[tied]
    order[tied] = few[np.lexsort((*(each[few] for each in reversed(ties)), column[few]))]
    return order


def covered(begin: Numbers, end: Numbers) -> int:
    """Return the length of the union, in ns."""
    begin, end = merged(begin, end)
    return int((end - begin).sum())


def exclusive(begin: Numbers, end: Numbers, thread: Numbers) -> Numbers:
    """Return the time of each interval that no interval inside it, in the same thread, covers.

    Each moment belongs to the innermost interval, which began last. The sum over a thread is
    therefore the length of its union, even if intervals overlap without nesting. Times are in ns.
    """
    own_ns = np.zeros(len(begin), dtype=np.int64)
    rows = np.flatnonzero(end > begin)
    rows = rows[np.lexsort((-end[rows], begin[rows], thread[rows]))]
    own_ns[rows] = nested(begin[rows], end[rows], thread[rows])[2]
    return own_ns


def nested(begin: Numbers, end: Numbers, thread: Numbers) -> tuple[Rows, Rows, Numbers]:
    """Return the parent of each interval, the next one around it that ends later, and its own time.

    Both are indices, or -1. The intervals end after their begins, and are sorted by thread and
    begin, outer before inner. The parent is the one that is open and began last; each moment
    belongs to the innermost one.
    """
    begin, end, thread = (np.ascontiguousarray(each, np.int64) for each in (begin, end, thread))
    parent, longer = (np.empty(len(begin), dtype=ROW) for _ in range(2))
    own = np.empty(len(begin), dtype=np.int64)
    _core.trace_nest(begin, end, thread, parent, longer, own)
    return parent, longer, own


class Cover:
    """A set of intervals on an axis, which computes how much of any range it covers."""

    def __init__(self, begin: Numbers, end: Numbers, *, which: Mask | None = None) -> None:
        """`which` chooses some of the intervals."""
        longer = end > begin
        if which is not None:
            longer &= which
        self._set(*merged(begin, end, which=None if longer.all() else longer))

    def __or__(self, other: Cover) -> Cover:
        if len(other.begin) == 0:
            return self
        if len(self.begin) == 0:
            return other
        return Cover.of_union(*united((self.begin, self.end), (other.begin, other.end)))

    @classmethod
    def of_union(cls, begin: Numbers, end: Numbers) -> Cover:
        """Return the cover of disjoint ascending intervals."""
        cover = cls.__new__(cls)
        cover._set(begin, end)
        return cover

    def _set(self, begin: Numbers, end: Numbers) -> None:
        self.begin, self.end = begin, end
        self._before = np.concatenate(([0], np.cumsum(end - begin)))

    def length(self, begin: Numbers, end: Numbers) -> Numbers:
        """The covered length of each range in ns; 0 for a range that ends before it begins."""
        result: Numbers = self.until(np.maximum(begin, end)) - self.until(begin)
        return result

    def time_in(self, begin_ns: int, end_ns: int) -> int:
        """The covered length of one range in ns."""
        return int(self.length(np.array([begin_ns]), np.array([end_ns]))[0])

    def next_from(self, place: Numbers) -> Numbers:
        """Each place if it is covered, else the begin of the next interval (FARTHEST if none)."""
        if len(self.begin) == 0:
            return np.full(len(place), FARTHEST, dtype=np.int64)
        at = np.searchsorted(self.begin, place, side="right")
        covered = (at > 0) & (self.end[at - 1] > place)
        following = np.append(self.begin, FARTHEST)[at]
        result: Numbers = np.where(covered, place, following)
        return result

    def begin_around(self, place: Numbers) -> Numbers:
        """Where the interval that covers each place begins; the place if none does."""
        if len(self.begin) == 0:
            return place
        at = np.searchsorted(self.begin, place, side="right") - 1
        covered = (at >= 0) & (self.end[at] >= place)
        return np.where(covered, self.begin[at], place)

    def until(self, place: Numbers) -> Numbers:
        """The covered length before each place in ns."""
        result = np.empty(len(place), dtype=np.int64)
        place = np.ascontiguousarray(place, np.int64)
        _core.trace_covered_until(self.begin, self.end, self._before, place, result)
        return result


class SortedIntervals:
    """Events of one thread, sorted by begin, so that they can be searched one by one quickly."""

    def __init__(self, places: Rows, begin: Numbers, end: Numbers) -> None:
        self.places, self._begin, self._end = places, begin[places], end[places]
        self._reach = np.maximum.accumulate(self._end) if len(places) else self._end
        # Bisecting a list is ten times as fast as searching an array for one value.
        self._begins: list[int] = self._begin.tolist()

    def around(self, begin: int, end: int, excluded: int = -1) -> int:
        """Return the innermost event around an interval, except `excluded`, or -1."""
        at = bisect_right(self._begins, begin) - 1
        # If the latest end so far is too early, no earlier event can be around the interval.
        while at >= 0 and self._reach[at] >= end:
            if self._end[at] >= end and self.places[at] != excluded:
                return int(self.places[at])
            at -= 1
        return -1

    def before(self, time: int) -> int:
        """Return the event that began last among those that had ended by a time, or -1."""
        at = bisect_right(self._begins, time) - 1
        while at >= 0 and self._end[at] > time:
            at -= 1
        return int(self.places[at]) if at >= 0 else -1

    def time_in(self, begin: int, end: int) -> int:
        """Return the total time of the events within an interval."""
        low, high = bisect_left(self._begins, begin), bisect_left(self._begins, end)
        inside = self._end[low:high] <= end
        return int((self._end[low:high] - self._begin[low:high])[inside].sum())


class Endpoints:
    """The begins and ends of intervals, by thread and in the order of time.

    `row`, `is_begin` and `time_ns` have one element for each edge; `row` is the interval's index.
    """

    def __init__(self, begin: Numbers, end: Numbers, thread: Numbers) -> None:
        count = len(begin)
        index = np.arange(count, dtype=np.int64)
        length = end - begin
        self.count = count
        time = np.concatenate((begin, end))
        self.is_begin = np.repeat(np.array([True, False]), count)
        # At the same time, ends come first, inner before outer, then begins, outer before inner.
        order = np.lexsort(
            (
                np.concatenate((index, -index)),
                np.concatenate((-length, length)),
                self.is_begin,
                time,
                np.concatenate((thread, thread)),
            )
        )
        self.row = np.concatenate((index, index))[order]
        self.is_begin = self.is_begin[order]
        self.time_ns = time[order]
        self._depth = np.cumsum(np.where(self.is_begin, 1, -1))

    def innermost(self) -> tuple[Numbers, bool]:
        """Return the innermost interval after each edge (or -1), and whether all intervals nest."""
        position = np.arange(len(self.row), dtype=np.int64)
        by_depth = np.argsort(self._depth, kind="stable")
        # The top at each depth is the interval that began there last. The offset separates depths.
        offset = self._depth * len(position)
        last_begin = np.empty_like(position)
        last_begin[by_depth] = np.maximum.accumulate(
            np.where(self.is_begin, offset + position, -1)[by_depth]
        )
        inside = self._depth > 0
        owner = np.full(len(position), -1, dtype=np.int64)
        owner[inside] = self.row[(last_begin - offset)[inside]]
        ends = np.flatnonzero(~self.is_begin)
        return owner, bool(np.all(owner[ends - 1] == self.row[ends]))

    def innermost_of_crossing(self) -> Numbers:
        """Return the same as `innermost` for intervals that may overlap without nesting."""
        owner = [-1] * len(self.row)
        is_open = [False] * self.count
        # An interval that ends deep in the stack stays there until it is on top.
        stack: list[int] = []
        edges = zip(self.row.tolist(), self.is_begin.tolist(), strict=True)
        for at, (row, begins) in enumerate(edges):
            is_open[row] = begins
            if begins:
                stack.append(row)
            while stack and not is_open[stack[-1]]:
                stack.pop()
            if stack:
                owner[at] = stack[-1]
        return np.array(owner, dtype=np.int64)
