"""What was counted in the last minute, of all processes that an exporter reads, for quantiles."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from stagespan import _core
from stagespan.export.families import FAMILIES, QUANTILES
from stagespan.export.figures import Durations, ShownNames, amounts_in, durations_in
from stagespan.live.quantiles import rank

WINDOW_S = 60.0
_SLOT_S = 5.0
_SLOTS = round(WINDOW_S / _SLOT_S)
_AN_OCTAVE = 512
"""Durations are rounded to so many steps, which is 0.07 %, beside the 2.1 % of a recording."""

_Counts = defaultdict[float, int]
"""Numbers of durations, by the logarithm of the duration in steps; or of amounts, by amount."""


class Series(NamedTuple):
    """What quantiles are of."""

    group: tuple[str, ...]
    family: str
    label: str


class Recent:
    """Counts the durations and amounts of the last 60 to 65 s.

    What a reading finds new counts from the time of the reading on, so processes that have ended
    since, and any number of readers, need nothing of their own.
    """

    def __init__(self) -> None:
        self._slots: deque[tuple[int, dict[Series, _Counts]]] = deque()
        self._sums: dict[Series, _Counts] = {}
        """Of all slots."""

    def add(
        self, now_s: float, group: tuple[str, ...], new: _core.Snapshot, names: ShownNames
    ) -> None:
        """Count what a process has recorded since its last reading. ``now_s`` never falls."""
        self._expire(now_s)
        number = int(now_s // _SLOT_S)
        if not self._slots or self._slots[-1][0] != number:
            self._slots.append((number, {}))
        slot = self._slots[-1][1]
        found = [(of.family, of.label, _steps(of)) for of in durations_in(new, names)]
        found += [(of.family, of.label, of.summary.buckets()) for of in amounts_in(new, names)]
        for family, label, counts in found:
            series = Series(group, family, label)
            for sums in (slot, self._sums):
                before = sums.setdefault(series, _Counts(int))
                for step, count in counts:
                    before[step] += count

    def quantiles(self, now_s: float) -> Iterator[tuple[Series, str, float]]:
        """Yield (series, label of the quantile, quantile in the family's unit)."""
        self._expire(now_s)
        for series, counts in self._sums.items():
            is_amount = FAMILIES[series.family].is_amount
            ordered = sorted(counts.items())
            total = sum(counts.values())
            below, at = 0, -1
            for label, q in QUANTILES.items():  # ascending
                while below < rank(q, total):
                    at += 1
                    below += ordered[at][1]
                step = ordered[at][0]
                yield series, label, step if is_amount else _seconds(step)

    def _expire(self, now_s: float) -> None:
        first = int(now_s // _SLOT_S) - _SLOTS
        while self._slots and self._slots[0][0] < first:
            for series, counts in self._slots.popleft()[1].items():
                sums = self._sums[series]
                for step, count in counts.items():
                    sums[step] -= count
                    if not sums[step]:
                        del sums[step]
                if not sums:
                    del self._sums[series]


def _seconds(step: float) -> float:
    """Return the duration that a step stands for, without digits that are not known."""
    return float(f"{2 ** (step / _AN_OCTAVE) / 1e9:.3g}") if step >= 0 else 0.0


def _steps(of: Durations) -> list[tuple[float, int]]:
    return [(_step(ns), count) for ns, count in of.summary.buckets_ns()]


@lru_cache(maxsize=1 << 14)  # the buckets of a recording have the same values again and again
def _step(ns: float) -> int:
    return round(math.log2(ns) * _AN_OCTAVE) if ns >= 1 else -1
