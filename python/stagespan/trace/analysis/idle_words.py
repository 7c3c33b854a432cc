"""A gap of the device in words: what ended before it, what came next, and who is to blame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stagespan.trace.analysis import causes
from stagespan.trace.analysis.gaps import ISSUED, Gaps
from stagespan.trace.analysis.result import window_of
from stagespan.trace.analysis.split_idle import NAMES, Split
from stagespan.trace.analysis.where import Surroundings, waiting_operators

_BLOCKING = (causes.SYNCHRONISATION, causes.MEMORY_ALLOCATION)


@dataclass(frozen=True, slots=True)
class Gap:
    """One gap; times in ns, `time_ns` from the begin of the trace's window."""

    time_ns: int
    dur_ns: int
    cause: str
    """Of the largest part."""
    parts: dict[str, int]
    """By cause; they sum to `dur_ns`."""
    issued: str | None
    """The next launch: "before" the gap, "during" (its call was under way), "after", or unknown."""
    culprit: str | None
    """What the host did: the waiting operator, the call, or what filled most of the gap."""
    line: str | None
    """The line of Python around it, where stacks were recorded."""
    call: str | None
    """The call that launched what comes next."""
    previous: str
    next: str
    crosses_step: bool
    waited_for: str | None
    """What the host or the stream waited for, where the trace says it (`cuda_sync`)."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON, in microseconds."""
        return {
            "time_us": self.time_ns / 1000,
            "idle_us": self.dur_ns / 1000,
            "cause": self.cause,
            "parts_us": {cause: time / 1000 for cause, time in self.parts.items()},
            "next_launch_issued": self.issued,
            "culprit": self.culprit,
            "python": self.line,
            "launch": self.call,
            "previous_on_device": self.previous,
            "next_on_device": self.next,
            "between_steps": self.crosses_step,
            "waited_for": self.waited_for,
        }


@dataclass(frozen=True, slots=True)
class Group:
    """Calls of one kind in one operator, and the idle time that they are to blame for."""

    cause: str
    operator: str | None
    call: str
    line: str | None
    """Of the wait that cost most."""
    idle_ns: int
    in_call_ns: int
    """What of it lies within the calls; the rest passed until the next launch."""
    calls: int
    """How many of them the device was idle for."""
    waited_for: str | None
    """What the one that cost most waited for, where the trace says it: a stream, or all streams."""

    @property
    def words(self) -> str:
        """Operator, call and line, as far as they are known."""
        named = self.call
        if self.operator not in (None, self.call):
            named = f"{self.operator} ({self.call})"
        return f"{named}, {self.line}" if self.line else named

    def to_dict(self) -> dict[str, Any]:
        """For JSON, in microseconds."""
        return {
            "cause": self.cause,
            "operator": self.operator,
            "call": self.call,
            "python": self.line,
            "idle_us": self.idle_ns / 1000,
            "in_call_us": self.in_call_ns / 1000,
            "calls": self.calls,
            "waited_for": self.waited_for,
        }


def describe(
    where: Surroundings, gaps: Gaps, parts: Split, at: int, blamed: str | None = None
) -> Gap:
    """What is known about one gap; the culprit is that of `blamed`, or of its largest part."""
    trace = where.trace
    events = trace.events
    begin, _ = window_of(trace) or (0, 0)

    def name(row: int) -> str:
        return trace.names[int(events.name[row])]

    times = {NAMES[c]: int(t) for c, t in enumerate(parts.parts[at]) if t}
    cause = NAMES[int(parts.parts[at].argmax())]
    call = int(gaps.first_call[at])
    culprit, line = _culprit(where, gaps, parts, at, blamed or cause)
    waited_for = None
    if (blamed or cause) == causes.DEPENDENCY:
        awaited = where.waits.before(gaps, at)
        if awaited is not None:
            waited_for = awaited.words(trace)
            culprit = name(awaited.row) if awaited.row >= 0 else culprit
    elif (blamed or cause) in _BLOCKING and parts.blocked_in[at] >= 0:
        waited_for = where.waits.of_host(int(parts.blocked_in[at]))
    return Gap(
        time_ns=int(gaps.begin_ns[at]) - begin,
        dur_ns=int(gaps.dur_ns[at]),
        cause=cause,
        parts=dict(sorted(times.items(), key=lambda item: -item[1])),
        issued=ISSUED[int(gaps.issued[at])],
        culprit=culprit,
        line=line,
        call=name(call) if call >= 0 else None,
        previous=name(int(gaps.rows[gaps.last[at]])),
        next=name(int(gaps.rows[gaps.first[at]])),
        crosses_step=bool(parts.crosses_step[at]),
        waited_for=waited_for,
    )


def group_by_culprit(where: Surroundings, parts: Split) -> list[Group]:
    """Waits and allocations by operator and call, with the idle time that each is to blame for."""
    trace = where.trace
    events = trace.events
    calls = np.flatnonzero(parts.call_idle_ns)
    time = parts.call_idle_ns[calls]
    operator = waiting_operators(trace, calls)
    name = np.where(operator >= 0, events.name[operator], -1)
    keys = np.stack((parts.waits[calls], name, events.name[calls]), axis=1)
    kinds, kind = np.unique(keys, axis=0, return_inverse=True)
    kind = kind.reshape(-1)
    found = []
    for number, (waits, operator_name, call_name) in enumerate(kinds):
        mine = np.flatnonzero(kind == number)
        worst = int(calls[mine[np.argmax(time[mine])]])
        named = trace.names[operator_name] if operator_name >= 0 else None
        if named is None and (around := where.operator(worst)) >= 0:
            named = trace.names[int(events.name[around])]
        found.append(
            Group(
                cause=causes.SYNCHRONISATION if waits else causes.MEMORY_ALLOCATION,
                operator=named,
                call=trace.names[call_name],
                line=where.line(worst),
                idle_ns=int(time[mine].sum()),
                in_call_ns=int(parts.call_inside_ns[calls[mine]].sum()),
                calls=len(mine),
                waited_for=where.waits.of_host(worst),
            )
        )
    return sorted(found, key=lambda group: -group.idle_ns)


def longest_call(
    where: Surroundings, gaps: Gaps, parts: Split, at: int, cause: str
) -> tuple[int, int]:
    """The call that waited (or allocated) the longest in a gap, and the time of all of its name.

    Of the thread that launched what came next and the one that launched before; (-1, 0) if
    neither did.
    """
    among = parts.waits if cause == causes.SYNCHRONISATION else parts.allocates
    begin, end = int(gaps.begin_ns[at]), int(gaps.end_ns[at])
    threads = {int(gaps.first_call[at]), int(gaps.last_call[at])} - {-1}
    found = [where.called(begin, end, among, call) for call in sorted(threads)]
    return max(found, key=lambda each: each[1], default=(-1, 0))


def _culprit(
    where: Surroundings, gaps: Gaps, parts: Split, at: int, cause: str
) -> tuple[str | None, str | None]:
    trace = where.trace
    events = trace.events
    call = int(gaps.first_call[at])
    blocked = int(parts.blocked_in[at])

    def name(row: int) -> str | None:
        return trace.names[int(events.name[row])] if row >= 0 else None

    if cause in _BLOCKING:
        longest, _ = longest_call(where, gaps, parts, at, cause)
        blocked = blocked if longest < 0 else longest
    if cause in _BLOCKING and blocked >= 0:
        operator = int(waiting_operators(trace, np.array([blocked]))[0])
        if cause == causes.MEMORY_ALLOCATION:
            operator = -1
        return name(operator if operator >= 0 else blocked), where.line(blocked)
    if cause == causes.DEPENDENCY:
        return name(int(gaps.rows[gaps.last[at]])), None
    if call < 0:
        return None, None
    if cause in (causes.LAUNCH, causes.QUEUED, causes.GRAPH):
        operator = where.operator(call)
        return name(operator if operator >= 0 else call), where.line(call)
    until = max(int(gaps.begin_ns[at]) + 1, min(int(events.begin_ns[call]), int(gaps.end_ns[at])))
    doing, line = where.doing(call, int(gaps.begin_ns[at]), until)
    return name(doing), line
