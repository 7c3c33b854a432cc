"""Pairs of two columns, compared with those of Python's sets; and sums by code."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from properties import examples
from stagespan.trace.read.groups import (
    RowGroup,
    distinct,
    grouped,
    interpolated_quantile,
    median,
    numbered,
    pairs,
    values_of,
)

# Near and far apart: the former are looked up in a table, few of the latter in a hash table.
_VALUES = st.integers(-3, 3) | st.integers(-(2**40), 2**40) | st.sampled_from([-(2**63), 2**63 - 1])


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(_VALUES, _VALUES), max_size=12), st.integers(1, 3_000))
def test_pairs(rows: list[tuple[int, int]], times: int) -> None:
    columns = np.array(rows * times, dtype=np.int64).reshape(-1, 2)
    found, index = pairs(columns[:, 0], columns[:, 1])
    assert [tuple(pair) for pair in found.tolist()] == sorted(set(rows))
    assert np.array_equal(found[index], columns)


def test_many_values_that_are_far_apart() -> None:
    # GIVEN more values than the hash table has
    column = np.repeat(np.arange(2_000, dtype=np.int64)[::-1] << 40, 2)
    values, index = numbered(column)
    assert values.tolist() == sorted(set(column.tolist())) == values_of(column).tolist()
    assert np.array_equal(values[index], column)
    found, index = pairs(column, -column)
    assert found.tolist() == [[value, -value] for value in values.tolist()]
    assert np.array_equal(found[index], np.stack((column, -column), axis=1))


@given(st.lists(st.integers(-2_000, 2_000), min_size=1, max_size=60), st.integers(1, 10**8))
def test_values_of_any_distance(numbers: list[int], distance: int) -> None:
    column = np.array(numbers, dtype=np.int64) * distance
    values, index = numbered(column)
    assert values.tolist() == sorted(set(column.tolist())) == values_of(column).tolist()
    assert np.array_equal(values[index], column)


@given(
    st.lists(st.integers(0, 2**40), min_size=1, max_size=12),
    st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]) | st.floats(0, 1),
)
def test_quantiles_are_those_of_numpy(numbers: list[int], share: float) -> None:
    figures = np.array(numbers, dtype=np.int64)
    assert interpolated_quantile(figures, share) == np.quantile(figures, share)


@given(
    st.lists(st.integers(0, 2**62), min_size=1, max_size=12)
    | st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=12)
)
def test_medians_are_those_of_numpy(figures: list[int] | list[float]) -> None:
    assert median(figures) == median(np.array(figures)) == np.median(figures)


def test_pairs_of_narrow_columns() -> None:
    # GIVEN columns whose differences do not fit into their types
    first = np.array([-128, 127, -128], dtype=np.int8)
    second = np.array([2**31 - 1, -(2**31), 2**31 - 1], dtype=np.int32)
    found, index = pairs(first, second)
    assert found.tolist() == [[-128, 2**31 - 1], [127, -(2**31)]]
    assert index.tolist() == [0, 1, 0]


@given(st.lists(st.tuples(_VALUES, _VALUES, _VALUES), max_size=12))
def test_distinct_rows_of_three_columns(rows: list[tuple[int, int, int]]) -> None:
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    keys, index = distinct(*columns.T)
    assert [tuple(key) for key in keys.tolist()] == sorted(set(rows))
    assert np.array_equal(keys[index], columns)


def test_groups() -> None:
    code, time = np.array([5, 3, 5, 3, 5]), np.array([10, 7, 6, 100, 5])
    assert grouped(code, time) == [RowGroup(3, 107, 2), RowGroup(5, 21, 3)]
    assert grouped(code[:0], time[:0]) == []
