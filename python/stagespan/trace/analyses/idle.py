"""Finds the gaps in the device's work and their causes, which add up to the idle time."""

from __future__ import annotations

import msgspec

from stagespan.pages.figures import Count, Figures, Internal, Ns
from stagespan.pages.result import (
    Block,
    Chart,
    Finding,
    StructResult,
    Table,
    Unavailable,
    share,
)
from stagespan.trace.analyses.idle_culprits import (
    Culprit,
    IdleGap,
    describe,
    group_by_culprit,
    largest,
)
from stagespan.trace.analyses.idle_findings import IdleFindings, idle_findings
from stagespan.trace.analyses.idle_time import (
    IDLE_CAUSES,
    base_idle,
    gaps_by_cause,
    split_gaps,
    sums_by_cause,
)
from stagespan.trace.derived import idle_causes as causes
from stagespan.trace.derived.call_site import call_sites
from stagespan.trace.derived.gap_patterns import Pattern, StartUp, patterns, start_up
from stagespan.trace.derived.idle_causes import Cause
from stagespan.trace.derived.missing import needs_device
from stagespan.trace.derived.step_ranges import step_begins
from stagespan.trace.read.model import Trace

_TOP = 20
# The causes on the first screen, and the least percentage of idle time of one.
_CAUSES_SHOWN, _LEAST_CAUSE_SHOWN = 5, 1.0
_NO_DEVICE = (
    "The trace has no device events: record it with the device's activity, otherwise the use of the"
    " device is unknown."
)


def analyze(trace: Trace) -> Idle | Unavailable:
    """Find every gap of the device and its cause; Unavailable without device events."""
    of_base = base_idle(trace)
    if of_base is None:
        return Unavailable(_NO_DEVICE, "no_device", needs=needs_device(trace))
    (gaps, parts), events, where = split_gaps(trace), trace.events, call_sites(trace)
    counts, idle = gaps_by_cause(parts), int(gaps.dur_ns.sum())
    span = int(events.end_ns[gaps.rows].max() - events.begin_ns[gaps.rows].min())
    groups = group_by_culprit(where, parts)
    alike = patterns(where, gaps, parts, step_begins(trace))
    started = start_up(where, gaps, parts, span)
    report = idle_findings(
        trace,
        of_base,
        where,
        groups if of_base.gaps is gaps else group_by_culprit(where, of_base.parts),
        alike
        if of_base.gaps is gaps
        else patterns(where, of_base.gaps, of_base.parts, step_begins(trace)),
    )
    return Idle(
        span_ns=span,
        idle_ns=idle,
        idle_percent=share(idle, span),
        causes={
            cause: IdleCause(causes.CAUSES[cause], time, share(time, idle), counts[cause])
            for cause, time in sums_by_cause(parts).items()
        },
        gaps=len(gaps.begin_ns),
        largest=[describe(where, gaps, parts, at) for at in largest(gaps.dur_ns, _TOP)],
        groups=groups,
        patterns=alike,
        start=started,
        report=report,
        largest_within=[
            describe(where, of_base.gaps, of_base.parts, at)
            for at in largest(of_base.gaps.dur_ns, _TOP)
        ],
    )


class IdleCause(Figures, frozen=True):
    """The idle time of one cause."""

    meaning: str
    idle_ns: Ns
    percent_of_idle: float
    gaps: Count
    """Gaps of which it has the largest part."""


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
        report, base = self.report, self.report.base
        heading = "why it was idle" if self.devices == 1 else "why all were idle"
        least = _LEAST_CAUSE_SHOWN / 100 * sum(report.by_cause.values())
        rows = [
            (
                IDLE_CAUSES[cause],
                time,
                share(time, base.whole_ns),
                report.gaps_by_cause.get(cause) or None,
            )
            for cause, time in report.by_cause.items()
            if time >= least
        ]
        columns = ((heading, ""), ("time", "ns"), (f"of {base.label}", "%"), ("gaps", ""))
        return [Table("", columns, rows[:_CAUSES_SHOWN])] if rows else []

    def tables(self) -> list[Table]:
        """Blocking calls, and the largest gaps; the verdict has the time by cause."""
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
        return [table for table in (calls, largest) if table.rows]

    def chart(self) -> Chart | None:
        """The colour of a cause, its meaning, idle time and gaps, the longest first."""
        gaps = self.report.gaps_by_cause
        rows = [
            (causes.colour_of(cause), IDLE_CAUSES[cause], time, gaps.get(cause, 0))
            for cause, time in self.report.by_cause.items()
        ]
        return {"kind": "idle_causes", "causes": rows} if rows else None
