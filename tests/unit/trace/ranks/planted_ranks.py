"""Traces of many ranks with known clocks, arrivals and computing. All times are in us."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from commands import checked, unstated

from stagespan.pages.result import Finding
from stagespan.trace.analysis import Analysis
from stagespan.trace.paths import analyze_ranks
from stagespan.trace.ranks.report import Ranks

US = 1_000
BASE_NS = 1_700_000_000_000_000_000
Call = tuple[str, float, float]
"""A collective on one rank: operation, begin and end."""


def write_rank(
    folder: Path,
    rank: int,
    calls: Sequence[Call],
    world: int | None = None,
    clock: float = 0,
    computing: Sequence[tuple[float, float]] = (),
    name: str | None = None,
    groups: Sequence[str] = (),
    message: tuple[int, str, int] | None = None,
    host: str | None = None,
    info: bool = True,
    call: str = "cudaLaunchKernel",
    begin: float = 0,
    end: float | None = None,
    steps: Sequence[tuple[float, float]] = (),
    about: dict[str, Any] | None = None,
    mark: str | None = None,
) -> Path:
    """One rank's trace, by a clock that is `clock` ahead; `begin` and `end` are the window's.

    `mark` is the annotation around the launch of each collective. `message` is what every
    collective carries: elements, their type, ranks in the group; `about` is what
    `distributedInfo` says besides.
    """
    last = max([stop for _, _, stop in calls] + [stop for _, stop in computing] + [begin])
    entries: list[dict[str, Any]] = []

    def add(name: str, cat: str, start: float, stop: float, tid: int, **args: Any) -> None:
        entry = {"ph": "X", "name": name, "cat": cat, "ts": start + clock, "dur": stop - start}
        entries.append(entry | {"pid": 0 if "stream" in args else 77, "tid": tid, "args": args})

    add("main", "cpu_op", begin, last if end is None else end, 1)
    for number, (start, stop) in enumerate(steps):
        add(f"ProfilerStep#{number + 1}", "user_annotation", start, stop, 1)
    for number, (start, stop) in enumerate(computing):
        add(call, "cuda_runtime", start - 1, start, 1, correlation=number + 1)
        add("gemm", "kernel", start, stop, 7, device=0, stream=7, correlation=number + 1)
    for number, (op, start, stop) in enumerate(calls):
        extra: dict[str, Any] = {"Process Group Name": groups[number]} if groups else {}
        if mark is not None:
            extra["correlation"] = 1_000_000 + number
            add(mark, "user_annotation", start - 3, start - 1, 1)
            add(call, "cuda_runtime", start - 2, start - 1, 1, correlation=extra["correlation"])
        if message is not None:
            elements, kind, size = message
            extra |= {"In msg nelems": elements, "dtype": kind, "Group size": size}
        add(f"ncclDevKernel_{op}_RING", "kernel", start, stop, 20, device=0, stream=20, **extra)
    path = folder / (name or f"rank{rank}.json.gz")
    path.parent.mkdir(parents=True, exist_ok=True)
    top: dict[str, Any] = {"baseTimeNanoseconds": BASE_NS, "traceEvents": entries}
    if info:
        top["distributedInfo"] = {"backend": "nccl", "rank": rank, **(about or {})}
        if world is not None:
            top["distributedInfo"]["world_size"] = world
    if host is not None:
        top["host_name"] = host
    data = json.dumps(top).encode()
    path.write_bytes(gzip.compress(data, 1) if path.name.endswith(".gz") else data)
    return path


def together(arrivals: Sequence[Sequence[float]], took: float = 10) -> list[list[Call]]:
    """For each rank its collectives, which end on all ranks `took` after the last arrival."""
    ends = [max(each) + took for each in zip(*arrivals, strict=True)]
    return [
        [("AllReduce_Sum_f32", begin, end) for begin, end in zip(mine, ends, strict=True)]
        for mine in arrivals
    ]


def finding_in(found: Ranks, code: str) -> Finding:
    """Return the only finding with a code."""
    (finding,) = [each for each in found.findings() if each.code == code]
    assert unstated([finding]) == []
    return finding


def codes_in(found: Ranks) -> list[str]:
    return [each.code for each in found.findings()]


def ranks_in(folder: Path, jobs: int | None = 1) -> Ranks:
    return result_of(analyze_ranks(folder, jobs))


def result_of(analysis: Analysis) -> Ranks:
    return checked(analysis.results["ranks"], Ranks)
