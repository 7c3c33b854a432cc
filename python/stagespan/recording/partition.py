"""Divides the time of a request among what was open in it, so that the parts sum to the whole."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

UNATTRIBUTED = "unattributed"
ORDER = ("execution", "handoff", "queue")
"""Of several parts that are open at once, the first of these gets the time."""


class Part(NamedTuple):
    """Something that was open in a request, in ns on the clock of its root."""

    kind: str
    """One of `ORDER`; in `pieces` also `UNATTRIBUTED`."""
    name: str
    begin_ns: int
    end_ns: int
    reach: tuple[int, ...] = ()
    """Of several parts of one kind, the one with the largest reach gets the time."""


def partition(begin_ns: int, end_ns: int, parts: Iterable[Part]) -> Counter[tuple[str, str]]:
    """Return the time from ``begin_ns`` to ``end_ns`` by kind and name, in ns.

    Each nanosecond belongs to one part that is open then, or to `UNATTRIBUTED`, whose name is
    empty. Parts are clipped to the interval. The sum is ``end_ns - begin_ns`` exactly. Parts that
    end before they begin are ignored.
    """
    found: Counter[tuple[str, str]] = Counter()
    for piece in pieces(begin_ns, end_ns, parts):
        found[piece.kind, piece.name] += piece.end_ns - piece.begin_ns
    return found


def pieces(begin_ns: int, end_ns: int, parts: Iterable[Part]) -> Iterator[Part]:
    """Yield what has the time from ``begin_ns`` to ``end_ns``, as `partition` sums it, in order.

    Two neighbours have different kinds or names. The end of each is the begin of the next.
    """
    clipped = [
        (max(part.begin_ns, begin_ns), min(part.end_ns, end_ns), part)
        for part in parts
        if part.begin_ns < part.end_ns
    ]
    clipped = [one for one in clipped if one[0] < one[1]]
    clipped.sort(key=lambda one: one[0])
    times = sorted({begin_ns, end_ns, *(t for one in clipped for t in one[:2])})
    # By kind: the open parts, the one with the largest reach first; ended ones are dropped late.
    is_open: dict[str, list[tuple[tuple[int, ...], int, int, str]]] = {kind: [] for kind in ORDER}
    next_part = 0
    begun_ns, last = begin_ns, (UNATTRIBUTED, "")
    for i in range(len(times) - 1):
        now = times[i]
        while next_part < len(clipped) and clipped[next_part][0] <= now:
            _, part_end, part = clipped[next_part]
            key = tuple(-number for number in part.reach)
            heapq.heappush(is_open[part.kind], (key, next_part, part_end, part.name))
            next_part += 1
        owner = (UNATTRIBUTED, "")
        for kind in ORDER:
            heap = is_open[kind]
            while heap and heap[0][2] <= now:
                heapq.heappop(heap)
            if heap:
                owner = (kind, heap[0][3])
                break
        if owner != last:
            if begun_ns < now:
                yield Part(*last, begun_ns, now)
            begun_ns, last = now, owner
    if begun_ns < end_ns:
        yield Part(*last, begun_ns, end_ns)
