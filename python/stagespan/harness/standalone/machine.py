"""The processor: its name, its speed, and what a thread gets of it; and the accelerators in use."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

DEVICE_TYPES = ("cuda", "xpu", "npu")
"""torch's names of the kinds of accelerators, those of `stagespan.device.table`."""
OTHERS_WORKED = 0.1  # the CPU time of other threads, by the time of the runs, that counts as work


def cpu_model() -> str | None:
    """Return the name of the processor from the kernel, or None if it gives none."""
    with (
        contextlib.suppress(OSError),
        open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file,
    ):
        for line in file:
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model", "cpu model"):
                return value.strip() or None
    return None


def fixed_computation_ns() -> int:
    """Run a computation that never changes, and return the CPU time that it took, in ns.

    It takes longer if something outside of this thread slows the processor down: another thread on
    the same core, another guest of the same host, or a lower clock. The operating system may not
    see these, and they make all CPU times longer. Files contain this time to compare it with that
    of another day, so the computation must stay the same.
    """
    began = time.thread_time_ns()
    total = 0
    for number in range(4000):
        total += number * number
    return time.thread_time_ns() - began


class Stamp(NamedTuple):
    """The clocks at one moment in ns: wall time, CPU time of thread and process, `waited_ns`."""

    wall_ns: int
    cpu_ns: int
    waited_ns: int | None
    process_ns: int


class Taken(NamedTuple):
    """What a run took in ms."""

    wall_ms: float
    cpu_ms: float
    """CPU time of the thread that ran it."""
    waited_ms: float | None
    """Part of the wall time in which the thread waited for a core; None if unknown."""
    others_ms: float
    """CPU time of the other threads of the process."""


def stamp(schedstat: int | None, at_end: bool = False) -> Stamp:
    """Read the clocks: the wall clock last at the start of a measurement, and first at its end.

    ``schedstat`` is the result of `open_schedstat`.
    """
    if at_end:
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        return Stamp(wall, cpu, waited_ns(schedstat), time.process_time_ns())
    process, waited, cpu = time.process_time_ns(), waited_ns(schedstat), time.thread_time_ns()
    return Stamp(time.perf_counter_ns(), cpu, waited, process)


def taken(began: Stamp, ended: Stamp) -> Taken:
    """Return what a run between two stamps took."""
    wall_ms, cpu_ms = (ended.wall_ns - began.wall_ns) / 1e6, (ended.cpu_ns - began.cpu_ns) / 1e6
    waited_ms = None
    if ended.waited_ns is not None and began.waited_ns is not None:
        # The thread can also have waited between the readings of two clocks, outside the run.
        most_ms = max(wall_ms - cpu_ms, 0.0)
        waited_ms = min((ended.waited_ns - began.waited_ns) / 1e6, most_ms)
    others_ms = max((ended.process_ns - began.process_ns) / 1e6 - cpu_ms, 0.0)
    return Taken(wall_ms, cpu_ms, waited_ms, others_ms)


def one_thread_worked(wall_ms: float, others_ms: float) -> bool:
    """Whether the other threads of the process did next to nothing in runs that took so long."""
    return others_ms <= OTHERS_WORKED * wall_ms


@contextlib.contextmanager
def open_schedstat() -> Iterator[int | None]:
    """Open the file with the waiting times of this thread; None if there is no such file.

    It stays open, because opening it directly before a measured run makes the run slower.
    """
    try:
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        yield file
    finally:
        os.close(file)


def waited_ns(schedstat: int | None) -> int | None:
    """Return for how long this thread has waited for a core so far; None if it is not known."""
    if schedstat is None:
        return None
    try:
        return int(os.pread(schedstat, 256, 0).split()[1])
    except (OSError, ValueError, IndexError):
        return None


def used_devices() -> list[str]:
    """Return the kinds of accelerators that this process uses; none without torch."""
    torch = sys.modules.get("torch")
    modules = {kind: getattr(torch, kind, None) for kind in DEVICE_TYPES}
    return [kind for kind in modules if getattr(modules[kind], "is_initialized", bool)()]
