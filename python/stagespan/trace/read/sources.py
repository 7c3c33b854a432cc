"""Settles what two sources of a trace say about the time of an Ascend device.

The profiler shows a device's work as tasks. It also writes tracks of its own, "Overlap Analysis",
and a table, kernel_details.csv. If they differ by more than rounding, the one with more work is
used: what the tasks lack is added to them as events, so that all analyses see the same work.
`Trace.settled` contains both times.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from msgspec import structs

from stagespan.trace.read.csv_tables import CsvTable
from stagespan.trace.read.groups import by_group, values_of
from stagespan.trace.read.intervals import Intervals, Mask, Numbers, Rows, joined, merged, minus
from stagespan.trace.read.model import MISSING, Events, IdColumn, Settled, Trace
from stagespan.trace.read.plausibility import (
    ASCEND_DEVICE,
    ascend_collectives,
    ascend_kernels,
    is_ascend_idle,
)

ASCEND_OVERLAP = "Overlap Analysis"
"""The name of the process with the tracks of computing and communicating time."""
TASKS, TRACKS, TABLE = "the tasks of the device", ASCEND_OVERLAP, "kernel_details.csv"
COMPUTED, COMMUNICATED = "computed", "communicated"
_GROUP = "Communication"
# Cores and names of collectives in kernel_details.csv, to which only some releases write them.
_COMMUNICATION_CORES = re.compile(r"^(?:HCCL|COMMUNICATION)", re.IGNORECASE)
_COLLECTIVES = re.compile(r"^hcom_|^hccl", re.IGNORECASE)
# The type of a task that only a track or a table without cores shows.
_NOT_RECORDED = "not recorded"
# The file of a double's times of day, and a trace in whole nanoseconds, differ by less.
_SAME_BEGIN_NS = 500
_RELATIVE_TOLERANCE = 1e-6


@dataclass
class _Added:
    """Events to add; all of one kind are in a thread of their own."""

    names: list[str] = field(default_factory=list)
    begin_ns: list[int] = field(default_factory=list)
    dur_ns: list[int] = field(default_factory=list)
    pid: list[int] = field(default_factory=list)
    tid: list[int] = field(default_factory=list)
    types: list[str] = field(default_factory=list)

    def to(self, trace: Trace) -> Trace:
        """Return the trace with these events after its own."""
        names, codes = list(trace.names), {name: at for at, name in enumerate(trace.names)}
        count = len(self.names)
        categories = list(dict.fromkeys((*trace.categories, "")))
        columns = {
            "name": [_code(word, names, codes) for word in self.names],
            "task_type": [_code(word, names, codes) for word in self.types],
            "category": [categories.index("")] * count,
            "begin_ns": self.begin_ns,
            "dur_ns": self.dur_ns,
            "pid": self.pid,
            "tid": self.tid,
        }
        old = trace.events
        new: dict[str, Any] = {}
        for attribute in fields(Events):
            column, values = getattr(old, attribute.name), columns.get(attribute.name)
            values = [MISSING] * count if values is None else values
            if isinstance(column, IdColumn):
                ids = np.array(values, dtype=np.int64)
                new[attribute.name] = IdColumn(np.concatenate((column.all(), ids)))
            else:
                dtype = np.int32 if column.itemsize < 4 else column.dtype
                added = np.array(values, dtype=dtype)
                new[attribute.name] = np.concatenate((column, added))
        arguments = dict(trace.arguments)
        if "events" in arguments:
            table = arguments["events"]
            arguments["events"] = structs.replace(table, shape=np.pad(table.shape, (0, count)))
        return replace(
            trace, events=Events(**new), names=names, categories=categories, arguments=arguments
        )


def is_collective(core: str, name: str) -> bool:
    """Whether a row of kernel_details.csv is a collective."""
    return bool(_COMMUNICATION_CORES.match(core) or _COLLECTIVES.match(name))


# --- The tracks of Overlap Analysis ---


def with_tracks(trace: Trace) -> Trace:
    """Return the trace with the work that only the tracks of its devices show.

    The trace itself is returned if tasks and tracks agree, or if the tasks show more.
    """
    if ASCEND_OVERLAP not in trace.process_names.values() or len(trace.events) == 0:
        return trace
    kinds = ((COMPUTED, "Computing", ascend_kernels), (COMMUNICATED, _GROUP, ascend_collectives))
    for what, track, tasks_of in kinds:
        if track in trace.names:
            # With what was added for the kind before.
            trace = _with_track(trace, what, track, tasks_of(trace))
    return trace


def _with_track(trace: Trace, what: str, track: str, tasks: Mask) -> Trace:
    """Add the time of a track to the tasks of each device that show less."""
    events, added, settled = trace.events, _Added(), []
    places = _Places(trace)
    labels, device = _devices(trace)
    pids = [pid for pid, name in trace.process_names.items() if name == ASCEND_OVERLAP]
    shown_by = (events.name == trace.names.index(track)) & events.pid.having(pids)
    on_track, on_tasks = np.flatnonzero(shown_by), np.flatnonzero(tasks)
    of_tracks = by_group(device[on_track], len(labels))
    of_tasks = by_group(device[on_tasks], len(labels))
    for label, rows, of_device in zip(labels, of_tracks, of_tasks, strict=True):
        by_track, by_tasks = _union(events, on_track[rows]), _union(events, on_tasks[of_device])
        tolerance = _rounding(len(rows) + len(of_device), _length(by_track))
        if _length(by_track) - _length(by_tasks) <= tolerance:
            continue
        begin, end = minus(by_track, by_tasks)
        beside = _length(merged(*joined(by_track, by_tasks))) - _length(by_track)
        sources = (_length(by_track), TRACKS, _length(by_tasks), TASKS)
        settled.append(Settled(what, label, *sources, beside if beside > tolerance else 0))
        owner = places.process(ASCEND_DEVICE if what == COMPUTED else _GROUP, label)
        # Threads of collectives are those of groups.
        name = f"Group by {TRACKS}" if what == COMMUNICATED else f"by {TRACKS}"
        count = len(begin)
        added.names += [f"{track} ({TRACKS})"] * count
        added.begin_ns += begin.tolist()
        added.dur_ns += (end - begin).tolist()
        added.pid += [owner] * count
        added.tid += [places.thread(owner, name)] * count
        added.types += [_NOT_RECORDED] * count
    if not settled:
        return trace
    return replace(places.named(added.to(trace)), settled=(*trace.settled, *settled))


# --- kernel_details.csv ---


def with_table(trace: Trace, table: CsvTable) -> Trace:
    """Return the trace with the operators that only kernel_details.csv shows.

    A row and a task are the same if they begin at the same time; then the task has the core of the
    row. The trace itself is returned if the table has no more operators than the trace, or was
    written by another clock.
    """
    rows = _Rows.of(table)
    events = trace.events
    if len(rows.begin_ns) == 0 or len(events) == 0:
        return trace
    kernels = ascend_kernels(trace)
    pids = [pid for pid, name in trace.process_names.items() if name == ASCEND_DEVICE]
    tasks = np.flatnonzero(events.pid.having(pids))
    tasks = tasks[np.argsort(events.begin_ns[tasks], kind="stable")]
    first, last = int(events.begin_ns.min()), int(events.end_ns.all().max())
    here = np.flatnonzero((rows.begin_ns >= first) & (rows.begin_ns <= last))
    task = _nearest(events.begin_ns[tasks], rows.begin_ns[here])
    task = np.where(task >= 0, np.append(tasks, -1)[task], -1)
    # A task that computes shows the same work by another clock if it is in no row.
    seen = values_of(task[task >= 0])
    if 2 * int(kernels[seen].sum()) < int(kernels.sum()):
        return trace
    lacking = np.flatnonzero((task < 0) | ~np.append(kernels, True)[task])
    in_tasks = _union(events, np.flatnonzero(kernels))
    begin, dur = rows.begin_ns[here], rows.dur_ns[here]
    in_table = merged(begin, begin + dur)
    whole = merged(*joined(in_table, in_tasks))
    tolerance = _rounding(len(here) + int(kernels.sum()), _length(whole))
    if _length(in_table) - _length(in_tasks) <= tolerance:
        return trace
    result = _retyped(trace, task[lacking], [rows.cores[at] for at in here[lacking].tolist()])
    result = _appended(result, rows, here[lacking[task[lacking] < 0]])
    beside = _length(whole) - _length(in_table)
    settled = Settled(
        COMPUTED,
        "",
        *(_length(in_table), TABLE, _length(in_tasks), TASKS),
        beside if beside > tolerance else 0,
    )
    return replace(result, settled=(*trace.settled, settled))


@dataclass(frozen=True)
class _Rows:
    """The rows of computing operators; times in ns."""

    begin_ns: Numbers
    dur_ns: Numbers
    names: list[str]
    cores: list[str]
    devices: list[str]
    streams: list[str]

    @classmethod
    def of(cls, table: CsvTable) -> _Rows:
        """Read the rows with a begin and a duration; none if the table has no times of day."""
        times: list[tuple[int, int]] = []
        texts: list[tuple[str, ...]] = []
        if table.has("start time", "duration"):
            cells = zip(
                table.amounts("start time", "us"),
                table.amounts("duration", "us"),
                table.texts("name"),
                table.texts("accelerator core", "core type", "task type"),
                table.texts("device_id"),
                table.texts("stream id"),
                strict=True,
            )
            for begin, dur, name, core, device, stream in cells:
                if begin is None or dur is None or dur <= 0:
                    continue
                if not is_collective(core, name) and not is_ascend_idle(core, name):
                    times.append((begin, dur))
                    texts.append((name, core, device, stream))
        begins, lengths = np.array(times, dtype=np.int64).reshape(-1, 2).T
        return cls(begins, lengths, *([each[at] for each in texts] for at in range(4)))


def _nearest(ordered: Numbers, times: Numbers) -> Rows:
    """Return the place of the time in `ordered` that is the same as each of some times, or -1."""
    if len(ordered) == 0:
        return np.full(len(times), -1, dtype=np.intp)
    after = np.clip(np.searchsorted(ordered, times), 0, len(ordered) - 1)
    before = np.maximum(after - 1, 0)
    nearer = times - ordered[before] < np.abs(ordered[after] - times)
    place = np.where(nearer, before, after)
    return np.where(np.abs(ordered[place] - times) <= _SAME_BEGIN_NS, place, -1)


def _retyped(trace: Trace, tasks: Rows, cores: list[str]) -> Trace:
    """Return the trace with the cores of some tasks; tasks of -1 are passed over."""
    names = list(trace.names)
    codes = {name: code for code, name in enumerate(names)}
    types = np.array(trace.events.task_type)
    for task, core in zip(tasks.tolist(), cores, strict=True):
        if task >= 0:
            types[task] = _code(core or _NOT_RECORDED, names, codes)
    return replace(trace, names=names, events=replace(trace.events, task_type=types))


def _appended(trace: Trace, rows: _Rows, chosen: Rows) -> Trace:
    """Return the trace with rows of the table as tasks, each in its stream or in a new thread."""
    places, added = _Places(trace), _Added()
    # Older traces do not number their only device.
    several = list(trace.process_names.values()).count(ASCEND_DEVICE) > 1
    for at in chosen.tolist():
        label = f"NPU {rows.devices[at]}" if several and rows.devices[at] else None
        pid = places.process(ASCEND_DEVICE, label)
        stream = rows.streams[at]
        number = int(stream) if stream.isdecimal() and len(stream) < 10 else None
        name = f"by {TABLE}" if number is None else f"Stream {number}"
        added.names.append(rows.names[at])
        added.begin_ns.append(int(rows.begin_ns[at]))
        added.dur_ns.append(int(rows.dur_ns[at]))
        added.pid.append(pid)
        added.tid.append(places.thread(pid, name, number))
        added.types.append(rows.cores[at] or _NOT_RECORDED)
    return places.named(added.to(trace))


# --- Helpers of both ---


class _Places:
    """The processes and threads of a trace, and those that are added for its devices."""

    def __init__(self, trace: Trace) -> None:
        self._processes, self._labels = dict(trace.process_names), dict(trace.process_labels)
        self._threads = dict(trace.thread_names)
        taken = [int(trace.events.tid.all().max(initial=0)), *(tid for _, tid in self._threads)]
        self._free_thread = max(taken) + 1
        self._free_process = max([*self._processes, *self._labels, 0]) + 1
        self._pids: dict[tuple[str, str | None], int] = {}
        self._added: dict[tuple[int, str], int] = {}
        for pid, name in self._processes.items():
            self._pids.setdefault((name, self._labels.get(pid, "")), pid)
            # Without a label, the first device counts.
            self._pids.setdefault((name, None), pid)

    def process(self, name: str, label: str | None) -> int:
        """Return the process of a name and a label, which is added if there is none."""
        pid = self._pids.get((name, label))
        if pid is None:
            pid = self._pids[name, label] = self._free_process
            self._free_process += 1
            self._processes[pid] = name
            if label:
                self._labels[pid] = label
        return pid

    def thread(self, pid: int, name: str, number: int | None = None) -> int:
        """Return the thread with a number; without one, a new thread of that name."""
        if number is None and (number := self._added.get((pid, name))) is None:
            number = self._added[pid, name] = self._free_thread
            self._free_thread += 1
        self._threads.setdefault((pid, number), name)
        return number

    def named(self, trace: Trace) -> Trace:
        """Return the trace with the names of all these."""
        return replace(
            trace,
            process_names=self._processes,
            process_labels=self._labels,
            thread_names=self._threads,
        )


def _devices(trace: Trace) -> tuple[list[str], Numbers]:
    """Return the labels of all processes, and the index of that of each event."""
    pids, of = np.unique(trace.events.pid.all(), return_inverse=True)
    written = [trace.process_labels.get(pid, "") for pid in pids.tolist()]
    labels = list(dict.fromkeys(written))
    index = {label: at for at, label in enumerate(labels)}
    numbers = np.array([index[label] for label in written], dtype=np.int64)
    return labels, numbers[of.reshape(-1)]


def _code(word: str, names: list[str], codes: dict[str, int]) -> int:
    """Return the code of a word in a list of names, which it is added to if it is new."""
    code = codes.setdefault(word, len(names))
    if code == len(names):
        names.append(word)
    return code


def _union(events: Events, rows: Rows) -> Intervals:
    return merged(events.begin_ns[rows], events.end_ns[rows])


def _length(intervals: Intervals) -> int:
    return int((intervals[1] - intervals[0]).sum())


def _rounding(intervals: int, time_ns: int) -> float:
    """Return how far two sources may differ: each interval is rounded to ns, and 1e-6 of all."""
    return max(intervals, _RELATIVE_TOLERANCE * time_ns)
