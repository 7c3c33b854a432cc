"""Computing, communicating and free time of an Ascend device, from its `Overlap Analysis`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.derived.device import COMMUNICATION, COMPUTE, DeviceWork
from stagespan.trace.read.intervals import Numbers, merged
from stagespan.trace.read.model import Trace

COMPUTING, COMMUNICATING, EXPOSED, FREE, RECEIVING = range(5)
_ROWS = {
    "Computing": COMPUTING,
    "Communication": COMMUNICATING,
    "Communication(Not Overlapped)": EXPOSED,
    "Free": FREE,
}
_RECEIVE = re.compile(r"^hcom_receive")
_DEVICE = re.compile(r"NPU\s*(\d*)")
Interval = tuple[Numbers, Numbers]


@dataclass(frozen=True, slots=True)
class Overlap:
    """Intervals of one device in ns, by kind."""

    of: dict[int, Interval] = field(default_factory=dict)

    def __getitem__(self, kind: int) -> Interval:
        none = np.empty(0, dtype=np.int64)
        return self.of.get(kind, (none, none))


def devices(trace: Trace) -> dict[int, str]:
    """Return the device of each process, as the text of its number, or "" if unknown."""
    found = {pid: _DEVICE.search(label) for pid, label in trace.process_labels.items()}
    return {pid: match[1] for pid, match in found.items() if match}


def overlap_in(trace: Trace) -> dict[str, Overlap]:
    """Return the tracks that the profiler wrote, by device; empty for traces without them."""
    of_pid = {
        pid: devices(trace).get(pid, "")
        for pid, name in trace.process_names.items()
        if name == "Overlap Analysis"
    }
    codes = {code: _ROWS[name] for code, name in enumerate(trace.names) if name in _ROWS}
    events = trace.events
    found: dict[str, Overlap] = {}
    for pid, device in of_pid.items():
        mine = np.flatnonzero(events.pid == pid)
        lanes = found.setdefault(device, Overlap())
        for code, kind in codes.items():
            rows = mine[events.name[mine] == code]
            if len(rows):
                lanes.of[kind] = _joined(lanes[kind], (events.begin_ns[rows], events.end_ns[rows]))
    received = _received(trace)
    for device, lanes in found.items():
        if lanes.of and device in received:
            lanes.of[RECEIVING] = received[device]
    return {device: lanes for device, lanes in found.items() if lanes.of}


def overlap_from_events(trace: Trace, work: DeviceWork) -> dict[str, Overlap]:
    """Return the same tracks, computed from the operators, by device."""
    events, rows, of_pid = trace.events, work.rows, devices(trace)
    pids = {pid: of_pid.get(pid, "") for pid in np.unique(events.pid[rows]).tolist()}
    received = _received(trace)
    found: dict[str, Overlap] = {}
    for device in sorted(set(pids.values())):
        mine = rows[np.isin(events.pid[rows], [p for p, d in pids.items() if d == device])]
        kind = work.kind[mine]
        begin, end = events.begin_ns[mine], events.end_ns[mine]
        computes, talks = kind == COMPUTE, kind == COMMUNICATION
        both = computes | talks
        if not both.any():
            continue
        computing = merged(begin[computes], end[computes])
        talking = merged(begin[talks], end[talks])
        busy = merged(begin[both], end[both])
        lanes = Overlap(
            {
                COMPUTING: computing,
                COMMUNICATING: talking,
                EXPOSED: minus(talking, computing),
                FREE: (busy[1][:-1], busy[0][1:]),
            }
        )
        if device in received:
            lanes.of[RECEIVING] = received[device]
        found[device] = lanes
    return found


def minus(whole: Interval, part: Interval) -> Interval:
    """Return the parts of disjoint ascending intervals that other such intervals do not cover."""
    time = np.concatenate((*whole, *part))
    count, other = len(whole[0]), len(part[0])
    step = np.repeat([1, -1, -2, 2], [count, count, other, other])
    order = np.argsort(time, kind="stable")
    time, state = time[order], np.cumsum(step[order])
    # 1: within the whole (+1) and outside the part, which counts -2.
    inside = np.flatnonzero((state[:-1] == 1) & (time[1:] > time[:-1])) if len(time) else state
    return merged(time[inside], time[inside + 1])


def _received(trace: Trace) -> dict[str, Interval]:
    """Return receiving operators, which are the bubbles of a pipeline, by device."""
    codes = [code for code, name in enumerate(trace.names) if _RECEIVE.match(name)]
    events, of_pid = trace.events, devices(trace)
    rows = np.flatnonzero(np.isin(events.name, codes)) if codes else np.empty(0, np.intp)
    found: dict[str, Interval] = {}
    for pid in np.unique(events.pid[rows]).tolist():
        if pid in of_pid:
            mine = rows[events.pid[rows] == pid]
            found[of_pid[pid]] = (events.begin_ns[mine], events.end_ns[mine])
    return found


def _joined(first: Interval, second: Interval) -> Interval:
    return np.concatenate((first[0], second[0])), np.concatenate((first[1], second[1]))


def on_device(trace: Trace) -> NDArray[np.bool_]:
    """Return the rows of `trace.events` in the process that shows the device's streams."""
    pids = [pid for pid, name in trace.process_names.items() if name == "Ascend Hardware"]
    rows: NDArray[np.bool_] = np.isin(trace.events.pid, np.array(pids, dtype=np.int64))
    return rows
