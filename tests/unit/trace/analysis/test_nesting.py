"""The forest of a thread's events, against looking at each moment by itself."""

from __future__ import annotations

import random

import numpy as np

from stagespan.trace.analysis.axis import Axis
from stagespan.trace.analysis.grouping import grouped, prevailing
from stagespan.trace.analysis.nesting import Nesting

AXIS = Axis(0, 40, 1)


def forest(begins: list[int], ends: list[int]) -> Nesting:
    return Nesting(AXIS, np.arange(len(begins)), np.array(begins), np.array(ends))


def test_nested_and_crossing_events_against_every_moment() -> None:
    # GIVEN many small sets of events that nest, touch, cross or coincide
    source = random.Random(7)
    for _ in range(500):
        begins = [source.randint(0, 12) for _ in range(source.randint(0, 8))]
        ends = [begin + source.randint(0, 8) for begin in begins]
        found = forest(begins, ends)
        # WHEN the forest is asked what is innermost at each moment
        innermost = found.at(np.arange(22)).tolist()
        # THEN it is the event that began last of those that are open
        for moment, index in enumerate(innermost):
            is_open = (found.begin <= moment) & (moment < found.end)
            assert index == (int(np.flatnonzero(is_open).max()) if is_open.any() else -1)
        # AND own times sum to the moments at which any is open
        covered = {moment for b, e in zip(begins, ends, strict=True) for moment in range(b, e)}
        assert found.own_ns().sum() == len(covered)


def test_the_innermost_chosen_one_and_the_one_around_a_stretch() -> None:
    # GIVEN 0..20 around 2..10 around 3..5, and 12..15
    found = forest([0, 2, 3, 12], [20, 10, 5, 15])
    # WHEN chosen ones are looked for from each outwards
    chosen = np.array([True, False, True, False])
    # THEN each finds itself or the next around it
    assert found.first_around(chosen).tolist() == [0, 0, 2, 0]
    assert found.around(np.array([3, 3, 13, 3]), np.array([4, 8, 14, 21])).tolist() == [2, 1, 3, -1]
    assert found.row_at(np.array([25, 4])).tolist() == [-1, 2]
    assert found.own_ns().tolist() == [9, 6, 2, 3]


def test_groups_and_what_prevails_in_them() -> None:
    code, other = np.array([5, 3, 5, 3, 5]), np.array([1, 0, 2, -1, 2])
    time = np.array([10, 7, 6, 100, 5])
    rows = [(g.code, g.time_ns, g.count, g.shortest_ns, g.longest_ns) for g in grouped(code, time)]
    assert rows == [(3, 107, 2, 7, 100), (5, 21, 3, 5, 10)]
    assert prevailing(code, other, time) == {3: 0, 5: 2}
    assert grouped(code[:0], time[:0]) == []
    assert prevailing(code[:0], other[:0], time[:0]) == {}
