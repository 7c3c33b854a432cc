"""Unions, exclusive times and pairs, compared with counts of every nanosecond and every row."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stagespan.trace.read.intervals import Edges, covered, exclusive, merged, pairs

_INTERVALS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 15), st.integers(0, 2)), max_size=12
)


def arrays(rows: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 0] + table[:, 1], table[:, 2]


@settings(max_examples=300, deadline=None)
@given(_INTERVALS)
def test_union(rows: list[tuple[int, int, int]]) -> None:
    # GIVEN any intervals
    begin, end, _ = arrays(rows)
    inside = {t for b, d, _ in rows for t in range(b, b + d)}
    # WHEN they are merged
    starts, ends = merged(begin, end)
    # THEN the union is what they cover, ascending and disjoint
    assert covered(begin, end) == len(inside)
    assert {t for b, e in zip(starts, ends, strict=True) for t in range(b, e)} == inside
    assert np.all(starts[1:] > ends[:-1])


@settings(max_examples=500, deadline=None)
@given(_INTERVALS)
def test_exclusive_time_belongs_to_the_interval_begun_last(
    rows: list[tuple[int, int, int]],
) -> None:
    # GIVEN any intervals in lanes, nested or crossing
    begin, end, lane = arrays(rows)
    expected = [0] * len(rows)
    for which in {row[2] for row in rows}:
        for t in range(60):
            # The innermost one began last; of those that began together the shortest, then the
            # last.
            covering = [
                (b, -d, i) for i, (b, d, at) in enumerate(rows) if at == which and b <= t < b + d
            ]
            if covering:
                expected[max(covering)[2]] += 1
    # WHEN their exclusive times are computed
    # THEN each nanosecond has one owner
    assert exclusive(begin, end, lane).tolist() == expected


def test_nested_siblings_that_touch() -> None:
    # GIVEN a parent with two children that touch each other and its end, and one of length 0
    begin = np.array([0, 0, 4, 4, 10], dtype=np.int64)
    end = np.array([10, 4, 10, 4, 12], dtype=np.int64)
    # WHEN exclusive times are computed
    own = exclusive(begin, end, np.zeros(5, dtype=np.int64))
    # THEN the parent has none left
    assert own.tolist() == [0, 4, 6, 0, 2]


@st.composite
def _nested(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Intervals of one lane that nest, like the calls of a thread."""
    rows: list[tuple[int, int, int]] = []

    def fill(begin: int, end: int, depth: int) -> None:
        at = begin
        while at < end and draw(st.booleans()):
            first = draw(st.integers(at, end - 1))
            last = draw(st.integers(first + 1, end))
            rows.append((first, last - first, 0))
            if depth < 4:
                fill(first, last, depth + 1)
            at = last

    fill(0, 50, 0)
    return rows


@settings(max_examples=200, deadline=None)
@given(_nested())
def test_nesting_is_detected(rows: list[tuple[int, int, int]]) -> None:
    # GIVEN intervals that nest
    edges = Edges(*arrays(rows))
    # WHEN the owners are determined without a loop
    owner, nested = edges.innermost()
    # THEN that succeeds, with the same result as the loop
    assert nested
    assert owner.tolist() == edges.innermost_of_crossing().tolist()


# Near and far apart: `pairs` looks up the former in a table, and sorts the latter.
_VALUES = st.integers(-3, 3) | st.integers(-(2**40), 2**40) | st.sampled_from([-(2**63), 2**63 - 1])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(_VALUES, _VALUES), max_size=12), st.integers(1, 3_000))
def test_pairs(rows: list[tuple[int, int]], times: int) -> None:
    # GIVEN any two columns, also of many rows
    columns = np.array(rows * times, dtype=np.int64).reshape(-1, 2)
    # WHEN the different pairs are searched
    found, index = pairs(columns[:, 0], columns[:, 1])
    # THEN there is one of each in ascending order, and each row has the index of its pair
    assert [tuple(pair) for pair in found.tolist()] == sorted(set(rows))
    assert np.array_equal(found[index], columns)


def test_pairs_of_narrow_columns() -> None:
    # GIVEN columns whose differences do not fit into their types
    first = np.array([-128, 127, -128], dtype=np.int8)
    second = np.array([2**31 - 1, -(2**31), 2**31 - 1], dtype=np.int32)
    # WHEN the different pairs are searched
    found, index = pairs(first, second)
    # THEN they are exact
    assert found.tolist() == [[-128, 2**31 - 1], [127, -(2**31)]]
    assert index.tolist() == [0, 1, 0]
