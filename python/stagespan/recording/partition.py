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


def pieces(begin_ns: int, end_ns: int, parts: Iterable[Part]) -> Iterator[Part]:
    """Yield what has the time from ``begin_ns`` to ``end_ns``, in order.

    Each nanosecond belongs to one part that is open then, or to `UNATTRIBUTED`, whose name is
    empty. Parts are clipped to the interval; those that end before they begin are ignored. Two
    neighbours have different kinds or names. The end of each is the start of the next.
    """
    clipped = []
    for number, (kind, name, part_begin_ns, part_end_ns, reach) in enumerate(parts):
        first_ns, last_ns = max(part_begin_ns, begin_ns), min(part_end_ns, end_ns)
        if part_begin_ns < part_end_ns and first_ns < last_ns:
            # The rank is least for the one that gets the time.
            rank = ORDER.index(kind), *[-length for length in reach]
            clipped.append((first_ns, number, rank, last_ns, (kind, name)))
    clipped.sort()
    ends_ns = [one[3] for one in clipped]
    times = sorted({begin_ns, end_ns, *ends_ns, *[one[0] for one in clipped]})
    is_open: list[tuple[tuple[int, ...], int]] = []  # rank and index; ended ones are dropped late
    next_part = 0
    begun_ns, last = begin_ns, (UNATTRIBUTED, "")
    for now in times[:-1]:
        while next_part < len(clipped) and clipped[next_part][0] <= now:
            heapq.heappush(is_open, (clipped[next_part][2], next_part))
            next_part += 1
        while is_open and ends_ns[is_open[0][1]] <= now:
            heapq.heappop(is_open)
        owner = clipped[is_open[0][1]][4] if is_open else (UNATTRIBUTED, "")
        if owner != last:
            if begun_ns < now:
                yield Part(*last, begun_ns, now)
            begun_ns, last = now, owner
    if begun_ns < end_ns:
        yield Part(*last, begun_ns, end_ns)


def time_by_owner(in_order: Iterable[Part]) -> Counter[tuple[str, str]]:
    """Return the time of each kind and name in what `pieces` yields, in ns.

    The sum is the length of the interval exactly.
    """
    times_ns: Counter[tuple[str, str]] = Counter()
    for piece in in_order:
        times_ns[piece.kind, piece.name] += piece.end_ns - piece.begin_ns
    return times_ns
