"""Which events ran on a device, what kind of work they are, and which call launched each."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stagespan.device.table import COLLECTIVES
from stagespan.trace.derived.flows import started_by
from stagespan.trace.derived.kernel_kinds import COMMUNICATION as KIND_OF_COMMUNICATION
from stagespan.trace.derived.kernel_kinds import kind_of
from stagespan.trace.derived.threads import (
    ASCEND_HOST,
    in_processes,
    names_with,
    outermost,
)
from stagespan.trace.read.groups import by_group, counts_of, numbered, pairs, values_of
from stagespan.trace.read.intervals import ROW, Mask, Numbers, Rows, looked_up, order_of, used_codes
from stagespan.trace.read.model import MISSING, Trace
from stagespan.trace.read.plausibility import (
    ASCEND_DEVICE,
    LAUNCH_SUFFIXES,
    ascend_collectives,
    ascend_kernels,
)
from stagespan.trace.read.sources import ASCEND_OVERLAP
from stagespan.trace.read.view import TraceView, once

NOT_DEVICE, COMPUTE, COMMUNICATION, COPY = 0, 1, 2, 3

_COMMUNICATION = re.compile(COLLECTIVES, re.IGNORECASE)
# Other accelerators have categories of their own, such as MTIA's `mtia_ccp_events`. An event of a
# stream is device work, unless its category is one of these or its process runs operators.
_NOT_WORK = frozenset(
    {"user_annotation", "gpu_user_annotation", "cpu_op", "cpu_instant_event", "python_function"}
    # `device_work` has already chosen which of these are kernels.
    | {"kernel"}
    | {"overhead", "trace", "collective_comm", "external_correlation", "cuda_profiler_range"}
    # The moment at which a stream reached a `cudaEventRecord`, drawn as 1 ns.
    | {"cuda_event"}
)
_NOT_WORK_SUFFIXES = (*LAUNCH_SUFFIXES, "_sync", "_annotation")
_ON_HOST = ("cpu_op", "python_function", "user_annotation")
_STREAM = re.compile(r"^stream\b(?!.*queue)", re.IGNORECASE)
_COPIES = re.compile(r"memcpy|^dma(?:_|\b)", re.IGNORECASE)
# Between the work of a stream: its waits, and the marks for which others wait. A kernel of the
# program has parameters or words around such a name.
_STREAM_EVENTS = re.compile(
    r"(?:^|[_ ])(?:wait|record|notify|event)$|^event_(?:wait|record)\w*$", re.IGNORECASE
)
_STREAM_WAITS = re.compile("wait", re.IGNORECASE)
_ASCEND_COPY = "MEMCPY"
# The event around a kernel that has the counters of XPU's scope profiler.
_COUNTERS = re.compile(r"^metrics: ")
ASCEND_LAUNCH_FLOWS = "hosttodevice"
"""The category of flows from a call of CANN to the task that it launched."""
# Calls that overlap but for this time are nested, because traces can be in whole microseconds.
_SAME_CALL_NS = 2_000
# The most entries per id of a lookup table over a range of ids.
_DENSE = 4


class DeviceWork(msgspec.Struct, frozen=True, dict=True):
    """The device's part of a trace. Arrays have one element for each event of `Trace.events`."""

    kind: NDArray[np.int8]
    """NOT_DEVICE, COMPUTE (including memset), COMMUNICATION or COPY. A stream's waits and marks are
    not work."""
    is_kernel: Mask
    """Which events are kernels: neither copies nor memsets."""
    is_custom: Mask
    """Which events are communication by kernels other than those of NCCL, RCCL and HCCL."""
    is_wait: Mask
    """Which events are waits of a stream, such as for an event of another one; not on Ascend."""

    @cached_property
    def rows(self) -> NDArray[np.intp]:
        """Rows of the device's events."""
        return np.flatnonzero(self.kind).astype(ROW)

    @cached_property
    def kernels(self) -> NDArray[np.intp]:
        """Rows of the kernels."""
        return np.flatnonzero(self.is_kernel).astype(ROW)


@once
def device_work(trace: Trace) -> DeviceWork:
    """Find the device's events and what kind of work each of them is.

    On CUDA and ROCm, they are found by category (kernel, gpu_memcpy, gpu_memset), on Ascend by
    process. On other accelerators, everything that runs on a stream is device work.

    A kernel is communication if its name contains that of a library in `device/table.py`, or if
    `kernel_kinds` counts it as communication (oneCCL, NVSHMEM, DeepEP, the all-reduces of inference
    servers). On Ascend, the operators in the groups' tracks of the communication process are
    communication.
    """
    events = trace.events
    kind = np.zeros(len(events), dtype=np.int8)
    is_kernel = trace.rows_of(["kernel"])
    measures = names_with(trace, _COUNTERS)
    if measures.any():
        is_kernel = is_kernel & ~measures[events.name]
    kind[is_kernel] = COMPUTE
    kind[trace.rows_of(["gpu_memset"])] = COMPUTE
    kind[trace.rows_of(["gpu_memcpy"])] = COPY
    if not is_ascend(trace):
        is_kernel = is_kernel | _add_others(trace, kind)
    marks = _named(trace, is_kernel, _is_stream_event)
    is_kernel = is_kernel & ~marks
    kind[marks] = NOT_DEVICE
    kind[_named(trace, is_kernel, _is_collective)] = COMMUNICATION
    if ASCEND_DEVICE in trace.process_names.values():
        is_kernel = is_kernel | _add_ascend(trace, kind)
    others = is_kernel & (kind == COMPUTE)
    custom = _named(trace, others, lambda name: kind_of(name) == KIND_OF_COMMUNICATION)
    kind[custom] = COMMUNICATION
    waits = _named(trace, marks, lambda name: _STREAM_WAITS.search(name) is not None)
    return DeviceWork(kind, is_kernel, custom, waits)


# The ranks of a job have the same names.
@lru_cache(maxsize=16_384)
def _is_stream_event(name: str) -> bool:
    return _STREAM_EVENTS.search(name) is not None


@lru_cache(maxsize=16_384)
def _is_collective(name: str) -> bool:
    return _COMMUNICATION.search(name) is not None


def _named(trace: Trace, rows: Mask, condition: Callable[[str], bool]) -> Mask:
    """Which of `rows` have a name that meets the condition."""
    chosen = np.zeros(len(trace.names) + 1, dtype=np.bool_)
    for code in np.flatnonzero(used_codes(trace.events.name, rows, len(chosen))).tolist():
        chosen[code] = condition(trace.names[code])
    return rows & looked_up(chosen, trace.events.name)


def is_ascend(trace: Trace) -> bool:
    """Whether torch_npu.profiler wrote the trace, according to the names of its processes."""
    parts = {ASCEND_DEVICE, ASCEND_HOST, ASCEND_OVERLAP}
    return not parts.isdisjoint(trace.process_names.values())


@once
def launches(trace: Trace) -> Mask:
    """Which rows are calls of a runtime or driver, which may have launched device work."""
    chosen = np.array([name.endswith(LAUNCH_SUFFIXES) for name in [*trace.categories, ""]])
    rows = looked_up(chosen, trace.events.category)
    if ASCEND_DEVICE in trace.process_names.values():
        rows = rows | in_processes(trace, ASCEND_HOST)
    return rows


def launch_of(trace: Trace, rows: Rows) -> Rows:
    """Return, for each of `rows`, the row of the call that launched it; -1 if it is unknown.

    Calls and device events are joined by correlation. If nested calls have the same correlation,
    the outermost call counts. If calls of several processes have the same correlation, the launch
    is unknown. In traces without correlations, they are joined by external id.
    """
    if isinstance(trace, TraceView):
        return _launch_of_every_event(trace)[rows]
    if _has_correlations(trace) and not is_ascend(trace):
        return _launch_by(trace, trace.events.correlation[rows])
    return _launch_of_every_event(trace)[rows]


def _has_correlations(trace: Trace) -> bool:
    return bool(trace.events.correlation.exist().any())


@once
def _launch_of_every_event(trace: Trace) -> NDArray[Any]:
    if not _has_correlations(trace):
        return _launch_by_external_id(trace)
    events = trace.events
    calls = np.full(len(events), -1, dtype=np.int32)
    rows = np.flatnonzero(events.correlation.exist())
    calls[rows] = _launch_by(trace, events.correlation[rows])
    if ASCEND_DEVICE in trace.process_names.values():
        without_call = np.flatnonzero((device_work(trace).kind != NOT_DEVICE) & (calls < 0))
        calls[without_call] = _launch_by_flow(trace, without_call)
    return calls


def _launch_by_flow(trace: Trace, rows: NDArray[np.intp]) -> NDArray[np.int32]:
    """Return the call of CANN in which a flow to each of some events starts, or -1.

    Older versions of CANN give their calls other numbers than the tasks that they launch.
    """
    events, flows = trace.events, trace.flows
    launched_by = np.full(len(rows), -1, dtype=np.int32)
    calls = np.flatnonzero(in_processes(trace, ASCEND_HOST))
    start = started_by(trace, ASCEND_LAUNCH_FLOWS, rows)
    with_flow = np.flatnonzero(start >= 0)
    start = start[with_flow]
    if len(calls) == 0 or len(start) == 0:
        return launched_by
    thread, time = flows.tid[start], flows.begin_ns[start]
    for tid in values_of(thread).tolist():
        of_thread = calls[events.tid[calls] == tid]
        around = outermost(trace, of_thread)
        here = np.flatnonzero(thread == tid)
        at = np.searchsorted(events.begin_ns[around], time[here], side="right") - 1
        call = np.append(around, -1)[at]
        inside = (call >= 0) & (events.end_ns[call] >= time[here])
        launched_by[with_flow[here[inside]]] = call[inside]
    return launched_by


def _launch_by(trace: Trace, correlations: Numbers) -> NDArray[Any]:
    """Return the row of the launching call for each correlation, or -1."""
    events = trace.events
    calls = np.flatnonzero(launches(trace) & events.correlation.exist()).astype(np.int32)
    call_ids = events.correlation[calls]
    order = order_of(call_ids, events.dur_ns[calls])
    calls, call_ids = calls[order], call_ids[order]
    del order
    lasts = np.flatnonzero(call_ids[1:] != call_ids[:-1])
    lasts = np.append(lasts, len(call_ids) - 1) if len(call_ids) else lasts
    if len(call_ids):
        firsts = np.append(0, lasts[:-1] + 1)
        lasts = lasts[_are_one_call(trace, calls, firsts, lasts)]
    calls, call_ids = calls[lasts], call_ids[lasts]
    if len(calls) == 0 or len(correlations) == 0:
        return np.full(len(correlations), -1, dtype=np.int32)
    low, high = int(call_ids[0]), int(call_ids[-1])
    if high - low < _DENSE * (len(call_ids) + len(correlations)):
        # Most correlations are consecutive numbers, for which a lookup table is faster.
        call_of = np.full(high - low + 2, -1, dtype=np.int32)
        call_of[call_ids - low] = calls
        outside = (correlations < low) | (correlations > high)
        return call_of[np.where(outside, -1, correlations - low)]
    at = np.minimum(np.searchsorted(call_ids, correlations), len(call_ids) - 1)
    return np.where(
        (call_ids[at] == correlations) & (correlations != MISSING), calls[at], np.int32(-1)
    )


# Calls that start work; others, such as cudaStreamSynchronize, can have the same external id.
STARTS_WORK = re.compile(
    r"Launch(?:Cooperative)?Kernel|KernelLaunch|GraphLaunch|Mem(?:cpy|set)|ModuleLaunch"
)
"""Names of calls of a runtime or driver that start work on a device."""


def _launch_by_external_id(trace: Trace) -> NDArray[np.int32]:
    """Return the row of the launching call of each event, or -1, without correlations.

    Some versions of Kineto write external ids alone. If an operator has made several calls with one
    id, and as many device events have it, they are in the same order.
    """
    events = trace.events
    launched_by = np.full(len(events), -1, dtype=np.int32)
    has_id = events.external_id.exist()
    starts = names_with(trace, STARTS_WORK)
    calls = np.flatnonzero(launches(trace) & has_id & starts[events.name])
    work = np.flatnonzero((device_work(trace).kind != NOT_DEVICE) & has_id)
    calls = calls[np.lexsort((events.begin_ns[calls], events.external_id[calls]))]
    work = work[np.lexsort((events.begin_ns[work], events.external_id[work]))]
    ids, count = counts_of(events.external_id[calls])
    of_work, number = counts_of(events.external_id[work])
    both, of_calls, of_device = np.intersect1d(ids, of_work, return_indices=True)
    same = both[count[of_calls] == number[of_device]]
    launched_by[work[np.isin(events.external_id[work], same)]] = calls[
        np.isin(events.external_id[calls], same)
    ]
    return launched_by


def _are_one_call(trace: Trace, calls: NDArray[np.int32], firsts: Numbers, lasts: Numbers) -> Mask:
    """Which groups of calls are nested calls of one process, the outermost of which is the last."""
    several = np.flatnonzero(firsts < lasts)
    are_one: Mask = np.ones(len(firsts), dtype=np.bool_)
    if len(several) == 0:
        return are_one
    events = trace.events
    pid, begin, end = events.pid[calls], events.begin_ns[calls], events.end_ns[calls]
    length = np.maximum.reduceat(end, firsts) - np.minimum.reduceat(begin, firsts)
    are_one &= np.minimum.reduceat(pid, firsts) == np.maximum.reduceat(pid, firsts)
    are_one &= length <= events.dur_ns[calls[lasts]] + _SAME_CALL_NS
    # Nested calls are different functions.
    name = events.name[calls]
    are_one &= (firsts == lasts) | (
        np.minimum.reduceat(name, firsts) < np.maximum.reduceat(name, firsts)
    )
    return are_one


@once
def shared_correlations(trace: Trace) -> int:
    """Return the number of device events whose launch is unknown because processes share ids.

    In a file into which ranks were merged without renumbering, calls of several processes have the
    same correlation.
    """
    events, rows = trace.events, device_work(trace).rows
    rows = rows[(launch_of(trace, rows) < 0) & (events.correlation[rows] != MISSING)]
    # Most traces contain all launches, and the search takes long.
    if len(rows) == 0:
        return 0
    calls = np.flatnonzero(launches(trace) & events.correlation.exist())
    return int(np.isin(events.correlation[rows], events.correlation[calls]).sum())


def streams(trace: Trace, rows: NDArray[np.intp]) -> tuple[Numbers, Numbers]:
    """Device and stream of each of `rows`; process and thread if the arguments lack them."""
    events = trace.events
    device, stream = events.device[rows], events.stream[rows]
    for column, otherwise in ((device, events.pid), (stream, events.tid)):
        lacks = np.flatnonzero(column == MISSING)
        column[lacks] = otherwise[rows[lacks]]
    return device, stream


@once
def work_by_stream(trace: Trace) -> tuple[dict[tuple[int, int], Rows], Numbers]:
    """Group the device's events by stream.

    Returns a dict from (device, stream) to the indices of its events in `device_work(trace).rows`,
    and an array with the position of each row's stream in this dict.
    """
    keys, of_stream = pairs(*streams(trace, device_work(trace).rows))
    groups = [group.astype(ROW) for group in by_group(of_stream, len(keys))]
    of_stream = of_stream.astype(ROW)
    return {(int(d), int(s)): group for (d, s), group in zip(keys, groups, strict=True)}, of_stream


def _add_others(trace: Trace, kind: NDArray[np.int8]) -> Mask:
    """Set the kinds of other accelerators' rows in `kind`; return which rows are kernels."""
    events = trace.events
    found = [thread for thread, name in trace.thread_names.items() if _STREAM.search(name)]
    on_stream = events.stream.exist()
    for pid, tid in found:
        on_stream |= events.pid.having([pid]) & events.tid.having([tid])
    works = np.array(
        [
            name not in _NOT_WORK and not name.endswith(_NOT_WORK_SUFFIXES)
            for name in [*trace.categories, ""]
        ]
    )
    works_there: Mask = works[events.category] & (kind == NOT_DEVICE)
    kernels: Mask = np.zeros(len(events), dtype=np.bool_)
    rows = np.flatnonzero(on_stream & works_there)
    if len(rows) == 0:
        return kernels
    hosts = values_of(events.pid[trace.rows_of(_ON_HOST)])
    rows = rows[~np.isin(events.pid[rows], hosts)]
    # Other tracks of the device, such as that of its DMA engine, have the same category.
    beside = works_there & events.pid.having(values_of(events.pid[rows]))
    categories = [c for c in values_of(events.category[rows]).tolist() if trace.categories[c]]
    beside &= np.isin(events.category, categories)
    rows = values_of(np.concatenate((rows, np.flatnonzero(beside))))
    names, of = numbered(events.name[rows])
    copies = np.array([_COPIES.search(trace.names[code]) is not None for code in names], np.bool_)
    kind[rows] = np.where(copies[of], COPY, COMPUTE)
    kernels[rows] = ~copies[of]
    return kernels


def _add_ascend(trace: Trace, kind: NDArray[np.int8]) -> Mask:
    """Set the kinds of Ascend's rows in `kind`; return which rows are kernels."""
    events = trace.events
    on_device = in_processes(trace, ASCEND_DEVICE)
    copies = np.array([name.startswith(_ASCEND_COPY) for name in trace.names] + [False])
    kernels = ascend_kernels(trace)
    kind[kernels] = COMPUTE
    kind[on_device & ~kernels & copies[events.name]] = COPY
    kind[ascend_collectives(trace)] = COMMUNICATION
    return kernels


def launched(trace: Trace, rows: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return begin and end in ns of each device operator's launch, and the thread.

    All are `MISSING` if the trace shows no launch. If it shows when the launch began, but not the
    call, the end equals the start.
    """
    events, flows = trace.events, trace.flows
    call = launch_of(trace, rows)
    seen = call >= 0
    begin = np.where(seen, events.begin_ns[call], MISSING)
    end = np.where(seen, events.end_ns[call], MISSING)
    thread = np.where(seen, events.tid[call], MISSING)
    if seen.all():
        return begin, end, thread
    unseen = np.flatnonzero(~seen)
    start = started_by(trace, ASCEND_LAUNCH_FLOWS, rows[unseen])
    unseen, start = unseen[start >= 0], start[start >= 0]
    begin[unseen] = end[unseen] = flows.begin_ns[start]
    thread[unseen] = flows.tid[start]
    return begin, end, thread
