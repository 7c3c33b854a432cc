"""Attribute every nanosecond of a trace's steps to one device event or one cause of idleness.

If several device events run at the same time, computation comes before communication, communication
before copies, and among events of one kind the one that began first. The times of all events and
all causes therefore sum exactly to the steps' length.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.derived.device import COMMUNICATION, COMPUTE, COPY, device_work, launch_of
from stagespan.trace.derived.gaps import (
    AFTER,
    BEFORE,
    DURING,
    NAMES,
    UNKNOWN,
    Gaps,
    gaps,
    split_idle,
)
from stagespan.trace.derived.step_ranges import step_begins
from stagespan.trace.derived.threads import Cover
from stagespan.trace.derived.windows import Windows
from stagespan.trace.read.intervals import Numbers, Rows
from stagespan.trace.read.model import Trace

DONE = "device_done"
"""The cause of idle time after the device's last work, while the last step continued."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """Times in ns; `time_ns` and `idle_ns` together sum to the windows' length."""

    rows: Rows
    """Device events."""
    calls: Rows
    """The call that launched each event, or -1."""
    kind: NDArray[np.int8]
    """The kind of each event: COMPUTE, COMMUNICATION or COPY."""
    time_ns: Numbers
    """The time within the windows that is attributed to each event."""
    inside: NDArray[np.bool_]
    """Whether each event begins within the windows; only these events are counted."""
    idle_ns: dict[str, int]
    """Idle time by cause, only for causes that occur."""


def attribute(trace: Trace, windows: Windows) -> Attribution:
    """Attribute every moment of the windows to a device event or to a cause of idle time."""
    events, work = trace.events, device_work(trace)
    rows = work.rows
    kind = work.kind[rows]
    time = np.zeros(len(rows), dtype=np.int64)
    free = Cover(windows.begin_ns, windows.end_ns)
    for each in (COMPUTE, COMMUNICATION, COPY):
        mine = np.flatnonzero(kind == each)
        if len(mine) == 0:
            continue
        mine = mine[np.argsort(events.begin_ns[rows[mine]], kind="stable")]
        begin, end = events.begin_ns[rows[mine]], events.end_ns[rows[mine]]
        reach = np.concatenate((begin[:1], np.maximum.accumulate(end)[:-1]))
        time[mine] = free.within(np.maximum(begin, reach), end)
        free = _less(free, Cover(begin, end))
    inside = Cover(windows.begin_ns, windows.end_ns).within(
        events.begin_ns[rows], events.begin_ns[rows] + 1
    )
    return Attribution(
        rows, launch_of(trace, rows), kind, time, inside > 0, _idle(trace, windows, free)
    )


def _less(cover: Cover, other: Cover) -> Cover:
    """Return the parts of `cover` that are not in `other`."""
    if len(cover.begin) == 0 or len(other.begin) == 0:
        return cover
    # The result is the intersection of `cover` with the gaps between the intervals of `other`.
    low = min(int(cover.begin[0]), int(other.begin[0])) - 1
    high = max(int(cover.end[-1]), int(other.end[-1])) + 1
    begin = np.concatenate(([low], other.end))
    end = np.concatenate((other.begin, [high]))
    edges = np.unique(np.concatenate((cover.begin, cover.end, begin, end)))
    middle_begin, middle_end = edges[:-1], edges[1:]
    hole = Cover(begin, end)
    kept = (cover.within(middle_begin, middle_end) > 0) & (
        hole.within(middle_begin, middle_end) > 0
    )
    return Cover(middle_begin[kept], middle_end[kept])


def _idle(trace: Trace, windows: Windows, free: Cover) -> dict[str, int]:
    """Return the windows' time without device work, by cause."""
    found = _with_the_first(trace, gaps(trace), windows)
    parts = split_idle(trace, found, step_begins(trace)).parts
    inside = free.within(found.begin_ns, found.end_ns)
    whole = inside == found.dur_ns
    totals = parts[whole].sum(axis=0)
    for at in np.flatnonzero(~whole & (inside > 0)).tolist():
        totals = totals + apportioned(parts[at], int(inside[at]), int(found.dur_ns[at]))
    idle = {name: int(time) for name, time in zip(NAMES, totals, strict=True) if time}
    rest = int((free.end - free.begin).sum()) - sum(idle.values())
    if rest:
        idle[DONE] = rest
    return idle


def _with_the_first(trace: Trace, found: Gaps, windows: Windows) -> Gaps:
    """Return the gaps, preceded by the time from the first window's begin to the first work."""
    events = trace.events
    if len(found.rows) == 0:
        return found
    first = int(events.begin_ns[found.rows[0]])
    begin = int(windows.begin_ns[0])
    if first <= begin:
        return found
    call = int(found.calls[0])
    issued = UNKNOWN
    if call >= 0:
        issued = DURING
        if events.begin_ns[call] >= begin:
            issued = AFTER
        elif events.end_ns[call] <= begin:
            issued = BEFORE

    def ahead(value: int, column: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate((np.array([value], dtype=column.dtype), column))

    return replace(
        found,
        begin_ns=ahead(begin, found.begin_ns),
        end_ns=ahead(first, found.end_ns),
        last=ahead(0, found.last),
        first=ahead(0, found.first),
        in_graph=ahead(0, found.in_graph),
        issued=ahead(issued, found.issued),
    )


def apportioned(parts: Numbers, numerator: int, denominator: int) -> Numbers:
    """Return integers in the proportion of `parts`, times numerator / denominator.

    They sum to the sum of `parts` times the fraction, rounded half up. Each part is rounded down,
    and the rest is added to the parts with the largest remainders.
    """
    # Products can exceed 64 bits; Python's integers do not.
    exact = [int(part) * numerator for part in parts]
    whole = [each // denominator for each in exact]
    total = (2 * sum(exact) + denominator) // (2 * denominator)
    remainders = [each - w * denominator for each, w in zip(exact, whole, strict=True)]
    order = sorted(range(len(exact)), key=lambda at: (-remainders[at], at))
    for at in order[: total - sum(whole)]:
        whole[at] += 1
    return np.array(whole, dtype=np.int64)
