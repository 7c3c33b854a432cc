"""Trees of nested events: which event is in which, sums over subtrees, and paths of names.

`Nesting` is for the many operators, calls and Python frames of a trace, `Tree` for its annotations
and modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagespan import _core
from stagespan.trace.derived.threads import Axis, ThreadIndex, threads
from stagespan.trace.read.groups import firsts_of, sums
from stagespan.trace.read.intervals import ROW, Endpoints, Numbers, Rows, nested, outermost_first
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once

DEEPEST_PATH = 100
"""The most levels of a tree. Deeper nodes count towards the last level."""


class Tree:
    """The nesting of intervals, by thread.

    Intervals that overlap without containing each other are siblings: the parent of each is the
    innermost one that contains it. At a time in several of them, the one that began last counts.
    Intervals without a length have no children, but can have a parent.
    """

    def __init__(self, begin: Numbers, end: Numbers, thread: Numbers) -> None:
        long = np.flatnonzero(end > begin)
        edges = Endpoints(begin[long], end[long], thread[long])
        owner, nested = edges.innermost()
        if not nested:
            owner = edges.innermost_of_crossing()
        self.crossing = 0
        """The number of intervals that end after one in which they begin."""
        self._time = edges.time_ns
        self._thread = thread[long][edges.row]
        # The last element is for times outside of all intervals.
        of = np.append(long, -1)
        self._owner = of[owner]
        self.parent: Rows = np.full(len(begin), -1, dtype=np.intp)
        """For each interval the index of the one that contains it, or -1."""
        opens = np.flatnonzero(edges.is_begin)
        before = np.where(opens > 0, owner[opens - 1], -1)
        self.parent[long[edges.row[opens]]] = of[before]
        if not nested:
            self._leave_crossed(end)
        short = np.flatnonzero(end <= begin)
        self.parent[short] = self.at(thread[short], begin[short])

    def _leave_crossed(self, end: Numbers) -> None:
        """Replace each parent that ends earlier by the next one that does not."""
        above = self.parent.copy()
        inner = np.flatnonzero(above >= 0)
        self.crossing = int(np.count_nonzero(end[above[inner]] < end[inner]))
        while len(inner):
            inner = inner[end[above[inner]] < end[inner]]
            above[inner] = self.parent[above[inner]]
            inner = inner[above[inner] >= 0]
        self.parent = above

    def at(self, thread: Numbers, time_ns: Numbers) -> Rows:
        """Return the index of the innermost interval around each time in a thread, or -1."""
        owner = np.full(len(time_ns), -1, dtype=np.intp)
        by_thread = np.argsort(thread, kind="stable")
        numbers, firsts = firsts_of(thread[by_thread])
        lows = np.searchsorted(self._thread, numbers).tolist()
        highs = np.searchsorted(self._thread, numbers, side="right").tolist()
        ends = np.append(firsts, len(by_thread))[1:].tolist()
        for first, end, low, high in zip(firsts.tolist(), ends, lows, highs, strict=True):
            if low == high:
                continue
            asked = by_thread[first:end]
            at = np.searchsorted(self._time[low:high], time_ns[asked], side="right") - 1
            owner[asked] = np.where(at >= 0, self._owner[low + np.maximum(at, 0)], -1)
        return owner

    def in_one_thread(self, numbers: Rows, time_ns: Numbers) -> Rows:
        """Return the innermost interval at each time if only one of some threads has one, or -1."""
        owner, begin, end = self.stretches()
        held = np.flatnonzero((owner >= 0) & (end > begin) & np.isin(self._thread, numbers))
        if len(held) == 0:
            return np.full(len(time_ns), -1, dtype=np.intp)
        edges = np.concatenate((begin[held], end[held]))
        order = np.argsort(edges, kind="stable")
        sign = np.repeat(np.array([1, -1]), len(held))[order]
        # After each edge: the number of threads with an interval, and the sum of their numbers,
        # which is the number of the thread if there is only one.
        count = np.append(np.cumsum(sign), 0)
        number = np.append(np.cumsum(sign * np.tile(self._thread[held], 2)[order]), 0)
        at = np.searchsorted(edges[order], time_ns, side="right") - 1
        alone = count[at] == 1
        found = np.full(len(time_ns), -1, dtype=np.intp)
        found[alone] = self.at(number[at[alone]], time_ns[alone])
        return found

    def stretches(self) -> tuple[Rows, Numbers, Numbers]:
        """Return the innermost interval (or -1) between consecutive edges, and the two times."""
        return self._owner, self._time, np.append(self._time[1:], self._time[-1:])

    def levels(self) -> NDArray[np.int64]:
        """Return the number of intervals around each interval."""
        return levels(self.parent)


class Nesting:
    """Events on an axis as a forest: the parent is the innermost open event when an event begins.

    Events without a duration have no children. `rows` are the events with a duration, by place.
    """

    def __init__(
        self, axis: Axis, rows: Rows, begin: Numbers, end: Numbers, *ties: NDArray[Any]
    ) -> None:
        """If events begin and end together, the lowest by `ties` contains the others."""
        order = outermost_first(begin, end, *ties)
        is_longer = end > begin
        if not is_longer.all():
            order = order[is_longer[order]]
        self.axis = axis
        self.rows = rows[order]
        self.begin, self.end = begin[order], end[order]

    @classmethod
    def of(
        cls, trace: Trace, axis: Axis, rows: Rows, thread: Numbers, *ties: NDArray[Any]
    ) -> Nesting:
        """Return the forest of some rows of `trace.events`."""
        events = trace.events
        return cls(
            axis,
            rows,
            axis.place(thread, events.begin_ns[rows]),
            axis.place(thread, events.end_ns[rows]),
            *ties,
        )

    def __len__(self) -> int:
        return len(self.rows)

    def at(self, place: Numbers) -> Rows:
        """Return the index in `rows` of the innermost event at each place, or -1."""
        columns = (self.begin, self.end, place)
        begin, end, at = (np.ascontiguousarray(each, np.int64) for each in columns)
        owner = np.empty_like(at)
        _core.trace_open_at(begin, end, np.ascontiguousarray(self._longer, ROW), at, owner)
        return owner

    @property
    def parent(self) -> Rows:
        """The index in `rows` of each row's parent, or -1."""
        return self._links[0]

    @property
    def _longer(self) -> Rows:
        """The next enclosing event that ends later; all events between the two have ended then."""
        return self._links[1]

    def own_ns(self) -> Numbers:
        """Each row's time without its children; the sum is the length of the union."""
        return self._nested()[2]

    def parents_and_own_ns(self) -> tuple[Rows, Numbers]:
        """Return `parent` and `own_ns` from one pass, without keeping anything."""
        parent, _, own_ns = self._nested()
        return parent, own_ns

    def pause_ns(self) -> Numbers:
        """The time from each row to the next in the same event, or to that event's end.

        0 after the last row of a thread.
        """
        order = np.argsort(self.parent, kind="stable")
        parent, begin, end = self.parent[order], self.begin[order], self.end[order]
        thread = begin // self.axis.stride
        follows = (parent[1:] == parent[:-1]) & (thread[1:] == thread[:-1])
        until = np.where(parent >= 0, self.end[parent], end)
        until[:-1] = np.where(follows, begin[1:], until[:-1])
        pause = np.empty_like(end)
        pause[order] = np.maximum(until - end, 0)
        return pause

    def first_around(self, chosen: NDArray[np.bool_]) -> Rows:
        """Return the innermost chosen event around each row, or the row itself, or -1."""
        return first_around(self.parent, chosen)

    @cached_property
    def _links(self) -> tuple[Rows, Rows]:
        """`parent` and `_longer`, which are one array if all events nest."""
        parent, longer, _ = self._nested()
        return parent, parent if np.array_equal(parent, longer) else longer

    def _nested(self) -> tuple[Rows, Rows, Numbers]:
        return nested(self.begin, self.end, np.zeros(len(self), dtype=np.int64))


def forest_of(trace: Trace, rows: Rows) -> tuple[ThreadIndex, Nesting] | None:
    """Return the threads of some events and their forest; None if timestamps span several years.

    Several analyses ask for all operators, and share one forest.
    """
    operators = trace.rows_of(["cpu_op"])
    if len(rows) == np.count_nonzero(operators) and operators[rows].all():
        return forest_of_operators(trace)
    return _of_rows(trace, rows)


@once
def forest_of_operators(trace: Trace) -> tuple[ThreadIndex, Nesting] | None:
    """Return the same for all operators."""
    return _of_rows(trace, np.flatnonzero(trace.rows_of(["cpu_op"])).astype(ROW))


def _of_rows(trace: Trace, rows: Rows) -> tuple[ThreadIndex, Nesting] | None:
    index = ThreadIndex(trace, rows)
    return (index, Nesting.of(trace, index.axis, rows, index.of[0])) if index.fits else None


class Paths:
    """A tree in which all intervals with the same path of names are one node.

    `node` and `folded` have one element per interval, the other arrays one element per node.
    Parents come before their children.
    """

    def __init__(
        self, parents_of: Rows, word: NDArray[np.int64], deepest: int = DEEPEST_PATH
    ) -> None:
        """`parents_of` has for each interval the one that contains it, or -1.

        No path has more than `deepest` nodes, so that the memory is proportional to the number of
        intervals.
        """
        self.node: Rows = np.empty(len(word), dtype=np.int64)
        self.folded: NDArray[np.bool_] = np.empty(len(word), dtype=np.bool_)
        """The intervals that are too deep and belong to the last node around them."""
        above, word = (np.ascontiguousarray(each, np.int64) for each in (parents_of, word))
        parent, words = _core.trace_paths(above, word, deepest, self.node, self.folded)
        self.parent: Rows = np.frombuffer(parent, dtype=np.int64)
        """The parent of each node, or -1."""
        self.word: NDArray[np.int64] = np.frombuffer(words, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.parent)

    def sums(self, figure: Numbers) -> Numbers:
        """Return for each node the sum over its intervals."""
        return sums(self.node, figure, len(self))

    def inclusive(self, figures: Numbers) -> Numbers:
        """Return for each node its own figure plus those of all descendants."""
        return with_those_below(self.parent, figures)


def levels(parent: Rows) -> NDArray[np.int64]:
    """Return the depth of each element of a tree."""
    # One more element stands for what is above the roots.
    count = len(parent)
    above = np.append(parent, -1)
    above[above < 0] = count
    level = (above < count).astype(np.int64)
    taken = np.empty_like(above)
    # Each iteration doubles the number of levels that are searched.
    while above.min() < count:
        level += np.take(level, above, out=taken, mode="clip")
        np.take(above, above, out=taken, mode="clip")
        above, taken = taken, above
    return level[:count]


def first_around(parent: Rows, chosen: NDArray[np.bool_]) -> Rows:
    """Return for each element of a tree the first chosen one from itself up to the root, or -1."""
    if not chosen.any():
        return np.full(len(parent), -1, dtype=ROW)
    around = np.empty(len(parent), dtype=ROW)
    _core.trace_first_around(
        np.ascontiguousarray(parent, ROW), np.ascontiguousarray(chosen), around
    )
    return around


def with_those_below(parent: Rows, figures: Numbers) -> Numbers:
    """Return for each element of a tree its own figure plus those of all descendants.

    `figures` has the shape (elements,) or (elements, figures).
    """
    above = np.ascontiguousarray(parent, np.int64)
    total: Numbers = np.array(figures.T, dtype=np.int64, order="C")
    for figure in np.atleast_2d(total):
        _core.trace_add_those_below(above, figure)
    return total.T


def tree_of(trace: Trace, rows: Rows) -> tuple[Tree, NDArray[np.int64], Numbers]:
    """Return the tree of some events, their threads (process, thread), and each event's thread."""
    events = trace.events
    found, thread = threads(trace, rows)
    return Tree(events.begin_ns[rows], events.end_ns[rows], thread), found, thread


def depth_first(parent: Rows, siblings: Sequence[int]) -> list[int]:
    """Return the nodes of a tree in depth-first order.

    `parent` is -1 for the outermost nodes. Nodes with the same parent are in the order in which
    they are in `siblings`, which contains every node.
    """
    below: dict[int, list[int]] = {}
    for node in siblings:
        below.setdefault(int(parent[node]), []).append(node)
    ordered: list[int] = []
    waiting = below.get(-1, [])[::-1]
    while waiting:
        node = waiting.pop()
        ordered.append(node)
        waiting += below.get(node, [])[::-1]
    return ordered


def paths_to(parent: Rows, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the path of names from the root to each node of a tree; parents come first."""
    paths: list[tuple[str, ...]] = []
    for above, name in zip(parent.tolist(), names, strict=True):
        paths.append((*(paths[above] if above >= 0 else ()), name))
    return paths
