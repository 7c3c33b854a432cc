"""Computes how all devices together, each device, and each stream spent their time."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from stagespan.pages.figures import Count, Figures, Internal, Ns
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
from stagespan.trace.read.groups import by_group, counts_of, numbered
from stagespan.trace.read.intervals import Mask, Rows, covered
from stagespan.trace.read.model import MISSING, Trace
from stagespan.trace.read.view import TraceView, once


class DeviceTime(Figures, frozen=True):
    """Times in ns; compute + exposed communication + exposed copies + idle = span, exactly.

    Communication is that of any library, by `DeviceWork.kind`.
    """

    busy_ns: Ns = msgspec.field(name="busy")
    idle_ns: Ns = msgspec.field(name="idle")
    span_ns: Ns = msgspec.field(name="span")
    """From the start of the first event to the end of the last, or the length of `within`."""
    compute_ns: Ns = msgspec.field(name="compute")
    communication_ns: Ns = msgspec.field(name="comm")
    exposed_communication_ns: Ns = msgspec.field(name="exposed_comm")
    """Communication while nothing computes."""
    copy_ns: Ns = msgspec.field(name="memcpy")
    exposed_copy_ns: Ns = msgspec.field(name="exposed_memcpy")
    """Copies while nothing computes or communicates."""
    custom_ns: Internal[int]
    """The part of communication in kernels other than those of NCCL, RCCL and HCCL."""
    nccl_ns: Internal[int]
    """The part of communication in kernels of NCCL, RCCL and HCCL."""

    @property
    def hidden_communication_ns(self) -> int:
        """Communication during which something computed."""
        return self.communication_ns - self.exposed_communication_ns


def together(times: Iterable[DeviceTime]) -> DeviceTime:
    """Return the sums over devices."""
    each = list(times)
    names = DeviceTime.__struct_fields__
    return DeviceTime(*(sum(getattr(one, name) for one in each) for name in names))


@once
def device_rows(trace: Trace) -> dict[int, Rows]:
    """Return the events of each device. An Ascend trace has one device, shown as processes."""
    rows = device_work(trace).rows
    device, _ = streams(trace, rows)
    if is_ascend(trace):
        device = np.where(trace.events.device[rows] == MISSING, 0, device)
    found, group = numbered(device)
    mine = by_group(group, len(found))
    return {int(number): rows[mine[at]] for at, number in enumerate(found.tolist())}


@once
def device_times(trace: Trace, window: tuple[int, int] | None = None) -> dict[int, DeviceTime]:
    """Return the time of each device by part; empty without device events.

    `within` is the begin and end in ns of a time range. Then all of that range is split, including
    the time before the device's first event and after its last.
    """
    work = device_work(trace)
    return {device: _time(trace, rows, work, window) for device, rows in device_rows(trace).items()}


@once
def stream_times(
    trace: Trace, window: tuple[int, int] | None = None
) -> dict[tuple[int, int], DeviceTime]:
    """Return the time of each stream by part, by device and stream."""
    work = device_work(trace)
    rows, (of_stream, _) = work.rows, work_by_stream(trace)
    return {stream: _time(trace, rows[mine], work, window) for stream, mine in of_stream.items()}


def _time(
    trace: Trace,
    rows: Rows,
    work: DeviceWork,
    window: tuple[int, int] | None = None,
) -> DeviceTime:
    begin = trace.events.begin_ns[rows]
    end = begin + trace.events.dur_ns[rows]
    low, high = window or (int(begin.min()), int(end.max()))
    if window is not None:
        begin, end = np.clip(begin, low, high), np.clip(end, low, high)

    def union(chosen: Mask) -> int:
        at = np.flatnonzero(chosen)
        return covered(begin[at], end[at])

    kind = work.kind[rows]
    computes, communicates = kind == COMPUTE, kind == COMMUNICATION
    busy, compute = covered(begin, end), union(computes)
    not_copying = union(computes | communicates)
    custom, communication = work.is_custom[rows], union(communicates)
    has_custom = bool(custom.any())
    return DeviceTime(
        busy_ns=busy,
        idle_ns=high - low - busy,
        span_ns=high - low,
        compute_ns=compute,
        communication_ns=communication,
        exposed_communication_ns=not_copying - compute,
        copy_ns=union(kind == COPY),
        exposed_copy_ns=busy - not_copying,
        custom_ns=union(custom) if has_custom else 0,
        nccl_ns=union(communicates & ~custom) if has_custom else communication,
    )


# --- All devices together ---


class DeviceUse(Figures, frozen=True):
    """Times in ns, over all devices of the trace; None if the trace has no device events.

    The devices are busy, compute or communicate while any of them does.
    compute + exposed communication + exposed copies + idle = span, exactly.
    """

    entries: Count = msgspec.field(name="events")
    """Entries in the trace's list of events."""
    device_events: dict[str, Count] = msgspec.field(name="gpu_events")
    """Device events by category."""
    span_ns: Ns | None
    """From the start of the first device event to the end of the last."""
    busy_ns: Ns | None
    idle_ns: Ns | None
    """`span_ns` minus `busy_ns`."""
    compute_ns: Ns | None = msgspec.field(name="compute_union_us")
    communication_ns: Ns | None = msgspec.field(name="comm_union_us")
    """All communication, by `DeviceWork.kind`."""
    nccl_ns: Ns | None = msgspec.field(name="nccl_union_us")
    """The part of it in kernels of NCCL, RCCL and HCCL."""
    exposed_communication_ns: Ns | None = msgspec.field(name="exposed_comm_us")
    """Communication while nothing computes."""
    copy_ns: Ns | None = msgspec.field(name="memcpy_union_us")
    exposed_copy_ns: Ns | None = msgspec.field(name="exposed_memcpy_us")
    """Copies while nothing computes or communicates."""
    kernel_sum_ns: Ns | None = msgspec.field(name="kernel_dur_sum_us")
    """Sum of the kernels' durations; overlapping kernels count fully."""
    streams: Count = msgspec.field(name="n_streams")
    without_launch: Count = msgspec.field(name="gpu_events_without_launch_in_trace")
    triton_kernels: Count
    stream_busy_ns: dict[str, Ns] = msgspec.field(name="per_stream_busy_us")
    """With several devices, streams are named "device/stream"."""


@once
def device_use(trace: Trace) -> DeviceUse:
    """Sum up the device's events by kind and by stream, over all devices."""
    trace = TraceView.of(trace)
    events, work = trace.events, device_work(trace)
    rows, kernels, devices = work.rows, work.kernels, device_times(trace)
    time = _time(trace, rows, work) if len(devices) > 1 else next(iter(devices.values()), None)
    categories, counts = counts_of(events.category[rows])
    triton = np.array([name.startswith("triton_") for name in trace.names] + [False])
    by_stream = streams_by_name(trace)
    return DeviceUse(
        entries=trace.total,
        device_events={
            trace.categories[c]: int(n) for c, n in zip(categories, counts, strict=True)
        },
        span_ns=None if time is None else time.span_ns,
        busy_ns=None if time is None else time.busy_ns,
        idle_ns=None if time is None else time.idle_ns,
        compute_ns=None if time is None else time.compute_ns,
        communication_ns=None if time is None else time.communication_ns,
        nccl_ns=None if time is None else time.nccl_ns,
        exposed_communication_ns=None if time is None else time.exposed_communication_ns,
        copy_ns=None if time is None else time.copy_ns,
        exposed_copy_ns=None if time is None else time.exposed_copy_ns,
        kernel_sum_ns=int(events.dur_ns[kernels].sum()) if len(rows) else None,
        streams=len(by_stream),
        without_launch=int((launch_of(trace, rows) < 0).sum()),
        triton_kernels=int(triton[events.name[kernels]].sum()),
        stream_busy_ns={name: each.busy_ns for name, each in by_stream.items()},
    )


def streams_by_name(trace: Trace) -> dict[str, DeviceTime]:
    """Return the time of each stream by its number; with several devices, by "device/stream"."""
    times = stream_times(trace)
    several = len({device for device, _ in times}) > 1
    return {
        f"{device}/{stream}" if several else str(stream): time
        for (device, stream), time in times.items()
    }
