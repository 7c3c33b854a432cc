"""Snapshots of the past: enough for the usual windows, and no more."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from properties import examples
from stagespan.live.history import SPACING_S, History

SECOND = 10**9


@dataclass(frozen=True)
class Snapshot:
    time_ns: int
    size_bytes: int = 0


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
def test_the_usual_windows_are_available(window_s: float, off_s: float) -> None:
    history, now = after_running(3600)

    found = history.nearest(now - int(window_s * SECOND))

    assert found is not None
    assert (now - found.time_ns) / SECOND == pytest.approx(window_s, abs=off_s)


AGES = [
    *(0.0, 2.5, 5.0, 7.5, 10.0, 12.5, 15.0),
    *(20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0),
    *(120.0, 180.0, 240.0, 300.0, 360.0),
    *(540.0, 720.0, 900.0, 1080.0),
]


def test_the_ages_of_the_snapshots_after_an_hour() -> None:
    # GIVEN an hour of snapshots that ends at a full multiple of all distances
    history, now = after_running(3600, start_s=1_800_000_000)

    ages = [now / SECOND - SPACING_S * number for number in range(600)]
    found = {history.nearest(int(age * SECOND)) for age in ages}

    assert sorted((now - each.time_ns) / SECOND for each in found if each is not None) == AGES
    assert len(history) == len(AGES)


@pytest.mark.parametrize(
    ("up_to_s", "distance_s"), [(15.0, 2.5), (80.0, 10.0), (400.0, 60.0), (1100.0, 180.0)]
)
@pytest.mark.parametrize("is_older", [False, True])
def test_up_to_which_age_a_distance_applies(
    up_to_s: float, distance_s: float, is_older: bool
) -> None:
    history: History[Snapshot] = History()
    times_s = (0.0, distance_s, distance_s + up_to_s + 0.5 * is_older)
    for time_s in times_s:
        history.add(Snapshot(int(time_s * SECOND)))

    second = history.nearest(int(distance_s * SECOND))

    assert (second == Snapshot(int(distance_s * SECOND))) is not is_older


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(st.floats(0, 20_000), st.floats(0, 2e9))
def test_its_size_is_bounded(seconds: float, start_s: float) -> None:
    history, _ = after_running(seconds, start_s)
    assert len(history) <= 26


@given(st.lists(st.integers(1, 400 * SECOND), min_size=1, max_size=60), st.data())
def test_the_newest_is_always_there_and_times_stay_in_order(
    steps: list[int], data: st.DataObject
) -> None:
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


@pytest.mark.parametrize("size_bytes", [1, 60, 100, 300, 900, 1001])
def test_large_snapshots_are_fewer_so_that_their_memory_is_bounded(size_bytes: int) -> None:
    # GIVEN a limit, and an hour of snapshots of which a different number fits into it
    history: History[Snapshot] = History(most_bytes=1000)
    now = 1_700_000_000 * SECOND
    most = 0
    for _ in range(1440):
        now += int(SPACING_S * SECOND)
        history.add(Snapshot(now, size_bytes))
        most = max(most, len(history) * size_bytes)
    # THEN they never use more, except for one that is larger
    assert most <= max(1000, size_bytes)
    assert history.nearest(now) == Snapshot(now, size_bytes)
    # THEN as many are kept as for windows of about these lengths, if there is space for them
    if size_bytes <= 100:
        for window_s in (10, 60, 300, 900):
            found = history.nearest(now - window_s * SECOND)
            assert found is not None
            assert abs(now - found.time_ns - window_s * SECOND) <= 0.5 * window_s * SECOND


def test_a_history_that_has_become_small_again_becomes_dense_again() -> None:
    history: History[Snapshot] = History(most_bytes=1000)
    now = 1_700_000_000 * SECOND
    for count, size_bytes in ((600, 400), (600, 10)):
        for _ in range(count):
            now += int(SPACING_S * SECOND)
            history.add(Snapshot(now, size_bytes))
    found = history.nearest(now - 10 * SECOND)
    assert found is not None
    assert (now - found.time_ns) / SECOND == pytest.approx(10, abs=SPACING_S)


def test_an_empty_history_has_nothing() -> None:
    assert History[Snapshot]().nearest(5) is None


def test_snapshots_from_before_a_clock_was_set_back_are_dropped() -> None:
    history, now = after_running(3600)
    # WHEN the system's clock is set back by half a minute, and the next ones come
    back = now - 30 * SECOND
    for seconds in (0, 3, 6):
        history.add(Snapshot(back + seconds * SECOND))
    # THEN the newest is the one that was taken last, and none is in the future
    found = history.nearest(now + 3600 * SECOND)
    assert found is not None
    assert found.time_ns == back + 6 * SECOND
    older = history.nearest(back - 60 * SECOND)
    assert older is not None
    assert (back - older.time_ns) / SECOND == pytest.approx(60, abs=10)
