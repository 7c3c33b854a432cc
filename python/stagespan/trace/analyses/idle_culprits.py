"""Names what the host did in each gap of the device, and the calls that caused idle time."""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np

from stagespan.pages.figures import Count, Figures, Ns, one_of
from stagespan.trace.derived import idle_causes as causes
from stagespan.trace.derived.call_site import CallSites, waiting_operators
from stagespan.trace.derived.gaps import ISSUED, NAMES, Gaps, IdleParts
from stagespan.trace.derived.idle_causes import Cause
from stagespan.trace.evidence import window_of
from stagespan.trace.read.groups import distinct
from stagespan.trace.read.intervals import Numbers

_BLOCKING = (causes.SYNCHRONISATION, causes.MEMORY_ALLOCATION)
_Issued = Annotated[str, one_of(each for each in ISSUED if each)]


class IdleGap(Figures, frozen=True):
    """One gap; times in ns."""

    time_ns: Ns
    """From the start of the trace's window."""
    dur_ns: Ns = msgspec.field(name="idle_us")
    cause: Cause
    """The cause of the largest part."""
    parts: dict[Cause, Ns] = msgspec.field(name="parts_us")
    """The time of each cause; the times add up to `dur_ns`."""
    issued: _Issued | None = msgspec.field(name="next_launch_issued")
    """The next launch: "before" the gap, "during" (its call was under way), "after", or unknown."""
    culprit: str | None
    """What the host did: the waiting operator, the call, or what filled most of the gap."""
    line: str | None = msgspec.field(name="python")
    """The line of Python around it, if stacks were recorded."""
    call: str | None = msgspec.field(name="launch")
    """The call that launched the next work on the device."""
    previous: str = msgspec.field(name="previous_on_device")
    next: str = msgspec.field(name="next_on_device")
    crosses_step: bool = msgspec.field(name="between_steps")
    waited_for: str | None
    """What the host or the stream waited for, if the trace shows it (`cuda_sync`)."""


class Culprit(Figures, frozen=True):
    """Calls of one kind in one operator, and the idle time that they caused."""

    cause: Cause
    operator: str | None
    call: str
    line: str | None = msgspec.field(name="python")
    """The line of Python of the wait that cost most."""
    idle_ns: Ns
    in_call_ns: Ns
    """The part of it within the calls; the rest is the time until the next launch."""
    calls: Count
    """The number of calls during which the device was idle."""
    waited_for: str | None
    """What the wait that cost most waited for, if the trace shows it: a stream, or all streams."""

    @property
    def label(self) -> str:
        """Operator, call and line, as far as they are known."""
        named = self.call
        if self.operator not in (None, self.call):
            named = f"{self.operator} ({self.call})"
        return f"{named}, {self.line}" if self.line else named


def describe(
    where: CallSites, gaps: Gaps, parts: IdleParts, at: int, blamed: str | None = None
) -> IdleGap:
    """Return the details of a gap; the culprit is that of `blamed`, or of the largest part."""
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
            waited_for = awaited.label(trace)
            culprit = name(awaited.row) if awaited.row >= 0 else culprit
    elif (blamed or cause) in _BLOCKING and parts.blocked_in[at] >= 0:
        waited_for = where.waits.of_host(int(parts.blocked_in[at]))
    return IdleGap(
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


def group_by_culprit(where: CallSites, parts: IdleParts) -> list[Culprit]:
    """Group waits and allocations by operator and call; the one with the most idle time first."""
    trace = where.trace
    events = trace.events
    calls, time = parts.calls, parts.call_idle_ns
    operator = waiting_operators(trace, calls)
    name = np.where(operator >= 0, events.name[operator], -1)
    kinds, kind = distinct(parts.waits[calls].astype(np.int64), name, events.name[calls])
    groups = []
    for number, (waits, operator_name, call_name) in enumerate(kinds):
        of_kind = np.flatnonzero(kind == number)
        worst = int(calls[of_kind[np.argmax(time[of_kind])]])
        named = trace.names[operator_name] if operator_name >= 0 else None
        if named is None and (around := where.operator(worst)) >= 0:
            named = trace.names[int(events.name[around])]
        groups.append(
            Culprit(
                cause=causes.SYNCHRONISATION if waits else causes.MEMORY_ALLOCATION,
                operator=named,
                call=trace.names[call_name],
                line=where.line(worst),
                idle_ns=int(time[of_kind].sum()),
                in_call_ns=int(parts.call_inside_ns[of_kind].sum()),
                calls=len(of_kind),
                waited_for=where.waits.of_host(worst),
            )
        )
    return sorted(groups, key=lambda group: -group.idle_ns)


def longest_call(
    where: CallSites, gaps: Gaps, parts: IdleParts, at: int, cause: str
) -> tuple[int, int]:
    """Find the call that waited (or allocated) the longest in a gap.

    Looks in the threads that launched the work before and after the gap. Returns the row of the
    call, and the time in ns of all such calls with its name; (-1, 0) if there are none.
    """
    among = parts.waits if cause == causes.SYNCHRONISATION else parts.allocates
    begin, end = int(gaps.begin_ns[at]), int(gaps.end_ns[at])
    events = (gaps.first_origin, gaps.last_origin, gaps.first_call, gaps.last_call)
    threads = {int(each[at]) for each in events} - {-1}
    found = [where.called(begin, end, among, call) for call in sorted(threads)]
    return max(found, key=lambda each: each[1], default=(-1, 0))


def _culprit(
    where: CallSites, gaps: Gaps, parts: IdleParts, at: int, cause: str
) -> tuple[str | None, str | None]:
    trace = where.trace
    events = trace.events
    origin = int(gaps.first_origin[at])
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
    if origin < 0:
        return None, None
    if cause in (causes.LAUNCH, causes.QUEUED, causes.GRAPH):
        operator = where.operator(origin)
        return name(operator if operator >= 0 else origin), where.line(origin)
    until = max(int(gaps.begin_ns[at]) + 1, min(int(events.begin_ns[origin]), int(gaps.end_ns[at])))
    doing, line = where.doing(origin, int(gaps.begin_ns[at]), until)
    return name(doing), line


def largest(time_ns: Numbers, count: int) -> list[int]:
    """Return the numbers of the gaps with the most time, the longest first; at most `count`."""
    positive = np.flatnonzero(time_ns)
    if len(positive) > count:
        least = np.partition(time_ns[positive], -count)[-count]
        positive = positive[time_ns[positive] >= least]
    result: list[int] = positive[np.argsort(-time_ns[positive], kind="stable")[:count]].tolist()
    return result
