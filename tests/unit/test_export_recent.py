"""Tests of the quantiles of the last minute."""

from __future__ import annotations

import math
import time

from hypothesis import given
from hypothesis import strategies as st

import stagespan
from stagespan import _core
from stagespan.export.figures import Names, ShownNames
from stagespan.export.recent import WINDOW_S, Recent

GROUP = ("svc", "default", "")


def names() -> ShownNames:
    return ShownNames(Names(200), Names(100), Names(200))


def recorded(stage: str, durations_ns: list[int]) -> _core.Snapshot:
    """Record runs of a stage in this process, and return what is new."""
    before, now_ns = _core.snapshot(), time.time_ns()
    for duration_ns in durations_ns:
        stagespan.record(stage, now_ns - duration_ns, now_ns)
    return _core.snapshot().since(before)


def quantiles(recent: Recent, now_s: float) -> dict[tuple[str, str], float]:
    return {(of.label, label): value_s for of, label, value_s in recent.quantiles(now_s)}


# Runs that would have begun before the machine was started are not recorded.
_MOST_NS = min(10**13, time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 2)
durations = st.lists(st.integers(1, _MOST_NS), min_size=1, max_size=60)


@given(st.lists(durations, min_size=1, max_size=4))
def test_quantiles_are_those_of_all_runs_within_three_percent(readings: list[list[int]]) -> None:
    recent = Recent()
    for number, durations_ns in enumerate(readings):
        recent.add(100.0 + 12 * number, GROUP, recorded("recent", durations_ns), names())
    found = quantiles(recent, 140.0)
    ordered = sorted(one for durations_ns in readings for one in durations_ns)
    for q in (0.5, 0.95, 0.99):
        exact_s = ordered[math.ceil(q * len(ordered)) - 1] / 1e9
        assert math.isclose(found["recent", str(q)], exact_s, rel_tol=0.03, abs_tol=1e-9)


def test_runs_are_forgotten_after_a_minute() -> None:
    recent = Recent()
    recent.add(100.0, GROUP, recorded("early", [1000]), names())
    recent.add(140.0, GROUP, recorded("late", [2000]), names())
    assert {stage for stage, _ in quantiles(recent, 100.0 + WINDOW_S)} == {"early", "late"}
    # THEN there is no series of what has not run
    assert {stage for stage, _ in quantiles(recent, 110.0 + WINDOW_S)} == {"late"}
    assert quantiles(recent, 10_000.0) == {}
    recent.add(10_001.0, GROUP, recorded("early", [0]), names())
    assert quantiles(recent, 10_001.0)["early", "0.99"] < 1e-6


def test_amounts_are_exact_and_in_their_unit() -> None:
    recent, before = Recent(), _core.snapshot()
    for size in (1, 8, 8, 9):
        with stagespan.batch("sized", [stagespan.request("r")] * size) as sized:
            sized.add(tokens=0.25 * size)
    recent.add(100.0, GROUP, _core.snapshot().since(before), names())
    found = {
        (of.family, of.label): value
        for of, label, value in recent.quantiles(100.0)
        if label == "0.5" and of.label.startswith("sized")
    }
    assert found.pop(("batch_size", "sized")) == 8
    assert math.isclose(found.pop(("run_work", "sized\0tokens")), 2, rel_tol=0.032)
    assert set(found) == {("batch", "sized")}
