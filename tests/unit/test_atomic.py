"""Numbers that several threads change at once, and that signal handlers change in between."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from running import in_threads
from stagespan.process.atomic import Count, Highest


@pytest.fixture
def many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("many_switches")
def test_no_call_is_lost_and_no_number_given_twice() -> None:
    count = Count()
    given_out: list[int] = []
    in_threads(*[lambda: given_out.extend(count.add() for _ in range(20_000))] * 4)

    assert count.value == 80_000
    assert sorted(given_out) == list(range(1, 80_001))


@pytest.mark.usefixtures("many_switches")
def test_the_highest_of_all_threads_is_kept() -> None:
    highest = Highest()
    in_threads(*(lambda n=n: [highest.raise_to(v) for v in range(n, 40_000, 4)] for n in range(4)))
    assert highest.value == 39_999


@given(st.lists(st.integers(min_value=0), min_size=1))
def test_the_highest_is_the_maximum(values: list[int]) -> None:
    highest = Highest()
    for value in values:
        highest.raise_to(value)
    assert highest.value == max(values)
