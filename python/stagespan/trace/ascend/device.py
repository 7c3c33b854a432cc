"""An Ascend device in a trace: its rows, its time by `Overlap Analysis`, and flows to its work."""

from __future__ import annotations

import re

import msgspec
import numpy as np

from stagespan.trace.derived.device import (
    ASCEND_LAUNCH_FLOWS,
    COMMUNICATION,
    COMPUTE,
    DeviceWork,
)
from stagespan.trace.derived.threads import in_processes
from stagespan.trace.read.groups import values_of
from stagespan.trace.read.intervals import Intervals, Mask, joined, merged, minus
from stagespan.trace.read.model import Trace
from stagespan.trace.read.plausibility import ASCEND_DEVICE
from stagespan.trace.read.sources import ASCEND_OVERLAP

_DEVICE = re.compile(r"NPU\s*(\d*)")


def devices(trace: Trace) -> dict[int, str]:
    """Return the device of each process, as the text of its number, or "" if unknown."""
    found = {pid: _DEVICE.search(label) for pid, label in trace.process_labels.items()}
    return {pid: match[1] for pid, match in found.items() if match}


def on_device(trace: Trace) -> Mask:
    """Return the rows of `trace.events` in the process that shows the device's streams."""
    return in_processes(trace, ASCEND_DEVICE)


# --- Computing, communicating and free time ---


TRACK_KINDS = range(5)
COMPUTING, COMMUNICATING, EXPOSED, FREE, RECEIVING = TRACK_KINDS
_ROWS = {
    "Computing": COMPUTING,
    "Communication": COMMUNICATING,
    "Communication(Not Overlapped)": EXPOSED,
    "Free": FREE,
}
RECEIVE = re.compile(r"^hcom_receive")
"""Collectives that receive from another stage of a pipeline."""


class KindIntervals(msgspec.Struct, frozen=True):
    """Intervals of one device in ns, by kind."""

    of: dict[int, Intervals] = msgspec.field(default_factory=dict)

    def __getitem__(self, kind: int) -> Intervals:
        """The intervals of a kind, which may be none."""
        none = np.empty(0, dtype=np.int64)
        return self.of.get(kind, (none, none))


def overlap_in(trace: Trace) -> dict[str, KindIntervals]:
    """Return the tracks that the profiler wrote, by device; empty for traces without them."""
    known = devices(trace)
    of_pid = {
        pid: known.get(pid, "")
        for pid, name in trace.process_names.items()
        if name == ASCEND_OVERLAP
    }
    codes = {code: _ROWS[name] for code, name in enumerate(trace.names) if name in _ROWS}
    events = trace.events
    by_device: dict[str, KindIntervals] = {}
    for pid, device in of_pid.items():
        events_of_process = np.flatnonzero(events.pid.having([pid]))
        tracks = by_device.setdefault(device, KindIntervals())
        for code, kind in codes.items():
            rows = events_of_process[events.name[events_of_process] == code]
            if len(rows):
                tracks.of[kind] = joined(tracks[kind], (events.begin_ns[rows], events.end_ns[rows]))
    received = _received(trace)
    for device, tracks in by_device.items():
        if tracks.of and device in received:
            tracks.of[RECEIVING] = received[device]
    return {device: tracks for device, tracks in by_device.items() if tracks.of}


def overlap_from_events(trace: Trace, work: DeviceWork) -> dict[str, KindIntervals]:
    """Return the same tracks, computed from the operators, by device."""
    events, rows, of_pid = trace.events, work.rows, devices(trace)
    pids = {pid: of_pid.get(pid, "") for pid in values_of(events.pid[rows]).tolist()}
    received = _received(trace)
    by_device: dict[str, KindIntervals] = {}
    for device in sorted(set(pids.values())):
        mine = rows[np.isin(events.pid[rows], [p for p, d in pids.items() if d == device])]
        kind = work.kind[mine]
        begin, end = events.begin_ns[mine], events.end_ns[mine]
        computes, talks = kind == COMPUTE, kind == COMMUNICATION
        if not (computes | talks).any():
            continue
        by_device[device] = overlap_of(
            (begin[computes], end[computes]), (begin[talks], end[talks]), received.get(device)
        )
    return by_device


def overlap_of(
    computing: Intervals, communicating: Intervals, receiving: Intervals | None = None
) -> KindIntervals:
    """Return the tracks of a device's work. Intervals of one kind may overlap each other."""
    busy = merged(*joined(computing, communicating))
    computing, communicating = merged(*computing), merged(*communicating)
    tracks = {
        COMPUTING: computing,
        COMMUNICATING: communicating,
        EXPOSED: minus(communicating, computing),
        FREE: (busy[1][:-1], busy[0][1:]),
    }
    return KindIntervals(tracks if receiving is None else tracks | {RECEIVING: receiving})


def _received(trace: Trace) -> dict[str, Intervals]:
    """Return receiving operators, which are the bubbles of a pipeline, by device."""
    codes = [code for code, name in enumerate(trace.names) if RECEIVE.match(name)]
    events, of_pid = trace.events, devices(trace)
    rows = np.flatnonzero(np.isin(events.name, codes)) if codes else np.empty(0, np.intp)
    received: dict[str, Intervals] = {}
    for pid in values_of(events.pid[rows]).tolist():
        if pid in of_pid:
            mine = rows[events.pid[rows] == pid]
            received[of_pid[pid]] = (events.begin_ns[mine], events.end_ns[mine])
    return received


# --- Flows from calls on the host to the work that they launched ---


# At level 0, the profiler leaves out CANN's calls, but keeps the flows that begin in them.
LAUNCH_FLOWS, OPERATOR_FLOWS = ASCEND_LAUNCH_FLOWS, "async_npu"
