"""The kernel breakdown of a stage: the time of each kernel, or on a CPU of each operator."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.derived.device import device_work, launch_of
from stagespan.trace.figures import Count, Figures
from stagespan.trace.read.intervals import Numbers, exclusive
from stagespan.trace.read.model import Trace

TOP = 50
# What the profiler and torch.compile write about themselves.
_NOT_WORK = re.compile(r"ProfilerStep[#*]|\[memory\]$|.* \(dynamo_timed\)$|.*_data: compile_id=")


@dataclass(frozen=True, slots=True)
class KernelRow:
    """All launches of one kernel, or all calls of one operator; times in ns."""

    name: str
    time_ns: int
    """On a device the kernels' durations; on a CPU the operator's less those of operators in it."""
    count: int
    launch_ns: int | None
    """On a device: time of the calls that launched them, one that launched several kernels shared
    equally; None when none of the calls is in the trace. On a CPU: `time_ns`."""
    without_launch: int
    """How many of `count` have no launching call in the trace."""


class BreakdownRow(Figures, frozen=True):
    """A row of `{stage}_breakdown.json`; times in ms."""

    name: str
    ms: float
    cuda_ms: float
    """0.0 without a device, for readers of the older file."""
    device_ms: float | None
    """None without a device."""
    cpu_ms: float | None
    """None if the trace does not contain the launches."""
    count: Count


class BreakdownFigures(Figures, frozen=True):
    """The content of `{stage}_breakdown.json`; times in ms."""

    name: str
    total_kernel_time_ms: float
    num_kernels: Count
    num_launches: Count
    top_kernels: list[BreakdownRow]


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where a stage's time went, by kernel or operator, the longest first."""

    name: str
    on_device: bool
    rows: list[KernelRow]

    @property
    def total_ns(self) -> int:
        """Sum over all rows."""
        return sum(row.time_ns for row in self.rows)

    @property
    def launches(self) -> int:
        """Kernel launches, or calls of operators."""
        return sum(row.count for row in self.rows)

    def figures(self, top: int = TOP) -> BreakdownFigures:
        """The content of `{stage}_breakdown.json`: the `top` rows; totals are over all rows."""
        return BreakdownFigures(
            name=self.name,
            total_kernel_time_ms=self.total_ns / 1e6,
            num_kernels=len(self.rows),
            num_launches=self.launches,
            top_kernels=[
                BreakdownRow(
                    name=row.name,
                    ms=row.time_ns / 1e6,
                    cuda_ms=row.time_ns / 1e6 if self.on_device else 0.0,
                    device_ms=row.time_ns / 1e6 if self.on_device else None,
                    cpu_ms=None if row.launch_ns is None else row.launch_ns / 1e6,
                    count=row.count,
                )
                for row in self.rows[:top]
            ],
        )

    def to_dict(self, top: int = TOP) -> dict[str, Any]:
        """`figures` as plain dicts and lists, for JSON."""
        return self.figures(top).to_dict()


def breakdown(trace: Trace, name: str) -> Breakdown:
    """Break a trace down by kernel, each launch once; without kernels by operator, by own time.

    `name` is the stage's. Copies and memsets are not kernels: see `device_use`. The profiler's own
    events and the notes of torch.compile about itself are left out. A trace with neither kernels
    nor operators gives no rows.
    """
    kernels = device_work(trace).kernels
    if len(kernels):
        calls = launch_of(trace, kernels)
        return Breakdown(name, True, _rows(trace, kernels, *_device_times(trace, kernels, calls)))
    operators = np.flatnonzero(trace.rows_of(["cpu_op"]))
    own = _own_times(trace, operators)
    work = np.array([_NOT_WORK.match(each) is None for each in trace.names], dtype=np.bool_)
    shown = work[trace.events.name[operators]] if len(operators) else np.empty(0, np.bool_)
    operators, own = operators[shown], own[shown]
    return Breakdown(
        name, False, _rows(trace, operators, own, own.astype(np.float64), np.ones(len(own), bool))
    )


def _device_times(
    trace: Trace, kernels: NDArray[np.intp], calls: NDArray[np.intp]
) -> tuple[Numbers, NDArray[np.float64], NDArray[np.bool_]]:
    """Of each kernel its duration, its share of the launching call, and whether that is known."""
    known = calls >= 0
    share = np.zeros(len(kernels), dtype=np.float64)
    # A graph's launch stands for many kernels: its time is counted once, spread over them.
    launched, of_kernel, kernels_of = np.unique(
        calls[known], return_inverse=True, return_counts=True
    )
    share[known] = (trace.events.dur_ns[launched] / kernels_of)[of_kernel.reshape(-1)]
    return trace.events.dur_ns[kernels], share, known


def _own_times(trace: Trace, operators: NDArray[np.intp]) -> Numbers:
    """Time of each operator less that of the operators within it, by nesting in its thread."""
    events = trace.events
    pid, tid = events.pid[operators], events.tid[operators]
    if len(operators) == 0:
        return np.empty(0, dtype=np.int64)
    _, lane = np.unique(np.stack((pid, tid), axis=1), axis=0, return_inverse=True)
    return exclusive(
        events.begin_ns[operators], events.end_ns[operators], lane.reshape(-1).astype(np.int64)
    )


def _rows(
    trace: Trace,
    events: NDArray[np.intp],
    time_ns: Numbers,
    launch_ns: NDArray[np.float64],
    launched: NDArray[np.bool_],
) -> list[KernelRow]:
    codes, group = np.unique(trace.events.name[events], return_inverse=True)
    group = group.reshape(-1)
    size = len(codes)
    time = np.bincount(group, weights=time_ns, minlength=size).astype(np.int64)
    count = np.bincount(group, minlength=size)
    launch = np.rint(np.bincount(group, weights=launch_ns, minlength=size)).astype(np.int64)
    known = np.bincount(group, weights=launched, minlength=size).astype(np.int64)
    order = np.lexsort((codes, -count, -time))
    return [
        KernelRow(
            name=trace.names[codes[at]],
            time_ns=int(time[at]),
            count=int(count[at]),
            launch_ns=int(launch[at]) if known[at] else None,
            without_launch=int(count[at] - known[at]),
        )
        for at in order
    ]
