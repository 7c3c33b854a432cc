"""Sums over groups of rows, and which member of a second grouping prevails in each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.arrays import Numbers

Codes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Group:
    """Rows with one code; times in ns."""

    code: int
    time_ns: int
    count: int
    shortest_ns: int
    longest_ns: int

    @property
    def mean_ns(self) -> float:
        """Time of one."""
        return self.time_ns / self.count


def grouped(code: Codes, time_ns: Numbers) -> list[Group]:
    """One group a code, that with the most time first; of equal ones the lower code."""
    if len(code) == 0:
        return []
    order = np.argsort(code, kind="stable")
    code, time_ns = code[order], time_ns[order]
    firsts = np.flatnonzero(np.concatenate(([True], code[1:] != code[:-1])))
    columns = (
        code[firsts],
        np.add.reduceat(time_ns, firsts),
        np.diff(np.append(firsts, len(code))),
        np.minimum.reduceat(time_ns, firsts),
        np.maximum.reduceat(time_ns, firsts),
    )
    by_time = np.lexsort((columns[0], -columns[1]))
    return [Group(*row) for row in zip(*(c[by_time].tolist() for c in columns), strict=True)]


def prevailing(code: Codes, other: Codes, time_ns: Numbers) -> dict[int, int]:
    """By code the other code that most of its time has; other codes below 0 count as unknown."""
    known = other >= 0
    code, other, time_ns = code[known], other[known], time_ns[known]
    if len(code) == 0:
        return {}
    size = int(other.max()) + 1
    best: dict[int, int] = {}
    for group in grouped(code * size + other, time_ns):
        best.setdefault(group.code // size, group.code % size)
    return best
