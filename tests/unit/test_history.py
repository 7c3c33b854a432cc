"""What is kept of the past: enough for every window that people ask for, and no more."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagespan.history import SPACING_S, History

SECOND = 10**9


@dataclass(frozen=True)
class Snapshot:
    time_ns: int


def after_running(
    seconds: float, start_s: float = 1_700_000_000.0
) -> tuple[History[Snapshot], int]:
    history: History[Snapshot] = History()
    now = int(start_s * SECOND)
    for _ in range(int(seconds / SPACING_S)):
        now += int(SPACING_S * SECOND)
        history.add(Snapshot(now))
    return history, now


@pytest.mark.parametrize(("window_s", "off_s"), [(10, 2.5), (60, 10), (300, 60), (900, 180)])
def test_the_windows_that_people_ask_for_are_at_hand(window_s: float, off_s: float) -> None:
    # GIVEN an hour of snapshots
    history, now = after_running(3600)

    found = history.nearest(now - int(window_s * SECOND))

    assert found is not None
    assert (now - found.time_ns) / SECOND == pytest.approx(window_s, abs=off_s)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.floats(0, 20_000), st.floats(0, 2e9))
def test_it_stays_small_however_long_it_runs(seconds: float, start_s: float) -> None:
    history, _ = after_running(seconds, start_s)
    assert len(history) <= 26


@given(st.lists(st.integers(1, 400 * SECOND), min_size=1, max_size=60), st.data())
def test_the_newest_is_always_there_and_times_stay_in_order(
    steps: list[int], data: st.DataObject
) -> None:
    # GIVEN snapshots at any distances
    history: History[Snapshot] = History()
    now = 0
    for step in steps:
        now += step
        history.add(Snapshot(now))

        newest = history.nearest(now)
        assert newest == Snapshot(now)
    asked = data.draw(st.integers(0, now))
    found = history.nearest(asked)
    assert found is not None
    others = [history.nearest(t) for t in range(0, now, max(now // 50, 1))]
    assert all(
        abs(found.time_ns - asked) <= abs(other.time_ns - asked)
        for other in others
        if other is not None
    )


def test_an_empty_history_has_nothing() -> None:
    assert History[Snapshot]().nearest(5) is None


def test_snapshots_from_before_a_clock_was_set_back_are_dropped() -> None:
    # GIVEN an hour of snapshots
    history, now = after_running(3600)
    # WHEN the system's clock is set back by half a minute, and the next ones come
    back = now - 30 * SECOND
    for seconds in (0, 3, 6):
        history.add(Snapshot(back + seconds * SECOND))
    # THEN the newest is the one that was taken last, and none lies in the future
    found = history.nearest(now + 3600 * SECOND)
    assert found is not None
    assert found.time_ns == back + 6 * SECOND
    # THEN those from before that time are still there
    older = history.nearest(back - 60 * SECOND)
    assert older is not None
    assert (back - older.time_ns) / SECOND == pytest.approx(60, abs=10)
