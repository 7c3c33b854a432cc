"""Finds the gaps in which no stream of any device was busy, and their causes."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from stagespan.trace.derived import idle_causes as causes
from stagespan.trace.derived.device import (
    COPY,
    device_work,
    is_ascend,
    launch_of,
    launches,
    streams,
)
from stagespan.trace.derived.idle_causes import GRAPH_LAUNCHES, SINGLE_LAUNCHES
from stagespan.trace.derived.task_queue import origins
from stagespan.trace.derived.threads import (
    Axis,
    among,
    named,
    processes,
    quiet_stretches,
    threads,
)
from stagespan.trace.evidence import window_of
from stagespan.trace.read.groups import firsts_of, numbered, pairs, parts, values_of
from stagespan.trace.read.intervals import ROW, Cover, Mask, Numbers, Rows
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once

BEFORE, DURING, AFTER, UNKNOWN = 0, 1, 2, 3
ISSUED = ("before", "during", "after", None)
"""Whether the launch that ended a gap was issued before the gap, during it, or after it."""


class Gaps(msgspec.Struct, frozen=True):
    """Gaps in the order of time. `rows`, `calls` and `origins` have one element for each device
    event, the other arrays have one for each gap."""

    rows: Rows
    """All device events, by begin and launch."""
    calls: Rows
    """The call that launched each of `rows`, or -1."""
    origins: Rows
    """The event with which the program requested each of these launches: the call, or where it was
    put into a task queue; or -1."""
    begin_ns: Numbers
    end_ns: Numbers
    last: NDArray[np.intp]
    """Index in `rows` of the event that ended where the gap begins."""
    first: NDArray[np.intp]
    """Index in `rows` of the event that begins where the gap ends."""
    first_call: Rows
    """The call that launched the event after the gap, or -1. For an event that never has a launch,
    such as a transfer that belongs to the next kernel, it is the launch of the next event."""
    first_origin: Rows
    """The event with which the program requested that launch, or -1."""
    in_graph: Mask
    """Whether the event that ends the gap is part of a graph that was already running."""
    issued: NDArray[np.int8]
    """Index into ISSUED."""

    @property
    def dur_ns(self) -> Numbers:
        """The lengths of the gaps; their sum is the device's idle time."""
        return self.end_ns - self.begin_ns

    @property
    def last_call(self) -> Rows:
        """The call that launched the event before the gap, or -1."""
        return self.calls[self.last]

    @property
    def last_origin(self) -> Rows:
        """The event with which the program requested the launch before the gap, or -1."""
        return self.origins[self.last]


@once
def gaps(trace: Trace) -> Gaps:
    """Find the gaps between all device events; empty if there are fewer than two."""
    events = trace.events
    rows = device_work(trace).rows
    calls = launch_of(trace, rows)
    launched = np.where(calls >= 0, events.begin_ns[calls], events.begin_ns[rows])
    order = np.lexsort((launched, events.begin_ns[rows]))
    rows, calls = rows[order], calls[order]
    begin, end = events.begin_ns[rows], events.end_ns[rows]
    reach = np.maximum.accumulate(end)
    opens = np.flatnonzero(begin[1:] > reach[:-1]).astype(ROW) + 1
    index = np.arange(len(rows), dtype=ROW)
    latest = np.maximum.accumulate(np.where(end == reach, index, 0))
    gap_begin, gap_end = reach[opens - 1], begin[opens]
    origin_of = origins(trace, calls)
    asked = _with_launch(trace, rows, calls, opens)
    call = calls[asked]
    has_call = call >= 0
    call_begin, call_end = events.begin_ns[call], events.end_ns[call]
    issued = np.full(len(opens), UNKNOWN, dtype=np.int8)
    issued[has_call] = DURING
    issued[has_call & (call_begin >= gap_begin)] = AFTER
    issued[has_call & (call_end <= gap_begin)] = BEFORE
    return Gaps(
        rows=rows,
        calls=calls,
        origins=origin_of,
        begin_ns=gap_begin,
        end_ns=gap_end,
        last=latest[opens - 1],
        first=opens,
        first_call=call,
        first_origin=origin_of[asked],
        in_graph=_later_in_graph(trace, calls)[opens],
        issued=issued,
    )


def _with_launch(trace: Trace, rows: Rows, calls: Rows, asked: Rows) -> Rows:
    """Return which of `rows` shows the launch of each of `asked`, both as indices of `rows`.

    This is the event itself, unless no event of its name has a launch in this trace. Then it is the
    next event of its device with a launch. Work that was launched before the trace began is an
    exception: it runs before the first event of its stream with a launch.
    """
    events = trace.events
    code = events.name[rows]
    launched = calls >= 0
    has_launch = np.bincount(code[launched], minlength=len(trace.names) + 1) > 0
    lacks = ~has_launch[code[asked]]
    if not lacks.any() or not launched.any():
        return asked
    begin, (device, _) = events.begin_ns[rows], streams(trace, rows)
    first = _first_launched(trace, rows, calls)
    # A stream without any launch is compared with the whole device.
    first = np.where(first < np.iinfo(np.int64).max, first, begin[launched].min())
    lacks &= begin[asked] >= first[asked]
    nearest = asked.copy()
    for number in values_of(device[asked[lacks]]).tolist():
        on_device = np.flatnonzero((device == number) & launched)
        here = np.flatnonzero(lacks & (device[asked] == number))
        at = np.searchsorted(on_device, asked[here])
        known = at < len(on_device)
        nearest[here[known]] = on_device[at[known]]
    return nearest


def _first_launched(trace: Trace, rows: Rows, calls: Rows) -> Numbers:
    """Return, for each of `rows`, when the first work with a launch began on its stream.

    It is the largest integer for streams without any launch.
    """
    _, of_stream = pairs(*streams(trace, rows))
    first = np.full(int(of_stream.max()) + 1, np.iinfo(np.int64).max)
    known = calls >= 0
    np.minimum.at(first, of_stream[known], trace.events.begin_ns[rows][known])
    result: Numbers = first[of_stream]
    return result


def graph_calls(trace: Trace, calls: Rows) -> Mask:
    """Return which of `calls` (-1 for none) launch graphs.

    They are recognised by name, or because they launched several events. However, a copy can have
    several parts, and on Ascend, one call launches several kernels of an operator.
    """
    of_graph: Mask = (calls >= 0) & named(trace, GRAPH_LAUNCHES, calls)
    if is_ascend(trace):
        return of_graph
    _, of = numbered(calls)
    several = (np.bincount(of) > 1)[of] & ~named(trace, SINGLE_LAUNCHES, calls)
    return of_graph | (several & (calls >= 0))


def _later_in_graph(trace: Trace, calls: Rows) -> Mask:
    """Return which device events, in the order of time, are not the first of their graph."""
    later = graph_calls(trace, calls)
    _, firsts = firsts_of(calls)
    later[firsts] = False
    return later


# --- What a thread did: calls, waits, and quiet time ---


# A thread in which no operator or call begins or ends for this long is not launching.
QUIET_NS = 200_000
# How far the clocks of host and device may differ.
_CLOCKS_NS = 5_000
_CLASSES = (
    causes.GRAPH_CAPTURE,
    causes.SYNCHRONISATION,
    causes.MEMORY_ALLOCATION,
    causes.KERNEL_LOADING,
    causes.PROFILER,
    causes.RUNTIME_CALL,
    causes.DATA_LOADING,
    causes.COMPILATION,
    causes.HOST_UNSEEN,
)
"""The visible activity of a thread: the first that applies, or that nothing is visible."""
_MOST_PLACES = 4_000_000
_NO_ROWS: Rows = np.empty(0, dtype=np.intp)


class _HostEvents(NamedTuple):
    """The events that show what the host did; masks have one element for each event."""

    calls: Mask
    waits: Mask
    allocates: Mask
    program_calls: Mask
    """Calls that contain other calls, so they are parts of the program."""
    work: Mask
    """Calls and operators."""
    seen: Mask
    """What is known to be a part of the program: calls, operators, annotations and frames."""
    classes: dict[str, Rows]
    """The events of threads that show most of _CLASSES."""
    overhead: dict[str, Rows]
    """The same for events that belong to no thread."""


@once
def _host_events(trace: Trace) -> _HostEvents:
    idle, calls, rows = gaps(trace), launches(trace), np.flatnonzero
    waits = waiting_calls(trace, idle.rows, idle.calls)
    allocates = among(calls, trace, causes.ALLOCATES) & ~waits
    of_program = program_calls(trace, calls)
    operators, overhead = trace.rows_of(["cpu_op"]), trace.rows_of(["overhead"])
    loads = among(overhead, trace, causes.LOADS_KERNELS)
    # The mark of a step is around all that happens in it, and shows nothing of it.
    marked = trace.rows_of(["user_annotation", "cpu_op"])
    seen = marked & ~among(marked, trace, causes.STEP_MARKS)
    return _HostEvents(
        calls=calls,
        waits=waits,
        allocates=allocates,
        program_calls=of_program,
        work=(operators & ~among(operators, trace, causes.MARKS)) | calls,
        seen=seen | calls | trace.rows_of(["python_function"]),
        classes={
            causes.SYNCHRONISATION: rows(waits),
            causes.MEMORY_ALLOCATION: rows(allocates),
            causes.KERNEL_LOADING: rows(among(calls, trace, causes.LOADS_KERNELS)),
            causes.RUNTIME_CALL: rows(calls & ~of_program & (trace.events.dur_ns > QUIET_NS)),
            causes.DATA_LOADING: rows(causes.loads_data(trace)),
            causes.COMPILATION: rows(causes.compiles(trace)),
        },
        overhead={causes.KERNEL_LOADING: rows(loads), causes.PROFILER: rows(overhead & ~loads)},
    )


class _HostActivity:
    """The activity of the launching threads by class, on one axis."""

    def __init__(self, trace: Trace, axis: Axis, owners: NDArray[np.int64]) -> None:
        events, host = trace.events, _host_events(trace)
        self._events, self._axis = events, axis
        self._thread, rows, begin, end = axis.placed_events(trace, owners)
        work = host.work[rows]
        self.busy = Cover(begin, end, which=work)
        quiet = quiet_stretches(axis, begin, end, work, QUIET_NS)
        seen = Cover(begin, end, which=host.seen[rows])
        del rows, begin, end, work
        self._nested: list[Cover] = []
        for name in _CLASSES:
            cover = self._cover_of(name, trace, host, seen)
            self._nested.append(self._nested[-1] | cover if self._nested else cover)
        self._nested.append(self._nested[-1] | quiet)
        blocking = np.flatnonzero((host.waits | host.allocates) & (self._thread >= 0))
        begin, _ = self._placed(blocking)
        order = np.lexsort((events.begin_ns[blocking], begin))
        self._blocking, self._blocking_begin = blocking[order], begin[order]

    def _cover_of(self, name: str, trace: Trace, host: _HostEvents, seen: Cover) -> Cover:
        """Return the intervals of one of _CLASSES. `seen` are those in which the program ran."""
        if name == causes.GRAPH_CAPTURE:
            return self._captures(trace, host.calls)
        if name == causes.HOST_UNSEEN:
            overhead = np.sort(np.concatenate([*host.overhead.values()]))
            return self._unseen(seen | self._cover_of_all(overhead))
        rows = host.classes.get(name, _NO_ROWS)
        cover = Cover(*self._placed(rows[self._thread[rows] >= 0]))
        return self._cover_of_all(host.overhead.get(name, _NO_ROWS)) | cover

    def _captures(self, trace: Trace, calls: Mask) -> Cover:
        """Return when a thread captured a device graph: until the graph can be launched."""
        # Also of captures that began before the axis' time.
        rows = np.flatnonzero(calls & (self._thread >= 0))
        begins = rows[named(trace, causes.CAPTURE_BEGINS, rows)]
        ends = rows[named(trace, causes.CAPTURE_ENDS, rows)]
        begin, (end, done) = np.sort(self._placed(begins)[0]), self._placed(ends)
        order = np.argsort(end)
        end, done = end[order], done[order]
        at = np.searchsorted(end, begin)
        # The next end is of the same thread.
        same = np.flatnonzero(at < len(end))
        same = same[end[at[same]] // self._axis.stride == begin[same] // self._axis.stride]
        return Cover(np.concatenate((begin[same], end)), np.concatenate((done[at[same]], done)))

    def classified(self, thread: Numbers, begin_ns: Numbers, end_ns: Numbers) -> NDArray[np.int64]:
        """Return the time of each interval in each of _CLASSES, the quiet time, and the rest."""
        begin, end = self._axis.place(thread, begin_ns), self._axis.place(thread, end_ns)
        end = np.maximum(begin, end)
        # Each class is a column, which is used alone.
        result = np.empty((len(begin), len(self._nested) + 1), dtype=np.int64, order="F")
        before: Numbers | int = 0
        for number, cover in enumerate(self._nested):
            reached = cover.length(begin, end)
            np.subtract(reached, before, out=result[:, number])
            before = reached
        np.subtract(end - begin, before, out=result[:, -1])
        return result

    def blocked_at(self, thread: Numbers, time_ns: Numbers, until_ns: Numbers) -> Rows:
        """Return the blocking call of a thread at a time, if it ended by another time; or -1."""
        if len(self._blocking) == 0:
            return np.full(len(time_ns), -1, dtype=np.intp)
        events, place = self._events, self._axis.place(thread, time_ns)
        at = np.searchsorted(self._blocking_begin, place, side="left") - 1
        row = self._blocking[at]
        inside = (
            (at >= 0)
            & (self._thread[row] == thread)
            & (events.begin_ns[row] < time_ns)
            & (events.end_ns[row] >= time_ns - _CLOCKS_NS)
            & (events.begin_ns[row] < until_ns)
        )
        return np.where(inside, row, -1)

    def time_in(self, rows: Rows, stretches: list[tuple[Numbers, Numbers, Numbers]]) -> Numbers:
        """Return the part of each event within intervals (thread, begin, end) of its thread."""
        places = [
            (self._axis.place(thread, begin), self._axis.place(thread, end))
            for thread, begin, end in stretches
        ]
        cover = Cover(
            np.concatenate([begin for begin, _ in places]),
            np.concatenate([end for _, end in places]),
        )
        time = np.zeros(len(rows), dtype=np.int64)
        known = self._thread[rows] >= 0
        time[known] = cover.length(*self._placed(rows[known]))
        return time

    def operator_begin(self, thread: Numbers, time_ns: Numbers) -> Numbers:
        """Return the begin of the outermost operator or call around a time on a thread."""
        place = self._axis.place(thread, time_ns)
        result: Numbers = time_ns - (place - self.busy.begin_around(place))
        return result

    def _placed(self, rows: Rows) -> tuple[Numbers, Numbers]:
        events = self._events
        begin, end = (np.empty(len(rows), dtype=np.int64) for _ in range(2))
        # In parts, because the intermediate results take several times the memory.
        for some in parts(len(rows)):
            thread = self._thread[rows[some]]
            begin[some] = self._axis.place(thread, events.begin_ns[rows[some]])
            end[some] = self._axis.place(thread, events.end_ns[rows[some]])
        return begin, end

    def _unseen(self, seen: Cover) -> Cover:
        """Return long intervals without any event of a thread."""
        starts = np.arange(self._axis.threads, dtype=np.int64) * self._axis.stride
        begin = np.sort(np.concatenate((seen.end, starts)), kind="stable")
        ends = np.concatenate((seen.begin, starts + self._axis.stride - 2))
        end = np.sort(ends, kind="stable")
        # The first begin and the last end of a thread are the edges of its part.
        long = end - begin > QUIET_NS
        return Cover(begin[long], end[long])

    def _cover_of_all(self, rows: Rows) -> Cover:
        """Return a cover with these events, which belong to no thread, on every thread."""
        count = self._axis.threads
        # With many threads and events, use only the longest events, to limit the memory.
        most = max(_MOST_PLACES // max(count, 1), 1)
        rows = rows[np.argsort(-self._events.dur_ns[rows], kind="stable")[:most]]
        thread = np.repeat(np.arange(count, dtype=np.int64), len(rows))
        begin, end = self._events.begin_ns[rows], self._events.end_ns[rows]
        place = self._axis.place
        return Cover(place(thread, np.tile(begin, count)), place(thread, np.tile(end, count)))


@once
def program_calls(trace: Trace, calls: Mask) -> Mask:
    """Return which calls contain several other calls or operators of their thread.

    These are parts of the program that a runtime records like its own calls.
    """
    events = trace.events
    are_calls: Mask = np.zeros(len(events), dtype=np.bool_)
    rows = np.flatnonzero(calls & (events.dur_ns > QUIET_NS))
    if len(rows) == 0:
        return are_calls
    inner = calls | trace.rows_of(["cpu_op"])
    owners, thread = threads(trace, rows)
    for number, (process, tid) in enumerate(owners):
        here = rows[thread == number]
        same = inner & events.tid.having([tid]) & processes(trace).having([process])
        begins = np.sort(events.begin_ns[same], kind="stable")
        first = np.searchsorted(begins, events.begin_ns[here], side="right")
        last = np.searchsorted(begins, events.end_ns[here], side="left")
        are_calls[here] = last - first > 1
    return are_calls


# --- Gaps by cause ---


NAMES = tuple(causes.CAUSES)
# A thread that takes longer than this for one launch also does other work.
LONGEST_LAUNCH_NS = 1_000_000
# The usual time from a launch to its begin on an idle device.
LATENCY_NS = 50_000
# Work that begins so soon after its launch did not wait in a queue.
JUST_LAUNCHED_NS = 10_000


class IdleParts(msgspec.Struct, frozen=True, dict=True):
    """The gaps' times by cause."""

    parts: NDArray[np.int64]
    """One row for each gap and one column for each of NAMES. Each row sums to the gap's length."""
    blocked_in: Rows
    """The waiting or allocating call of the launching thread when the gap began, or -1."""
    calls: Rows
    """The waiting and allocating calls that caused idle time, as rows of the trace's events."""
    call_idle_ns: Numbers
    """The idle time that each of `calls` caused: within it, and until the next work."""
    call_inside_ns: Numbers
    """The part of that time within the call itself."""
    waits: Mask
    """Which events are calls that wait for the device."""
    allocates: Mask
    """Which events are calls that allocate or free memory."""
    crosses_step: Mask
    """Whether a step ended between the launch before the gap and the launch after it."""

    @cached_property
    def cause(self) -> NDArray[np.int8]:
        """The cause of the largest part of each gap, as an index into NAMES; the first of several.

        The parts must not change any more.
        """
        largest = self.parts[:, 0].copy()
        cause = np.zeros(len(largest), dtype=np.int8)
        for number in range(1, len(NAMES)):
            time = self.parts[:, number]
            cause[time > largest] = number
            np.maximum(largest, time, out=largest)
        return cause


def split_idle(trace: Trace, gaps: Gaps, step_begins: Numbers) -> IdleParts:
    """Split all gaps by cause. `step_begins` are the begins of steps, in ascending order."""
    return _Splitter(trace, gaps, step_begins).parts_of_gaps()


@once
def profiler_time(trace: Trace) -> Cover:
    """Return when the profiler itself took time, such as for its buffers."""
    events = trace.events
    overhead = trace.rows_of(["overhead"])
    rows = np.flatnonzero(overhead & ~among(overhead, trace, causes.LOADS_KERNELS))
    return Cover(events.begin_ns[rows], events.end_ns[rows])


@once
def waiting_calls(trace: Trace, rows: Rows, calls: Rows) -> Mask:
    """Return calls that wait according to their name, and calls that waited for their copy.

    `rows` are the device's events, and `calls` are their launching calls.
    """
    events = trace.events
    waits = among(launches(trace), trace, causes.WAITS)
    copies = (device_work(trace).kind[rows] == COPY) & (calls >= 0)
    copies &= named(trace, causes.COPIES, calls)
    rows, calls = rows[copies], calls[copies]
    blocking = (events.end_ns[calls] >= events.end_ns[rows]) & (
        events.dur_ns[calls] > JUST_LAUNCHED_NS
    )
    waits[calls[blocking]] = True
    if not waits.any():
        # Some backends write no waiting calls. Then use the operators that are known to wait.
        known = [name in causes.WAITING_OPERATORS for name in trace.names]
        waits = np.array([*known, False])[events.name] & trace.rows_of(["cpu_op"])
        waits &= events.dur_ns > JUST_LAUNCHED_NS
    return waits


@once
def early_waits(trace: Trace) -> Rows:
    """Return the calls that waited before the launch of the device's first work in the trace.

    They waited for work that the trace does not contain. Empty if that launch is unknown.
    """
    idle, events = gaps(trace), trace.events
    if len(idle.rows) == 0 or idle.calls[0] < 0:
        return np.empty(0, dtype=np.intp)
    call, process = int(idle.calls[0]), processes(trace)
    waits = waiting_calls(trace, idle.rows, idle.calls) & (events.dur_ns > QUIET_NS)
    waits &= (events.end_ns <= events.begin_ns[call]) & events.tid.having([events.tid[call]])
    return np.flatnonzero(waits & process.having([process[call]]))


def early_waiting(trace: Trace) -> Cover:
    """Return the time in `early_waits`."""
    rows = early_waits(trace)
    return Cover(trace.events.begin_ns[rows], trace.events.end_ns[rows])


def host_classes(trace: Trace, event: int, begin_ns: int, end_ns: int) -> dict[str, int]:
    """Return what the thread of an event did in an interval: the time by cause.

    The time without a cause is left out. A long call of the runtime or of its allocator is the
    start of the program: the interval is before the device's first work.
    """
    owners, thread = threads(trace, np.array([event]))
    axis = Axis(begin_ns, end_ns, 1)
    if end_ns <= begin_ns or not axis.fits:
        return {}
    host = _HostActivity(trace, axis, owners)
    times = host.classified(thread, np.array([begin_ns]), np.array([end_ns]))[0]
    return {name: int(time) for name, time in zip(_CLASSES, times[:-2], strict=True) if time}


class _Splitter:
    def __init__(self, trace: Trace, gaps: Gaps, step_begins: Numbers) -> None:
        self.trace, self.gaps = trace, gaps
        # Most causes do not occur in a trace, and take no memory as columns that are not written.
        self.parts = np.zeros((len(gaps.begin_ns), len(NAMES)), dtype=np.int64, order="F")
        host = _host_events(trace)
        self.waits, self.allocates = host.waits, host.allocates
        self.program_calls = host.program_calls
        self.crosses = self._crosses(step_begins)
        self.call_idle = np.zeros(len(trace.events), dtype=np.int64)
        self.call_inside = np.zeros(len(trace.events), dtype=np.int64)
        self.blocked_in = np.full(len(gaps.begin_ns), -1, dtype=ROW)

    def parts_of_gaps(self) -> IdleParts:
        gaps = self.gaps
        unknown = gaps.issued == UNKNOWN
        queued = unknown & (gaps.dur_ns <= self._longest_queued())
        self._add(causes.QUEUED, queued & ~gaps.in_graph, gaps.dur_ns)
        self._add(causes.NOT_TRACED, unknown & ~queued & ~gaps.in_graph, gaps.dur_ns)
        self._add(causes.GRAPH, gaps.in_graph, gaps.dur_ns)
        chosen = np.flatnonzero(~unknown & ~gaps.in_graph)
        if len(chosen):
            self._split_launched(chosen)
        calls = np.flatnonzero(self.call_idle)
        return IdleParts(
            self.parts,
            self.blocked_in,
            calls,
            self.call_idle[calls],
            self.call_inside[calls],
            self.waits,
            self.allocates,
            self.crosses,
        )

    def _split_launched(self, chosen: Rows) -> None:
        gaps, events = self.gaps, self.trace.events
        begin, end, call = gaps.begin_ns[chosen], gaps.end_ns[chosen], gaps.first_call[chosen]
        origin = gaps.first_origin[chosen]
        issued_from = np.clip(events.begin_ns[origin], begin, end)
        called_from = np.clip(events.begin_ns[call], begin, end)
        issued_to = np.clip(events.end_ns[call], begin, end)
        # The profiler may take time within the launching call, and before the work begins.
        in_call = profiler_time(self.trace).length(called_from, issued_to)
        self._add_at(causes.PROFILER, chosen, in_call)
        call_time = issued_to - called_from - in_call
        launch = call_time + self._queued(chosen, issued_to, end)
        # Two threads: the one that launches now, and the one that launched before.
        before = gaps.last_origin[chosen]
        before = np.where(before >= 0, before, origin)
        # And that of a task queue, which takes the launch over from the first.
        in_queue = bool((issued_from < called_from).any())
        owners, thread = threads(
            self.trace, np.concatenate((origin, before, call) if in_queue else (origin, before))
        )
        del before, issued_to
        # Quiet time that began before the first gap, or ends after the last, must not seem shorter
        # than it is. One more, so that earlier events do not seem to begin with the first gap.
        margin = QUIET_NS + 1
        window = window_of(self.trace)
        assert window is not None
        axis = Axis(
            max(int(begin.min()) - margin, window[0] - 1),
            min(int(end.max()) + margin, window[1]),
            len(owners),
        )
        if not axis.fits:
            self.parts[chosen, NAMES.index(causes.NOT_TRACED)] += called_from - begin + launch
            return
        del end
        host = _HostActivity(self.trace, axis, owners)
        here, there = thread[: len(call)], thread[len(call) : 2 * len(call)]
        place = axis.place(here, begin)
        taken_over = np.minimum(begin + (host.busy.next_from(place) - place), issued_from)
        taken_over = np.where(here == there, begin, taken_over)
        calls = np.flatnonzero(self.waits | self.allocates)
        stretches = [(here, taken_over, issued_from), (there, begin, taken_over)]
        if in_queue:
            stretches.append((thread[2 * len(call) :], issued_from, called_from))
        self.call_idle[calls] = host.time_in(calls, stretches)
        self.call_inside[calls] = self.call_idle[calls]
        long_call = (call_time > QUIET_NS) & ~self.waits[call] & ~self.program_calls[call]
        self._add_at(causes.RUNTIME_CALL, chosen, np.where(long_call, call_time, 0))
        launch -= np.where(long_call, call_time, 0)
        if in_queue:
            launch += self._in_queue(host, chosen, stretches[-1])
        # In parts, because the classified times take much memory.
        for some in parts(len(chosen)):
            self._classify(
                host,
                chosen[some],
                (here[some], there[some]),
                (begin[some], taken_over[some], issued_from[some]),
                launch[some],
            )

    def _in_queue(
        self, host: _HostActivity, chosen: Rows, stretch: tuple[Numbers, Numbers, Numbers]
    ) -> Numbers:
        """Add what the thread of a task queue did before its calls. Returns the rest of the time.

        The rest, in which the task waited in the queue or was prepared, is part of the launch.
        """
        times = host.classified(*stretch)
        for number, name in enumerate(_CLASSES):
            if name != causes.HOST_UNSEEN:
                self._add_at(name, chosen, times[:, number])
        rest: Numbers = times[:, _CLASSES.index(causes.HOST_UNSEEN) :].sum(axis=1)
        return rest

    def _classify(
        self,
        host: _HostActivity,
        chosen: Rows,
        numbers: tuple[Numbers, Numbers],
        times: tuple[Numbers, Numbers, Numbers],
        launch: Numbers,
    ) -> None:
        """Add the times of two threads: the launching thread, and the one that launched before.

        `times` are the begin of a gap, the change of the thread, and the call of the launch.
        """
        (here, there), (begin, taken_over, issued) = numbers, times
        # The launching thread, before and after the begin of the launching operator.
        operator = np.maximum(taken_over, host.operator_begin(here, issued))
        outside = host.classified(here, taken_over, operator)
        # Most gaps have one thread.
        two = np.flatnonzero(taken_over > begin)
        outside[two] += host.classified(there[two], begin[two], taken_over[two])
        inside = host.classified(here, operator, issued)
        blocked = host.blocked_at(here, begin, issued)
        blocked = np.where(blocked >= 0, blocked, host.blocked_at(there, begin, issued))
        self._add_classified(chosen, outside, inside, launch, blocked)

    def _add_classified(
        self,
        chosen: Rows,
        outside: NDArray[np.int64],
        inside: NDArray[np.int64],
        launch: Numbers,
        blocked: Rows,
    ) -> None:
        """Add the classified times, outside and inside of the launching operator."""
        crosses = self.crosses[chosen]

        def add_other(time: Numbers) -> None:
            """Add work of the host other than launching."""
            self._add_at(causes.BETWEEN_STEPS, chosen, np.where(crosses, time, 0))
            self._add_at(causes.HOST_WORK, chosen, np.where(crosses, 0, time))

        for number, name in enumerate(_CLASSES):
            time = outside[:, number]
            if name == causes.HOST_UNSEEN:
                # For a thread without events, it can still be known that a step ended there.
                self._add_at(causes.BETWEEN_STEPS, chosen, np.where(crosses, time, 0))
                time = np.where(crosses, 0, time)
            self._add_at(name, chosen, time + inside[:, number])
        add_other(outside[:, -2])
        self._add_at(causes.HOST_WORK, chosen, inside[:, -2])
        # Work that takes this long is not only a launch, even if it consists of small parts.
        preparing = outside[:, -1] + inside[:, -1]
        too_long = preparing > LONGEST_LAUNCH_NS
        add_other(np.where(too_long, preparing, 0))
        left_ns = launch + np.where(too_long, 0, preparing)
        # If the host was waiting when the device became idle, the next launch counts as waiting
        # too.
        is_blocked = blocked >= 0
        allocates = is_blocked & self.allocates[blocked]
        waits = is_blocked & self.waits[blocked] & ~allocates
        self._add_at(causes.MEMORY_ALLOCATION, chosen, np.where(allocates, left_ns, 0))
        self._add_at(causes.SYNCHRONISATION, chosen, np.where(waits, left_ns, 0))
        self._add_at(causes.LAUNCH, chosen, np.where(allocates | waits, 0, left_ns))
        np.add.at(self.call_idle, blocked[is_blocked], left_ns[is_blocked])
        self.blocked_in[chosen] = blocked

    def _queued(self, chosen: Rows, issued_to: Numbers, end: Numbers) -> Numbers:
        """Add the times after the launches. Returns those within the usual launch latency."""
        gaps, events = self.gaps, self.trace.events
        time = end - issued_to
        delay = end - events.end_ns[gaps.first_call[chosen]]
        issued = gaps.issued[chosen]
        latency = delay <= np.where(issued != BEFORE, LATENCY_NS, JUST_LAUNCHED_NS)
        device, stream = streams(self.trace, gaps.rows)
        last, first = gaps.last[chosen], gaps.first[chosen]
        crosses = (device[last] != device[first]) | (stream[last] != stream[first])
        depends = ~latency & crosses & (issued != AFTER)
        queued = ~latency & ~depends & (time <= LATENCY_NS)
        self._add_at(causes.DEPENDENCY, chosen, np.where(depends, time, 0))
        self._add_at(causes.QUEUED, chosen, np.where(queued, time, 0))
        unseen = ~latency & ~depends & ~queued
        self._add_at(causes.UNSEEN_WAIT, chosen, np.where(unseen, time, 0))
        return np.where(latency, time, 0)

    def _longest_queued(self) -> Numbers:
        """Return the longest possible queueing time before work with an unknown launch.

        A stream runs its work in the order of the launches. Work before its first work with a
        launch was therefore launched before the trace began. Without any launch, this is unknown.
        """
        gaps = self.gaps
        if not (gaps.calls >= 0).any() or len(gaps.begin_ns) == 0:
            return np.zeros(len(gaps.begin_ns), dtype=np.int64)
        begin = self.trace.events.begin_ns[gaps.rows[gaps.first]]
        before = begin < _first_launched(self.trace, gaps.rows, gaps.calls)[gaps.first]
        return np.where(before, LATENCY_NS, JUST_LAUNCHED_NS)

    def _crosses(self, step_begins: Numbers) -> Mask:
        events, gaps = self.trace.events, self.gaps

        def step(origin: Rows, otherwise: Numbers) -> NDArray[np.intp]:
            time = np.where(origin >= 0, events.begin_ns[origin], otherwise)
            return np.searchsorted(step_begins, time, side="right")

        if len(gaps.begin_ns) == 0:
            return np.zeros(0, dtype=np.bool_)
        result: Mask = step(gaps.first_origin, gaps.end_ns) > step(gaps.last_origin, gaps.begin_ns)
        return result

    def _add(self, cause: str, which: Mask, time: Numbers) -> None:
        self.parts[which, NAMES.index(cause)] += time[which]

    def _add_at(self, cause: str, which: Rows, time: Numbers) -> None:
        if time.any():
            self.parts[which, NAMES.index(cause)] += time
