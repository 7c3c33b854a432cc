"""Unions and exclusive times, compared with a count of every nanosecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from properties import examples
from stagespan.trace.read.intervals import Endpoints, covered, exclusive, merged

_INTERVALS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 15), st.integers(0, 2)), max_size=12
)


def arrays(rows: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 0] + table[:, 1], table[:, 2]


@settings(max_examples=examples(300))
@given(_INTERVALS)
def test_union(rows: list[tuple[int, int, int]]) -> None:
    begin, end, _ = arrays(rows)
    inside = {t for b, d, _ in rows for t in range(b, b + d)}
    starts, ends = merged(begin, end)
    # THEN the union is what they cover, ascending and disjoint
    assert covered(begin, end) == len(inside)
    assert {t for b, e in zip(starts, ends, strict=True) for t in range(b, e)} == inside
    assert np.all(starts[1:] > ends[:-1])


@settings(max_examples=examples(500))
@given(_INTERVALS)
def test_exclusive_time_belongs_to_the_interval_begun_last(
    rows: list[tuple[int, int, int]],
) -> None:
    begin, end, thread = arrays(rows)
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
    assert exclusive(begin, end, thread).tolist() == expected


def test_nested_siblings_that_touch() -> None:
    begin = np.array([0, 0, 4, 4, 10], dtype=np.int64)
    end = np.array([10, 4, 10, 4, 12], dtype=np.int64)
    own = exclusive(begin, end, np.zeros(5, dtype=np.int64))
    # THEN the parent has none left
    assert own.tolist() == [0, 4, 6, 0, 2]


@st.composite
def _nested(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Intervals of one thread that nest, like the calls of a thread."""
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


@settings(max_examples=examples(200))
@given(_nested())
def test_nesting_is_detected(rows: list[tuple[int, int, int]]) -> None:
    edges = Endpoints(*arrays(rows))
    owner, nested = edges.innermost()
    # THEN that succeeds, with the same result as the loop
    assert nested
    assert owner.tolist() == edges.innermost_of_crossing().tolist()
