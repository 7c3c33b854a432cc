"""Times of a function, run until their median is known well enough."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from stagespan import platforms
from stagespan.report.noise import Times, relative_noise

FEWEST_RUNS = 20
MOST_RUNS = 20_000
MOST_SECONDS = 5.0
WARMUP_SECONDS = 1.0
WARMUP_RUNS = 5
PRECISE_ENOUGH = 0.01
"""Noise of the median, as a part of it, at which a measurement ends."""
DISTURBED = 0.1
"""Part of the cores' time that other programs take when a measurement counts as disturbed."""
_LOOK_EVERY = 10


def measure(function: Callable[[], Any], *, most_seconds: float = MOST_SECONDS) -> Times:
    """Run ``function`` warm, then again and again, and return the times of its runs.

    The time in which the thread waited for a core is left out where the system tells it, so that
    other programs disturb less. The work of an accelerator is included: each run ends when the
    device has done it.
    """
    _warm_up(function, min(WARMUP_SECONDS, most_seconds))
    samples: list[float] = []
    end_s = time.monotonic() + most_seconds
    before = _Load.now()
    while len(samples) < MOST_RUNS:
        samples.append(_run_ms(function))
        is_late = time.monotonic() > end_s
        if len(samples) >= FEWEST_RUNS and (len(samples) % _LOOK_EVERY == 0 or is_late):
            noise = relative_noise(Times.of(samples))
            is_precise = noise is not None and noise <= PRECISE_ENOUGH
            # On a busy machine, waiting may bring a time in which it is not.
            if is_late or (is_precise and not _is_disturbed(before, _Load.now())):
                break
        elif is_late and len(samples) >= 3 and time.monotonic() > end_s + 5 * most_seconds:
            break
    return Times.of(samples, _is_disturbed(before, _Load.now()))


class _Load(NamedTuple):
    """Time of all cores since the machine started, and this process's part, in seconds."""

    total_s: float
    busy_s: float
    own_s: float

    @staticmethod
    def now() -> _Load | None:
        """The load so far; None if the system does not tell."""
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
    """Whether other programs used the cores meanwhile."""
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


def _run_ms(function: Callable[[], Any]) -> float:
    _synchronize()
    waited = _waited_ns()
    begin = time.perf_counter_ns()
    function()
    _synchronize()
    end = time.perf_counter_ns()
    # The clocks are read at slightly different times, so that the difference can be a bit off.
    return max(end - begin - max(_waited_ns() - waited, 0), 1) / 1e6


def _synchronize() -> None:
    accelerator = platforms.accelerator_in_use()
    if accelerator is not None:
        accelerator.synchronize()


def _waited_ns() -> int:
    """How long this thread has been ready to run without a core; 0 if the system does not tell."""
    try:
        with open("/proc/thread-self/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
