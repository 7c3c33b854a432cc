"""Tests of the division of a request's time: it sums to the whole, whatever overlaps."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from properties import examples
from stagespan import _core
from stagespan.recording.partition import ORDER, UNATTRIBUTED, Part, pieces, time_by_owner

_TIMES = st.one_of(
    st.integers(-30, 60), st.integers(-(2**62), 2**62), st.integers(0, 3).map(lambda n: n * 2**60)
)
_PARTS = st.builds(
    Part,
    kind=st.sampled_from(ORDER),
    name=st.sampled_from(["a", "b", "c"]),
    begin_ns=_TIMES,
    end_ns=_TIMES,
    reach=st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(-5, 5)),
)


def check(begin: int, length: int, parts: list[Part]) -> None:
    """Assert that the parts sum to the length."""
    found = time_by_owner(pieces(begin, begin + length, parts))

    assert sum(found.values()) == length
    assert all(ns > 0 for ns in found.values())
    # The pieces are the same time in order, without gaps.
    in_order = list(pieces(begin, begin + length, parts))
    ends = [begin, *(piece.end_ns for piece in in_order)]
    assert [piece.begin_ns for piece in in_order] == ends[:-1]
    assert ends[-1] == begin + length
    owners = [(piece.kind, piece.name) for piece in in_order]
    assert all(one != other for one, other in itertools.pairwise(owners))


@given(begin=_TIMES, length=st.integers(0, 80), parts=st.lists(_PARTS, max_size=12))
@example(begin=0, length=0, parts=[Part("queue", "a", -1, 1, (0, 0, 0))])
def test_the_parts_of_any_timeline_sum_to_its_length(
    begin: int, length: int, parts: list[Part]
) -> None:
    check(begin, length, parts)


@pytest.mark.full
@pytest.mark.parametrize("quarter", range(4))  # 20,000 in all, in tests of a bounded time
@settings(max_examples=5_000)
@given(begin=_TIMES, length=st.integers(0, 2**62), parts=st.lists(_PARTS, max_size=12))
def test_the_parts_of_many_timelines_sum_to_their_lengths(
    begin: int, length: int, parts: list[Part], quarter: int
) -> None:
    check(begin, length, parts)


@given(
    length=st.integers(1, 40),
    parts=st.lists(
        st.builds(
            Part,
            kind=st.sampled_from(ORDER),
            name=st.sampled_from(["a", "b"]),
            begin_ns=st.integers(-5, 45),
            end_ns=st.integers(-5, 45),
            reach=st.tuples(st.integers(0, 2), st.integers(0, 2)),
        ),
        max_size=8,
    ),
)
def test_each_nanosecond_belongs_to_the_first_that_is_open(length: int, parts: list[Part]) -> None:
    expected: dict[tuple[str, str], int] = {}
    unclear = 0
    for now in range(length):
        is_open = [part for part in parts if part.begin_ns <= now < part.end_ns]
        kind = next((kind for kind in ORDER if any(p.kind == kind for p in is_open)), None)
        of_kind = [part for part in is_open if part.kind == kind]
        furthest = max((part.reach for part in of_kind), default=())
        names = {part.name for part in of_kind if part.reach == furthest}
        unclear += len(names) > 1  # two that reach equally far: either may have it
        owner = ("unattributed", "") if kind is None else (kind, min(names))
        expected[owner] = expected.get(owner, 0) + 1

    found = time_by_owner(pieces(0, length, parts))

    by_kind = {kind: sum(n for (of, _), n in found.items() if of == kind) for kind, _ in found}
    assert by_kind == {
        kind: sum(n for (of, _), n in expected.items() if of == kind) for kind, _ in expected
    }
    if not unclear:
        assert dict(found) == expected


_REQUESTS = st.lists(
    st.tuples(
        st.one_of(st.integers(-30, 60), st.integers(-(2**61), 2**61)),
        st.one_of(st.integers(0, 80), st.integers(0, 2**60)),
        st.lists(_PARTS, max_size=8),
    ),
    max_size=4,
)


@settings(max_examples=examples(2_000))
@given(requests=_REQUESTS)
def test_many_requests_in_columns_are_divided_as_each_alone(
    requests: list[tuple[int, int, list[Part]]],
) -> None:
    owners: dict[tuple[str, str], int] = {}
    rows = [
        (
            *(at, ORDER.index(part.kind), *part.reach),
            owners.setdefault((part.kind, part.name), len(owners)),
            *(part.begin_ns, part.end_ns),
        )
        for at, (_, _, parts) in enumerate(requests)
        for part in parts
    ]
    columns = np.ascontiguousarray(np.array(rows, np.int64).reshape(-1, 8).T)
    times = np.array([(begin, begin + length) for begin, length, _ in requests], np.int64)
    owned = np.zeros(len(owners), np.int64)
    outside = np.zeros((3, len(requests)), np.int64)
    _core.divide_requests(columns, np.ascontiguousarray(times.reshape(-1, 2).T), owned, outside)
    sums = dict.fromkeys(owners, 0)
    for at, (begin, length, parts) in enumerate(requests):
        in_order = list(pieces(begin, begin + length, parts))
        alone = time_by_owner(in_order)
        unattributed = [
            piece.end_ns - piece.begin_ns if piece.kind == UNATTRIBUTED else 0 for piece in in_order
        ]
        first, last = sum(unattributed[:1]), sum(unattributed[1:][-1:])
        assert outside[:, at].tolist() == [alone.pop((UNATTRIBUTED, ""), 0), first, last]
        for key, ns in alone.items():
            sums[key] += ns
    assert owned.tolist() == list(sums.values())


@pytest.mark.parametrize(
    "part",
    [(1, 0, 0, 0, 0, 0, 0, 1), (-1, 0, 0, 0, 0, 0, 0, 1), (0, 0, 0, 0, 0, 1, 0, 1)],
)
def test_parts_of_no_request_and_no_owner_are_refused(part: tuple[int, ...]) -> None:
    column, numbers = np.array([part], np.int64).T.copy(), np.array([[0], [5]], np.int64)
    with pytest.raises(ValueError, match="does not exist"):
        _core.divide_requests(column, numbers, np.zeros(1, np.int64), np.zeros((3, 1), np.int64))
