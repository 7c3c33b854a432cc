"""Why the device was idle: every gap with its cause, and the causes' sums, which close."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stagespan.trace.analysis import causes
from stagespan.trace.analysis.advice import Facts
from stagespan.trace.analysis.device_time import device_rows
from stagespan.trace.analysis.gaps import Gaps, gaps
from stagespan.trace.analysis.idle_findings import Known
from stagespan.trace.analysis.idle_patterns import Pattern, StartUp, patterns, start_up
from stagespan.trace.analysis.idle_words import (
    Gap,
    Group,
    describe,
    group_by_culprit,
    longest_call,
)
from stagespan.trace.analysis.result import (
    Evidence,
    Finding,
    Nothing,
    Table,
    in_words,
    share,
    shortened,
)
from stagespan.trace.analysis.split_idle import NAMES, Split, split
from stagespan.trace.analysis.step_ranges import step_begins
from stagespan.trace.analysis.where import Surroundings
from stagespan.trace.arrays import Numbers
from stagespan.trace.device import device_work
from stagespan.trace.model import Trace

TOP = 20
_NO_DEVICE = (
    "The trace has no device events: record it with the device's activity, or nothing can be said"
    " about how the device was used."
)


@dataclass(frozen=True, slots=True)
class Idle:
    """The device's idle time by cause; times in ns."""

    span_ns: int
    idle_ns: int
    by_cause: dict[str, int]
    """Every cause that occurs, the longest first; they sum to `idle_ns`."""
    gaps_by_cause: dict[str, int]
    """Number of gaps of which each cause has the largest part; they sum to `gaps`."""
    gaps: int
    largest: list[Gap]
    """The largest gaps, each with what is known about it."""
    groups: list[Group]
    """Waits and allocations by operator and call, the one that cost most first."""
    patterns: list[Pattern]
    """Gaps that the trace does not explain, by the work before which they are."""
    start: StartUp | None
    """The gaps in which the program started up; None if there are none."""
    told: tuple[Finding, ...]
    devices: int = 1
    """Of several devices only the time counts in which none works."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON, in microseconds."""
        return {
            "span_us": self.span_ns / 1000,
            "idle_us": self.idle_ns / 1000,
            "idle_percent": share(self.idle_ns, self.span_ns),
            "gaps": self.gaps,
            "by_cause": {
                cause: {
                    "meaning": causes.CAUSES[cause],
                    "idle_us": time / 1000,
                    "percent_of_idle": share(time, self.idle_ns),
                    "gaps": self.gaps_by_cause.get(cause, 0),
                }
                for cause, time in self.by_cause.items()
            },
            "blocking_calls": [group.to_dict() for group in self.groups],
            "largest_gaps": [gap.to_dict() for gap in self.largest],
            "patterns": [pattern.to_dict() for pattern in self.patterns],
            "start_up": None if self.start is None else self.start.to_dict(),
        }

    def findings(self) -> list[Finding]:
        """What cost at least 3 % of the device's time, also if the trace does not say why."""
        return list(self.told)

    def tables(self) -> list[Table]:
        """Idle time by cause, blocking calls, and the largest gaps."""
        by_cause = Table(
            "Why the device was idle" if self.devices == 1 else "Why all devices were idle",
            (("cause", ""), ("idle", "ns"), ("of idle", "%"), ("gaps", "")),
            [
                (causes.CAUSES[cause], time, share(time, self.idle_ns), self.gaps_by_cause[cause])
                for cause, time in self.by_cause.items()
            ],
            f"Idle {in_words(self.idle_ns, 'ns')} of {in_words(self.span_ns, 'ns')}.",
        )
        calls = Table(
            "Calls that the device was idle for",
            (
                ("operator", ""),
                ("call", ""),
                ("waited for", ""),
                ("Python", ""),
                ("idle", "ns"),
                ("calls", ""),
            ),
            [(g.operator, g.call, g.waited_for, g.line, g.idle_ns, g.calls) for g in self.groups],
        )
        largest = Table(
            "Largest gaps",
            (
                ("at", "ns"),
                ("idle", "ns"),
                ("cause", ""),
                ("next launch", ""),
                ("host", ""),
                ("waited for", ""),
                ("Python", ""),
                ("next on device", ""),
            ),
            [
                (
                    g.time_ns,
                    g.dur_ns,
                    causes.CAUSES[g.cause],
                    g.issued,
                    g.culprit,
                    g.waited_for,
                    g.line,
                    g.next,
                )
                for g in self.largest
            ],
        )
        return [table for table in (by_cause, calls, largest) if table.rows]


def split_gaps(trace: Trace) -> tuple[Gaps, Split]:
    """The gaps of the device, and their times by cause."""
    found = gaps(trace)
    return found, split(trace, found, step_begins(trace))


def sums_by_cause(parts: Split) -> dict[str, int]:
    """Idle time in ns by cause, the longest first; only causes that occur."""
    totals = zip(NAMES, parts.parts.sum(axis=0).tolist(), strict=True)
    return {cause: time for cause, time in sorted(totals, key=lambda item: -item[1]) if time}


def analyze(trace: Trace) -> Idle | Nothing:
    """Find every gap of the device and say why it was there; Nothing without device events."""
    found, parts = split_gaps(trace)
    if len(found.rows) == 0:
        return Nothing(_NO_DEVICE)
    events, where = trace.events, Surroundings(trace)
    kernels = events.dur_ns[device_work(trace).kernels]
    counts = np.bincount(parts.cause, minlength=len(NAMES)).tolist() if len(parts.parts) else []
    by_cause = sums_by_cause(parts)
    span = int(events.end_ns[found.rows].max() - events.begin_ns[found.rows].min())
    known = Known(
        span_ns=span,
        idle_ns=int(found.dur_ns.sum()),
        by_cause=by_cause,
        gaps_by_cause={c: n for c, n in zip(NAMES, counts, strict=False) if c in by_cause},
        groups=group_by_culprit(where, parts),
        evidence={cause: _evidence(where, found, parts, cause) for cause in by_cause},
        patterns=patterns(where, found, parts, step_begins(trace)),
        start=start_up(where, found, parts, span),
        kernel_ns=int(np.median(kernels)) if len(kernels) else None,
        queued_gap_ns=_median_of(found, parts, causes.QUEUED),
        devices=len(device_rows(trace)),
        facts=Facts(trace, found, parts),
    )
    return Idle(
        span_ns=known.span_ns,
        idle_ns=known.idle_ns,
        by_cause=by_cause,
        gaps_by_cause=known.gaps_by_cause,
        gaps=len(found.begin_ns),
        largest=[describe(where, found, parts, at) for at in _largest(found.dur_ns, TOP)],
        groups=known.groups,
        patterns=known.patterns,
        start=known.start,
        told=tuple(known.findings()),
        devices=known.devices,
    )


def _median_of(found: Gaps, parts: Split, cause: str) -> int | None:
    """The median of the gaps of which a cause has the largest part."""
    chosen = found.dur_ns[parts.cause == NAMES.index(cause)] if len(parts.parts) else found.dur_ns
    return int(np.median(chosen)) if len(chosen) else None


def _evidence(where: Surroundings, found: Gaps, parts: Split, cause: str) -> tuple[Evidence, ...]:
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
