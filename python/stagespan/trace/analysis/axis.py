"""Intervals of many threads on one axis: how much of any stretch a set of intervals covers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.arrays import Numbers
from stagespan.trace.intervals import merged

_MOST = 1 << 61


@dataclass(frozen=True, slots=True)
class Axis:
    """Several threads' times on one axis, each thread in a part of its own, so that intervals of
    all threads are worked on at once and never meet.
    """

    begin_ns: int
    end_ns: int
    lanes: int

    @property
    def stride(self) -> int:
        """Length of a thread's part, with room that nothing covers behind it."""
        return self.end_ns - self.begin_ns + 2

    @property
    def fits(self) -> bool:
        """Whether 64 bits hold it; hostile times do not."""
        return self.stride * (self.lanes + 1) < _MOST

    def place(self, lane: Numbers, time_ns: Numbers) -> Numbers:
        """Times on the axis; what lies outside the window is moved to its edge."""
        inside = np.clip(time_ns, self.begin_ns, self.end_ns) - self.begin_ns
        result: Numbers = inside + lane * self.stride
        return result

    def time_ns(self, place: Numbers) -> Numbers:
        """Back from the axis to times."""
        result: Numbers = place % self.stride + self.begin_ns
        return result


class Cover:
    """A set of intervals on an axis that tells how much of any stretch it covers."""

    def __init__(self, begin: Numbers, end: Numbers) -> None:
        longer = end > begin
        self.begin, self.end = merged(begin[longer], end[longer])
        self._before = np.concatenate(([0], np.cumsum(self.end - self.begin)))

    def __or__(self, other: Cover) -> Cover:
        return Cover(
            np.concatenate((self.begin, other.begin)), np.concatenate((self.end, other.end))
        )

    def within(self, begin: Numbers, end: Numbers) -> Numbers:
        """Length of what the set covers of each stretch; 0 for one that ends before it begins."""
        result: Numbers = self._until(np.maximum(begin, end)) - self._until(begin)
        return result

    def next_from(self, place: Numbers) -> Numbers:
        """Each place if it is covered, else where the next interval begins (or far behind all)."""
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
    """Where none of a thread's intervals begins or ends for long."""
    starts = np.arange(axis.lanes, dtype=np.int64) * axis.stride
    edges: NDArray[np.int64] = np.sort(
        np.concatenate((begin, end, starts, starts + axis.stride - 2))
    )
    # From one thread's last place to the next one's first it is 2.
    quiet = np.diff(edges) > max(longer_than_ns, 2)
    return Cover(edges[:-1][quiet], edges[1:][quiet])
