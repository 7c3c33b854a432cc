"""Computes how all devices together, each device, and each stream spent their time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from stagespan.trace.derived.device import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    DeviceWork,
    device_work,
    is_ascend,
    launch_of,
    streams,
    work_by_stream,
)
from stagespan.trace.figures import Count, Figures, Ns
from stagespan.trace.read.groups import by_group
from stagespan.trace.read.intervals import Mask, Rows, covered
from stagespan.trace.read.model import MISSING, Trace
from stagespan.trace.read.view import TraceView, once


class DeviceTimeFigures(Figures, frozen=True):
    """A `DeviceTime` in JSON; in ns."""

    busy: Ns
    idle: Ns
    span: Ns
    compute: Ns
    comm: Ns
    exposed_comm: Ns
    memcpy: Ns
    exposed_memcpy: Ns


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """Times in ns; compute + exposed communication + exposed copies + idle = span, exactly.

    Communication is that of any library, by `DeviceWork.kind`.
    """

    span_ns: int
    """From the begin of the first event to the end of the last, or the length of `within`."""
    busy_ns: int
    compute_ns: int
    communication_ns: int
    exposed_communication_ns: int
    """Communication while nothing computes."""
    copy_ns: int
    exposed_copy_ns: int
    """Copies while nothing computes or communicates."""
    custom_ns: int
    """The part of communication in kernels other than those of NCCL, RCCL and HCCL."""

    @property
    def idle_ns(self) -> int:
        """`span_ns` minus `busy_ns`."""
        return self.span_ns - self.busy_ns

    @property
    def hidden_communication_ns(self) -> int:
        """Communication during which something computed."""
        return self.communication_ns - self.exposed_communication_ns

    def figures(self) -> DeviceTimeFigures:
        """For JSON."""
        return DeviceTimeFigures(
            busy=self.busy_ns,
            idle=self.idle_ns,
            span=self.span_ns,
            compute=self.compute_ns,
            comm=self.communication_ns,
            exposed_comm=self.exposed_communication_ns,
            memcpy=self.copy_ns,
            exposed_memcpy=self.exposed_copy_ns,
        )


def together(times: Iterable[DeviceTime]) -> DeviceTime:
    """Return the sums over devices."""
    each = list(times)
    return DeviceTime(*(sum(getattr(one, f.name) for one in each) for f in fields(DeviceTime)))


@once
def device_rows(trace: Trace) -> dict[int, Rows]:
    """Return the events of each device. An Ascend trace has one device, shown as processes."""
    rows = device_work(trace).rows
    device, _ = streams(trace, rows)
    if is_ascend(trace):
        device = np.where(trace.events.device[rows] == MISSING, 0, device)
    found, group = np.unique(device, return_inverse=True)
    mine = by_group(group.reshape(-1), len(found))
    return {int(number): rows[mine[at]] for at, number in enumerate(found.tolist())}


@once
def device_times(trace: Trace, within: tuple[int, int] | None = None) -> dict[int, DeviceTime]:
    """Return the time of each device by part; empty without device events.

    `within` is the begin and end in ns of a time range. Then all of that range is split, including
    the time before the device's first event and after its last.
    """
    work = device_work(trace)
    return {device: _time(trace, rows, work, within) for device, rows in device_rows(trace).items()}


@once
def stream_times(
    trace: Trace, within: tuple[int, int] | None = None
) -> dict[tuple[int, int], DeviceTime]:
    """Return the time of each stream by part, by device and stream."""
    work = device_work(trace)
    rows, (of_stream, _) = work.rows, work_by_stream(trace)
    return {stream: _time(trace, rows[mine], work, within) for stream, mine in of_stream.items()}


def _time(
    trace: Trace,
    rows: Rows,
    work: DeviceWork,
    within: tuple[int, int] | None = None,
) -> DeviceTime:
    begin = trace.events.begin_ns[rows]
    end = begin + trace.events.dur_ns[rows]
    low, high = within or (int(begin.min()), int(end.max()))
    if within is not None:
        begin, end = np.clip(begin, low, high), np.clip(end, low, high)

    def union(chosen: Mask) -> int:
        return covered(begin[chosen], end[chosen])

    kind = work.kind[rows]
    computes, communicates = kind == COMPUTE, kind == COMMUNICATION
    busy, compute = covered(begin, end), union(computes)
    not_copying = union(computes | communicates)
    return DeviceTime(
        span_ns=high - low,
        busy_ns=busy,
        compute_ns=compute,
        communication_ns=union(communicates),
        exposed_communication_ns=not_copying - compute,
        copy_ns=union(kind == COPY),
        exposed_copy_ns=busy - not_copying,
        custom_ns=union(work.is_custom[rows]),
    )


# --- All devices together ---


class DeviceUseFigures(Figures, frozen=True):
    """A `DeviceUse` in JSON; times in ns, None without device events."""

    events: Count
    gpu_events: dict[str, Count]
    span_ns: Ns | None
    busy_ns: Ns | None
    idle_ns: Ns | None
    compute_union_ns: Ns | None
    comm_union_ns: Ns | None
    exposed_comm_ns: Ns | None
    memcpy_union_ns: Ns | None
    exposed_memcpy_ns: Ns | None
    kernel_dur_sum_ns: Ns | None
    n_streams: Count
    gpu_events_without_launch_in_trace: Count
    triton_kernels: Count
    per_stream_busy_ns: dict[str, Ns]


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Times in ns, over all devices of the trace; None if the trace has no device events.

    Only the kernels of NCCL, RCCL and HCCL count as communication. Other communication
    (`DeviceWork.is_custom`) counts as computing in this class, unlike elsewhere.

    compute + exposed communication + exposed copies + idle = span, exactly.
    """

    entries: int
    """Entries in the trace's list of events."""
    device_events: dict[str, int]
    """Device events by category."""
    span_ns: int | None
    """From the begin of the first device event to the end of the last."""
    busy_ns: int | None
    compute_ns: int | None
    communication_ns: int | None
    copy_ns: int | None
    exposed_communication_ns: int | None
    """Communication while nothing computes."""
    exposed_copy_ns: int | None
    """Copies while nothing computes or communicates."""
    kernel_sum_ns: int | None
    """Sum of the kernels' durations; overlapping kernels count fully."""
    stream_busy_ns: dict[tuple[int, int], int]
    """Busy time by (device, stream)."""
    without_launch: int
    """Device events whose launch is not in the trace."""
    triton_kernels: int

    @property
    def idle_ns(self) -> int | None:
        """`span_ns` minus `busy_ns`."""
        return None if self.span_ns is None or self.busy_ns is None else self.span_ns - self.busy_ns

    def figures(self) -> DeviceUseFigures:
        """Return the figures for JSON. With several devices, streams are named "device/stream"."""
        devices = {device for device, _ in self.stream_busy_ns}
        return DeviceUseFigures(
            events=self.entries,
            gpu_events=dict(self.device_events),
            span_ns=self.span_ns,
            busy_ns=self.busy_ns,
            idle_ns=self.idle_ns,
            compute_union_ns=self.compute_ns,
            comm_union_ns=self.communication_ns,
            exposed_comm_ns=self.exposed_communication_ns,
            memcpy_union_ns=self.copy_ns,
            exposed_memcpy_ns=self.exposed_copy_ns,
            kernel_dur_sum_ns=self.kernel_sum_ns,
            n_streams=len(self.stream_busy_ns),
            gpu_events_without_launch_in_trace=self.without_launch,
            triton_kernels=self.triton_kernels,
            per_stream_busy_ns={
                (str(stream) if len(devices) == 1 else f"{device}/{stream}"): busy
                for (device, stream), busy in self.stream_busy_ns.items()
            },
        )

    def to_dict(self) -> dict[str, Any]:
        """The figures for JSON, times in microseconds."""
        return self.figures().to_dict()


@once
def device_use(trace: Trace) -> DeviceUse:
    """Compute the unions of the device's events by kind and by stream."""
    trace = TraceView.of(trace)
    events = trace.events
    work = device_work(trace)
    rows = work.rows
    begin, end = events.begin_ns[rows], events.end_ns[rows]
    kind = np.where(work.is_custom, COMPUTE, work.kind)[rows]

    def union(*kinds: int) -> int | None:
        chosen = np.isin(kind, kinds)
        return covered(begin[chosen], end[chosen]) if len(rows) else None

    busy, compute = union(COMPUTE, COMMUNICATION, COPY), union(COMPUTE)
    not_copying = union(COMPUTE, COMMUNICATION)
    categories, counts = np.unique(events.category[rows], return_counts=True)
    kernels = work.kernels
    triton = np.array([name.startswith("triton_") for name in trace.names] + [False])
    return DeviceUse(
        entries=trace.total,
        device_events={
            trace.categories[c]: int(n) for c, n in zip(categories, counts, strict=True)
        },
        span_ns=int(end.max() - begin.min()) if len(rows) else None,
        busy_ns=busy,
        compute_ns=compute,
        communication_ns=union(COMMUNICATION),
        copy_ns=union(COPY),
        exposed_communication_ns=_less(not_copying, compute),
        exposed_copy_ns=_less(busy, not_copying),
        kernel_sum_ns=int(events.dur_ns[kernels].sum()) if len(rows) else None,
        stream_busy_ns={stream: time.busy_ns for stream, time in stream_times(trace).items()},
        without_launch=int((launch_of(trace, rows) < 0).sum()),
        triton_kernels=int(triton[events.name[kernels]].sum()),
    )


def _less(whole: int | None, part: int | None) -> int | None:
    return None if whole is None or part is None else whole - part
