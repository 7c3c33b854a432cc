"""The kernel breakdown of a stage: the time of each kernel or, on a CPU, of each operator."""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from stagespan.pages.figures import Count, Figures, Internal, first
from stagespan.trace.derived.device import device_work, launch_of
from stagespan.trace.derived.launch_sources import host_operators
from stagespan.trace.read.groups import numbered
from stagespan.trace.read.intervals import Numbers
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import TraceView

TOP = 50


class KernelRow(Figures, frozen=True):
    """All launches of one kernel, or all calls of one operator: a row of `{stage}_breakdown.json`.

    The file is in milliseconds, for programs that read the older format.
    """

    name: str
    ms: float
    """`time_ns` in ms."""
    cuda_ms: float
    """0.0 without a device, for the same programs."""
    device_ms: float | None
    """None without a device."""
    cpu_ms: float | None
    """`launch_ns` in ms."""
    count: Count
    time_ns: Internal[int]
    """On a device, the kernels' durations. On a CPU, the operator's time without nested
    operators."""
    launch_ns: Internal[int | None]
    """On a device, the time of the launching calls, divided equally if a call launched several
    kernels; None if none of the calls is in the trace. On a CPU, `time_ns`."""
    without_launch: Internal[int]
    """The number of launches whose calls are not in the trace."""


class Breakdown(Figures, frozen=True):
    """The content of `{stage}_breakdown.json`: the time of a stage by kernel or operator."""

    name: str
    total_kernel_time_ms: float
    """`total_ns` in ms."""
    num_kernels: Count
    """The number of rows."""
    launches: Count = msgspec.field(name="num_launches")
    """The number of kernel launches, or of operator calls."""
    rows: Annotated[list[KernelRow], first(TOP)] = msgspec.field(name="top_kernels")
    """The longest first."""
    on_device: Internal[bool]
    total_ns: Internal[int]
    """The sum over all rows."""


def breakdown(trace: Trace, name: str) -> Breakdown:
    """Sum up a trace by kernel or, if it has no kernels, by operator with its own time.

    `name` is the name of the stage. Copies and memsets are not kernels; see `device_use`. Events of
    the profiler and torch.compile about themselves are left out. A trace with neither kernels nor
    operators, or with timestamps that span several years, gives no rows.
    """
    trace = TraceView.of(trace)
    kernels = device_work(trace).kernels
    on_device, rows = len(kernels) > 0, list[KernelRow]()
    if on_device:
        times = _device_times(trace, kernels, launch_of(trace, kernels))
        rows = _rows(trace, kernels, *times, on_device=True)
    elif (host := host_operators(trace)) is not None:
        own, launched = host.own_ns, np.ones(len(host.rows), bool)
        rows = _rows(trace, host.rows, own, own.astype(np.float64), launched, on_device=False)
    total = sum(row.time_ns for row in rows)
    return Breakdown(
        name=name,
        total_kernel_time_ms=total / 1e6,
        num_kernels=len(rows),
        launches=sum(row.count for row in rows),
        rows=rows,
        on_device=on_device,
        total_ns=total,
    )


def _device_times(
    trace: Trace, kernels: NDArray[np.intp], calls: NDArray[np.intp]
) -> tuple[Numbers, NDArray[np.float64], NDArray[np.bool_]]:
    """Return each kernel's duration, its part of the launching call, and whether that is known."""
    has_launch = calls >= 0
    share = np.zeros(len(kernels), dtype=np.float64)
    # A graph's launch starts many kernels: its time is counted once and divided among them.
    launched, of_kernel, kernels_of = np.unique(
        calls[has_launch], return_inverse=True, return_counts=True
    )
    share[has_launch] = (trace.events.dur_ns[launched] / kernels_of)[of_kernel.reshape(-1)]
    return trace.events.dur_ns[kernels], share, has_launch


def _rows(
    trace: Trace,
    events: NDArray[np.intp],
    time_ns: Numbers,
    launch_ns: NDArray[np.float64],
    launched: NDArray[np.bool_],
    on_device: bool,
) -> list[KernelRow]:
    codes, group = numbered(trace.events.name[events])
    size = len(codes)
    time = np.bincount(group, weights=time_ns, minlength=size).astype(np.int64)
    count = np.bincount(group, minlength=size)
    launch = np.rint(np.bincount(group, weights=launch_ns, minlength=size)).astype(np.int64)
    with_launch = np.bincount(group, weights=launched, minlength=size).astype(np.int64)
    order = np.lexsort((codes, -count, -time))
    rows = []
    for at in order:
        self_ns, call = int(time[at]), int(launch[at]) if with_launch[at] else None
        ms = self_ns / 1e6
        rows.append(
            KernelRow(
                name=trace.names[codes[at]],
                ms=ms,
                cuda_ms=ms if on_device else 0.0,
                device_ms=ms if on_device else None,
                cpu_ms=None if call is None else call / 1e6,
                count=int(count[at]),
                time_ns=self_ns,
                launch_ns=call,
                without_launch=int(count[at] - with_launch[at]),
            )
        )
    return rows
