"""Groups of rows: rows by number, pairs of two columns, parts of a column, and sums by code."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from stagespan import _core
from stagespan.trace.read.intervals import Codes, Numbers, Rows

_PART_ROWS = 1 << 16


def parts(count: int) -> Iterator[slice]:
    """Return slices of all rows, so that intermediate results of each slice take little memory."""
    return (slice(first, first + _PART_ROWS) for first in range(0, count, _PART_ROWS))


def by_group(group: Numbers, count: int) -> list[NDArray[np.intp]]:
    """Return the indices of the elements of each of `count` groups, in one pass."""
    order = np.argsort(group, kind="stable")
    return np.split(order, np.searchsorted(group[order], np.arange(1, count + 1)))[:count]


def _integers(column: Numbers | Codes) -> Numbers | Codes:
    return np.ascontiguousarray(column, None if column.dtype == np.int32 else np.int64)


def _array(numbers: bytearray) -> Numbers:
    return np.frombuffer(numbers, dtype=np.int64)


def values_of(column: Numbers | Codes) -> Numbers:
    """Return the different values of a column, ascending."""
    column = _integers(column)
    few = _core.trace_number(column)
    if few is not None:
        return _array(few)
    # `np.unique` would import a module for masked arrays, which takes longer.
    ordered: Numbers = np.sort(column).astype(np.int64)
    values: Numbers = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    return values


def median(figures: ArrayLike) -> float:
    """Return the median as `np.median`, which would import a module for masked arrays.

    There must be a figure, and none may be NaN.
    """
    array = np.asarray(figures)
    high = len(array) // 2
    low = high - (len(array) % 2 == 0)
    ordered = np.partition(array, (low, high))
    return (float(ordered[low]) + float(ordered[high])) / 2


def interpolated_quantile(figures: Numbers, share: float) -> float:
    """Return the figure below which a share of all lies, interpolated as by `np.quantile`.

    That one uses `np.unique`. There must be a figure.
    """
    place = (len(figures) - 1) * share
    low = int(place)
    high = min(low + 1, len(figures) - 1)
    ordered = np.partition(figures, (low, high))
    below, above, part = float(ordered[low]), float(ordered[high]), place - low
    # As numpy rounds.
    between = above - below
    return above - between * (1 - part) if part >= 0.5 else below + between * part


def numbered(column: Numbers | Codes) -> tuple[Numbers, Numbers]:
    """Return the different values of a column, ascending, and the index of each element's."""
    column = _integers(column)
    index = np.empty(len(column), dtype=np.int64)
    values = _core.trace_number(column, index)
    if values is not None:
        return _array(values), index
    order = np.argsort(column)
    ordered = column[order]
    is_first = np.append(True, ordered[1:] != ordered[:-1])
    index[order] = np.cumsum(is_first) - 1
    return ordered[is_first].astype(np.int64), index


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


def pairs(first: Numbers | Codes, second: Numbers | Codes) -> tuple[NDArray[np.int64], Numbers]:
    """Return the different pairs of two columns, and the index of each row's pair."""
    first, second = (np.ascontiguousarray(each, np.int64) for each in (first, second))
    index = np.empty(len(first), dtype=np.int64)
    few = _core.trace_number_pairs(first, second, index)
    if few is not None:
        return _array(few).reshape(-1, 2), index
    firsts, index = numbered(first)
    seconds, of_second = numbered(second)
    index *= len(seconds)
    index += of_second
    del of_second
    different, index = numbered(index)
    at_first, at_second = np.divmod(different, max(len(seconds), 1))
    return np.stack((firsts[at_first], seconds[at_second]), axis=1), index


def distinct(
    column: Numbers | Codes, *others: Numbers | Codes
) -> tuple[NDArray[np.int64], Numbers]:
    """Return the different rows of some columns, ascending, and the index of each row's.

    The first array has the shape (different rows, columns).
    """
    values, index = numbered(column)
    keys = values[:, None]
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


def grouped(code: Numbers | Codes, time_ns: Numbers) -> list[RowGroup]:
    """Return one group for each code, the most time first; of equal ones, the lower code."""
    codes, index = distinct(code)
    time = sums(index, time_ns, len(codes))
    columns = (codes[:, 0], time, np.bincount(index, minlength=len(codes)))
    by_time = np.argsort(-time, kind="stable")
    return [RowGroup(*row) for row in zip(*(c[by_time].tolist() for c in columns), strict=True)]
