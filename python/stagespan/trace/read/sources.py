"""Settles what two sources of a trace say about the time of an Ascend device.

The profiler shows a device's work as tasks. It also writes tracks of its own, "Overlap Analysis",
and a table, kernel_details.csv. If they differ by more than rounding, the one with more work is
used: what the tasks lack is added to them as events, so that all analyses see the same work.
`Trace.settled` contains both times.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace

import numpy as np
from msgspec import structs

from stagespan.trace.read.csv_tables import CsvTable
from stagespan.trace.read.groups import values_of
from stagespan.trace.read.intervals import Intervals, Mask, Numbers, Rows, joined, merged, minus
from stagespan.trace.read.model import MISSING, Events, Settled, Trace
from stagespan.trace.read.plausibility import ASCEND_DEVICE, ascend_collectives, ascend_kernels

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

        def encoded(words: Iterable[str]) -> list[int]:
            found = []
            for word in words:
                code = codes.setdefault(word, len(names))
                if code == len(names):
                    names.append(word)
                found.append(code)
            return found

        categories = list(trace.categories)
        if "" not in categories:
            categories.append("")
        columns = {
            "name": encoded(self.names),
            "task_type": encoded(self.types),
            "category": [categories.index("")] * count,
            "begin_ns": self.begin_ns,
            "dur_ns": self.dur_ns,
            "pid": self.pid,
            "tid": self.tid,
        }
        old, new = trace.events, {}
        for each in fields(Events):
            column = getattr(old, each.name)
            added = np.array(columns.get(each.name, [MISSING] * count), dtype=column.dtype)
            new[each.name] = np.concatenate((column, added))
        arguments = dict(trace.arguments)
        if "events" in arguments:
            table = arguments["events"]
            none = np.zeros(count, dtype=table.shape.dtype)
            shape = np.concatenate((table.shape, none))
            arguments["events"] = structs.replace(table, shape=shape)
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
    events, added = trace.events, _Added()
    on_track = events.name == trace.names.index(track)
    settled, threads = [], dict(trace.thread_names)
    processes, labels = dict(trace.process_names), dict(trace.process_labels)
    for pid in [pid for pid, name in trace.process_names.items() if name == ASCEND_OVERLAP]:
        label = labels.get(pid, "")
        rows = np.flatnonzero(on_track & (events.pid == pid))
        of_device = [each for each in processes if labels.get(each, "") == label]
        mine = np.flatnonzero(tasks & np.isin(events.pid, of_device))
        shown, known = _union(events, rows), _union(events, mine)
        tolerance = _rounding(len(rows) + len(mine), _length(shown))
        if _length(shown) - _length(known) <= tolerance:
            continue
        begin, end = minus(shown, known)
        beside = _length(_joined(shown, known)) - _length(shown)
        sources = (_length(shown), TRACKS, _length(known), TASKS)
        settled.append(Settled(what, label, *sources, beside if beside > tolerance else 0))
        name = ASCEND_DEVICE if what == COMPUTED else _GROUP
        owner = _process(processes, labels, of_device, name, label)
        tid = _free_thread(trace, threads)
        # Threads of collectives are those of groups.
        threads[owner, tid] = f"Group by {TRACKS}" if what == COMMUNICATED else f"by {TRACKS}"
        count = len(begin)
        added.names += [f"{track} ({TRACKS})"] * count
        added.begin_ns += begin.tolist()
        added.dur_ns += (end - begin).tolist()
        added.pid += [owner] * count
        added.tid += [tid] * count
        added.types += [_NOT_RECORDED] * count
    if not settled:
        return trace
    return replace(
        added.to(trace),
        thread_names=threads,
        process_names=processes,
        process_labels=labels,
        settled=(*trace.settled, *settled),
    )


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
    tasks = np.flatnonzero(np.isin(events.pid, pids))
    tasks = tasks[np.argsort(events.begin_ns[tasks], kind="stable")]
    first, last = int(events.begin_ns.min()), int(events.end_ns.max())
    here = np.flatnonzero((rows.begin_ns >= first) & (rows.begin_ns <= last))
    task = _nearest(events.begin_ns[tasks], rows.begin_ns[here])
    task = np.where(task >= 0, np.append(tasks, -1)[task], -1)
    # A task that computes shows the same work by another clock if it is in no row.
    seen = values_of(task[task >= 0])
    if 2 * int(kernels[seen].sum()) < int(kernels.sum()):
        return trace
    lacking = np.flatnonzero((task < 0) | ~np.append(kernels, True)[task])
    known = _union(events, np.flatnonzero(kernels))
    begin, dur = rows.begin_ns[here], rows.dur_ns[here]
    shown = merged(begin, begin + dur)
    whole = _joined(shown, known)
    tolerance = _rounding(len(here) + int(kernels.sum()), _length(whole))
    if _length(shown) - _length(known) <= tolerance:
        return trace
    result = _retyped(trace, task[lacking], [rows.cores[at] for at in here[lacking].tolist()])
    result = _appended(result, rows, here[lacking[task[lacking] < 0]])
    beside = _length(whole) - _length(shown)
    settled = Settled(
        COMPUTED,
        "",
        *(_length(shown), TABLE, _length(known), TASKS),
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
                if not is_collective(core, name):
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
    types = np.array(trace.events.task_type)
    for task, core in zip(tasks.tolist(), cores, strict=True):
        if task >= 0:
            word = core or _NOT_RECORDED
            if word not in names:
                names.append(word)
            types[task] = names.index(word)
    return replace(trace, names=names, events=replace(trace.events, task_type=types))


def _appended(trace: Trace, rows: _Rows, chosen: Rows) -> Trace:
    """Return the trace with rows of the table as tasks, each in its stream or in a new thread."""
    processes, labels = dict(trace.process_names), dict(trace.process_labels)
    threads = dict(trace.thread_names)
    new = _free_thread(trace, threads)
    added = _Added()
    for at in chosen.tolist():
        label = f"NPU {rows.devices[at]}".strip()
        of_device = [pid for pid, text in labels.items() if text == label]
        if not rows.devices[at]:
            of_device = [pid for pid, name in processes.items() if name == ASCEND_DEVICE]
        pid = _process(processes, labels, of_device, ASCEND_DEVICE, label)
        stream = rows.streams[at]
        tid = int(stream) if stream.isdecimal() and len(stream) < 10 else new
        threads.setdefault((pid, tid), f"Stream {stream}" if tid != new else f"by {TABLE}")
        added.names.append(rows.names[at])
        added.begin_ns.append(int(rows.begin_ns[at]))
        added.dur_ns.append(int(rows.dur_ns[at]))
        added.pid.append(pid)
        added.tid.append(tid)
        added.types.append(rows.cores[at] or _NOT_RECORDED)
    return replace(
        added.to(trace), process_names=processes, process_labels=labels, thread_names=threads
    )


# --- Helpers of both ---


def _process(
    processes: dict[int, str], labels: dict[int, str], of_device: list[int], name: str, label: str
) -> int:
    """Return the device's process of a name, which is added if there is none."""
    for pid in of_device:
        if processes.get(pid) == name:
            return pid
    pid = max([*processes, *labels, 0]) + 1
    processes[pid] = name
    if label:
        labels[pid] = label
    of_device.append(pid)
    return pid


def _free_thread(trace: Trace, threads: dict[tuple[int, int], str]) -> int:
    """Return the number of a thread that no process has."""
    taken = [int(trace.events.tid.max(initial=0)), *(tid for _, tid in threads), 0]
    return max(taken) + 1


def _union(events: Events, rows: Rows) -> Intervals:
    return merged(events.begin_ns[rows], events.end_ns[rows])


def _length(intervals: Intervals) -> int:
    return int((intervals[1] - intervals[0]).sum())


def _joined(first: Intervals, second: Intervals) -> Intervals:
    return merged(*joined(first, second))


def _rounding(intervals: int, time_ns: int) -> float:
    """Return how far two sources may differ: each interval is rounded to ns, and 1e-6 of all."""
    return max(intervals, _RELATIVE_TOLERANCE * time_ns)
