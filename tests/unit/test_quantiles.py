"""All figures of the same durations follow one rule: the nearest rank."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stagespan
from stagespan.live.quantiles import quantile
from stagespan.live.statistics import merged_stage
from stagespan.recording.request_figures import distribution

# Above this, a bucket of the histogram is within 3 % of its durations.
SHORTEST_NS, LONGEST_NS = 1_000, 10_000_000_000
names = (f"quantiles {i}" for i in itertools.count())


def recorded(durations_ns: list[int]) -> str:
    """Record a stage whose runs took these times and ended now; return its name."""
    stage = next(names)
    for duration_ns in durations_ns:
        end_ns = time.time_ns()
        stagespan.record(stage, end_ns - duration_ns, end_ns)
    assert stagespan.flush()
    return stage


@given(st.lists(st.integers(SHORTEST_NS, LONGEST_NS), min_size=1, max_size=60))
def test_every_figure_of_the_same_runs_is_the_same(durations_ns: list[int]) -> None:
    # GIVEN some runs, of which a share of at least q takes at most the quantile
    ordered = sorted(durations_ns)
    truth = {}
    for q in (0.5, 0.95, 0.99):
        truth[q] = min(
            d for d in ordered if sum(x <= d for x in ordered) >= q * len(ordered) - 1e-9
        )
        assert quantile(ordered, q) == truth[q]
    stage = recorded(durations_ns)
    # THEN the process's life, its last minute and a sum of processes give these figures
    of_life = stagespan.stats()[stage]
    for found in (of_life, stagespan.stats(window_s=3600)[stage], merged_stage([of_life, of_life])):
        for q, duration_ns in truth.items():
            assert found.quantile_ns(q) == pytest.approx(duration_ns, rel=0.03)
    # AND so do the tables of requests
    assert distribution(durations_ns) == (truth[0.5], truth[0.95], ordered[-1])


@pytest.mark.parametrize("q", [-0.1, 1.1, float("nan")])
def test_a_quantile_is_from_0_to_1(q: float) -> None:
    with pytest.raises(ValueError, match="must be from 0 to 1"):
        quantile([1, 2, 3], q)
