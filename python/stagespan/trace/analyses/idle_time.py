"""The idle time of the device by cause: of a whole trace, and of its steps."""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec import structs

from stagespan.trace.derived import idle_causes as causes
from stagespan.trace.derived.call_site import call_sites
from stagespan.trace.derived.compile_times import compiled_again
from stagespan.trace.derived.compiled_heads import heads
from stagespan.trace.derived.device import device_work, launch_of
from stagespan.trace.derived.gap_patterns import StartUp, start_up, started_in
from stagespan.trace.derived.gaps import (
    NAMES,
    QUIET_NS,
    Gaps,
    IdleParts,
    early_waiting,
    gaps,
    host_classes,
    profiler_time,
    split_idle,
)
from stagespan.trace.derived.host_work import loader_starts, mostly_filled_by
from stagespan.trace.derived.step_ranges import ran_before, step_begins
from stagespan.trace.derived.task_queue import origins
from stagespan.trace.derived.windows import BaseWindow, base_window
from stagespan.trace.read.intervals import Cover
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once

PREPARATION, FINISHING = "preparation", "finishing"
"""Idle time before the device's first work is launched, and after its last work."""
IDLE_CAUSES: dict[str, str] = {
    PREPARATION: "the host prepared the device's first work",
    FINISHING: "the host continued after the device's last work",
    **causes.CAUSES,
}
"""Causes of idle time: those between the device's work, and those before and after all of it."""


@once
def split_gaps(trace: Trace) -> tuple[Gaps, IdleParts]:
    """The gaps of the device, and their times by cause."""
    found = gaps(trace)
    return found, _split(trace, found)


def _split(trace: Trace, gaps: Gaps) -> IdleParts:
    """Split gaps by cause. What is compiled for the first time is apart from recompilations."""
    result = split_idle(trace, gaps, step_begins(trace))
    # What launched the work of Ascend's graphs is unknown, but not what the host did before it.
    _move_parts(result, causes.NOT_TRACED, causes.HOST_WORK, heads(trace), gaps)
    # If the launch is unknown, a stream's wait shows that there was one.
    waits = np.flatnonzero(device_work(trace).is_wait)
    times = Cover(trace.events.begin_ns[waits], trace.events.end_ns[waits])
    _move_parts(result, causes.NOT_TRACED, causes.DEPENDENCY, times, gaps)
    _move_parts(result, causes.DATA_LOADING, causes.LOADER_START, loader_starts(trace), gaps)
    compiled = result.parts[:, NAMES.index(causes.COMPILATION)]
    if compiled.any():
        again = compiled_again(trace).length(gaps.begin_ns, gaps.end_ns)
        once_only = compiled - np.minimum(compiled, again)
        result.parts[:, NAMES.index(causes.FIRST_COMPILATION)] += once_only
        result.parts[:, NAMES.index(causes.COMPILATION)] -= once_only
    return result


def _move_parts(parts: IdleParts, of: str, to: str, cover: Cover, gaps: Gaps) -> None:
    """Move the time of one cause to another one, as far as it is within some times."""
    time = parts.parts[:, NAMES.index(of)]
    moved = np.minimum(time, cover.length(gaps.begin_ns, gaps.end_ns))
    # A column that is not written takes no memory.
    if moved.any():
        parts.parts[:, NAMES.index(to)] += moved
        parts.parts[:, NAMES.index(of)] -= moved


def sums_by_cause(parts: IdleParts) -> dict[str, int]:
    """Idle time in ns by cause, the longest first; only causes that occur."""
    totals = zip(NAMES, parts.parts.sum(axis=0).tolist(), strict=True)
    return {cause: time for cause, time in sorted(totals, key=lambda item: -item[1]) if time}


def gaps_by_cause(parts: IdleParts) -> dict[str, int]:
    """Return, by cause, the number of gaps of which it has the largest part."""
    counts = np.bincount(parts.cause, minlength=len(NAMES)).tolist()
    return dict(zip(NAMES, counts, strict=True))


class BaseIdle(msgspec.Struct, frozen=True):
    """The time of the base in which no device worked; times in ns."""

    base: BaseWindow
    gaps: Gaps
    """The gaps between the device's work, cut at the ends of the base."""
    parts: IdleParts
    """The parts of `gaps` by cause."""
    by_cause: dict[str, int]
    """With `PREPARATION` and `FINISHING`; they sum to the idle time of the base."""
    preparing: str | None
    """The host's activity for most of the time before the device's first work."""
    start: StartUp | None
    """The gaps in which the program started, which count as such in `by_cause`."""
    started_in: int
    """The row of what the program started in before the device's first work; -1 for nothing."""


@once
def base_idle(trace: Trace) -> BaseIdle | None:
    """Split the idle time of the base, to which all shares refer; None without device events."""
    base, device = base_window(trace), device_work(trace).rows
    if base is None or len(device) == 0:
        return None
    events, (gaps, parts) = trace.events, split_gaps(trace)
    begin = np.clip(gaps.begin_ns, base.begin_ns, base.end_ns)
    end = np.clip(gaps.end_ns, base.begin_ns, base.end_ns)
    inside = end > begin
    if not inside.all() or int((end - begin).sum()) < int(gaps.dur_ns.sum()):
        gaps = structs.replace(
            gaps,
            begin_ns=begin[inside],
            end_ns=end[inside],
            last=gaps.last[inside],
            first=gaps.first[inside],
            first_call=gaps.first_call[inside],
            first_origin=gaps.first_origin[inside],
            in_graph=gaps.in_graph[inside],
            issued=gaps.issued[inside],
        )
        parts = _split(trace, gaps)
    idle = sums_by_cause(parts)
    first = int(device[np.argmin(events.begin_ns[device])])
    call = int(launch_of(trace, np.array([first]))[0])
    work = max(int(events.begin_ns[first]), base.begin_ns)
    launched = work if call < 0 else min(max(int(events.begin_ns[call]), base.begin_ns), work)
    before = launched - base.begin_ns
    preparing = started = -1
    if work > launched:
        overhead = profiler_time(trace).time_in(launched, work)
        idle[causes.LAUNCH] = idle.get(causes.LAUNCH, 0) + work - launched
        _move(idle, causes.LAUNCH, causes.PROFILER, overhead)
        # The launches of a program that has run for a while seldom take this long.
        called = min(int(events.end_ns[call]), work) - launched
        called -= profiler_time(trace).time_in(launched, launched + called)
        if called > QUIET_NS:
            long = causes.RUNTIME_CALL if ran_before(trace) else causes.START_UP
            _move(idle, causes.LAUNCH, long, called)
    if before:
        # Without its launch, it is unknown what the device's first work waited for.
        cause = causes.NOT_TRACED if call < 0 else PREPARATION
        idle[cause] = idle.get(cause, 0) + before
        preparing = mostly_filled_by(trace, base.begin_ns, before)
        explained = _of_edge(trace, call, base.begin_ns, launched)
        if call >= 0 and not ran_before(trace):
            started, time = _start_before(trace, call, base.begin_ns, launched)
            explained[causes.START_UP] = explained.get(causes.START_UP, 0) + time
        for of, time in explained.items():
            _move(idle, cause, of, time)
        if cause == causes.NOT_TRACED:
            head = heads(trace).time_in(base.begin_ns, launched)
            _move(idle, cause, causes.HOST_WORK, min(head, idle.get(cause, 0)))
        if 2 * sum(explained.values()) > before:
            preparing = -1
    final = int(device[np.argmax(events.end_ns[device])])
    last = max(int(events.end_ns[final]), base.begin_ns)
    if base.end_ns > last:
        idle[FINISHING] = base.end_ns - last
        call = int(launch_of(trace, np.array([final]))[0])
        for of, time in _of_edge(trace, call, last, base.end_ns).items():
            _move(idle, FINISHING, of, time)
    name = None if preparing < 0 else trace.names[int(events.name[preparing])]
    start = start_up(call_sites(trace), gaps, parts, base.whole_ns)
    for cause, time in ({} if start is None else start.by_cause).items():
        _move(idle, cause, causes.START_UP, time)
    return BaseIdle(base, gaps, parts, idle, name, start, started)


def mostly_compiles(trace: Trace) -> bool:
    """Whether most of the idle time for what a program does once is its first compilation."""
    idle = base_idle(trace)
    if idle is None:
        return False
    times = {each: idle.by_cause.get(each, 0) for each in causes.causes_of("once")}
    first = times[causes.FIRST_COMPILATION]
    return first > 0 and 2 * first >= sum(times.values())


# What the host does before the device's first work and after its last has the causes of gaps. The
# rest is preparation. Calls that are long before the first work are part of the start, unless the
# program ran before.
_AT_EDGES = {
    causes.GRAPH_CAPTURE: causes.GRAPH_CAPTURE,
    causes.KERNEL_LOADING: causes.KERNEL_LOADING,
    causes.PROFILER: causes.PROFILER,
    causes.DATA_LOADING: causes.DATA_LOADING,
    causes.COMPILATION: causes.FIRST_COMPILATION,
    causes.MEMORY_ALLOCATION: causes.START_UP,
    causes.RUNTIME_CALL: causes.START_UP,
}


def _of_edge(trace: Trace, call: int, begin_ns: int, end_ns: int) -> dict[str, int]:
    """Return the causes of idle time at an edge, which the thread of a launch shows.

    Without a launch, only the time of the profiler is known.
    """
    if call < 0:
        return {causes.PROFILER: profiler_time(trace).time_in(begin_ns, end_ns)}
    times: dict[str, int] = {}
    first = begin_ns < int(trace.events.begin_ns[call])
    for cause, time in host_classes(trace, call, begin_ns, end_ns).items():
        named = _AT_EDGES.get(cause)
        if named is not None and (first or named != causes.START_UP):
            named = cause if named == causes.START_UP and ran_before(trace) else named
            times[named] = times.get(named, 0) + time
    if waited := early_waiting(trace).time_in(begin_ns, end_ns) if first else 0:
        times[causes.EARLIER_WORK] = waited
    loading = times.get(causes.DATA_LOADING, 0)
    starting = min(loading, loader_starts(trace).time_in(begin_ns, end_ns))
    _move(times, causes.DATA_LOADING, causes.LOADER_START, starting)
    compiled = times.get(causes.FIRST_COMPILATION, 0)
    if compiled:
        again = compiled_again(trace).time_in(begin_ns, end_ns)
        _move(times, causes.FIRST_COMPILATION, causes.COMPILATION, min(again, compiled))
    return times


def _start_before(trace: Trace, call: int, begin_ns: int, end_ns: int) -> tuple[int, int]:
    """Return what the program started in before the call of a launch, or -1.

    The second value is the part of its time that `_of_edge` does not explain.
    """
    origin = int(origins(trace, np.array([call]))[0])
    row = started_in(call_sites(trace), origin, (begin_ns, end_ns), 0)
    if row < 0:
        return -1, 0
    times = np.clip((trace.events.begin_ns[row], trace.events.end_ns[row]), begin_ns, end_ns)
    begin, end = times.tolist()
    return row, end - begin - sum(_of_edge(trace, call, begin, end).values())


def _move(times: dict[str, int], of: str, to: str, time_ns: int) -> None:
    """Move a part of the time of one cause to another one."""
    if time_ns:
        times[to] = times.get(to, 0) + time_ns
        times[of] -= time_ns
        if not times[of]:
            del times[of]
