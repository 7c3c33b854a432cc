"""The kernel breakdown of a stage: the time of each kernel or, on a CPU, of each operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.derived.device import device_work, launch_of
from stagespan.trace.derived.launch_sources import host_operators
from stagespan.trace.figures import Count, Figures
from stagespan.trace.read.intervals import Numbers
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import TraceView

TOP = 50


@dataclass(frozen=True, slots=True)
class KernelRow:
    """All launches of one kernel, or all calls of one operator; times in ns."""

    name: str
    time_ns: int
    """On a device, the kernels' durations. On a CPU, the operator's time without nested
    operators."""
    count: int
    launch_ns: int | None
    """On a device, the time of the launching calls, divided equally if a call launched several
    kernels; None if none of the calls is in the trace. On a CPU, `time_ns`."""
    without_launch: int
    """The number of launches whose calls are not in the trace."""


class BreakdownRow(Figures, frozen=True):
    """A row of `{stage}_breakdown.json`; times in ms."""

    name: str
    ms: float
    cuda_ms: float
    """0.0 without a device, for programs that read the older format."""
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
    """The time of a stage by kernel or operator, the longest first."""

    name: str
    on_device: bool
    rows: list[KernelRow]

    @property
    def total_ns(self) -> int:
        """The sum over all rows."""
        return sum(row.time_ns for row in self.rows)

    @property
    def launches(self) -> int:
        """The number of kernel launches, or of operator calls."""
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
    """Sum up a trace by kernel or, if it has no kernels, by operator with its own time.

    `name` is the name of the stage. Copies and memsets are not kernels; see `device_use`. Events of
    the profiler and torch.compile about themselves are left out. A trace with neither kernels nor
    operators, or with operators that are years apart, gives no rows.
    """
    trace = TraceView.of(trace)
    kernels = device_work(trace).kernels
    if len(kernels):
        calls = launch_of(trace, kernels)
        return Breakdown(name, True, _rows(trace, kernels, *_device_times(trace, kernels, calls)))
    host = host_operators(trace)
    if host is None:
        return Breakdown(name, False, [])
    own = host.own_ns
    return Breakdown(
        name,
        False,
        _rows(trace, host.rows, own, own.astype(np.float64), np.ones(len(own), bool)),
    )


def _device_times(
    trace: Trace, kernels: NDArray[np.intp], calls: NDArray[np.intp]
) -> tuple[Numbers, NDArray[np.float64], NDArray[np.bool_]]:
    """Return each kernel's duration, its part of the launching call, and whether that is known."""
    known = calls >= 0
    share = np.zeros(len(kernels), dtype=np.float64)
    # A graph's launch starts many kernels: its time is counted once and divided among them.
    launched, of_kernel, kernels_of = np.unique(
        calls[known], return_inverse=True, return_counts=True
    )
    share[known] = (trace.events.dur_ns[launched] / kernels_of)[of_kernel.reshape(-1)]
    return trace.events.dur_ns[kernels], share, known


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
