"""One process's share: every case in turn, round after round, and a check that nothing was lost.

Prints JSON: medians in ns of one run of each statement, the empty loop taken off.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import statistics
import sys
import threading
from collections.abc import Callable
from typing import Any

import cases
import stagespan


def _in_place(case: cases.Case, body: Callable[[], int]) -> int:
    """Run the loop where the case wants it."""
    if case.where == "request":
        with stagespan.request("benchmark"):
            return body()
    if case.where == "thread":
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(body()))
        thread.start()
        thread.join()
        return found[0]
    if case.where == "task":

        async def task() -> int:
            return body()

        return asyncio.run(task())
    return body()


def _counted() -> int:
    return sum(
        stage.count for name, stage in stagespan.stats().items() if name.startswith("bench_")
    )


def measure(rounds: int, scale: float) -> dict[str, Any]:
    """Medians over `rounds` of every case that can run here, in ns."""
    logging.getLogger("stagespan").setLevel(logging.WARNING)
    ready = [case for case in cases.CASES if cases.installed(case)]
    empty = cases.loop(cases.Case("empty", "pass"))
    runs = {case.name: cases.loop(case) for case in ready}
    found: dict[str, list[float]] = {case.name: [] for case in ready}
    # The first round warms up; spans that the setup of a case leaves open end with the process.
    timed = 0
    for number in range(rounds + 1):
        for case in ready:
            calls = max(10, int(case.calls * scale) // 10 * 10)
            gc.collect()
            gc.disable()
            nothing = empty(calls)
            whole = _in_place(case, lambda case=case, calls=calls: runs[case.name](calls))
            gc.enable()
            timed += case.spans * calls
            if number:
                found[case.name].append((whole - nothing) / calls)
    return {
        "ns": {name: statistics.median(values) for name, values in found.items()},
        "timed": timed,
        "counted": _counted(),
        "skipped": [f"{case.name} ({case.needs})" for case in cases.CASES if case not in ready],
        "growth_bytes": _growth_bytes(scale),
    }


def _growth_bytes(scale: float) -> float:
    """Resident bytes that a span adds, over many spans after the rings have filled."""

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    span = stagespan.span("growth")
    count = int(1_000_000 * scale)
    for _ in range(20_000):
        with span:
            pass
    gc.collect()
    before = resident()
    for _ in range(count):
        with span:
            pass
    gc.collect()
    return (resident() - before) / count


if __name__ == "__main__":
    # One core, so that no figure is of a cold cache after a move.
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    json.dump(measure(int(sys.argv[1]), float(sys.argv[2])), sys.stdout)
