"""Findings about the causes of the device's idle time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec import structs

from stagespan.pages.amounts import counted, in_percent, in_words
from stagespan.pages.result import (
    Evidence,
    Finding,
    Severity,
    Thresholds,
    at_most,
    of_size,
    share,
    shortened,
)
from stagespan.trace.analyses.idle_culprits import Culprit, describe, largest, longest_call
from stagespan.trace.analyses.idle_time import (
    FINISHING,
    PREPARATION,
    BaseIdle,
    gaps_by_cause,
    mostly_compiles,
    sums_by_cause,
)
from stagespan.trace.analyses.stages import IdleStage, stage_of_idle
from stagespan.trace.derived import idle_causes as causes
from stagespan.trace.derived.advice import START_UP, Facts, advice_on, steadily
from stagespan.trace.derived.call_site import CallSites
from stagespan.trace.derived.device import device_work, launches
from stagespan.trace.derived.device_time import device_rows
from stagespan.trace.derived.gains import HOW_IDLE, idle_gain
from stagespan.trace.derived.gap_patterns import Pattern, StartUp
from stagespan.trace.derived.gaps import NAMES, Gaps, IdleParts, early_waits
from stagespan.trace.derived.host_work import mostly_filled_by
from stagespan.trace.derived.windows import BaseWindow
from stagespan.trace.evidence import evidence
from stagespan.trace.read.groups import median
from stagespan.trace.read.model import Trace

# Percent of the base (the steps, or the trace): less idle time is not reported.
_SHARES = Thresholds(25.0, 10.0, 3.0)
# Percent of a trace without steps, before the device's first work and after its last. A trace can
# begin before the program works and end after it, so smaller parts mean nothing.
_PREPARING_SHARES = Thresholds(25.0, 10.0)
_FINISHING_SHARES = Thresholds(medium=25.0, low=10.0)
# Percent of the idle time: smaller causes are not listed among several.
_LEAST_PERCENT_AMONG_SEVERAL = 10.0


CODES = {cause: row.code or f"idle.{cause}" for cause, row in causes.ROWS.items()}
"""The code of the finding for each cause."""


_NOT_SEEN = {
    causes.NOT_TRACED: ", and the trace does not show why.",
    causes.HOST_UNSEEN: ": the host launched nothing meanwhile, and the trace does not show what it"
    " did.",
}
"""The end of the sentence about a cause of which the trace shows nothing."""
# Causes that also occur before the device's first work and after its last.
_CALLS = (causes.RUNTIME_CALL, causes.MEMORY_ALLOCATION)
_AT_EDGES = (
    *_CALLS,
    *causes.causes_of("once"),
    causes.COMPILATION,
    causes.DATA_LOADING,
    causes.EARLIER_WORK,
)
_NOT_KNOWN = "it depends on what the device waited for"
_HOW_SEEN = "the device does not wait where the trace shows the reason"
_HOW = {causes.QUEUED: "each kernel begins when the one before it ends"}


def idle_findings(
    trace: Trace,
    base_idle: BaseIdle,
    where: CallSites,
    groups: list[Culprit],
    alike: list[Pattern],
) -> IdleFindings:
    """Return the figures of the idle time `within` a base that the findings need.

    `groups` and `alike` are the blocking calls and the patterns of its gaps.
    """
    gaps, parts = base_idle.gaps, base_idle.parts
    kernels = trace.events.dur_ns[device_work(trace).kernels]
    queued = gaps.dur_ns[parts.cause == NAMES.index(causes.QUEUED)]
    between = sums_by_cause(parts)
    places = {cause: _evidence(where, gaps, parts, cause) for cause in between}
    base, events, device = base_idle.base, trace.events, device_work(trace).rows
    first = evidence(trace, int(device[np.argmin(events.begin_ns[device])]))
    last = evidence(trace, int(device[np.argmax(events.end_ns[device])]))
    rest = base_idle.by_cause.get(FINISHING, 0)
    host = mostly_filled_by(trace, base.end_ns - rest, rest) if rest else -1
    finishing = None if host < 0 else trace.names[int(events.name[host])]
    at_edges = (first, last) if base.end_ns > int(events.end_ns[device].max()) else (first,)
    for cause in base_idle.by_cause:
        if cause in _AT_EDGES:
            places.setdefault(cause, _of_start(trace, base_idle, cause) or at_edges)
    unknown = base_idle.by_cause.get(causes.NOT_TRACED, 0)
    before = max(unknown - between.get(causes.NOT_TRACED, 0), 0)
    if before:
        places.setdefault(causes.NOT_TRACED, (first,))
    return IdleFindings(
        base=base_idle.base,
        by_cause=dict(sorted(base_idle.by_cause.items(), key=lambda item: -item[1])),
        gaps_by_cause=gaps_by_cause(parts),
        groups=groups,
        evidence=places,
        patterns=alike,
        start=base_idle.start,
        kernel_ns=int(median(kernels)) if len(kernels) else None,
        queued_gap_ns=int(median(queued)) if len(queued) else None,
        steady=frozenset(
            cause for at, cause in enumerate(NAMES) if steadily(parts.parts[:, at], most=1)
        ),
        devices=len(device_rows(trace)),
        facts=Facts(trace, gaps, parts),
        edges={PREPARATION: (base_idle.preparing, first), FINISHING: (finishing, last)},
        before_ns=before,
        is_compiling=mostly_compiles(trace),
        stage_in=lambda blamed: _stage_in(trace, base_idle, blamed),
    )


def _stage_in(trace: Trace, base_idle: BaseIdle, blamed: Sequence[str]) -> IdleStage | None:
    """Return the stage during which most of the time of these causes passed, or None.

    Only gaps with no other cause count, because the place of a part of a gap is not known.
    """
    gaps = base_idle.gaps
    time = base_idle.parts.parts[:, [NAMES.index(cause) for cause in blamed]].sum(axis=1)
    whole = time == gaps.dur_ns
    intervals = gaps.begin_ns[whole], gaps.end_ns[whole]
    return stage_of_idle(trace, intervals, int(time.sum()))


def _of_start(trace: Trace, base_idle: BaseIdle, cause: str) -> tuple[Evidence, ...]:
    """Return the longest call before the device's first work, and the operator around it."""
    if cause == causes.EARLIER_WORK:
        waits = early_waits(trace)
        return (evidence(trace, int(waits[np.argmax(trace.events.dur_ns[waits])])),)
    if cause != causes.START_UP and cause not in _CALLS:
        return ()
    events, base = trace.events, base_idle.base
    device = device_work(trace).rows
    first = max(int(events.begin_ns[device].min()), base.begin_ns)
    rows = np.flatnonzero(launches(trace) & (events.begin_ns < first))
    rows = rows[events.end_ns[rows] > base.begin_ns]
    longest = [] if len(rows) == 0 else [int(rows[np.argmax(events.dur_ns[rows])])]
    starts = cause == causes.START_UP and base_idle.started_in >= 0
    started = [base_idle.started_in] if starts else []
    return tuple(evidence(trace, row) for row in longest + started)


def _evidence(where: CallSites, gaps: Gaps, parts: IdleParts, cause: str) -> tuple[Evidence, ...]:
    time = parts.parts[:, NAMES.index(cause)]
    seen = []
    for at in largest(time, 3):
        gap = describe(where, gaps, parts, at, cause)
        event = gap.culprit or f"idle before {gap.next}"
        if cause == causes.HOST_UNSEEN:
            event = "no event of the host"
        if cause == causes.DEPENDENCY and gap.waited_for is not None:
            event = gap.waited_for
        if gap.line and gap.line != event:
            event = f"{shortened(event)}, {gap.line}"
        spent = int(time[at])
        if cause == causes.MEMORY_ALLOCATION:
            row, called = longest_call(where, gaps, parts, at, cause)
            if row >= 0:
                spent = min(called, spent)
        seen.append(Evidence(event, gap.time_ns, spent, "ns"))
    return tuple(seen)


class _Advised(NamedTuple):
    """The texts of a finding beside its reason, and the figures in them."""

    action: str
    details: str
    caveat: str
    numbers: dict[str, float]


class IdleFindings(msgspec.Struct, frozen=True):
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
    is_compiling: bool
    """Whether most of what the program does once is its first compilation."""
    stage_in: Callable[[Sequence[str]], IdleStage | None]
    """Returns the stage during which most of the time of some causes passed."""

    @property
    def idle_ns(self) -> int:
        """Idle time for all causes that findings name."""
        return sum(time for cause, time in self.by_cause.items() if cause in self.evidence)

    def findings(self) -> list[Finding]:
        """Return one finding for the start and one for each cause of at least 3 %.

        If there are none, and all causes together reach 3 %, return one finding for all of them.
        """
        times = {cause: time for cause, time in self.by_cause.items() if cause in self.evidence}
        findings = []
        once = {cause: times.pop(cause) for cause in causes.causes_of("once") if cause in times}
        if once and (severity := self._severity(sum(once.values()))):
            findings.append(self._of_once(once, severity))
        pace = self._together(times)
        if pace and (severity := self._severity(sum(pace.values()))):
            findings.append(self._of_pace(pace, severity))
        else:
            pace = {}
        for cause, time in times.items():
            if cause not in pace and (severity := self._severity(time)) is not None:
                findings.append(self._of_cause(cause, time, severity))
        before = "before the device's first work was launched"
        findings += self._of_edge(PREPARATION, _PREPARING_SHARES, before, "begin the trace later")
        after = "after the device's last work"
        findings += self._of_edge(FINISHING, _FINISHING_SHARES, after, "end the trace earlier")
        if not findings and (severity := self._severity(self.idle_ns)):
            findings.append(self._of_all(severity))
        covered = {CODES[causes.LAUNCH]: ("stages.launch",)}
        if not self.is_compiling:
            covered["idle.start_up"] = ("compiled.in_window",)
        return [
            structs.replace(finding, about="idle", covers=covered.get(finding.code, ()))
            for finding in findings
        ]

    def _together(self, times: dict[str, int]) -> dict[str, int]:
        """Return the causes of one kind that one finding is about, the longest first.

        It is {} if one of them decides alone. A cause with one long gap is a thing of its own.
        """
        family_times = {
            cause: times[cause]
            for cause, row in causes.ROWS.items()
            if row.is_pace and times.get(cause) and (cause == causes.LAUNCH or cause in self.steady)
        }
        if len(family_times) < 2:
            return {}
        most, total = max(family_times.values()), sum(family_times.values())
        alone = self._severity(most) == self._severity(total)
        if alone and self._severity(total - most) is None:
            return {}
        return dict(sorted(family_times.items(), key=lambda item: -item[1]))

    def _severity(self, time: int) -> Severity | None:
        return _SHARES.severity(share(time, self.base.whole_ns))

    def _idle_for(self, time: int, gaps: int) -> str:
        subject = "The device was" if self.devices == 1 else f"All {self.devices} devices were"
        counted = f", {gaps:,} gaps" if gaps > 1 else ""
        return (
            f"{subject} idle for {in_words(time, 'ns')} of {self.base.whose}"
            f" ({in_percent(share(time, self.base.whole_ns))}{counted})"
        )

    def _numbers(self, time: int, gaps: int) -> dict[str, float]:
        return self.base.figures_of(time) | {"gaps": gaps}

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
        details: list[str] = []
        pattern = next((each for each in self.patterns if each.cause == cause), None)
        if cause == causes.NOT_TRACED and 2 * self.before_ns > time:
            pattern = None
            details.append(
                f"{in_words(self.before_ns, 'ns')} of this passed before the device's first work,"
                " whose launch is not in the trace."
            )
        advised = self._advice(cause, cause)
        numbers = dict(advised.numbers)
        if pattern is not None:
            details += _of_pattern(pattern)
            numbers |= _numbers_of_pattern(pattern)
        numbers |= self._numbers(time, self.gaps_by_cause.get(cause, 0)) | self._numbers_of(cause)
        if (stage := self._stage(cause)) is not None:
            numbers |= stage.numbers
        is_explained = causes.ROWS[cause].is_explained
        if cause == causes.EARLIER_WORK:
            severity = at_most(severity, "medium")
        return Finding(
            severity,
            self._why(cause, time),
            self.evidence[cause] if pattern is None else pattern.evidence,
            CODES[cause],
            numbers,
            gain=idle_gain(time, _HOW.get(cause, HOW_IDLE)) if is_explained else None,
            no_gain="" if is_explained else _NOT_KNOWN,
            action=advised.action,
            details=" ".join(filter(None, (*details, advised.details))),
            caveat=advised.caveat,
        )

    def _why(self, cause: str, time: int) -> str:
        """Return the sentence about the time of a cause."""
        if cause == causes.EARLIER_WORK:
            return (
                f"For {self.base.part(time)}, before the device's first"
                f" work in the trace, {causes.CAUSES[cause]}, in {self.evidence[cause][0].event}."
            )
        idle = self._idle_for(time, self.gaps_by_cause.get(cause, 0))
        if cause in _NOT_SEEN:
            return f"{idle}{_NOT_SEEN[cause]}"
        meaning = causes.CAUSES[cause]
        if cause == causes.QUEUED:
            meaning = meaning.replace("the device", "it" if self.devices == 1 else "they")
        most, stage = self._most(cause), self._stage(cause)
        if stage is not None:
            mostly = cause == causes.LAUNCH or not most
            most = f", mostly in {stage}" if mostly else f"{most}, in {stage}"
        return f"{idle} because {meaning}{most}."

    def _stage(self, *blamed: str) -> IdleStage | None:
        """Return the stage that the finding on some causes names."""
        of_host = causes.causes_of("host")
        return self.stage_in(blamed) if all(cause in of_host for cause in blamed) else None

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
        numbers = self._numbers(total, gaps) | {f"{name}_ns": time for name, time in times.items()}
        for name in times:
            numbers |= self._numbers_of(name)
        mostly = ""
        if (stage := self._stage(*times)) is not None:
            numbers |= stage.numbers
            mostly = f", mostly in {stage}"
        advised = self._advice(causes.LAUNCH, *times)
        seen = [
            item
            for pair in zip(*(self.evidence[name] for name in times), strict=False)
            for item in pair
        ]
        return Finding(
            severity,
            f"{self._idle_for(total, gaps)} because the host did not launch work in time{mostly}:"
            f" {listed}.",
            tuple(dict.fromkeys(seen)),
            CODES[cause],
            numbers | advised.numbers,
            idle_gain(total),
            action=advised.action,
            details=advised.details,
            caveat=advised.caveat,
        )

    def _advice(self, cause: str, *blamed: str) -> _Advised:
        """Return the advice on a cause, and what recorded stacks cost in the blamed causes."""
        details, caveat, numbers = "", "", dict[str, float]()
        region = self.facts.region_in(blamed) if causes.ROWS[cause].is_pace else None
        if region is not None:
            name, calls, inside = region
            where = f"{counted(calls, 'call')} of {shortened(name)}"
            details = f"{in_words(inside, 'ns')} of this is in {where}."
            numbers["region_ns"] = inside
        found = self.facts.stack_cost_in(blamed) if causes.ROWS[cause].is_slowed_by_stacks else None
        if found is not None:
            cost, took, of = found
            caveat, more = cost.caveat(took, of)
            numbers |= more
        return _Advised(advice_on(cause, self.facts), details, caveat, numbers)

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
        gaps = self.evidence[cause]
        if len(gaps) >= self.gaps_by_cause.get(cause, 0):
            # Most of the time can be before all gaps, or after them.
            inside = sum(each.figure or 0 for each in gaps)
            gaps = gaps if 2 * inside >= self.by_cause[cause] else ()
        if gaps and cause in _CALLS and not self.gaps_by_cause.get(cause):
            return f", mostly in {shortened(gaps[0].event)}"
        if gaps and cause not in (causes.GRAPH, causes.UNSEEN_WAIT):
            where = "after" if cause == causes.DEPENDENCY else "at"
            return f" (the longest gap is {where} {shortened(gaps[0].event)})"
        return ""

    def _of_once(self, times: dict[str, int], severity: Severity) -> Finding:
        """Return the finding on what a program does once, which has no gain."""
        total, start = sum(times.values()), self.start
        numbers = self._numbers(total, 1 if start is None else len(start.rows))
        first = times.pop(causes.START_UP, 0)
        parts = {} if start is None else dict(list(start.by_cause.items())[:2])
        named = [*parts.items()]
        if start is None and first:
            named = [(causes.START_UP, first)]
        named += sorted(times.items(), key=lambda item: -item[1])
        said = [f"{in_words(time, 'ns')} because {causes.CAUSES[cause]}" for cause, time in named]
        numbers |= {f"{cause}_ns": time for cause, time in named}
        inside = ""
        if start is not None:
            most, *others = start.places
            numbers["in_place_ns"] = most.idle_ns
            inside = f", {in_words(most.idle_ns, 'ns')} of it in {most.label}"
            if others:
                others_ns = sum(each.idle_ns for each in others)
                numbers["in_others_ns"] = others_ns
                which = others[0].label if len(others) == 1 else f"{len(others)} others"
                inside += f" and {in_words(others_ns, 'ns')} in {which}"
            if first > start.idle_ns:
                numbers["before_ns"] = first - start.idle_ns
                said.append(
                    f"{in_words(first - start.idle_ns, 'ns')} before the device's first work"
                )
        seen = () if start is None else start.evidence
        seen += tuple(item for cause, _ in named for item in self.evidence[cause][:2])
        # Nothing has to be changed for a later trace not to have it.
        severity = at_most(severity, "medium")
        return Finding(
            severity,
            f"{self._idle_for(total, int(numbers['gaps']))} for what a program does once{inside}:"
            f" {', and '.join(said)}.",
            seen,
            "idle.start_up",
            numbers,
            action=START_UP.text,
        )

    def _of_edge(self, cause: str, shares: Thresholds, place: str, once: str) -> list[Finding]:
        """Return the finding on the time at an edge of a trace without steps.

        With steps, it is `steps.before_device` or `steps.after_device`.
        """
        time = self.by_cause.get(cause, 0)
        severity = shares.severity(share(time, self.base.whole_ns))
        if self.base.steps or severity is None:
            return []
        host, work = self.edges[cause]
        mostly = "" if host is None else f", mostly in {shortened(host, 90)}"
        return [
            Finding(
                of_size(severity, time),
                f"{self.base.part(time)} passed {place}{mostly}.",
                (work,),
                f"idle.{cause}",
                self.base.figures_of(time),
                idle_gain(time, "the device works in that time"),
                action=f"If the program does this once, {once}, or mark the steps"
                " (a profiler with a schedule=... marks them): then all shares refer to them.",
            )
        ]

    def _of_all(self, severity: Severity) -> Finding:
        largest = [
            (cause, time)
            for cause, time in self.by_cause.items()
            if cause in self.evidence and share(time, self.idle_ns) >= _LEAST_PERCENT_AMONG_SEVERAL
        ][:3]
        parts = [
            f"{in_words(time, 'ns')} because {causes.CAUSES[cause]}" for cause, time in largest
        ]
        gaps = sum(self.gaps_by_cause.values())
        numbers = self._numbers(self.idle_ns, gaps)
        numbers |= {f"{cause}_ns": time for cause, time in largest}
        unseen = [cause for cause, row in causes.ROWS.items() if not row.is_explained]
        seen = sum(time for cause, time in self.by_cause.items() if cause not in unseen)
        how = _HOW_SEEN if seen < self.idle_ns else HOW_IDLE
        return Finding(
            severity,
            f"{self._idle_for(self.idle_ns, gaps)} for several reasons, each below 3 %:"
            f" {', '.join(parts)}.",
            tuple(each for cause, _ in largest for each in self.evidence[cause][:1]),
            "idle.several",
            numbers,
            gain=idle_gain(min(seen, self.idle_ns), how),
            no_gain="" if seen else _NOT_KNOWN,
        )


def _numbers_of_pattern(pattern: Pattern) -> dict[str, float]:
    """Return the figures in the sentences about a pattern of gaps."""
    several = pattern.gaps > 1
    numbers = {
        "gaps_alike_ns": pattern.idle_ns,
        "shortest_gap_ns": pattern.least_ns if several else None,
        "longest_gap_ns": pattern.most_ns if several else None,
        "every_ns": None if pattern.one_a_step else pattern.every_ns,
        "begun_after_launch_ns": pattern.delay_ns if pattern.only_later else None,
        "host_call_ns": pattern.host_call_ns,
    }
    return {key: value for key, value in numbers.items() if value is not None}


def _of_pattern(pattern: Pattern) -> list[str]:
    """Return sentences about a pattern of gaps that the trace does not explain."""
    sentences = [_gaps_alike(pattern), _launched(pattern)]
    if pattern.host_call is not None:
        sentences.append(_meanwhile(pattern))
    if pattern.cause != causes.UNSEEN_WAIT:
        return sentences
    unrecorded = ""
    if pattern.graph_call is not None:
        after = "this gap" if pattern.gaps == 1 else "these gaps"
        sentences.append(
            f"The work after {after} is the first that was recorded of a device graph"
            f" ({pattern.graph_call})."
        )
        unrecorded = " a part of that graph that the profiler does not record,"
    sentences.append(
        f"What it waited for can be{unrecorded} work that was launched before the trace began, or"
        " work of another process or device."
    )
    return sentences


def _gaps_alike(pattern: Pattern) -> str:
    time, following = in_words(pattern.idle_ns, "ns"), shortened(pattern.next)
    if pattern.gaps == 1:
        return f"{time} of this is one gap before {following}."
    least, most = in_words(pattern.least_ns, "ns"), in_words(pattern.most_ns, "ns")
    length = least if least == most else f"{least} to {most}"
    often = ""
    if pattern.one_a_step:
        often = ", one in each step"
    elif pattern.every_ns is not None:
        often = f", one every {in_words(pattern.every_ns, 'ns')}"
    return f"{time} of this are {pattern.gaps:,} gaps of {length} before {following}{often}."


def _launched(pattern: Pattern) -> str:
    """Return the sentence about the launch of the work after the gaps."""
    before, later = pattern.launched_before, pattern.launched_later
    unknown = pattern.launch_unknown
    if before and not later and not unknown:
        text = f"{'It' if pattern.gaps == 1 else 'This work'} had been launched before the gap"
    elif pattern.only_later and pattern.delay_ns is not None:
        text = f"It began {in_words(pattern.delay_ns, 'ns')} after its launch"
    elif unknown and not before and not later:
        text = "Its launch is unknown"
    else:
        cases = counted(pattern.gaps, "case")
        text = f"It had been launched before the gap in {before:,} of {cases}"
    if pattern.stream_wait is not None:
        text = f"{text}, and its stream had to wait for another one ({pattern.stream_wait})"
    return f"{text}."


def _meanwhile(pattern: Pattern) -> str:
    """Return the sentence about the call that the host was in."""
    at = [shortened(each) for each in (pattern.host_operator, pattern.line) if each]
    if pattern.host_annotation:
        at.append(f"in {shortened(pattern.host_annotation)}")
    place = f" ({', '.join(at)})" if at else ""
    time = in_words(pattern.host_call_ns, "ns")
    if pattern.gaps == 1:
        which = "this gap"
    else:
        which, time = f"{pattern.host_gaps:,} of these gaps", f"up to {time}"
    return f"In {which} the host was in {shortened(pattern.host_call or '')} for {time}{place}."
