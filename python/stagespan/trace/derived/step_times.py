"""Splits the time of each step by the activity of device and host, exact to the ns."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from stagespan.trace.derived.device import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    device_work,
    launch_of,
    launches,
    work_by_stream,
)
from stagespan.trace.derived.host_work import host_work
from stagespan.trace.derived.idle_causes import COMMUNICATES, MARKS, loads_data
from stagespan.trace.derived.step_ranges import StepRanges, step_ranges
from stagespan.trace.derived.threads import among, named
from stagespan.trace.read.groups import firsts_of, parts
from stagespan.trace.read.intervals import (
    ROW,
    Cover,
    Intervals,
    Mask,
    Numbers,
    Rows,
    covered,
    union_of,
)
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once

COMPUTATION, COMMUNICATING, COPIES = "computation", "communication", "copies"
RUNTIME, DATA_LOADING, OPERATORS, OTHER = "runtime_calls", "data_loading", "operators", "other"
PARTS = {
    COMPUTATION: "computing",
    COMMUNICATING: "communicating, nothing else",
    COPIES: "copying, nothing else",
    RUNTIME: "device idle, host in a call of the runtime",
    DATA_LOADING: "device idle, host loading data",
    OPERATORS: "device idle, host in an operator",
    OTHER: "device idle, host in no operator or call",
}
"""The parts of a step. Each moment belongs to the first part that applies."""
HOST_PARTS = {
    DATA_LOADING: "loading data",
    OPERATORS: "operators",
    COMMUNICATING: "communicating without an operator",
    OTHER: "outside of operators",
}
"""The parts of a step for traces without a device."""


# An idle device begins work sooner after its launch.
_QUEUED_NS = 1_000_000
# No call that only asks for facts takes longer, except the first of a program.
_CONTEXT_NS = 10_000_000
_ASKS = re.compile(
    r"(?:(?:Device)?Get(?:Device|Attribute|StreamPriority|Count|Properties|Version)|StreamCreate|SetDevice"
    r"|StreamIsCapturing|FuncGet|PrimaryCtx|CtxCreate|^cuInit|^hipInit)",
    re.IGNORECASE,
)
# The most work of a device that waits for earlier work, relative to the time for which it waits.
_LITTLE = 0.01


class Earlier(msgspec.Struct, frozen=True):
    """Device work that was launched before the trace began."""

    end_ns: int | None = None
    """When the device had finished it; None if the trace shows no such work."""
    recorded: bool = True
    """Whether its events are in the trace. If not, the first recorded event of a stream began so
    late after its launch that the device must have been busy with other work."""


class Extents(msgspec.Struct, frozen=True):
    """The begins and ends of steps. All arrays have one element for each step."""

    begin_ns: Numbers
    end_ns: Numbers
    step_of: Numbers
    """The step that launched each device event, or -1."""
    first_ns: Numbers
    last_ns: Numbers
    """Begin and end of the work that each step launched; the end is earlier if it launched none."""
    earlier: Earlier


@once
def earlier_work(trace: Trace) -> Earlier:
    """Find the device work that was launched before the trace began.

    A stream runs work in the order of launches. An event without a launch in the trace that runs
    before the stream's first event with one was therefore launched earlier. If the trace contains
    no launches, this is unknown.

    If the first event of a stream begins long after its launch, and the device has recorded almost
    no other work until then, it waited for work that is not in the trace. A program that created
    the device's context within the trace has no such work: it waited for modules.
    """
    events, rows = trace.events, device_work(trace).rows
    calls = launch_of(trace, rows)
    launched = calls >= 0
    if not launched.any():
        return Earlier()
    begin = events.begin_ns[rows]
    _, of_stream = work_by_stream(trace)
    firsts = np.full(int(of_stream.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(firsts, of_stream[launched], begin[launched])
    # A stream that has no launches at all is compared with the whole device.
    firsts[firsts == np.iinfo(np.int64).max] = begin[launched].min()
    before = ~launched & (begin < firsts[of_stream])
    if before.any():
        return Earlier(int(events.end_ns[rows[before]].max()))
    # Without its launch, it is unknown how long an event waited.
    issued = np.where(launched, events.end_ns[calls], begin)
    end = _end_of_unrecorded_work(begin, events.end_ns[rows], issued, of_stream)
    if end is not None and _creates_context(trace, end):
        end = None
    return Earlier() if end is None else Earlier(end, recorded=False)


def _creates_context(trace: Trace, until_ns: int) -> bool:
    """Whether a call that only asks for facts or makes a stream took long before a time."""
    events = trace.events
    calls = launches(trace) & (events.dur_ns > _CONTEXT_NS) & (events.end_ns <= until_ns)
    return bool(among(calls, trace, _ASKS).any())


def _end_of_unrecorded_work(
    begin: Numbers, end: Numbers, issued: Numbers, of_stream: Numbers
) -> int | None:
    """Return when the device's work waited no longer for work that is not in the trace, or None.

    The arrays have one element for each device event: its begin and end, the end of its launching
    call, and the number of its stream.
    """
    order = np.argsort(begin, kind="stable")
    _, at = firsts_of(of_stream[order])
    firsts = order[at]
    firsts = firsts[begin[firsts] - issued[firsts] > _QUEUED_NS]
    for first in firsts[np.argsort(-begin[firsts], kind="stable")].tolist():
        until = begin[first]
        earlier = begin < until
        worked = covered(begin[earlier], np.minimum(end[earlier], until))
        if worked <= _LITTLE * (until - issued[first]):
            return int(until)
    return None


@once
def step_extents(trace: Trace, ranges: StepRanges) -> Extents:
    """Compute where each step begins and ends.

    A step ends at the end of its mark, or at the end of the device work launched in it if that is
    later. It begins with its mark, or at the end of the earlier step's work if that is later; for
    the first step, this is work that was launched before the trace began.
    """
    events = trace.events
    rows = device_work(trace).rows
    step_of = _steps_of(trace, ranges, rows)
    mine = np.flatnonzero(step_of >= 0)
    first, last = _extent(
        events.begin_ns[rows[mine]], events.end_ns[rows[mine]], step_of[mine], len(ranges)
    )
    earlier = earlier_work(trace) if ranges.on_host else Earlier()
    free = ranges.begin_ns[0] if earlier.end_ns is None else earlier.end_ns
    end = np.where(last > first, np.maximum(last, ranges.end_ns), ranges.end_ns)
    end = np.maximum(np.maximum.accumulate(end), free)
    begin = np.maximum(ranges.begin_ns, np.concatenate(([free], end[:-1])))
    return Extents(begin, end, step_of.astype(ROW), first, last, earlier)


class StepTimes(msgspec.Struct, frozen=True):
    """The times of steps. Arrays have one element for each step or each device event."""

    begin_ns: Numbers
    """The start of the step's mark, or the end of earlier work if that is later."""
    end_ns: Numbers
    """The end of its mark, or of its last work on the device if that is later."""
    parts: dict[str, Numbers]
    """They sum to the time from start to end, exactly."""
    device_rows: Rows
    """The rows of all device events."""
    step_of: Numbers
    """The step that launched each of `device_rows`, or -1."""
    launched: Numbers
    """The number of device events that each step launched."""
    device_ns: Numbers
    """Their durations' sum."""
    after_host_ns: Numbers
    """How long the device ran such work after the end of the mark."""
    gap_begin_ns: Numbers
    """The end of the last work of each step except the last one, on the device if there is one."""
    gap_ns: Numbers
    """The time from that end to the first work of the next step; 0 if they overlap."""
    gap_parts: dict[str, Numbers]
    """The parts of that time."""
    edges: tuple[Numbers, Numbers]
    """Begins and ends of the intervals that belong to parts other than `OTHER`."""
    earlier: Earlier
    """Device work that was launched before the trace began; the first step begins after it."""

    def longest_rest(self, step: int) -> tuple[int, int]:
        """Return begin and length of the longest interval of a step's `OTHER`."""
        begin, end = int(self.begin_ns[step]), int(self.end_ns[step])
        begins, ends = (np.clip(edges, begin, end) for edges in self.edges)
        starts, stops = np.append(begin, ends), np.append(begins, end)
        at = int(np.argmax(stops - starts))
        return int(starts[at]), int(stops[at] - starts[at])


@once
def step_times(trace: Trace, ranges: StepRanges) -> StepTimes:
    """Attribute device work to steps by launch, and split each step's time."""
    events = trace.events
    rows = device_work(trace).rows
    origin = int(min(ranges.begin_ns[0], events.begin_ns.min()))
    extents = step_extents(trace, ranges)
    begin, end, step_of = extents.begin_ns, extents.end_ns, extents.step_of
    in_step = np.flatnonzero(step_of >= 0)
    count = len(ranges)
    gap_begin, gap_end = _gaps(trace, ranges, extents.first_ns, extents.last_ns, bool(len(rows)))
    (parts, gap_parts), edges = _split(
        trace, origin, bool(len(rows)), [(begin, end), (gap_begin, gap_end)]
    )
    order = np.argsort(step_of[in_step], kind="stable")
    grouped = rows[in_step][order]
    bounds = np.searchsorted(step_of[in_step][order], np.arange(count + 1))
    late_begin, late_end = events.begin_ns[grouped], events.end_ns[grouped]
    after = []
    for at, host_end in enumerate(ranges.end_ns):
        here = slice(bounds[at], bounds[at + 1])
        after.append(
            covered(np.maximum(late_begin[here], host_end), np.maximum(late_end[here], host_end))
        )
    durations = np.bincount(step_of[in_step], weights=events.dur_ns[rows[in_step]], minlength=count)
    return StepTimes(
        begin_ns=begin,
        end_ns=end,
        parts=parts,
        device_rows=rows,
        step_of=step_of,
        launched=np.bincount(step_of[in_step], minlength=count).astype(np.int64),
        device_ns=durations.astype(np.int64),
        after_host_ns=np.array(after, dtype=np.int64),
        gap_begin_ns=gap_begin,
        gap_ns=gap_end - gap_begin,
        gap_parts=gap_parts,
        edges=edges,
        earlier=extents.earlier,
    )


@once
def steps_without_work(trace: Trace) -> Rows:
    """Return the steps of which the trace should have device events, but has none.

    These are steps that called what launches device events in other steps. If more than half of the
    steps have no device events, it is all of these. In both cases records were probably lost, and
    what the device did is unknown.
    """
    ranges = step_ranges(trace)
    rows = device_work(trace).rows
    if ranges is None or not ranges.on_host or len(rows) == 0:
        return np.empty(0, dtype=np.intp)
    events = trace.events
    begin = np.sort(events.begin_ns[rows])
    first, behind = (np.searchsorted(begin, edge) for edge in (ranges.begin_ns, ranges.end_ns))
    extents = step_extents(trace, ranges)
    without = (extents.last_ns < extents.first_ns) & (first == behind)
    calls = launch_of(trace, rows)
    launching = np.zeros(len(trace.names) + 1, dtype=np.bool_)
    launching[events.name[calls[calls >= 0]]] = True
    step = ranges.at(events.begin_ns[launches(trace) & launching[events.name]])
    called = np.bincount(step[step >= 0], minlength=len(ranges)) > 0
    most = 2 * np.count_nonzero(without) > len(without)
    return np.flatnonzero(without & (called | most))


def events_of_part(trace: Trace, part: str, on_device: bool) -> Mask:
    """Return the events of a part: one of PARTS or, without a device, of HOST_PARTS."""
    kinds = {COMPUTATION: COMPUTE, COMMUNICATING: COMMUNICATION, COPIES: COPY}
    if on_device and part in kinds:
        of_kind: Mask = device_work(trace).kind == kinds[part]
        return of_kind
    if part == RUNTIME:
        return launches(trace) & (trace.events.dur_ns > 0)
    if part == DATA_LOADING:
        return loads_data(trace)
    marks = trace.rows_of(["user_annotation", "cpu_op"])
    if part == COMMUNICATING:
        return marks & named(trace, COMMUNICATES)
    if part == OPERATORS:
        operators = trace.rows_of(["cpu_op"]) & ~named(trace, MARKS)
        return operators if on_device else operators & ~named(trace, COMMUNICATES)
    return np.zeros(len(trace.events), dtype=np.bool_)


def _split(
    trace: Trace, origin: int, on_device: bool, ranges: Sequence[Intervals]
) -> tuple[list[dict[str, Numbers]], Intervals]:
    """Split sets of intervals by the activity of the device, or else of the host.

    Returns the time of each part in each interval, for each set, and the intervals that belong to
    any part except the last.
    """
    names = tuple(PARTS if on_device else HOST_PARTS)
    of_host = {} if on_device else _covers_of_host(trace)
    ranges = [(begin - origin, end - origin) for begin, end in ranges]
    reached = [[np.zeros_like(begin)] for begin, _ in ranges]
    whole = Cover(*np.empty((2, 0), dtype=np.int64))
    # One part at a time, because they take much memory. Each moment belongs to the first one.
    for part in names[:-1]:
        if on_device:
            cover = _cover(trace, events_of_part(trace, part, on_device))
        else:
            cover = of_host[part]
        whole |= Cover.of_union(cover.begin - origin, cover.end - origin)
        for times, (begin, end) in zip(reached, ranges, strict=True):
            times.append(whole.length(begin, end))
    split = []
    for times, (begin, end) in zip(reached, ranges, strict=True):
        of_parts: NDArray[np.int64] = np.diff(np.stack([*times, end - begin]), axis=0)
        split.append(dict(zip(names, of_parts, strict=True)))
    return split, (whole.begin + origin, whole.end + origin)


def _cover(trace: Trace, which: Mask) -> Cover:
    events = trace.events
    covers = (
        Cover(events.begin_ns[some], events.end_ns[some], which=which[some])
        for some in parts(len(events))
    )
    return Cover.of_union(*union_of([(cover.begin, cover.end) for cover in covers]))


def _covers_of_host(trace: Trace) -> dict[str, Cover]:
    work = host_work(trace)
    return {
        DATA_LOADING: work.loading,
        OPERATORS: work.computing,
        COMMUNICATING: work.communicating,
    }


def _steps_of(trace: Trace, ranges: StepRanges, rows: Rows) -> Numbers:
    """Return the step of each event by its launch, or for kernel steps by its own time."""
    events = trace.events
    if not ranges.on_host:
        return ranges.at(events.begin_ns[rows])
    calls = launch_of(trace, rows)
    result: Numbers = np.where(calls >= 0, ranges.at(events.begin_ns[calls]), -1)
    return result


def _extent(begin: Numbers, end: Numbers, step: Numbers, count: int) -> tuple[Numbers, Numbers]:
    """Return first start and last end of each step's events; without events, the start is later."""
    first = np.full(count, np.iinfo(np.int64).max)
    last = np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(first, step, begin)
    np.maximum.at(last, step, end)
    return first, last


def _gaps(
    trace: Trace, ranges: StepRanges, first: Numbers, last: Numbers, on_device: bool
) -> tuple[Numbers, Numbers]:
    """Return the gaps from the last work of each step to the first of the next."""
    if not on_device:
        events = trace.events
        marks = trace.rows_of(["cpu_op", "user_annotation"]) & ~named(trace, MARKS)
        rows = np.flatnonzero(marks & trace.rows_of(["cpu_op"]))
        step = ranges.at(events.begin_ns[rows])
        rows, step = rows[step >= 0], step[step >= 0]
        first, last = _extent(events.begin_ns[rows], events.end_ns[rows], step, len(ranges))
    known = last > first
    begin = np.where(known, last, ranges.end_ns)[:-1]
    end = np.where(known, first, ranges.begin_ns)[1:]
    return begin, np.maximum(begin, end)
