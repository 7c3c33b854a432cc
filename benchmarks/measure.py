"""Runs all cases alternately in one process, and checks that no timed span is missing.

Run by `benchmarks` as `python -m benchmarks.measure ROUNDS CHUNK_US`; prints JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import stagespan
from benchmarks import cases

_worker = ThreadPoolExecutor(1)
_NOTHING = contextlib.nullcontext()
_log = logging.getLogger("stagespan")


async def _as_task(body: Callable[[], int], around: Any = _NOTHING) -> int:
    with around:
        return body()


def _run(case: cases.Case, body: Callable[[int], Any], rounds: int) -> int:
    """Run the loop in the context that the case needs. Returns ns."""
    took_ns: int
    match case.where:
        case "nested":
            with stagespan.span("outer"), stagespan.span("middle"):
                took_ns = body(rounds)
        case "request":
            with stagespan.request("benchmark"):
                took_ns = body(rounds)
        case "worker":
            took_ns = _worker.submit(body, rounds).result()
        case "task":
            took_ns = asyncio.run(_as_task(lambda: body(rounds)))
        case "nested task" | "request task":
            around = stagespan.span("outer") if case.where == "nested task" else stagespan.request()
            took_ns = asyncio.run(_as_task(lambda: body(rounds), around))
        case "coroutine":
            took_ns = asyncio.run(body(rounds))
        case "uvloop":
            import uvloop

            took_ns = uvloop.run(body(rounds))
        case "off":
            stagespan.disable()
            took_ns = body(rounds)
            stagespan.enable()
        case "told":  # as with STAGESPAN_OTEL_CONTEXT
            from stagespan.contexts import opentelemetry

            opentelemetry.add_exporter(case)
            took_ns = body(rounds)
            opentelemetry.remove_exporter(case)
        case "served" | "logged":
            _log.setLevel(logging.INFO if case.where == "logged" else logging.WARNING)
            began = time.perf_counter_ns()
            body(rounds)
            stagespan.flush()  # the work of the service thread is part of the cost, and ends here
            took_ns = time.perf_counter_ns() - began
        case _:
            took_ns = body(rounds)
    return took_ns


def _rounds_for(case: cases.Case, body: Callable[[int], Any], chunk_ns: float) -> int:
    """Return the number of rounds that take about `chunk_ns`, too short for many interruptions."""
    quickest = min(_run(case, body, 2) for _ in range(3)) / 2
    return max(1, min(10_000, int(chunk_ns / max(quickest, 1.0))))


class _Expected:
    """The number of spans that each stage must have at the end."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}

    def add(self, case: cases.Case, rounds: int) -> None:
        if case.stage:
            spans = 1 if case.per_loop else rounds * cases.UNROLL
            self._of[case.stage] = self._of.get(case.stage, 0) + spans

    def check(self) -> int:
        """Compare with `stats()`. Returns the number of spans, or exits with a message."""
        counts = {name: stage.count for name, stage in stagespan.stats().items()}
        for beginning, timed in self._of.items():
            counted = sum(n for name, n in counts.items() if name.startswith(beginning))
            if counted != timed:
                sys.exit(f"{timed:,} spans of {beginning} were timed, stats() has {counted:,}.")
        return sum(self._of.values())


def measure(turns: int, chunk_us: float) -> dict[str, Any]:
    """Run every case `turns` times, alternately, so that a drift of the machine affects all."""
    _log.addHandler(logging.StreamHandler(open(os.devnull, "w")))  # noqa: SIM115
    _log.setLevel(logging.WARNING)
    ready = [case for case in cases.CASES if cases.is_installed(case)]
    empty = cases.Case("empty", "pass")
    bodies = {case: cases.loop(case) for case in (empty, *ready)}
    expected = _Expected()
    rounds = {}
    for case, body in bodies.items():
        rounds[case] = _rounds_for(case, body, chunk_us * 1e3)
        for _ in range(3):
            expected.add(case, 2)
    times_ns: dict[cases.Case, list[float]] = {case: [] for case in bodies}
    gc.collect()
    gc.freeze()
    gc.disable()
    order = list(bodies.items())
    shuffle = random.Random(turns).shuffle
    for _ in range(turns):
        shuffle(
            order
        )  # a different order each time, because a case changes the caches for the next one
        for case, body in order:
            ns = _run(case, body, rounds[case])
            expected.add(case, rounds[case])
            times_ns[case].append(ns / rounds[case] / cases.UNROLL)
    gc.enable()
    nothing = statistics.median(times_ns.pop(empty))
    return {
        "ns": {
            case.name: [round(ns - nothing, 2) for ns in values]
            for case, values in times_ns.items()
        },
        "spans": expected.check(),
        "skipped": {case.name: case.needs for case in cases.CASES if case not in ready},
        **_readers(turns),
        **_growth(int(1_000_000 * min(1.0, turns / 25))),
    }


def _readers(turns: int) -> dict[str, Any]:
    """Return the cost of reading in ms, with about 220 stages and full rings."""

    def ms(read: Callable[[], object]) -> float:
        times = []
        for _ in range(min(turns, 15)):
            began = time.perf_counter_ns()
            read()
            times.append((time.perf_counter_ns() - began) / 1e6)
        return statistics.median(times)

    return {
        "stats_ms": ms(stagespan.stats),
        "spans_ms": ms(stagespan.spans),
        "spans_read": len(stagespan.spans()),
        "stages": len(stagespan.stats()),
    }


def _growth(spans: int) -> dict[str, Any]:
    """Return the resident bytes that spans add after the ring has been filled once."""

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    span = stagespan.span("growth")
    for _ in range(20_000):
        with span:
            pass
    gc.collect()
    before = resident()
    for _ in range(spans):
        with span:
            pass
    gc.collect()
    return {"growth_bytes": max(0, resident() - before), "growth_spans": spans}


if __name__ == "__main__":
    # One core, because the caches would be cold after a move to another one.
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    json.dump(measure(int(sys.argv[1]), float(sys.argv[2])), sys.stdout)
