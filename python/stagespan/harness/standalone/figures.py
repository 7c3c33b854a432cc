"""The figures of several runs, and sentences about them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stagespan.harness.standalone.machine import one_thread_worked, used_devices

BUSY_WAITS = 0.1  # the part of the time waiting for a core from which a machine counts as busy
IDLE = 0.5  # the part of the time from which an idle thread is reported
SLOWED = 1.1  # the ratio of the fixed computation's mean to its fastest time that is reported
CLOCK_CHANGE = 0.05  # the relative change of the device's clock that is reported


class Run(NamedTuple):
    """The times of one run in ms."""

    wall_ms: float
    cpu_ms: float
    """CPU time of the thread that ran it."""
    waited_ms: float | None
    """Part of the wall time in which the thread waited for a core; None if unknown."""
    before_ms: float
    """From the call of the step to the start of the measured part."""
    fixed_ns: int | None = None
    """The time of `fixed_computation_ns` before this run."""
    before_cpu_ms: float = 0.0
    """CPU time of the thread in `before_ms`."""
    others_ms: float = 0.0
    """CPU time of the other threads of the process."""


def times_of(runs: Sequence[Run]) -> tuple[list[float], list[float]]:
    """Return the wall times and the CPU times in ms."""
    return [run.wall_ms for run in runs], [run.cpu_ms for run in runs]


def summary(
    runs: Sequence[Run],
    device: str = "cpu",
    clocks_mhz: Sequence[int | None] = (),
    fastest_fixed_ns: int | None = None,
    fastest_in_process_ns: int | None = None,
) -> dict[str, Any]:
    """Return the `figures` of several runs, and their clocks, CPU times and waiting times.

    ``fastest_fixed_ns`` is the time of the fastest fixed computation of these runs, and
    ``fastest_in_process_ns`` that of the whole process (by default the same). ``slowdown`` is their
    mean divided by the latter. All figures are None if there are no runs. ``one_thread`` says
    whether the thread that ran them did all the work, without a device.
    """
    walls, cpus = times_of(runs)
    stats: dict[str, Any] = figures(walls)
    stats["clocks_mhz"] = list(clocks_mhz) if all(clocks_mhz) and clocks_mhz else None
    stats["cpu"] = figures(cpus)
    stats["waited_ms"] = waited_ms(runs)
    stats["fixed_ns"] = fastest_fixed_ns
    stats["slowdown"] = slowdown(runs, fastest_in_process_ns or fastest_fixed_ns)
    stats["busy"] = busy(runs, device, stats["slowdown"])
    stats["one_thread"] = (
        device.startswith("cpu")
        and not used_devices()
        and one_thread_worked(sum(walls), sum(run.others_ms for run in runs))
    )
    return stats


def figures(times: list[float]) -> dict[str, Any]:
    """Median, quartiles, mean, min and max in milliseconds, and the number of runs."""
    if not times:
        names = ("p50", "p25", "p75", "mean", "min", "max")
        return {**dict.fromkeys(names), "iterations": 0}
    ordered = sorted(times)
    # At least two times are needed, so a single one counts twice.
    quartiles = statistics.quantiles(ordered if times[1:] else times * 2, method="inclusive")
    return {
        "p50": statistics.median(ordered),
        "p25": quartiles[0],
        "p75": quartiles[2],
        "mean": statistics.fmean(ordered),
        "min": ordered[0],
        "max": ordered[-1],
        "iterations": len(ordered),
    }


def waited_ms(runs: Sequence[Run]) -> float | None:
    """Return the total time in ms that several runs waited for a core; None if unknown."""
    waits = [run.waited_ms for run in runs if run.waited_ms is not None]
    return sum(waits) if waits and len(waits) == len(runs) else None


def slowdown(runs: Sequence[Run], fastest_ns: int | None) -> float | None:
    """Return the mean time of the fixed computation, divided by its fastest time, if known.

    The slowest 5 % are left out, because interrupts make single ones much longer.
    """
    times = sorted(run.fixed_ns for run in runs if run.fixed_ns is not None)
    kept = times[: max(len(times) * 95 // 100, 1)]
    return statistics.fmean(kept) / fastest_ns if kept and fastest_ns else None


def busy(runs: Sequence[Run], device: str, slowed_by: float | None) -> str | None:
    """Return a sentence if the runs waited for a core, or if the processor was slowed down.

    None if neither happened, or if it is not known. ``slowed_by`` is the result of `slowdown`.
    """
    wall, cpu = map(sum, times_of(runs))
    if not wall:
        return None
    share = cpu / wall
    waits = waited_ms(runs)
    if waits is not None and waits / wall >= BUSY_WAITS:
        return (
            f"The machine was busy: the thread had {share:.0%} of a core and waited for one "
            f"{waits / wall:.0%} of the time, so compare CPU times."
        )
    if slowed_by is not None and slowed_by >= SLOWED:
        return (
            f"The machine was busy: a fixed computation took {slowed_by:.2f} x its fastest time in "
            f"this process on average, so other programs, or other guests of the host, slowed the "
            f"processor down."
        )
    if waits is not None or not device.startswith("cpu") or share > 1 - BUSY_WAITS:
        return None
    return (
        f"The thread ran only {share:.0%} of the time: the machine was busy, or the stage waits "
        f"for something; compare CPU times."
    )


def spread(found: Mapping[str, Any]) -> str:
    """Return the median and the middle half of `figures` as text."""
    return f"{found['p50']:,.2f} ms (middle half {found['p25']:,.2f} to {found['p75']:,.2f})"


def profiled_ratio(profiled_ms: float | None, timing: Mapping[str, Any]) -> float | None:
    """Return how many times the measured median a profiled iteration took; None if not known."""
    if profiled_ms is None or not timing["p50"]:
        return None
    return float(profiled_ms / timing["p50"])


def profiled_line(result: Mapping[str, Any]) -> str | None:
    """A sentence about ``profiled_ms`` and ``profiled_ratio``; None if they are not known."""
    if result["profiled_ratio"] is None:
        return None
    runs = len(result.get("profiled_runs_ms", ()))
    nearest = "" if runs < 2 else f", the nearest of {runs} profiled runs"
    return (
        f"The profiled run took {result['profiled_ratio']:.2f} x the median "
        f"({result['profiled_ms']:,.2f} ms for each iteration){nearest}."
    )


def idle(timing: Mapping[str, Any], device: str = "cpu") -> str | None:
    """Return a sentence if the thread neither ran nor waited for a core most of the time.

    None if an accelerator is in use, for which the thread waits, and if the times are not known.
    """
    if not timing["mean"] or timing["waited_ms"] is None:
        return None
    if not device.startswith("cpu") or used_devices():
        return None
    waited_ms = timing["waited_ms"] / timing["iterations"]
    share = 1 - (timing["cpu"]["mean"] + waited_ms) / timing["mean"]
    if share < IDLE:
        return None
    return (
        f"The thread was idle {share:.0%} of the time: the stage waits, for example for other "
        f"threads or processes, whose work is not in the breakdown."
    )


def clock_change(timing: Mapping[str, Any]) -> str | None:
    """Return a sentence if the device's clock changed during the measurement; otherwise None."""
    before, after = timing["clocks_mhz"] or (None, None)
    if not before or not after or abs(after - before) <= CLOCK_CHANGE * before:
        return None
    return (
        f"The device's clock changed from {before:,} to {after:,} MHz meanwhile, so times may not "
        f"be comparable: fix the clocks, or measure for longer."
    )
