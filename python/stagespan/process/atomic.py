"""Numbers that threads, signal handlers and finalizers change without a lock.

Each change is one call of a C function on plain integers. Neither a signal handler nor another
thread can interrupt it. A lock would not work: a signal handler or a finalizer that runs while its
own thread holds the lock would wait for it forever.
"""

from __future__ import annotations

import heapq
import itertools


class Highest:
    """The highest of the numbers passed to `raise_to`."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap = [0]

    @property
    def value(self) -> int:
        """The highest number so far."""
        return self._heap[0]

    def raise_to(self, value: int) -> None:
        """Add a number."""
        # Adds the number and removes the lower of the two.
        heapq.heappushpop(self._heap, value)


class Count:
    """How often `add` was called."""

    __slots__ = ("_given", "_numbers")

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._given = Highest()

    @property
    def value(self) -> int:
        """The number of calls so far."""
        return self._given.value

    def add(self) -> int:
        """Count one call. Returns its unique number, starting from 1."""
        number = next(self._numbers)
        self._given.raise_to(number)
        return number
