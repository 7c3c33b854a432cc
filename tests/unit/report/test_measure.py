"""Runs during which the processor was slowed down are left out of a measurement."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared_core import on_a_shared_core
from stagespan.report import measure as module
from stagespan.report.measure import measure, pooled
from stagespan.report.noise import Times


def times_from(monkeypatch: pytest.MonkeyPatch, times_ns: Iterator[int]) -> list[int]:
    """Set the times of the fixed computation; return a list of those that were used."""
    used: list[int] = []

    def fixed_computation_ns() -> int:
        used.append(next(times_ns))
        return used[-1]

    monkeypatch.setattr(module, "fixed_computation_ns", fixed_computation_ns)
    return used


def test_runs_next_to_a_slow_fixed_computation_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN a processor that is slowed down occasionally
    used = times_from(monkeypatch, itertools.cycle([100, 105, 100, 170]))

    times = measure(lambda: sum(range(100)), most_seconds=0.2)

    fast = [before < 110 and after < 110 for before, after in itertools.pairwise(used)]
    assert times.count == sum(fast) < len(fast)
    # THEN the time of the fastest computation shows how fast the processor was
    assert times.fixed_ns == 100


def test_all_runs_count_if_hardly_any_was_at_full_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    used = times_from(monkeypatch, itertools.chain([100], itertools.repeat(170)))

    times = measure(lambda: sum(range(100)), most_seconds=0.2)

    assert times.count == len(used) - 1


@pytest.mark.parametrize("longer", ["WARMUP_SECONDS", "LEAST_SECONDS"])
def test_a_function_without_noise_is_measured_for_a_minimum_time(
    monkeypatch: pytest.MonkeyPatch, longer: str
) -> None:
    # GIVEN a time of warm-up, and one for the changes of the processor's speed, which few runs do
    # not show
    for name in ("WARMUP_SECONDS", "LEAST_SECONDS"):
        monkeypatch.setattr(module, name, 0.3 if name == longer else 0.1)
    monkeypatch.setattr(module, "PRECISE_ENOUGH", 100.0)
    monkeypatch.setattr(module, "DISTURBED", 100.0)
    before = time.monotonic()

    measure(lambda: time.sleep(0.01))

    assert time.monotonic() - before >= 0.4


def test_times_of_a_computing_function_are_relative_to_the_speed_of_the_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times_from(monkeypatch, itertools.cycle([1_000_000, 3_000_000]))

    computes = measure(lambda: sum(range(10_000)), most_seconds=0.2)
    waits = measure(lambda: time.sleep(0.002), most_seconds=0.2)

    # THEN each run is divided by the mean of the computations next to it
    at_speed = computes.at_speed(2_000_000)
    assert at_speed is not None
    assert at_speed.median_ms == pytest.approx(statistics.median(computes.relative_whole) * 2)
    assert waits.at_speed(2_000_000) is None


def test_a_measurement_on_a_slower_processor_is_not_pooled() -> None:
    fast, slow = Times.of([1.0, 2.0], False, 100), Times.of([9.0], True, 110)
    for measurements in ([fast, slow], [slow, fast]):
        assert pooled(measurements) == fast
    assert pooled([slow, Times.of([7.0], False, 108)]) == Times.of([9.0, 7.0], True, 108)
    # AND all count if the speed is not known
    assert pooled([Times.of([1.0]), Times.of([2.0])]) == Times.of([1.0, 2.0])


def test_a_wait_while_the_counter_of_waits_is_read_does_not_shorten_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schedstat = Path("/proc/thread-self/schedstat")
    if not schedstat.exists():
        pytest.skip("this kernel does not say how long a thread waits for a core")

    def read_after_a_wait(file: int, *place: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{file}").endswith("/schedstat"):
            waited = schedstat.read_text().split()[1]
            while schedstat.read_text().split()[1] == waited:
                if time.monotonic() > until_s:
                    stuck.append(waited)
                    break
        return pread(file, *place)

    own_ns = []
    pread = os.pread

    def function() -> None:
        began_ns = time.thread_time_ns()
        sum(range(1000))
        own_ns.append(time.thread_time_ns() - began_ns)

    def measured() -> Times:
        # GIVEN a thread that waits for its core before and after each run
        monkeypatch.setattr(os, "pread", read_after_a_wait)
        return measure(function, most_seconds=0.1)

    stuck: list[str] = []
    until_s = time.monotonic() + 60
    times = on_a_shared_core(measured)

    if stuck:
        pytest.skip("this kernel does not count how long a thread waits for a core")
    # THEN no run takes less time than the function itself
    assert min(times.samples_ms) * 1e6 >= min(own_ns)
