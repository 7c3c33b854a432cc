"""When the host computes, communicates, loads data, and compiles: operators by their own work."""

from __future__ import annotations

import re

import msgspec
import numpy as np

from stagespan.trace.derived.device import launches
from stagespan.trace.derived.idle_causes import (
    COMMUNICATES,
    COMPILES,
    MARKS,
    PREPARES_COMPILED,
    loads_data,
)
from stagespan.trace.derived.step_ranges import PROFILER_STEP
from stagespan.trace.derived.threads import ThreadIndex, named, time_index
from stagespan.trace.read.groups import median, values_of
from stagespan.trace.read.intervals import Cover, Intervals, Mask, Numbers, Rows, merged, minus
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once

# Operators that contain others. Outside of these, they may wait for a collective of another thread.
_WRAPS = re.compile(r"^(?:torch::)?autograd::|Backward\w*$|^FSDP::|^DistributedDataParallel")
_NONE = np.empty(0, dtype=np.int64)


class HostWork(msgspec.Struct, frozen=True):
    """What the threads of a program did, in ns of the trace's time."""

    computing: Cover
    """An operator worked: without collectives inside it, and without what a compiler ran."""
    communicating: Cover
    """A collective was in progress, in any thread."""
    loading: Cover
    """The program loaded data."""
    compiling: Cover
    """torch.compile compiled, or ran operators in order to compile."""


@once
def host_work(trace: Trace) -> HostWork:
    """Return the work of the host. Where threads work at the same time, several may apply."""
    marks = trace.rows_of(["user_annotation", "cpu_op"])
    communicates = marks & named(trace, COMMUNICATES)
    compiles = marks & named(trace, COMPILES)
    operators = trace.rows_of(["cpu_op"]) & ~named(trace, MARKS) & ~communicates & ~compiles
    operators &= ~named(trace, PREPARES_COMPILED)
    rows = np.flatnonzero(operators)
    others = [np.flatnonzero(each) for each in (communicates, compiles)]
    communicating = Cover(*_times(trace, others[0]))
    loading = Cover(*_times(trace, np.flatnonzero(loads_data(trace))))
    compiling = Cover(*_times(trace, others[1]))
    index = ThreadIndex(trace, rows, *others)
    if not index.fits or len(others[0]) + len(others[1]) == 0:
        return HostWork(Cover(*_times(trace, rows)), communicating, loading, compiling)
    axis = index.axis

    def placed(chosen: Rows, thread: Numbers) -> Intervals:
        begin, end = _times(trace, chosen)
        return axis.place(thread, begin), axis.place(thread, end)

    begin, end = placed(rows, index.of[0])
    compiled = Cover(*placed(others[1], index.of[2]))
    works = ~_inside(compiled, begin, end)
    waits = Cover(*placed(others[0], index.of[1]))
    within = _inside(waits, begin, end)
    inner = merged(begin[works & within], end[works & within])
    blocked = minus((waits.begin, waits.end), inner)
    not_work = merged(*(np.concatenate(each) for each in zip(blocked, _of(compiled), strict=True)))
    wraps = named(trace, _WRAPS, rows)

    def own(which: Mask) -> Intervals:
        parts = minus(merged(begin[which & works], end[which & works]), not_work)
        # The places of all threads as times.
        start = axis.time_ns(parts[0])
        return merged(start, start + (parts[1] - parts[0]))

    leaves, around = own(~wraps), own(wraps)
    around = minus(around, _of(communicating))
    computing = Cover(*(np.concatenate(each) for each in zip(leaves, around, strict=True)))
    return HostWork(computing, communicating, loading, compiling)


def _times(trace: Trace, rows: Rows) -> Intervals:
    return trace.events.begin_ns[rows], trace.events.end_ns[rows]


def _of(cover: Cover) -> Intervals:
    return cover.begin, cover.end


def _inside(around: Cover, begin: Numbers, end: Numbers) -> Mask:
    """Whether each interval is within an interval of a cover that is longer than it."""
    if len(around.begin) == 0:
        return np.zeros(len(begin), dtype=np.bool_)
    at = np.maximum(np.searchsorted(around.begin, begin, side="right") - 1, 0)
    first, last = around.begin[at], around.end[at]
    inside: Mask = (first <= begin) & (end <= last) & (end - begin < last - first)
    return inside


def wait_for_collectives(trace: Trace, rows: Rows, own_ns: Numbers) -> Mask:
    """Which operators spend most of their own time in a wait for a collective of any thread.

    These contain others, such as nodes of autograd. Within those, the collective may run beside.
    """
    waits_mostly: Mask = np.zeros(len(rows), dtype=np.bool_)
    at = np.flatnonzero(named(trace, _WRAPS, rows) & (own_ns > 0))
    if len(at) == 0:
        return waits_mostly
    communicating = host_work(trace).communicating
    begin, end = _times(trace, rows[at])
    waits = communicating.length(begin, end) - (end - begin - own_ns[at])
    waits_mostly[at] = 2 * waits >= own_ns[at]
    return waits_mostly


FIRST_BATCH = re.compile(r"_MultiProcessingDataLoaderIter")
"""Annotations of a loader with workers, of which the first waits until these have started."""
LOADER_STARTS = 10
"""A loader starts if its first batch takes so many times as long as usual."""


@once
def loader_starts(trace: Trace) -> Cover:
    """Return how long a loader's first batch took beyond the usual one, if its workers started.

    Empty for a trace that begins later, or has one batch only.
    """
    events, rows = trace.events, np.flatnonzero(loads_data(trace) & named(trace, FIRST_BATCH))
    if len(rows) < 2:
        return Cover(_NONE, _NONE)
    rows = rows[np.argsort(events.begin_ns[rows], kind="stable")]
    usual = int(median(events.dur_ns[rows[1:]]))
    if events.dur_ns[rows[0]] < LOADER_STARTS * max(usual, 1):
        return Cover(_NONE, _NONE)
    return Cover(events.begin_ns[rows[:1]], events.end_ns[rows[:1]] - usual)


# --- What filled a time ---


_FILLS = (0.8, 0.5)
_HOST = ("cpu_op", "user_annotation", "python_function")
# Marks of steps cover all, and a frame without its file is of a thread's beginning.
_NO_PLACE = re.compile(rf"{PROFILER_STEP.pattern}|^<function ")


def filled_by(trace: Trace, begin_ns: int, dur_ns: int) -> int:
    """Return the smallest host event that fills most of an interval, or the one that fills most."""
    found = mostly_filled_by(trace, begin_ns, dur_ns)
    rows, inside = _on_host_within(trace, begin_ns, dur_ns)
    return found if found >= 0 or len(rows) == 0 else int(rows[np.argmax(inside)])


def mostly_filled_by(trace: Trace, begin_ns: int, dur_ns: int) -> int:
    """Return the smallest host event that fills at least half of an interval, or -1."""
    rows, inside = _on_host_within(trace, begin_ns, dur_ns)
    for least in _FILLS:
        enough = rows[inside >= least * dur_ns]
        if len(enough):
            return int(enough[np.argmin(trace.events.dur_ns[enough])])
    return -1


def _on_host_within(trace: Trace, begin_ns: int, dur_ns: int) -> tuple[Rows, Numbers]:
    """Return the host events in an interval, and the time of each that is in it."""
    events = trace.events
    rows = time_index(trace).overlapping(begin_ns, begin_ns + dur_ns)
    rows = rows[_host_events(trace)[rows]]
    inside = np.minimum(events.end_ns[rows], begin_ns + dur_ns) - np.maximum(
        events.begin_ns[rows], begin_ns
    )
    return rows[inside > 0], inside[inside > 0]


@once
def _host_events(trace: Trace) -> Mask:
    """Which events are of threads that work: others, such as one that reads a pipe, only wait."""
    events, calls = trace.events, launches(trace)
    host = (trace.rows_of(_HOST) & ~named(trace, _NO_PLACE)) | calls
    working = values_of(events.tid[trace.rows_of(["cpu_op"]) | calls])
    return host & events.tid.having(working) if len(working) else host
