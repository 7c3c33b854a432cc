"""What each device and each stream spent its time on.

All kernels that communicate count as communication here, including those of oneCCL and NVSHMEM and
the custom all-reduces of inference servers. `stagespan.trace.derived.device` counts these as
computing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.derived import kernel_kinds as kinds
from stagespan.trace.derived.device import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    device_work,
    is_ascend,
    streams,
    work_by_stream,
)
from stagespan.trace.figures import Figures, Ns
from stagespan.trace.read.intervals import Mask, Rows, by_group, covered
from stagespan.trace.read.model import MISSING, Trace
from stagespan.trace.view import once


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
    """From the first event's begin to the end of the last, or the stretch that was asked for."""
    busy_ns: int
    compute_ns: int
    communication_ns: int
    exposed_communication_ns: int
    """Communication while nothing computes."""
    copy_ns: int
    exposed_copy_ns: int
    """Copies while nothing computes or communicates."""
    custom_ns: int
    """Of communication that of kernels other than NCCL's, RCCL's and HCCL's."""

    @property
    def idle_ns(self) -> int:
        """Span less busy."""
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
    """The sums over devices."""
    each = list(times)
    return DeviceTime(*(sum(getattr(one, f.name) for one in each) for f in fields(DeviceTime)))


@once
def device_rows(trace: Trace) -> dict[int, Rows]:
    """The device events of each device; a trace of Ascend has one, whose parts are processes."""
    rows = device_work(trace).rows
    device, _ = streams(trace, rows)
    if is_ascend(trace):
        device = np.where(trace.events.device[rows] == MISSING, 0, device)
    found, group = np.unique(device, return_inverse=True)
    mine = by_group(group.reshape(-1), len(found))
    return {int(number): rows[mine[at]] for at, number in enumerate(found.tolist())}


@once
def device_times(trace: Trace, within: tuple[int, int] | None = None) -> dict[int, DeviceTime]:
    """Of each device where its time went; empty without device events.

    `within` is the begin and end of a stretch in ns: then all of that stretch is divided up, also
    what lies before the device's first event and after its last.
    """
    custom = custom_communication(trace)
    kind = kind_of_work(trace)
    return {
        device: _time(trace, rows, kind, custom, within)
        for device, rows in device_rows(trace).items()
    }


@once
def stream_times(
    trace: Trace, within: tuple[int, int] | None = None
) -> dict[tuple[int, int], DeviceTime]:
    """The same for each stream by itself, by device and stream."""
    custom = custom_communication(trace)
    kind = kind_of_work(trace)
    rows, (of_stream, _) = device_work(trace).rows, work_by_stream(trace)
    return {
        stream: _time(trace, rows[mine], kind, custom, within) for stream, mine in of_stream.items()
    }


@once
def custom_communication(trace: Trace) -> Mask:
    """Which events are kernels that communicate without NCCL, RCCL or HCCL, by their names."""
    work = device_work(trace)
    computing: Mask = work.is_kernel & (work.kind == COMPUTE)
    chosen = np.zeros(len(trace.names) + 1, dtype=np.bool_)
    for code in np.unique(trace.events.name[computing]).tolist():
        chosen[code] = kinds.kind_of(trace.names[code]) == kinds.COMMUNICATION
    custom: Mask = computing & chosen[trace.events.name]
    return custom


@once
def kind_of_work(trace: Trace) -> NDArray[np.int8]:
    """As `DeviceWork.kind`, with custom communication as communication."""
    kind = device_work(trace).kind.copy()
    kind[custom_communication(trace)] = COMMUNICATION
    return kind


def _time(
    trace: Trace,
    rows: Rows,
    kind: NDArray[np.int8],
    custom: Mask,
    within: tuple[int, int] | None = None,
) -> DeviceTime:
    begin = trace.events.begin_ns[rows]
    end = begin + trace.events.dur_ns[rows]
    low, high = within or (int(begin.min()), int(end.max()))
    begin, end = np.clip(begin, low, high), np.clip(end, low, high)

    def union(*of: int) -> int:
        chosen = np.isin(kind[rows], of)
        return covered(begin[chosen], end[chosen])

    busy, compute, not_copying = covered(begin, end), union(COMPUTE), union(COMPUTE, COMMUNICATION)
    own = custom[rows]
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
