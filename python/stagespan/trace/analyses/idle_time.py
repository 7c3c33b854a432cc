"""The idle time of the device by cause: of a whole trace, and of its steps."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stagespan.trace.analyses.steps import mostly_filled_by
from stagespan.trace.derived import idle_causes as causes
from stagespan.trace.derived.call_site import call_sites
from stagespan.trace.derived.device import device_work, launch_of
from stagespan.trace.derived.gap_patterns import StartUp, start_up
from stagespan.trace.derived.gaps import (
    NAMES,
    QUIET_NS,
    Gaps,
    IdleParts,
    gaps,
    host_classes,
    profiler_time,
    split_idle,
)
from stagespan.trace.derived.step_ranges import step_begins
from stagespan.trace.derived.windows import BaseWindow, base_window
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
    return found, split_idle(trace, found, step_begins(trace))


def sums_by_cause(parts: IdleParts) -> dict[str, int]:
    """Idle time in ns by cause, the longest first; only causes that occur."""
    totals = zip(NAMES, parts.parts.sum(axis=0).tolist(), strict=True)
    return {cause: time for cause, time in sorted(totals, key=lambda item: -item[1]) if time}


def gaps_by_cause(parts: IdleParts) -> dict[str, int]:
    """Return, by cause, the number of gaps of which it has the largest part."""
    if len(parts.parts) == 0:
        return dict.fromkeys(NAMES, 0)
    counts = np.bincount(parts.cause, minlength=len(NAMES)).tolist()
    return dict(zip(NAMES, counts, strict=True))


@dataclass(frozen=True, slots=True)
class BaseIdle:
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


@once
def base_idle(trace: Trace) -> BaseIdle | None:
    """Split the idle time of the base, to which all shares refer; None without device events."""
    base, device = base_window(trace), device_work(trace).rows
    if base is None or len(device) == 0:
        return None
    events, (found, parts) = trace.events, split_gaps(trace)
    begin = np.clip(found.begin_ns, base.begin_ns, base.end_ns)
    end = np.clip(found.end_ns, base.begin_ns, base.end_ns)
    inside = end > begin
    if not inside.all() or int((end - begin).sum()) < int(found.dur_ns.sum()):
        found = replace(
            found,
            begin_ns=begin[inside],
            end_ns=end[inside],
            last=found.last[inside],
            first=found.first[inside],
            first_call=found.first_call[inside],
            first_origin=found.first_origin[inside],
            in_graph=found.in_graph[inside],
            issued=found.issued[inside],
        )
        parts = split_idle(trace, found, step_begins(trace))
    idle = sums_by_cause(parts)
    first = int(device[np.argmin(events.begin_ns[device])])
    call = int(launch_of(trace, np.array([first]))[0])
    work = max(int(events.begin_ns[first]), base.begin_ns)
    launched = work if call < 0 else min(max(int(events.begin_ns[call]), base.begin_ns), work)
    before = launched - base.begin_ns
    preparing = -1
    if work > launched:
        overhead = profiler_time(trace).time_in(launched, work)
        idle[causes.LAUNCH] = idle.get(causes.LAUNCH, 0) + work - launched
        _move(idle, causes.LAUNCH, causes.PROFILER, overhead)
        # No launch of a warm program takes this long.
        called = min(int(events.end_ns[call]), work) - launched
        called -= profiler_time(trace).time_in(launched, launched + called)
        if called > QUIET_NS:
            _move(idle, causes.LAUNCH, causes.START_UP, called)
    if before:
        # Without its launch, it is unknown what the device's first work waited for.
        cause = causes.NOT_TRACED if call < 0 else PREPARATION
        idle[cause] = idle.get(cause, 0) + before
        preparing = mostly_filled_by(trace, base.begin_ns, before)
        known = _of_edge(trace, call, base.begin_ns, launched)
        for of, time in known.items():
            _move(idle, cause, of, time)
        if 2 * sum(known.values()) > before:
            preparing = -1
    final = int(device[np.argmax(events.end_ns[device])])
    last = max(int(events.end_ns[final]), base.begin_ns)
    if base.end_ns > last:
        idle[FINISHING] = base.end_ns - last
        call = int(launch_of(trace, np.array([final]))[0])
        for of, time in _of_edge(trace, call, last, base.end_ns).items():
            _move(idle, FINISHING, of, time)
    name = None if preparing < 0 else trace.names[int(events.name[preparing])]
    start = start_up(call_sites(trace), found, parts, base.whole_ns)
    for cause, time in ({} if start is None else start.by_cause).items():
        _move(idle, cause, causes.START_UP, time)
    return BaseIdle(base, found, parts, idle, name, start)


# What the host does before the device's first work and after its last has the causes of gaps. The
# rest is preparation. Calls that are long before the first work are part of the start.
_AT_EDGES = {
    causes.GRAPH_CAPTURE: causes.GRAPH_CAPTURE,
    causes.KERNEL_LOADING: causes.KERNEL_LOADING,
    causes.PROFILER: causes.PROFILER,
    causes.DATA_LOADING: causes.DATA_LOADING,
    causes.COMPILATION: causes.COMPILATION,
    causes.MEMORY_ALLOCATION: causes.START_UP,
    causes.RUNTIME_CALL: causes.START_UP,
}


def _of_edge(trace: Trace, call: int, begin_ns: int, end_ns: int) -> dict[str, int]:
    """Return the causes of idle time at an edge, which the thread of a launch shows.

    Without a launch, only the time of the profiler is known.
    """
    if call < 0:
        return {causes.PROFILER: profiler_time(trace).time_in(begin_ns, end_ns)}
    found: dict[str, int] = {}
    first = begin_ns < int(trace.events.begin_ns[call])
    for cause, time in host_classes(trace, call, begin_ns, end_ns).items():
        named = _AT_EDGES.get(cause)
        if named is not None and (first or named != causes.START_UP):
            found[named] = found.get(named, 0) + time
    return found


def _move(times: dict[str, int], of: str, to: str, time_ns: int) -> None:
    """Move a part of the time of one cause to another one."""
    if time_ns:
        times[to] = times.get(to, 0) + time_ns
        times[of] -= time_ns
        if not times[of]:
            del times[of]
