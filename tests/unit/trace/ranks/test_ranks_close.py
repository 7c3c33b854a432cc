"""For any ranks, waiting follows from the starts, and the sums are correct."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from planted_ranks import US, ranks_in, together, write_rank

from properties import examples

ARRIVALS = st.integers(2, 5).flatmap(
    lambda ranks: st.integers(3, 6).flatmap(
        lambda calls: st.lists(
            st.lists(st.integers(0, 400), min_size=calls, max_size=calls),
            min_size=ranks,
            max_size=ranks,
        )
    )
)


@settings(max_examples=examples(80), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(late=ARRIVALS, clocks=st.lists(st.integers(-300, 300), min_size=5, max_size=5))
def test_waiting_follows_from_the_begins(late: Any, clocks: Any, tmp_path: Path) -> None:
    # GIVEN ranks that arrive at collectives at random, and clocks up to 300 µs off
    for old in tmp_path.iterdir():
        old.unlink()
    arrivals = [[1_000 * at + each for at, each in enumerate(mine)] for mine in late]
    for rank, calls in enumerate(together(arrivals)):
        write_rank(tmp_path, rank, calls, world=len(late), clock=clocks[rank])
    found = ranks_in(tmp_path)
    calls = list(zip(*arrivals, strict=True))
    assert found.waits.waited_ns.tolist() == [
        sum(max(each) - each[rank] for each in calls) * US for rank in range(len(late))
    ]
    # THEN a rank that was last by more than the clocks' error is reported as last
    for each, instance in zip(calls, found.waits.instances, strict=True):
        first, second = sorted(each, reverse=True)[:2]
        assert instance.late_ns == (first - second) * US
        assert instance.last == (each.index(first) if first - second > 1 else None)
        assert instance.waited_ns == sum(first - one for one in each) * US
    assert found.lost_ns == sum(each.waited_ns for each in found.waits.instances)
    assert found.waits.lost_ns.tolist() == found.waits.waited_ns.tolist()
    assert found.waits.caused_ns.sum() == sum(
        each.late_ns for each in found.waits.instances if each.last is not None
    )
    assert found.waits.last.sum() == sum(each.last is not None for each in found.waits.instances)
    assert found.waits.took_part.tolist() == [len(calls)] * len(late)
