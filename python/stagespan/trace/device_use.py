"""How the device's time was spent: busy, idle, computing, communicating, copying, by stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stagespan.trace.arrays import by_group
from stagespan.trace.device import COMMUNICATION, COMPUTE, COPY, device_work, launch_of, streams
from stagespan.trace.intervals import covered
from stagespan.trace.model import Trace


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Times in ns, over all devices of the trace; None where the trace has no device events.

    compute + exposed communication + exposed copies + idle = span, exactly.
    """

    entries: int
    """Entries in the trace's list of events."""
    device_events: dict[str, int]
    """Device events by category."""
    span_ns: int | None
    """From the first device event's begin to the last one's end."""
    busy_ns: int | None
    compute_ns: int | None
    communication_ns: int | None
    copy_ns: int | None
    exposed_communication_ns: int | None
    """Communication while nothing computes."""
    exposed_copy_ns: int | None
    """Copies while nothing computes or communicates."""
    kernel_sum_ns: int | None
    """Sum of the kernels' durations, overlaps counted twice."""
    stream_busy_ns: dict[tuple[int, int], int]
    """By device and stream."""
    without_launch: int
    """Device events whose launch is not in the trace."""
    triton_kernels: int

    @property
    def idle_ns(self) -> int | None:
        """Span less busy."""
        return None if self.span_ns is None or self.busy_ns is None else self.span_ns - self.busy_ns

    def to_dict(self) -> dict[str, Any]:
        """For JSON, in microseconds; streams by number, or device/stream on several devices."""
        devices = {device for device, _ in self.stream_busy_ns}
        return {
            "events": self.entries,
            "gpu_events": dict(self.device_events),
            "span_us": _us(self.span_ns),
            "busy_us": _us(self.busy_ns),
            "idle_us": _us(self.idle_ns),
            "compute_union_us": _us(self.compute_ns),
            "comm_union_us": _us(self.communication_ns),
            "exposed_comm_us": _us(self.exposed_communication_ns),
            "memcpy_union_us": _us(self.copy_ns),
            "exposed_memcpy_us": _us(self.exposed_copy_ns),
            "kernel_dur_sum_us": _us(self.kernel_sum_ns),
            "n_streams": len(self.stream_busy_ns),
            "gpu_events_without_launch_in_trace": self.without_launch,
            "triton_kernels": self.triton_kernels,
            "per_stream_busy_us": {
                (str(stream) if len(devices) == 1 else f"{device}/{stream}"): _us(busy)
                for (device, stream), busy in self.stream_busy_ns.items()
            },
        }


def device_use(trace: Trace) -> DeviceUse:
    """Unions of the device's events by kind and by stream."""
    events = trace.events
    work = device_work(trace)
    rows = work.rows
    begin, end, kind = events.begin_ns[rows], events.end_ns[rows], work.kind[rows]

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
        stream_busy_ns=_by_stream(trace),
        without_launch=int((launch_of(trace, rows) < 0).sum()),
        triton_kernels=int(triton[events.name[kernels]].sum()),
    )


def _by_stream(trace: Trace) -> dict[tuple[int, int], int]:
    rows = device_work(trace).rows
    device, stream = streams(trace, rows)
    begin, end = trace.events.begin_ns[rows], trace.events.end_ns[rows]
    lanes, lane = np.unique(np.stack((device, stream), axis=1), axis=0, return_inverse=True)
    lane = lane.reshape(-1)
    mine = by_group(lane, len(lanes))
    return {
        (int(d), int(s)): covered(begin[mine[number]], end[mine[number]])
        for number, (d, s) in enumerate(lanes)
    }


def _less(whole: int | None, part: int | None) -> int | None:
    return None if whole is None or part is None else whole - part


def _us(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1000
