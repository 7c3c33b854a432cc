"""Groups of rows: rows by number, pairs of two columns, parts of a column, and sums by code."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from stagespan.trace.read.intervals import Codes, Numbers, Rows

_PART_ROWS = 1 << 16
# A lookup table is used if it has at most one entry for each row, or this many.
_SMALL_TABLE_ENTRIES = 1 << 10


def parts(count: int) -> Iterator[slice]:
    """Return slices of all rows, so that intermediate results of each slice take little memory."""
    return (slice(first, first + _PART_ROWS) for first in range(0, count, _PART_ROWS))


def by_group(group: Numbers, count: int) -> list[NDArray[np.intp]]:
    """Return the indices of the elements of each of `count` groups, in one pass."""
    order = np.argsort(group, kind="stable")
    return np.split(order, np.searchsorted(group[order], np.arange(1, count + 1)))[:count]


class _Distinct:
    """The different values of a column in ascending order, and the index of each.

    `numpy.unique` returns the same, but it hashes or sorts all elements, which takes at least three
    times as long if millions of elements have few values.
    """

    def __init__(self, column: Numbers | Codes) -> None:
        self._table = None
        low, high = (int(column.min()), int(column.max())) if len(column) else (0, -1)
        if high - low < max(len(column), _SMALL_TABLE_ENTRIES):
            self._low = low
            self._table = np.zeros(high - low + 1, dtype=np.int64)
            for some in parts(len(column)):
                counts = np.bincount(self._offset(column[some]))
                self._table[: len(counts)] += counts
            offsets = np.flatnonzero(self._table)
            self._table[offsets] = np.arange(len(offsets))
            self.values: Numbers = offsets + low
        else:
            # A stable sort is fast if long parts are already sorted.
            ordered = np.sort(column, kind="stable")
            self.values = ordered[np.append(True, ordered[1:] != ordered[:-1])]

    def index(self, values: Numbers | Codes) -> Numbers:
        """Return the index of each of some values of the column."""
        if self._table is None:
            return np.searchsorted(self.values, values)
        return self._table[self._offset(values)]

    def _offset(self, values: Numbers | Codes) -> Numbers:
        result: Numbers = np.subtract(values, self._low, dtype=np.int64)
        return result


def values_of(column: Numbers | Codes) -> Numbers:
    """Return the different values of a column, ascending."""
    return _Distinct(column).values


def numbered(column: Numbers | Codes) -> tuple[Numbers, Numbers]:
    """Return the different values of a column, ascending, and the index of each element's."""
    distinct_values = _Distinct(column)
    return distinct_values.values, distinct_values.index(column)


def counts_of(column: Numbers | Codes) -> tuple[Numbers, Numbers]:
    """Return the different values of a column, ascending, and how often each occurs."""
    values, index = numbered(column)
    return values, np.bincount(index, minlength=len(values))


def firsts_of(column: Numbers | Codes) -> tuple[Numbers, Rows]:
    """Return the different values of a column, ascending, and the first element with each."""
    values, index = numbered(column)
    firsts = np.empty(len(values), dtype=np.intp)
    # Of several assignments to one element, the last remains.
    firsts[index[::-1]] = np.arange(len(column))[::-1]
    return values, firsts


def pairs(first: Numbers, second: Numbers) -> tuple[NDArray[np.int64], Numbers]:
    """Return the different pairs of two columns, and the index of each row's pair."""
    firsts, seconds = _Distinct(first), _Distinct(second)
    index = np.empty(len(first), dtype=np.int64)
    for some in parts(len(first)):
        codes = firsts.index(first[some]) * len(seconds.values)
        index[some] = codes + seconds.index(second[some])
    different = _Distinct(index)
    for some in parts(len(first)):
        index[some] = different.index(index[some])
    at_first, at_second = np.divmod(different.values, max(len(seconds.values), 1))
    return np.stack((firsts.values[at_first], seconds.values[at_second]), axis=1), index


def distinct(column: Numbers | Codes, *others: Numbers) -> tuple[NDArray[np.int64], Numbers]:
    """Return the different rows of some columns, ascending, and the index of each row's.

    The first array has the shape (different rows, columns).
    """
    values = _Distinct(column)
    keys, index = values.values[:, None], values.index(column)
    for other in others:
        different, index = pairs(index, other)
        keys = np.column_stack((keys[different[:, 0]], different[:, 1]))
    return keys, index


# --- Sums over groups ---


def sums(index: Rows, figure: Numbers, count: int) -> Numbers:
    """Return sums of figures by index; figures of index -1 are left out."""
    known = index >= 0
    # Whole numbers below 2**53: doubles add them exactly.
    total = np.bincount(index[known], weights=figure[known], minlength=count)
    result: Numbers = total.astype(np.int64)
    return result


class RowGroup(msgspec.Struct, frozen=True):
    """Rows with one code."""

    code: int
    time_ns: int
    count: int

    @property
    def mean_ns(self) -> float:
        """Mean time of a row."""
        return self.time_ns / self.count


def grouped(code: Numbers, time_ns: Numbers) -> list[RowGroup]:
    """Return one group for each code, the most time first; of equal ones, the lower code."""
    codes, index = distinct(code)
    time = sums(index, time_ns, len(codes))
    columns = (codes[:, 0], time, np.bincount(index, minlength=len(codes)))
    by_time = np.argsort(-time, kind="stable")
    return [RowGroup(*row) for row in zip(*(c[by_time].tolist() for c in columns), strict=True)]
