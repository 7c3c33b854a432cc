"""Idle time in sentences: one finding for each cause that cost enough, and what is known of it."""

from __future__ import annotations

from dataclasses import dataclass

from stagespan.trace.analysis import causes
from stagespan.trace.analysis.advice import START_UP, Facts, advice_on
from stagespan.trace.analysis.idle_patterns import Pattern, StartUp
from stagespan.trace.analysis.idle_words import Group
from stagespan.trace.analysis.result import (
    Evidence,
    Finding,
    Severity,
    in_words,
    many,
    share,
    shortened,
)

# Of the device's span: below this an idle cause is no finding, and idle time as a whole is none.
SHARES: tuple[tuple[float, Severity], ...] = ((25.0, "high"), (10.0, "medium"), (3.0, "low"))
# Of the idle time: causes below it are not named among several.
_LEAST_NAMED = 10.0
CODES = {cause: f"idle.{cause}" for cause in causes.CAUSES} | {
    causes.DATA_LOADING: "idle.data_loader",
    causes.NOT_TRACED: "idle.unexplained",
}
"""By cause the code of its finding."""
_NOT_SEEN = {
    causes.NOT_TRACED: "and the trace does not show why",
    causes.HOST_UNSEEN: "the host launched nothing in that time, and the trace holds nothing of it"
    " there",
}


@dataclass(frozen=True, slots=True)
class Known:
    """What findings are made of; times in ns."""

    span_ns: int
    idle_ns: int
    by_cause: dict[str, int]
    gaps_by_cause: dict[str, int]
    groups: list[Group]
    evidence: dict[str, tuple[Evidence, ...]]
    patterns: list[Pattern]
    start: StartUp | None
    kernel_ns: int | None
    """Median duration of a kernel."""
    queued_gap_ns: int | None
    """Median of the gaps that are longest for the cause "queued"."""
    devices: int
    facts: Facts

    @property
    def _subject(self) -> str:
        return "The device was" if self.devices == 1 else f"All {self.devices} devices were"

    @property
    def _its(self) -> str:
        return "its" if self.devices == 1 else "their"

    def findings(self) -> list[Finding]:
        """One for the start, one for each cause; else one for all idle time, if it is enough."""
        times = dict(self.by_cause)
        found = []
        if self.start is not None and (severity := self._severity(self.start.idle_ns)):
            found.append(self._of_start(self.start, severity))
            for cause, time in self.start.by_cause.items():
                times[cause] -= time
        for cause, time in times.items():
            severity = self._severity(time)
            if severity is not None:
                found.append(self._of_cause(cause, time, severity))
        if not found and (severity := self._severity(self.idle_ns)):
            found.append(self._of_all(severity))
        return found

    def _severity(self, time: int) -> Severity | None:
        percent = share(time, self.span_ns)
        return next((s for least, s in SHARES if percent >= least), None)

    def _idle_for(self, time: int, gaps: int) -> str:
        counted = f", {gaps:,} gaps" if gaps > 1 else ""
        return (
            f"{self._subject} idle for {in_words(time, 'ns')}"
            f" ({share(time, self.span_ns):.1f} % of {self._its} time{counted})"
        )

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
        if pattern is not None:
            sentence += _of_pattern(pattern)
            shown = pattern.evidence
        advice = advice_on(cause, self.facts)
        return Finding(severity, f"{sentence} {advice}".rstrip(), shown, CODES[cause])

    def _most(self, cause: str) -> str:
        """Where most of a cause's time went."""
        culprits = [group for group in self.groups if group.cause == cause]
        if culprits:
            worst = culprits[0]
            said = in_words(worst.idle_ns, "ns")
            if 2 * worst.in_call_ns < worst.idle_ns:
                said += (
                    f", of which {in_words(worst.in_call_ns, 'ns')} in the call and the rest until"
                    " the next work began"
                )
            return f": most of it at {worst.words} ({said})"
        if cause == causes.QUEUED:
            return f": the median gap is {in_words(self.queued_gap_ns, 'ns')}"
        if cause == causes.LAUNCH and self.kernel_ns is not None:
            return f", while the median kernel takes {in_words(self.kernel_ns, 'ns')}"
        if self.evidence[cause] and cause != causes.GRAPH:
            where = "after" if cause == causes.DEPENDENCY else "at"
            return f": the longest {where} {shortened(self.evidence[cause][0].event)}"
        return ""

    def _of_start(self, start: StartUp, severity: Severity) -> Finding:
        parts = [
            f"{in_words(time, 'ns')} because {causes.CAUSES[cause]}"
            for cause, time in list(start.by_cause.items())[:2]
        ]
        place = f"{'the first ' if start.first_call else ''}{shortened(start.where)}"
        sentence = (
            f"{self._idle_for(start.idle_ns, len(start.rows))} while the program started up, in"
            f" {place}: {', and '.join(parts)}. {START_UP.text}"
        )
        return Finding(severity, sentence, start.evidence, "idle.start_up")

    def _of_all(self, severity: Severity) -> Finding:
        largest = [
            (cause, time)
            for cause, time in self.by_cause.items()
            if share(time, self.idle_ns) >= _LEAST_NAMED
        ][:3]
        parts = [
            f"{in_words(time, 'ns')} because {causes.CAUSES[cause]}" for cause, time in largest
        ]
        sentence = (
            f"{self._idle_for(self.idle_ns, sum(self.gaps_by_cause.values()))} for several"
            f" reasons, none of which took 3 %: {', '.join(parts)}."
        )
        shown = tuple(each for cause, _ in largest for each in self.evidence[cause][:1])
        return Finding(severity, sentence, shown, "idle.several")


def _of_pattern(pattern: Pattern) -> str:
    """What is known of gaps that the trace does not explain."""
    following = shortened(pattern.next)
    if pattern.gaps == 1:
        said = f" {in_words(pattern.idle_ns, 'ns')} of it is one gap before {following}"
    else:
        said = (
            f" {in_words(pattern.idle_ns, 'ns')} of it are {pattern.gaps:,} gaps of"
            f" {in_words(pattern.least_ns, 'ns')} to {in_words(pattern.most_ns, 'ns')} before"
            f" {following}"
        )
        if pattern.one_a_step:
            said += ", one in each step"
        elif pattern.every_ns is not None:
            said += f", one every {in_words(pattern.every_ns, 'ns')}"
    before, later, unknown = pattern.issued
    if before and not later and not unknown:
        said += f". {'It' if pattern.gaps == 1 else 'This work'} had been launched before the gap"
    elif later and not before and pattern.delay_ns is not None:
        said += f". It began {in_words(pattern.delay_ns, 'ns')} after its launch"
    elif unknown and not before and not later:
        said += ". Its launch is not in the trace"
    else:
        said += (
            f". It had been launched before the gap in {before:,} of {many(pattern.gaps, 'case')}"
        )
    if pattern.told_by is not None:
        said += f", and its stream had to wait for another one ({pattern.told_by})"
    if pattern.host_call is not None:
        at = [shortened(each) for each in (pattern.host_operator, pattern.line) if each]
        if pattern.host_annotation:
            at.append(f"in {shortened(pattern.host_annotation)}")
        place = f" ({', '.join(at)})" if at else ""
        which = "this gap" if pattern.gaps == 1 else f"{pattern.host_gaps:,} of these gaps"
        time = in_words(pattern.host_call_ns, "ns")
        said += (
            f". In {which} the host was in {shortened(pattern.host_call)} for"
            f" {time if pattern.gaps == 1 else f'up to {time}'}{place}"
        )
    if pattern.cause == causes.NOT_TRACED and before + later:
        said += (
            ". So it waited for what the trace does not hold: work launched before the trace began,"
            " of another process, or of another device"
        )
    return f"{said}."
