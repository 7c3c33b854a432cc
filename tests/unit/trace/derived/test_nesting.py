"""The forest of a thread's events, compared with a search at each moment."""

from __future__ import annotations

import random

import numpy as np
import pytest

from stagespan.trace.derived.threads import (
    Axis,
)
from stagespan.trace.derived.trees import Nesting

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
        innermost = found.at(np.arange(22)).tolist()
        for moment, index in enumerate(innermost):
            is_open = (found.begin <= moment) & (moment < found.end)
            assert index == (int(np.flatnonzero(is_open).max()) if is_open.any() else -1)
        covered = {moment for b, e in zip(begins, ends, strict=True) for moment in range(b, e)}
        assert found.own_ns().sum() == len(covered)


def test_the_innermost_chosen_one_and_the_one_around_a_stretch() -> None:
    found = forest([0, 2, 3, 12], [20, 10, 5, 15])
    chosen = np.array([True, False, True, False])
    # THEN each finds itself or the next enclosing one
    assert found.first_around(chosen).tolist() == [0, 0, 2, 0]
    assert found.first_around(np.array([True, False, False, False])).tolist() == [0, 0, 0, 0]
    assert found.first_around(np.array([False, False, True, False])).tolist() == [-1, -1, 2, -1]
    assert found.own_ns().tolist() == [9, 6, 2, 3]


@pytest.mark.parametrize("length", [15, 40_000, 400_000])
def test_a_long_chain_of_crossing_events(length: int) -> None:
    count = 40_000
    begins = 10 * np.arange(count)
    axis = Axis(0, 1_000_000, 1)
    found = Nesting(axis, np.arange(count), begins, begins + length)
    places = begins + 3
    inside = found.at(places)
    behind = found.at(places + begins[-1] + length)
    first = found.first_around(np.arange(count) == 7)
    # THEN it is the one that began last, and none after all of them
    assert inside.tolist() == list(range(count))
    assert behind.tolist() == [-1] * count
    assert found.parent.tolist() == list(range(-1, count - 1))
    # AND an event that is open all the time encloses all that follow
    assert length < 10 * count or first.tolist() == [-1] * 7 + [7] * (count - 7)


def test_very_deep_events() -> None:
    index = np.arange(3_000)
    found = Nesting(Axis(0, 9_000, 1), index, index, 9_000 - index)
    # THEN the result is as with few events
    assert found.at(np.array([0, 2_999, 6_000, 6_001, 8_999, 9_000])).tolist() == [
        0, 2_999, 2_999, 2_998, 0, -1,
    ]  # fmt: skip
    assert found.own_ns().tolist() == [2] * 2_999 + [9_000 - 2 * 2_999]
