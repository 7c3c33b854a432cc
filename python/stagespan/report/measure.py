"""Measures a function until the median of its times is precise enough."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from stagespan.device import platforms
from stagespan.harness.standalone.machine import fixed_computation_ns
from stagespan.report.changes import SPEED_CHANGE
from stagespan.report.noise import Times, relative_noise, relative_times

LEAST_RUNS = 20
MOST_RUNS = 20_000
MOST_SECONDS = 5.0
LEAST_SECONDS = 1.0
"""The time that is measured even if the noise of the runs is small.

The speed of a processor changes several times a second, which runs within a shorter time do not
show: medians of 0.1 s in different processes differed by 2.3 % (standard deviation), those of 0.8 s
by 1.5 %.
"""
WARMUP_SECONDS = 1.0
WARMUP_RUNS = 5
PRECISE_ENOUGH = 0.01
"""The relative noise of the median at which a measurement ends."""
DISTURBED = 0.1
"""The fraction of the cores' time used by others, above which a measurement is disturbed."""
SLOWED = 1.1
"""If a fixed computation takes this many times its fastest time, a run next to it is slowed."""
_LOOK_EVERY = 10


def measure(function: Callable[[], Any], *, most_seconds: float = MOST_SECONDS) -> Times:
    """Warm up, then run ``function`` repeatedly and return the times of its runs.

    If the system reports the time in which the thread waited for a core, that time is subtracted,
    so that other programs have less influence. A fixed computation runs between the runs. Runs next
    to which it was slow are left out, if enough others remain. The work of an accelerator is
    included: each run ends when the device has finished.
    """
    _warm_up(function, min(WARMUP_SECONDS, most_seconds))
    times_ms: list[float] = []
    cpu_ms = 0.0
    fixed_ns = [fixed_computation_ns()]
    begin_s = time.monotonic()
    end_s = begin_s + most_seconds
    before = _Load.now()
    next_look = LEAST_RUNS
    while len(times_ms) < MOST_RUNS:
        run_ms, run_cpu_ms = _run_ms(function)
        times_ms.append(run_ms)
        cpu_ms += run_cpu_ms
        fixed_ns.append(fixed_computation_ns())
        is_late = time.monotonic() > end_s
        if len(times_ms) >= next_look or (is_late and len(times_ms) >= LEAST_RUNS):
            next_look = len(times_ms) + max(_LOOK_EVERY, len(times_ms) // 10)
            noise = relative_noise(Times.of(_not_slowed(times_ms, fixed_ns)))
            is_long = time.monotonic() >= begin_s + LEAST_SECONDS
            is_precise = is_long and noise is not None and noise <= PRECISE_ENOUGH
            # On a busy machine, continue: it may become less busy.
            if is_late or (is_precise and not _is_disturbed(before, _Load.now())):
                break
        elif is_late and len(times_ms) >= 3 and time.monotonic() > end_s + 5 * most_seconds:
            break
    is_disturbed = _is_disturbed(before, _Load.now())
    is_on_cpu = platforms.accelerator_in_use() is None
    return Times.of(
        _not_slowed(times_ms, fixed_ns),
        is_disturbed,
        min(fixed_ns),
        relative_times(times_ms, cpu_ms, fixed_ns) if is_on_cpu else (),
    )


def pooled(measurements: Sequence[Times]) -> Times:
    """Return the runs of several measurements of one function.

    A measurement during which the processor was slower than during another one is left out, see
    `changes.SPEED_CHANGE`.
    """
    known = [times.fixed_ns for times in measurements if times.fixed_ns is not None]
    fastest_ns = min(known, default=None)
    kept = [
        times
        for times in measurements
        if times.fixed_ns is None
        or fastest_ns is None
        or times.fixed_ns <= (1 + SPEED_CHANGE) * fastest_ns
    ]
    return replace(Times.of_runs(kept), relative=Times.of_runs(measurements).relative)


def _not_slowed(times_ms: list[float], fixed_ns: list[int]) -> list[float]:
    """Return the times of the runs at the full speed of the processor; all if they are too few.

    ``fixed_ns`` are the times of the fixed computation before the first run and after each run.
    """
    most_ns = SLOWED * min(fixed_ns)
    kept = [
        time_ms
        for time_ms, before_ns, after_ns in zip(times_ms, fixed_ns, fixed_ns[1:], strict=False)
        if before_ns <= most_ns and after_ns <= most_ns
    ]
    return kept if len(kept) >= LEAST_RUNS else times_ms


class _Load(NamedTuple):
    """The time of all cores since the machine started, and that of this process, in seconds."""

    total_s: float
    busy_s: float
    own_s: float

    @staticmethod
    def now() -> _Load | None:
        """Return the load so far; None if it is not known."""
        try:
            with open("/proc/stat", encoding="ascii") as file:
                ticks = [int(field) for field in file.readline().split()[1:9]]
        except (OSError, ValueError):
            return None
        idle = ticks[3] + ticks[4]
        own, per_s = os.times(), os.sysconf("SC_CLK_TCK")
        own_s = own.user + own.system + own.children_user + own.children_system
        return _Load(sum(ticks) / per_s, (sum(ticks) - idle) / per_s, own_s)


def _is_disturbed(before: _Load | None, after: _Load | None) -> bool | None:
    """Whether other programs used the cores between two readings."""
    if before is None or after is None or after.total_s <= before.total_s:
        return None
    others_s = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    return others_s > DISTURBED * (after.total_s - before.total_s)


def _warm_up(function: Callable[[], Any], most_seconds: float) -> None:
    end_s = time.monotonic() + most_seconds
    for number in range(MOST_RUNS):
        _run_ms(function)
        if number + 1 >= WARMUP_RUNS and time.monotonic() > end_s:
            return


def _run_ms(function: Callable[[], Any]) -> tuple[float, float]:
    """Return the time of a run without the time that it waited for a core, and its CPU time."""
    _synchronize()
    waited_ns = _waited_ns()
    cpu_begin_ns = time.thread_time_ns()
    begin_ns = time.perf_counter_ns()
    function()
    _synchronize()
    elapsed_ns = time.perf_counter_ns() - begin_ns
    cpu_ns = time.thread_time_ns() - cpu_begin_ns
    waited_ns = max(_waited_ns() - waited_ns, 0)
    # The wait can have been while the system's counter was read, outside the run. The CPU time is a
    # limit: without it, such a run would take no time, and be the fastest run of its measurement.
    least_ns = min(cpu_ns, elapsed_ns)
    return max(elapsed_ns - waited_ns, least_ns, 1) / 1e6, cpu_ns / 1e6


def _synchronize() -> None:
    accelerator = platforms.accelerator_in_use()
    if accelerator is not None:
        accelerator.synchronize()


def _waited_ns() -> int:
    """Return the time that this thread has waited for a core so far; 0 if it is not known."""
    try:
        with open("/proc/thread-self/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
