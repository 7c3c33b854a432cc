"""Finds the gaps in the device's work and their causes, which add up to the idle time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
import numpy as np
from msgspec import structs

from stagespan.text.amounts import counted, in_words
from stagespan.trace.analyses.steps import mostly_filled_by
from stagespan.trace.derived import idle_causes as causes
from stagespan.trace.derived.advice import START_UP, Facts, advice_on, steadily
from stagespan.trace.derived.call_site import CallSites, call_sites, waiting_operators
from stagespan.trace.derived.device import device_work, launch_of
from stagespan.trace.derived.device_time import device_rows
from stagespan.trace.derived.gap_patterns import (
    Pattern,
    StartUp,
    patterns,
    start_up,
)
from stagespan.trace.derived.gaps import (
    ISSUED,
    NAMES,
    Gaps,
    IdleParts,
    gaps,
    profiler_time,
    split_idle,
)
from stagespan.trace.derived.idle_causes import Cause
from stagespan.trace.derived.missing import needs_device
from stagespan.trace.derived.step_ranges import step_begins
from stagespan.trace.derived.windows import BaseWindow, base_window
from stagespan.trace.figures import Count, Figures, Internal, Ns, one_of
from stagespan.trace.read.intervals import Numbers
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once
from stagespan.trace.result import (
    SEVERITIES,
    Block,
    Chart,
    Evidence,
    Finding,
    Gain,
    Severity,
    StructResult,
    Table,
    Thresholds,
    Unavailable,
    evidence,
    of_size,
    share,
    shortened,
    window_of,
)

_BLOCKING = (causes.SYNCHRONISATION, causes.MEMORY_ALLOCATION)
PREPARATION, FINISHING = "preparation", "finishing"
"""Idle time before the device's first work is launched, and after its last work."""
IDLE_CAUSES: dict[str, str] = {
    PREPARATION: "the host prepared the device's first work",
    FINISHING: "the host continued after the device's last work",
    **causes.CAUSES,
}
"""Causes of idle time: those between the device's work, and those before and after all of it."""


_Issued = Annotated[str, one_of(each for each in ISSUED if each)]


def analyze(trace: Trace) -> Idle | Unavailable:
    """Find every gap of the device and its cause; Unavailable without device events."""
    within = base_idle(trace)
    if within is None:
        return Unavailable(_NO_DEVICE, "no_device", needs=needs_device(trace))
    (found, parts), events, where = split_gaps(trace), trace.events, call_sites(trace)
    counts, idle = _gaps_by_cause(parts), int(found.dur_ns.sum())
    span = int(events.end_ns[found.rows].max() - events.begin_ns[found.rows].min())
    groups = group_by_culprit(where, parts)
    alike = patterns(where, found, parts, step_begins(trace))
    started = start_up(where, found, parts, span)
    report = _idle_findings(
        trace,
        within,
        where,
        groups if within.gaps is found else group_by_culprit(where, within.parts),
        alike
        if within.gaps is found
        else patterns(where, within.gaps, within.parts, step_begins(trace)),
        start_up(where, within.gaps, within.parts, within.base.whole_ns),
    )
    return Idle(
        span_ns=span,
        idle_ns=idle,
        idle_percent=share(idle, span),
        causes={
            cause: IdleCause(causes.CAUSES[cause], time, share(time, idle), counts[cause])
            for cause, time in sums_by_cause(parts).items()
        },
        gaps=len(found.begin_ns),
        largest=[describe(where, found, parts, at) for at in _largest(found.dur_ns, TOP)],
        groups=groups,
        patterns=alike,
        start=started,
        report=report,
        largest_within=[
            describe(where, within.gaps, within.parts, at)
            for at in _largest(within.gaps.dur_ns, TOP)
        ],
    )


class Idle(StructResult, frozen=True):
    """The device's idle time by cause."""

    span_ns: Ns
    idle_ns: Ns
    idle_percent: float
    """`idle_ns` in percent of `span_ns`."""
    gaps: Count
    causes: dict[Cause, IdleCause] = msgspec.field(name="by_cause")
    """Every cause that occurs, the longest first; their times sum to `idle_ns`."""
    groups: list[Culprit] = msgspec.field(name="blocking_calls")
    """Waits and allocations by operator and call, the one that cost most first."""
    largest: list[IdleGap] = msgspec.field(name="largest_gaps")
    """The largest gaps, each with what is known about it."""
    patterns: list[Pattern]
    """Gaps that the trace does not explain, grouped by the work that follows them."""
    start: StartUp | None = msgspec.field(name="start_up")
    """The gaps in which the program started up; None if there are none."""
    report: Internal[IdleFindings]
    """What pages show: the figures of the steps, or of the trace if it has no steps."""
    largest_within: Internal[list[IdleGap]]
    """The largest gaps of that time."""

    @property
    def by_cause(self) -> dict[str, int]:
        """The time in ns by cause."""
        return {cause: each.idle_ns for cause, each in self.causes.items()}

    @property
    def gaps_by_cause(self) -> dict[str, int]:
        """The number of gaps by their largest cause."""
        return {cause: each.gaps for cause, each in self.causes.items()}

    def findings(self) -> list[Finding]:
        """Causes of at least 3 % of the device's time, including unknown ones."""
        return self.report.findings()

    @property
    def devices(self) -> int:
        """The number of devices; with several, only the time in which none works counts."""
        return self.report.devices

    def head(self) -> list[Block]:
        """The largest causes."""
        table = self._by_cause("", "why it was idle" if self.devices == 1 else "why all were idle")
        least = _LEAST_CAUSE_SHOWN / 100 * sum(self.report.by_cause.values())
        main = [row for row in table.rows if int(row[1] or 0) >= least]
        return [replace(table, rows=main[:_CAUSES_SHOWN], note="")] if main else []

    def _by_cause(self, title: str, heading: str) -> Table:
        """Return the idle time by cause, of the steps or of the trace without steps."""
        report, base = self.report, self.report.base
        rows = [
            (
                IDLE_CAUSES[cause],
                time,
                share(time, base.whole_ns),
                report.gaps_by_cause.get(cause),
            )
            for cause, time in report.by_cause.items()
        ]
        columns = ((heading, ""), ("time", "ns"), (f"of {base.label}", "%"), ("gaps", ""))
        idle = in_words(sum(report.by_cause.values()), "ns")
        return Table(title, columns, rows, f"Idle for {idle} of {base.whose}.")

    def tables(self) -> list[Table]:
        """Idle time by cause, blocking calls, and the largest gaps."""
        by_cause = self._by_cause(
            "Why the device was idle" if self.devices == 1 else "Why all devices were idle", "cause"
        )
        calls = Table.of(
            "Calls during which the device was idle",
            self.report.groups,
            ("operator", "operator", ""),
            ("call", "call", ""),
            ("waited_for", "waited for", ""),
            ("line", "Python", ""),
            ("idle_ns", "idle", "ns"),
            ("calls", "calls", ""),
        )
        largest = Table.of(
            "Largest gaps",
            self.largest_within,
            ("time_ns", "at", "ns"),
            ("dur_ns", "idle", "ns"),
            (lambda gap: causes.CAUSES[gap.cause], "cause", ""),
            ("issued", "next launch", ""),
            ("culprit", "host", ""),
            ("waited_for", "waited for", ""),
            ("line", "Python", ""),
            ("next", "next on device", ""),
        )
        return [table for table in (by_cause, calls, largest) if table.rows]

    def chart(self) -> Chart | None:
        """Cause, its meaning, idle time and gaps, the longest first."""
        gaps = self.report.gaps_by_cause
        rows = [
            (cause, IDLE_CAUSES[cause], time, gaps.get(cause, 0))
            for cause, time in self.report.by_cause.items()
        ]
        return {"kind": "idle_causes", "causes": rows} if rows else None


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
            Culprit(
                cause=causes.SYNCHRONISATION if waits else causes.MEMORY_ALLOCATION,
                operator=named,
                call=trace.names[call_name],
                line=where.line(worst),
                idle_ns=int(time[mine].sum()),
                in_call_ns=int(parts.call_inside_ns[mine].sum()),
                calls=len(mine),
                waited_for=where.waits.of_host(worst),
            )
        )
    return sorted(found, key=lambda group: -group.idle_ns)


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


# --- Findings ---


# Percent of the base (the steps, or the trace): less idle time is not reported.
SHARES = Thresholds(25.0, 10.0, 3.0)
# Percent of a trace without steps, before the device's first work and after its last. A trace can
# begin before the program works and end after it, so smaller parts mean nothing.
_PREPARING_SHARES = Thresholds(25.0, 10.0)
_FINISHING_SHARES = Thresholds(medium=25.0, low=10.0)
# Percent of the idle time: smaller causes are not listed among several.
_LEAST_NAMED = 10.0


CODES = {cause: f"idle.{cause}" for cause in causes.CAUSES} | {
    causes.DATA_LOADING: "idle.data_loader",
    causes.NOT_TRACED: "idle.unexplained",
}
"""The code of the finding for each cause."""


_NOT_SEEN = {
    causes.NOT_TRACED: "and the trace does not show why",
    causes.HOST_UNSEEN: "the host launched nothing meanwhile, and the trace does not show what it"
    " did",
}


@dataclass(frozen=True, slots=True)
class IdleFindings:
    """The figures for the findings, all within `base`, to which shares refer; times in ns."""

    base: BaseWindow
    by_cause: dict[str, int]
    """As in the verdict, including the time before the device's first work and after its last."""
    gaps_by_cause: dict[str, int]
    groups: list[Culprit]
    evidence: dict[str, tuple[Evidence, ...]]
    patterns: list[Pattern]
    start: StartUp | None
    kernel_ns: int | None
    """Median duration of a kernel."""
    queued_gap_ns: int | None
    """Median length of the gaps whose largest part has the cause "queued"."""
    steady: frozenset[str]
    """The causes of which no gap has more than half of the time."""
    devices: int
    facts: Facts
    edges: dict[str, tuple[str | None, Evidence]]
    """For the time before the device's first work (`PREPARATION`) and after its last (`FINISHING`):
    the host's activity for most of it, and that work."""
    before_ns: int
    """Time before the device's first work, whose launch is unknown."""

    @property
    def _subject(self) -> str:
        return "The device was" if self.devices == 1 else f"All {self.devices} devices were"

    @property
    def idle_ns(self) -> int:
        """Idle time for all causes that findings name."""
        return sum(time for cause, time in self.by_cause.items() if cause in self.evidence)

    def findings(self) -> list[Finding]:
        """Return one finding for the start and one for each cause of at least 3 %.

        If there are none, and all causes together reach 3 %, return one finding for all of them.
        """
        times = {cause: time for cause, time in self.by_cause.items() if cause in self.evidence}
        found = []
        if self.start is not None and (severity := self._severity(self.start.idle_ns)):
            found.append(self._of_start(self.start, severity))
            for cause, time in self.start.by_cause.items():
                times[cause] -= time
        pace = self._together(times)
        if pace and (severity := self._severity(sum(pace.values()))):
            found.append(self._of_pace(pace, severity))
        else:
            pace = {}
        for cause, time in times.items():
            if cause not in pace and (severity := self._severity(time)) is not None:
                found.append(self._of_cause(cause, time, severity))
        found = self._with_the_family(found, times)
        before = "before the device's first work was launched"
        found += self._of_edge(PREPARATION, _PREPARING_SHARES, before, "begin the trace later")
        after = "after the device's last work"
        found += self._of_edge(FINISHING, _FINISHING_SHARES, after, "end the trace earlier")
        if not found and (severity := self._severity(self.idle_ns)):
            found.append(self._of_all(severity))
        return found

    def _with_the_family(self, found: list[Finding], times: dict[str, int]) -> list[Finding]:
        """Return the findings; the largest about the host is as severe as all its causes."""
        codes = {CODES[cause] for cause in causes.STARVED}
        mine = [at for at, finding in enumerate(found) if finding.code in codes]
        severity = self._severity(sum(times.get(cause, 0) for cause in causes.STARVED))
        if not mine or severity is None:
            return found
        largest = max(mine, key=lambda at: found[at].numbers["time_ns"])
        more = min((severity, found[largest].severity), key=SEVERITIES.index)
        return [
            structs.replace(finding, severity=more) if at == largest else finding
            for at, finding in enumerate(found)
        ]

    def _together(self, times: dict[str, int]) -> dict[str, int]:
        """Return the causes of one kind that one finding is about, the longest first.

        It is {} if one of them decides alone. A cause with one long gap is a thing of its own.
        """
        mine = {
            cause: times[cause]
            for cause in causes.PACE
            if times.get(cause) and (cause == causes.LAUNCH or cause in self.steady)
        }
        if len(mine) < 2:
            return {}
        most, total = max(mine.values()), sum(mine.values())
        alone = self._severity(most) == self._severity(total)
        if alone and self._severity(total - most) is None:
            return {}
        return dict(sorted(mine.items(), key=lambda item: -item[1]))

    def _severity(self, time: int) -> Severity | None:
        return SHARES.severity(share(time, self.base.whole_ns))

    def _idle_for(self, time: int, gaps: int) -> str:
        counted = f", {gaps:,} gaps" if gaps > 1 else ""
        return (
            f"{self._subject} idle for {in_words(time, 'ns')} of {self.base.whose}"
            f" ({share(time, self.base.whole_ns):.1f} %{counted})"
        )

    def _numbers(self, time: int, gaps: int) -> dict[str, float]:
        whole = self.base.whole_ns
        return {"time_ns": time, "percent": share(time, whole), "whole_ns": whole, "gaps": gaps}

    def _numbers_of(self, cause: str) -> dict[str, float]:
        """Return the figures in the part of the sentence about the place of a cause's time."""
        worst = next((group for group in self.groups if group.cause == cause), None)
        if worst is not None:
            numbers: dict[str, float] = {"worst_call_ns": worst.idle_ns}
            if 2 * worst.in_call_ns < worst.idle_ns:
                numbers["in_call_ns"] = worst.in_call_ns
            if cause == causes.MEMORY_ALLOCATION:
                taken, given = self.facts.allocations
                numbers |= {"allocations": taken, "releases": given}
            return numbers
        if cause == causes.QUEUED and self.queued_gap_ns is not None:
            return {"median_gap_ns": self.queued_gap_ns}
        if cause == causes.LAUNCH and self.kernel_ns is not None:
            return {"median_kernel_ns": self.kernel_ns}
        return {}

    def _of_cause(self, cause: str, time: int, severity: Severity) -> Finding:
        shown = self.evidence[cause]
        sentence = self._idle_for(time, self.gaps_by_cause.get(cause, 0))
        pattern = next((each for each in self.patterns if each.cause == cause), None)
        if cause == causes.NOT_TRACED:
            sentence += f", {_NOT_SEEN[cause]}."
        elif cause == causes.HOST_UNSEEN:
            sentence += f": {_NOT_SEEN[cause]}."
        else:
            meaning = causes.CAUSES[cause]
            if cause == causes.QUEUED:
                meaning = meaning.replace("the device", "it" if self.devices == 1 else "they")
            sentence += f" because {meaning}{self._most(cause)}."
        if cause == causes.NOT_TRACED and 2 * self.before_ns > time:
            pattern = None
            sentence += (
                f" {in_words(self.before_ns, 'ns')} of this passed before the device's first work,"
                " whose launch is not in the trace."
            )
        if pattern is not None:
            sentence += _of_pattern(pattern)
            shown = pattern.evidence
        advice, numbers = self._advice(cause, cause)
        if pattern is not None:
            numbers |= _numbers_of_pattern(pattern)
        numbers |= self._numbers(time, self.gaps_by_cause.get(cause, 0)) | self._numbers_of(cause)
        return Finding(
            severity,
            f"{sentence} {advice}".rstrip(),
            shown,
            CODES[cause],
            numbers,
            gain=None if cause in _UNSEEN else _gain(time, _HOW.get(cause, _HOW_IDLE)),
            no_gain=_NOT_KNOWN if cause in _UNSEEN else "",
        )

    def _of_pace(self, times: dict[str, int], severity: Severity) -> Finding:
        """Return the finding on several causes of one kind."""
        total = sum(times.values())
        gaps = sum(self.gaps_by_cause.get(cause, 0) for cause in times)
        parts = [
            f"{in_words(time, 'ns')} because {causes.CAUSES[cause].replace('the host', 'it')}"
            f"{self._most(cause)}"
            for cause, time in times.items()
        ]
        listed = f"{', '.join(parts[:-1])}, and {parts[-1]}"
        cause = causes.LAUNCH if causes.LAUNCH in times else next(iter(times))
        numbers = self._numbers(total, gaps) | {f"{each}_ns": time for each, time in times.items()}
        for each in times:
            numbers |= self._numbers_of(each)
        advice, more = self._advice(causes.LAUNCH, *times)
        shown = [
            item
            for pair in zip(*(self.evidence[each] for each in times), strict=False)
            for item in pair
        ]
        return Finding(
            severity,
            f"{self._idle_for(total, gaps)} because the host did not launch work in time: {listed}."
            f" {advice}",
            tuple(dict.fromkeys(shown)),
            CODES[cause],
            numbers | more,
            _gain(total),
        )

    def _advice(self, cause: str, *blamed: str) -> tuple[str, dict[str, float]]:
        """Return the advice on a cause, and what recorded stacks cost in the blamed causes.

        Also returns the figures in it.
        """
        text = advice_on(cause, self.facts)
        numbers: dict[str, float] = {}
        region = self.facts.region_in(blamed) if cause in causes.PACE else None
        if region is not None:
            name, calls, inside = region
            where = f"{counted(calls, 'call')} of {shortened(name)}"
            text = f"{in_words(inside, 'ns')} of this is in {where}. {text}".rstrip()
            numbers["region_ns"] = inside
        found = self.facts.stack_cost_in(blamed) if cause in _SLOWED_BY_STACKS else None
        if found is not None:
            cost, took, of = found
            caveat, more = cost.caveat(took, of)
            numbers |= more
            text = f"{text} {caveat}".lstrip()
        return text, numbers

    def _most(self, cause: str) -> str:
        """Return the part of the sentence that says where most of a cause's time went."""
        culprits = [group for group in self.groups if group.cause == cause]
        if culprits:
            worst = culprits[0]
            text = in_words(worst.idle_ns, "ns")
            if 2 * worst.in_call_ns < worst.idle_ns:
                text += (
                    f", of which {in_words(worst.in_call_ns, 'ns')} in the call and the rest until"
                    " the next work began"
                )
            return f", mostly at {worst.label} ({text})"
        if cause == causes.QUEUED:
            return f" (the median gap is {in_words(self.queued_gap_ns, 'ns')})"
        if cause == causes.LAUNCH and self.kernel_ns is not None:
            return f", while the median kernel takes {in_words(self.kernel_ns, 'ns')}"
        if self.evidence[cause] and cause not in (causes.GRAPH, causes.UNSEEN_WAIT):
            where = "after" if cause == causes.DEPENDENCY else "at"
            return f" (the longest gap is {where} {shortened(self.evidence[cause][0].event)})"
        return ""

    def _of_start(self, start: StartUp, severity: Severity) -> Finding:
        largest = list(start.by_cause.items())[:2]
        parts = [
            f"{in_words(time, 'ns')} because {causes.CAUSES[cause]}" for cause, time in largest
        ]
        place = f"{'the first ' if start.first_call else ''}{shortened(start.where)}"
        sentence = (
            f"{self._idle_for(start.idle_ns, len(start.rows))} while the program started up, in"
            f" {place}: {', and '.join(parts)}. {START_UP.text}"
        )
        numbers = self._numbers(start.idle_ns, len(start.rows))
        numbers |= {f"{cause}_ns": time for cause, time in largest}
        gain = _gain(start.idle_ns)
        return Finding(severity, sentence, start.evidence, "idle.start_up", numbers, gain)

    def _of_edge(self, cause: str, shares: Thresholds, place: str, once: str) -> list[Finding]:
        """Return the finding on the time at an edge of a trace without steps.

        With steps, it is `steps.before_device` or `steps.after_device`.
        """
        time = self.by_cause.get(cause, 0)
        percent = share(time, self.base.whole_ns)
        severity = shares.severity(percent)
        if self.base.steps or severity is None:
            return []
        host, work = self.edges[cause]
        mostly = "" if host is None else f", mostly in {shortened(host, 90)}"
        return [
            Finding(
                of_size(severity, time),
                f"{in_words(time, 'ns')} of {self.base.whose} ({percent:.1f} %) passed"
                f" {place}{mostly}. If the program does this once, {once}, or mark the steps"
                " (profiler.step()): then all shares refer to them.",
                (work,),
                f"idle.{cause}",
                {"time_ns": time, "percent": percent, "whole_ns": self.base.whole_ns},
                _gain(time, "the device works in that time"),
            )
        ]

    def _of_all(self, severity: Severity) -> Finding:
        largest = [
            (cause, time)
            for cause, time in self.by_cause.items()
            if cause in self.evidence and share(time, self.idle_ns) >= _LEAST_NAMED
        ][:3]
        parts = [
            f"{in_words(time, 'ns')} because {causes.CAUSES[cause]}" for cause, time in largest
        ]
        gaps = sum(self.gaps_by_cause.values())
        sentence = (
            f"{self._idle_for(self.idle_ns, gaps)} for several reasons, each below 3 %:"
            f" {', '.join(parts)}."
        )
        shown = tuple(each for cause, _ in largest for each in self.evidence[cause][:1])
        numbers = self._numbers(self.idle_ns, gaps)
        numbers |= {f"{cause}_ns": time for cause, time in largest}
        seen = sum(time for cause, time in self.by_cause.items() if cause not in _UNSEEN)
        gain = _gain(min(seen, self.idle_ns), _HOW_SEEN if seen < self.idle_ns else _HOW_IDLE)
        return Finding(
            severity,
            sentence,
            shown,
            "idle.several",
            numbers,
            gain=gain if seen else None,
            no_gain="" if seen else _NOT_KNOWN,
        )


# The causes for which the host worked, so that recorded stacks make them longer.
_SLOWED_BY_STACKS = frozenset(
    {
        *causes.PACE,
        causes.SYNCHRONISATION,
        causes.BETWEEN_STEPS,
        causes.DATA_LOADING,
        causes.COMPILATION,
    }
)
# Idle time for which the trace shows no cause that a change could remove.
_UNSEEN = frozenset({causes.GRAPH, causes.UNSEEN_WAIT, causes.NOT_TRACED})
_NOT_KNOWN = "it depends on what the device waited for"
_HOW_IDLE = "the device does not wait there"
_HOW_SEEN = "the device does not wait where the trace shows the reason"
_HOW = {causes.QUEUED: "each kernel begins when the one before it ends"}


def _gain(idle_ns: int, how: str = _HOW_IDLE) -> Gain:
    return Gain(idle_ns, at_most=True, how=how)


def _numbers_of_pattern(pattern: Pattern) -> dict[str, float]:
    """Return the figures in the sentences about a pattern of gaps."""
    several = pattern.gaps > 1
    found = {
        "gaps_alike_ns": pattern.idle_ns,
        "shortest_gap_ns": pattern.least_ns if several else None,
        "longest_gap_ns": pattern.most_ns if several else None,
        "every_ns": None if pattern.one_a_step else pattern.every_ns,
        "begun_after_launch_ns": pattern.delay_ns if pattern.only_later else None,
        "host_call_ns": pattern.host_call_ns,
    }
    return {key: value for key, value in found.items() if value is not None}


def _of_pattern(pattern: Pattern) -> str:
    """Return sentences about a pattern of gaps that the trace does not explain."""
    following = shortened(pattern.next)
    if pattern.gaps == 1:
        text = f" {in_words(pattern.idle_ns, 'ns')} of this is one gap before {following}"
    else:
        least, most = in_words(pattern.least_ns, "ns"), in_words(pattern.most_ns, "ns")
        text = (
            f" {in_words(pattern.idle_ns, 'ns')} of this are {pattern.gaps:,} gaps of"
            f" {least if least == most else f'{least} to {most}'} before {following}"
        )
        if pattern.one_a_step:
            text += ", one in each step"
        elif pattern.every_ns is not None:
            text += f", one every {in_words(pattern.every_ns, 'ns')}"
    before, later = pattern.launched_before, pattern.launched_later
    unknown = pattern.launch_unknown
    if before and not later and not unknown:
        text += f". {'It' if pattern.gaps == 1 else 'This work'} had been launched before the gap"
    elif pattern.only_later and pattern.delay_ns is not None:
        text += f". It began {in_words(pattern.delay_ns, 'ns')} after its launch"
    elif unknown and not before and not later:
        text += ". Its launch is unknown"
    else:
        cases = counted(pattern.gaps, "case")
        text += f". It had been launched before the gap in {before:,} of {cases}"
    if pattern.stream_wait is not None:
        text += f", and its stream had to wait for another one ({pattern.stream_wait})"
    if pattern.host_call is not None:
        at = [shortened(each) for each in (pattern.host_operator, pattern.line) if each]
        if pattern.host_annotation:
            at.append(f"in {shortened(pattern.host_annotation)}")
        place = f" ({', '.join(at)})" if at else ""
        which = "this gap" if pattern.gaps == 1 else f"{pattern.host_gaps:,} of these gaps"
        time = in_words(pattern.host_call_ns, "ns")
        text += (
            f". In {which} the host was in {shortened(pattern.host_call)} for"
            f" {time if pattern.gaps == 1 else f'up to {time}'}{place}"
        )
    if pattern.cause == causes.UNSEEN_WAIT:
        unrecorded = ""
        if pattern.graph_call is not None:
            after = "this gap" if pattern.gaps == 1 else "these gaps"
            text += (
                f". The work after {after} is the first that was recorded of a device graph"
                f" ({pattern.graph_call})"
            )
            unrecorded = " a part of that graph that the profiler does not record,"
        text += (
            f". What it waited for can be{unrecorded} work that was launched before the trace"
            " began, or work of another process or device"
        )
    return f"{text}."


TOP = 20
# The causes on the first screen, and the least percentage of idle time of one.
_CAUSES_SHOWN, _LEAST_CAUSE_SHOWN = 5, 1.0


_NO_DEVICE = (
    "The trace has no device events: record it with the device's activity, otherwise the use of the"
    " device is unknown."
)


class IdleCause(Figures, frozen=True):
    """The idle time of one cause."""

    meaning: str
    idle_ns: Ns
    percent_of_idle: float
    gaps: Count
    """Gaps of which it has the largest part."""


@once
def split_gaps(trace: Trace) -> tuple[Gaps, IdleParts]:
    """The gaps of the device, and their times by cause."""
    found = gaps(trace)
    return found, split_idle(trace, found, step_begins(trace))


def sums_by_cause(parts: IdleParts) -> dict[str, int]:
    """Idle time in ns by cause, the longest first; only causes that occur."""
    totals = zip(NAMES, parts.parts.sum(axis=0).tolist(), strict=True)
    return {cause: time for cause, time in sorted(totals, key=lambda item: -item[1]) if time}


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
    if before:
        # Without its launch, it is unknown what the device's first work waited for.
        cause = causes.NOT_TRACED if call < 0 else PREPARATION
        idle[cause] = idle.get(cause, 0) + before
        preparing = mostly_filled_by(trace, base.begin_ns, before)
        overhead = profiler_time(trace).time_in(base.begin_ns, launched)
        _move(idle, cause, causes.PROFILER, overhead)
        if 2 * overhead > before:
            preparing = -1
    last = max(int(events.end_ns[device].max()), base.begin_ns)
    if base.end_ns > last:
        idle[FINISHING] = base.end_ns - last
        _move(idle, FINISHING, causes.PROFILER, profiler_time(trace).time_in(last, base.end_ns))
    name = None if preparing < 0 else trace.names[int(events.name[preparing])]
    return BaseIdle(base, found, parts, idle, name)


def _move(times: dict[str, int], of: str, to: str, time_ns: int) -> None:
    """Move a part of the time of one cause to another one."""
    if time_ns:
        times[to] = times.get(to, 0) + time_ns
        times[of] -= time_ns
        if not times[of]:
            del times[of]


def _idle_findings(
    trace: Trace,
    within: BaseIdle,
    where: CallSites,
    groups: list[Culprit],
    alike: list[Pattern],
    started: StartUp | None,
) -> IdleFindings:
    found, parts = within.gaps, within.parts
    kernels = trace.events.dur_ns[device_work(trace).kernels]
    between = sums_by_cause(parts)
    places = {cause: _evidence(where, found, parts, cause) for cause in between}
    base, events, device = within.base, trace.events, device_work(trace).rows
    first = evidence(trace, int(device[np.argmin(events.begin_ns[device])]))
    last = evidence(trace, int(device[np.argmax(events.end_ns[device])]))
    rest = within.by_cause.get(FINISHING, 0)
    host = mostly_filled_by(trace, base.end_ns - rest, rest) if rest else -1
    finishing = None if host < 0 else trace.names[int(events.name[host])]
    unknown = within.by_cause.get(causes.NOT_TRACED, 0)
    before = max(unknown - between.get(causes.NOT_TRACED, 0), 0)
    if before:
        places.setdefault(causes.NOT_TRACED, (first,))
    return IdleFindings(
        base=within.base,
        by_cause=dict(sorted(within.by_cause.items(), key=lambda item: -item[1])),
        gaps_by_cause=_gaps_by_cause(parts),
        groups=groups,
        evidence=places,
        patterns=alike,
        start=started,
        kernel_ns=int(np.median(kernels)) if len(kernels) else None,
        queued_gap_ns=_median_of(found, parts, causes.QUEUED),
        steady=frozenset(
            cause for at, cause in enumerate(NAMES) if steadily(parts.parts[:, at], most=1)
        ),
        devices=len(device_rows(trace)),
        facts=Facts(trace, found, parts),
        edges={PREPARATION: (within.preparing, first), FINISHING: (finishing, last)},
        before_ns=before,
    )


def _gaps_by_cause(parts: IdleParts) -> dict[str, int]:
    """Return, by cause, the number of gaps of which it has the largest part."""
    if len(parts.parts) == 0:
        return dict.fromkeys(NAMES, 0)
    counts = np.bincount(parts.cause, minlength=len(NAMES)).tolist()
    return dict(zip(NAMES, counts, strict=True))


def _median_of(found: Gaps, parts: IdleParts, cause: str) -> int | None:
    """Return the median length in ns of the gaps whose largest part has this cause, or None."""
    chosen = found.dur_ns[parts.cause == NAMES.index(cause)] if len(parts.parts) else found.dur_ns
    return int(np.median(chosen)) if len(chosen) else None


def _evidence(where: CallSites, found: Gaps, parts: IdleParts, cause: str) -> tuple[Evidence, ...]:
    time = parts.parts[:, NAMES.index(cause)]
    shown = []
    for at in _largest(time, 3):
        gap = describe(where, found, parts, at, cause)
        event = gap.culprit or f"idle before {gap.next}"
        if cause == causes.HOST_UNSEEN:
            event = "no event of the host"
        if cause == causes.DEPENDENCY and gap.waited_for is not None:
            event = gap.waited_for
        if gap.line and gap.line != event:
            event = f"{shortened(event)}, {gap.line}"
        spent = int(time[at])
        if cause == causes.MEMORY_ALLOCATION:
            row, called = longest_call(where, found, parts, at, cause)
            if row >= 0:
                spent = min(called, spent)
        shown.append(Evidence(event, gap.time_ns, spent, "ns"))
    return tuple(shown)


def _largest(time: Numbers, count: int) -> list[int]:
    order = np.argsort(-time, kind="stable")[:count].tolist()
    return [at for at in order if time[at]]
