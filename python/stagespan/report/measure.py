"""Measures a function until the median of its times is precise enough."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from stagespan.device import platforms
from stagespan.harness.standalone.machine import (
    Taken,
    fixed_computation_ns,
    one_thread_worked,
    open_schedstat,
    stamp,
    taken,
)
from stagespan.process.tracers import active_tracers, is_tracer_suspended, untraced
from stagespan.report.differences import SPEED_CHANGE
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

    A tracer that comes back by itself is suspended meanwhile. Others stay, and the result has their
    names.
    """
    tracers = active_tracers()
    was_traced = is_tracer_suspended()
    measured = partial(_measured, function, most_seconds)
    times, others_worked = measured() if tracers else untraced(measured)
    if was_traced and others_worked and threading.active_count() > 1:
        # A tracer can only be suspended by its own thread.
        tracers = (*tracers, "coverage in other threads")
    return replace(times, tracers=tracers)


def _measured(function: Callable[[], Any], most_seconds: float) -> tuple[Times, bool]:
    """Measure a function. Returns its times, and whether other threads did a part of the work."""
    runs: list[Taken] = []
    with open_schedstat() as schedstat:
        _warm_up(function, schedstat, min(WARMUP_SECONDS, most_seconds))
        fixed_ns = [fixed_computation_ns()]
        begin_s = time.monotonic()
        end_s = begin_s + most_seconds
        before = _Load.now()
        next_look = LEAST_RUNS
        while len(runs) < MOST_RUNS:
            runs.append(_run(function, schedstat))
            fixed_ns.append(fixed_computation_ns())
            is_late = time.monotonic() > end_s
            if len(runs) >= next_look or (is_late and len(runs) >= LEAST_RUNS):
                next_look = len(runs) + max(_LOOK_EVERY, len(runs) // 10)
                noise = relative_noise(Times.of([_own_ms(runs[at]) for at in _at_speed(fixed_ns)]))
                is_long = time.monotonic() >= begin_s + LEAST_SECONDS
                is_precise = is_long and noise is not None and noise <= PRECISE_ENOUGH
                # On a busy machine, continue: it may become less busy.
                if is_late or (is_precise and not _is_disturbed(before, _Load.now())):
                    break
            elif is_late and len(runs) >= 3 and time.monotonic() > end_s + 5 * most_seconds:
                break
        is_disturbed = _is_disturbed(before, _Load.now())
    is_on_cpu = platforms.accelerator_in_use() is None
    is_alone = one_thread_worked(
        sum(run.wall_ms for run in runs), sum(run.others_ms for run in runs)
    )
    times_ms = [_own_ms(run) for run in runs]
    kept = _at_speed(fixed_ns)
    cpu_ms: list[float] = []
    relative: Sequence[float] = ()
    if is_on_cpu and is_alone:
        # Between the readings of two clocks, the thread also computes.
        cpu_ms = [min(runs[at].cpu_ms, times_ms[at]) for at in kept]
        relative = [
            2e6 * run_ms / max(fixed_ns[at] + fixed_ns[at + 1], 1)
            for at, run_ms in zip(kept, cpu_ms, strict=True)
        ]
    elif is_on_cpu:
        relative = relative_times(times_ms, sum(run.cpu_ms for run in runs), fixed_ns)
    times = Times.of([times_ms[at] for at in kept], is_disturbed, min(fixed_ns), relative, cpu_ms)
    return times, not is_alone


def pooled(measurements: Sequence[Times]) -> Times:
    """Return the runs of several measurements of one function.

    A measurement during which the processor was slower than during another one is left out, see
    `differences.SPEED_CHANGE`.
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
    times = Times.of_runs(kept)
    # The times relative to the processor's speed are those of all runs, unless they are CPU times.
    return times if times.cpu_ms else replace(times, relative=Times.of_runs(measurements).relative)


def _at_speed(fixed_ns: list[int]) -> list[int]:
    """Return which runs were made at the full speed of the processor; all if they are too few.

    ``fixed_ns`` are the times of the fixed computation before the first run and after each run.
    """
    most_ns = SLOWED * min(fixed_ns)
    runs = range(len(fixed_ns) - 1)
    kept = [at for at in runs if fixed_ns[at] <= most_ns and fixed_ns[at + 1] <= most_ns]
    return kept if len(kept) >= LEAST_RUNS else list(runs)


def _own_ms(run: Taken) -> float:
    """Return the time of a run without the time in which the thread waited for a core."""
    return max(run.wall_ms - (run.waited_ms or 0.0), 1e-6)


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


def _warm_up(function: Callable[[], Any], schedstat: int | None, most_seconds: float) -> None:
    end_s = time.monotonic() + most_seconds
    for number in range(MOST_RUNS):
        _run(function, schedstat)
        if number + 1 >= WARMUP_RUNS and time.monotonic() > end_s:
            return


def _run(function: Callable[[], Any], schedstat: int | None) -> Taken:
    _synchronize()
    began = stamp(schedstat)
    function()
    _synchronize()
    return taken(began, stamp(schedstat, at_end=True))


def _synchronize() -> None:
    accelerator = platforms.accelerator_in_use()
    if accelerator is not None:
        accelerator.synchronize()
