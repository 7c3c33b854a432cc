"""Groups gaps that precede the same device work, or belong to the program's start."""

from __future__ import annotations

import re

import msgspec
import numpy as np

from stagespan.pages.figures import Count, Figures, Internal, Ns
from stagespan.pages.result import Evidence, shortened
from stagespan.trace.derived import idle_causes as causes
from stagespan.trace.derived.call_site import CallSites
from stagespan.trace.derived.gaps import AFTER, BEFORE, DURING, NAMES, UNKNOWN, Gaps, IdleParts
from stagespan.trace.derived.idle_causes import Cause
from stagespan.trace.derived.threads import named
from stagespan.trace.evidence import evidence, window_of
from stagespan.trace.read.groups import median
from stagespan.trace.read.intervals import Mask, Numbers, Rows
from stagespan.trace.read.model import Trace

# Causes whose reason is not in the trace. Only the positions of the gaps are known.
UNEXPLAINED = tuple(cause for cause, row in causes.ROWS.items() if not row.is_explained)
_MOST_PATTERNS = 5
_MOST_LOOKED_AT = 20
# The least length of a gap in a pattern, relative to the longest one.
_SIMILAR_SHARE = 0.5
# The largest deviation of evenly spaced gaps, relative to the median distance.
_EVEN = 0.1
_WARM_UP = re.compile(r"(?:^|[^a-z])warm[-_ ]?up", re.IGNORECASE)
_STREAM_WAIT = re.compile(r"StreamWait(?:Event|Value)", re.IGNORECASE)
_LAUNCHES = re.compile(r"launch|memcpy|memset", re.IGNORECASE)
# The shortest gap that is examined for a start, relative to the span, and the most gaps.
_LEAST_START = 0.01
_MOST_STARTS = 20
# The first call of an operator took at least this many times as long as the others.
_FIRST = 10


class Pattern(Figures, frozen=True):
    """Gaps of about one length before the same device work; times in ns."""

    cause: Cause
    next: str = msgspec.field(name="next_on_device")
    """The device work after the gaps."""
    gaps: Count
    idle_ns: Ns
    least_ns: Ns
    most_ns: Ns
    every_ns: Ns | None
    """The distance of the gaps if they are evenly spaced and at least three, otherwise None."""
    one_a_step: bool
    """Whether the gaps are as far apart as the steps."""
    graph_call: Internal[str | None]
    """The call that launched the graphs of which this work is the first recorded; None if some of
    it is not of a graph."""
    launched_before: Count
    """The number of gaps whose next launch was issued before the gap."""
    launched_later: Count
    launch_unknown: Count
    delay_ns: Ns | None = msgspec.field(name="begun_after_launch_us")
    """For the longest gap: from the end of the next launch to the start of its work on the device;
    None if unknown."""
    stream_wait: str | None
    """The call before the launch after the longest gap that lets its stream wait for another
    one."""
    host_call: str | None
    """The call in which a thread of the host spent at least half of most of the gaps."""
    host_gaps: Count = msgspec.field(name="host_call_in_gaps")
    """The number of examined gaps for which this is true."""
    host_call_ns: Ns | None
    """The time that this call took in the longest of these gaps."""
    host_operator: str | None
    host_annotation: str | None
    """The innermost annotation around that call, or around the host's other work."""
    line: str | None = msgspec.field(name="python")
    evidence: Internal[tuple[Evidence, ...]]

    @property
    def only_later(self) -> bool:
        """Whether next launches are known, and all of them were issued after the gap began."""
        return self.launched_later > 0 and self.launched_before == 0


class Started(Figures, frozen=True):
    """What a program, or a library in it, started in."""

    name: str
    """The annotation of a warm-up, or an operator."""
    idle_ns: Ns
    """The idle time inside of it."""
    first_call: Internal[bool]
    """Whether it is the first call of an operator."""

    @property
    def label(self) -> str:
        """Its name in a sentence."""
        return f"{'the first ' if self.first_call else ''}{shortened(self.name)}"


class StartUp(Figures, frozen=True):
    """Idle time for causes on the host while a program, or a library in it, started."""

    places: list[Started] = msgspec.field(name="in")
    """The longest first."""
    idle_ns: Ns
    gaps: Count
    by_cause: dict[Cause, Ns] = msgspec.field(name="by_cause_us")
    """The longest first."""
    rows: Internal[Rows]
    """The gaps, as indices."""
    evidence: Internal[tuple[Evidence, ...]]
    """The call in which the host spent most of each of the largest gaps, or all calls of its name
    if there are several, and the event that started."""


def patterns(where: CallSites, gaps: Gaps, parts: IdleParts, step_begins: Numbers) -> list[Pattern]:
    """Return the patterns of gaps whose cause the trace does not explain, the longest first."""
    events = where.trace.events
    patterns_ = []
    for cause in UNEXPLAINED:
        time = parts.parts[:, NAMES.index(cause)]
        chosen = np.flatnonzero(time)
        if len(chosen) == 0:
            continue
        name = events.name[gaps.rows[gaps.first[chosen]]]
        sums = np.bincount(name, weights=time[chosen])
        for code in np.argsort(-sums, kind="stable")[:_MOST_PATTERNS].tolist():
            alike = chosen[name == code]
            if len(alike):
                alike = alike[time[alike] >= _SIMILAR_SHARE * time[alike].max()]
                patterns_.append(_pattern(where, gaps, alike, time, cause, step_begins))
    return sorted(patterns_, key=lambda each: -each.idle_ns)


def _pattern(
    where: CallSites, gaps: Gaps, chosen: Rows, time: Numbers, cause: str, step_begins: Numbers
) -> Pattern:
    trace = where.trace
    events = trace.events
    begin, _ = window_of(trace) or (0, 0)
    lengths, issued = time[chosen], gaps.issued[chosen]
    longest = int(chosen[np.argmax(lengths)])
    call = int(gaps.first_call[longest])
    every = _every(gaps.begin_ns[chosen])
    by_length = chosen[np.argsort(-lengths, kind="stable")]
    host, host_ns, host_gaps = _host(where, gaps, by_length[:_MOST_LOOKED_AT])
    none = np.empty(0, dtype=np.intp)
    operators, marks = (where.operators(host), where.marks(host)) if host >= 0 else (none, none)

    def name(row: int) -> str:
        return trace.names[int(events.name[row])]

    following = name(int(gaps.rows[gaps.first[longest]]))
    items = [
        Evidence(f"idle before {following}", int(gaps.begin_ns[at]) - begin, int(time[at]), "ns")
        for at in by_length[:3].tolist()
    ]
    if host >= 0:
        items.append(evidence(trace, host))
    return Pattern(
        cause=cause,
        next=following,
        gaps=len(chosen),
        idle_ns=int(lengths.sum()),
        least_ns=int(lengths.min()),
        most_ns=int(lengths.max()),
        every_ns=every,
        one_a_step=_one_a_step(every, step_begins),
        graph_call=_graph_call(trace, gaps.first_call[chosen]),
        launched_before=int((issued == BEFORE).sum()),
        launched_later=int(((issued == DURING) | (issued == AFTER)).sum()),
        launch_unknown=int((issued == UNKNOWN).sum()),
        delay_ns=None if call < 0 else max(int(gaps.end_ns[longest] - events.end_ns[call]), 0),
        stream_wait=_stream_wait_before(where, call),
        host_call=name(host) if host >= 0 else None,
        host_gaps=host_gaps,
        host_call_ns=host_ns if host >= 0 else None,
        host_operator=name(int(operators[-1])) if len(operators) else None,
        host_annotation=name(int(marks[-1])) if len(marks) else None,
        line=where.line(host) if host >= 0 else None,
        evidence=tuple(items),
    )


def _graph_call(trace: Trace, calls: Rows) -> str | None:
    """Return the name of the calls that are known, if all of these launch graphs."""
    calls = calls[calls >= 0]
    if len(calls) == 0 or not named(trace, causes.GRAPH_LAUNCHES, calls).all():
        return None
    return trace.names[int(trace.events.name[calls].min())]


def _host(where: CallSites, gaps: Gaps, some: Rows) -> tuple[int, int, int]:
    """Find the call in which a thread of the host spent at least half of most gaps.

    Returns its row and its time in ns in the longest of these gaps, and their number; (-1, 0, 0) if
    there is no such call.
    """
    events = where.trace.events
    by_name: dict[int, list[tuple[int, int]]] = {}
    for at in some.tolist():
        row, time = where.called(int(gaps.begin_ns[at]), int(gaps.end_ns[at]))
        if 2 * time >= int(gaps.dur_ns[at]):
            by_name.setdefault(int(events.name[row]), []).append((time, row))
    if not by_name:
        return -1, 0, 0
    most = max(by_name.values(), key=len)
    if 2 * len(most) <= len(some):
        return -1, 0, 0
    time, row = max(most)
    return row, time, len(most)


def _stream_wait_before(where: CallSites, call: int) -> str | None:
    """The call that lets a stream wait, if no other launch comes between it and `call`."""
    if call < 0:
        return None
    before = where.calls_before(call)
    names = where.trace.names
    for row in before[::-1].tolist():
        name = names[int(where.trace.events.name[row])]
        if _STREAM_WAIT.search(name):
            return name
        if _LAUNCHES.search(name):
            return None
    return None


def _every(begin_ns: Numbers) -> int | None:
    """Return the distance in ns of evenly spaced gaps; None if they are not evenly spaced."""
    distances = np.diff(np.sort(begin_ns))
    if len(distances) < 2:
        return None
    middle = int(median(distances))
    even = bool((np.abs(distances - middle) <= _EVEN * middle).all())
    return middle if even else None


def _one_a_step(every_ns: int | None, step_begins: Numbers) -> bool:
    """Whether the distance of the gaps is that of the host's steps."""
    if every_ns is None or len(step_begins) < 2:
        return False
    step = median(np.diff(step_begins))
    return bool(abs(every_ns - step) <= _EVEN * step)


def start_up(where: CallSites, gaps: Gaps, parts: IdleParts, span_ns: int) -> StartUp | None:
    """Return the gaps in which the program started; None if there are none.

    They are inside the annotation of a warm-up, or inside the first call of an operator, if it took
    much longer than later calls.
    """
    trace = where.trace
    events = trace.events
    starved = [NAMES.index(cause) for cause in causes.causes_of("host")]
    time = parts.parts[:, starved].sum(axis=1)
    long = np.flatnonzero(time >= _LEAST_START * span_ns)
    long = long[np.argsort(-time[long], kind="stable")[:_MOST_STARTS]]
    long = long[gaps.first_call[long] >= 0]
    rows, of = [], []
    for at in long.tolist():
        limits = int(gaps.begin_ns[at]), int(gaps.end_ns[at])
        event = started_in(where, int(gaps.first_origin[at]), limits, int(gaps.dur_ns[at]) // 2)
        if event >= 0:
            rows.append(at)
            of.append(event)
    if not rows:
        return None
    sums = parts.parts[rows].sum(axis=0)
    by_cause = {NAMES[number]: int(sums[number]) for number in starved if sums[number]}
    items = []
    begin, _ = window_of(trace) or (0, 0)
    for at in rows[:3]:
        call = int(gaps.first_call[at])
        limits = int(gaps.begin_ns[at]), int(gaps.end_ns[at])
        row, spent = where.called(*limits, like=call)
        if row >= 0:
            name, time_ns = trace.names[int(events.name[row])], int(events.begin_ns[row])
            longest = int(np.diff(np.clip((time_ns, events.end_ns[row]), *limits))[0])
            if spent > longest:
                name, time_ns = f"calls of {name}", limits[0]
            items.append(Evidence(name, time_ns - begin, spent, "ns"))
        items.append(evidence(trace, of[rows.index(at)]))
    return StartUp(
        places=_places(trace, gaps, rows, of, time),
        idle_ns=sum(by_cause.values()),
        gaps=len(rows),
        by_cause=dict(sorted(by_cause.items(), key=lambda item: -item[1])),
        rows=np.array(rows, dtype=np.intp),
        evidence=tuple(dict.fromkeys(items)),
    )


def _places(
    trace: Trace, gaps: Gaps, rows: list[int], of: list[int], time_ns: Numbers
) -> list[Started]:
    """Return the events `of` the gaps in `rows`, each with the part of `time_ns` inside of it."""
    events, times = trace.events, dict[str, int]()
    for at, event in zip(rows, of, strict=True):
        limits = int(gaps.begin_ns[at]), int(gaps.end_ns[at])
        inside = np.clip((events.begin_ns[event], events.end_ns[event]), *limits)
        name = trace.names[int(events.name[event])]
        times[name] = times.get(name, 0) + min(int(np.diff(inside)[0]), int(time_ns[at]))
    return [
        Started(name, spent, not _WARM_UP.search(name))
        for name, spent in sorted(times.items(), key=lambda item: -item[1])
    ]


def started_in(where: CallSites, origin: int, limits: tuple[int, int], least_ns: int) -> int:
    """Return the event around a launch in which the program started; -1 if there is none.

    This is the annotation of a warm-up, or the first call of an operator, if it took much longer
    than later calls, and at least `least_ns` between the limits. A process's first collective is
    such an operator: it makes the connections of its group.
    """
    trace = where.trace
    events = trace.events
    for mark in where.marks(origin)[::-1].tolist():
        if _WARM_UP.search(trace.names[int(events.name[mark])]):
            return int(mark)
    for operator in where.operators(origin)[::-1].tolist():
        begin, end = np.clip((events.begin_ns[operator], events.end_ns[operator]), *limits)
        if end - begin < max(least_ns, 1):
            continue
        same: Mask = events.name == events.name[operator]
        others = np.flatnonzero(same)
        others = others[others != operator]
        if (
            len(others)
            and events.begin_ns[operator] < events.begin_ns[others].min()
            and events.dur_ns[operator] >= _FIRST * median(events.dur_ns[others])
        ):
            return int(operator)
    return -1
