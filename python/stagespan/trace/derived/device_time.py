"""Computes how each device and each stream spent its time.

Communication is defined by `DeviceWork.kind`, for any library.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np

from stagespan.trace.derived.device import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    DeviceWork,
    device_work,
    is_ascend,
    streams,
    work_by_stream,
)
from stagespan.trace.figures import Figures, Ns
from stagespan.trace.read.intervals import Rows, by_group, covered
from stagespan.trace.read.model import MISSING, Trace
from stagespan.trace.read.view import once


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
    """Times in ns; compute + exposed communication + exposed copies + idle = span, exactly."""

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
    begin, end = np.clip(begin, low, high), np.clip(end, low, high)

    def union(*of: int) -> int:
        chosen = np.isin(work.kind[rows], of)
        return covered(begin[chosen], end[chosen])

    busy, compute, not_copying = covered(begin, end), union(COMPUTE), union(COMPUTE, COMMUNICATION)
    own = work.is_custom[rows]
    return DeviceTime(
        span_ns=high - low,
        busy_ns=busy,
        compute_ns=compute,
        communication_ns=union(COMMUNICATION),
        exposed_communication_ns=not_copying - compute,
        copy_ns=union(COPY),
        exposed_copy_ns=busy - not_copying,
        custom_ns=covered(begin[own], end[own]),
    )
