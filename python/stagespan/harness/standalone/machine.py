"""The processor: its name, and how fast it is at the moment."""

from __future__ import annotations

import time


def cpu_model() -> str | None:
    """Return the name of the processor from the kernel, or None if it gives none."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() in ("model name", "Model", "cpu model"):
                    return value.strip() or None
    except OSError:
        pass
    return None


def fixed_computation_ns(loops: int = 4000) -> int:
    """Run a computation that never changes, and return the CPU time that it took, in ns.

    It takes longer if something outside of this thread slows the processor down: another thread on
    the same core, another guest of the same host, or a lower clock. The operating system may not
    see these, and they make all CPU times longer. Files contain this time to compare it with that
    of another day, so the computation must stay the same.
    """
    began = time.thread_time_ns()
    total = 0
    for number in range(loops):
        total += number * number
    return time.thread_time_ns() - began
