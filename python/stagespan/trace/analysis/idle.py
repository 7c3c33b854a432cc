"""Why the device was idle: every gap with its cause, and the causes' sums, which close."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stagespan.trace.analysis import causes
from stagespan.trace.analysis.device_time import device_rows
from stagespan.trace.analysis.gaps import Gaps, gaps
from stagespan.trace.analysis.idle_words import Gap, Group, describe, group_by_culprit
from stagespan.trace.analysis.result import (
    Evidence,
    Finding,
    Nothing,
    Severity,
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
# Of the device's span: below this an idle cause is no finding.
_SHARES: tuple[tuple[float, Severity], ...] = ((25.0, "high"), (10.0, "medium"), (3.0, "low"))
_NO_DEVICE = (
    "The trace has no device events: record it with the device's activity, or nothing can be said"
    " about how the device was used."
)
_ADVICE = {
    causes.LAUNCH: "Fewer and larger kernels, torch.compile or a device graph would help.",
    causes.SYNCHRONISATION: "Waiting later, less often, or not at all lets the host run ahead.",
    causes.BETWEEN_STEPS: "Work between steps can overlap with the device's.",
    causes.DATA_LOADING: "More loader workers, prefetching or pinned memory would help.",
    causes.MEMORY_ALLOCATION: "A caching allocator that need not give memory back avoids this.",
}


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
    evidence: dict[str, tuple[Evidence, ...]]
    """Of each cause the gaps that it has the largest part in."""
    kernel_ns: int | None
    """Median duration of a kernel."""
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
        }

    def findings(self) -> list[Finding]:
        """A sentence for each cause on the host, or dependency, that cost enough."""
        found = []
        for cause, time in self.by_cause.items():
            percent = share(time, self.span_ns)
            severity = next((s for least, s in _SHARES if percent >= least), None)
            if severity is None or cause in (causes.QUEUED, causes.GRAPH, causes.NOT_TRACED):
                continue
            found.append(Finding(severity, self._sentence(cause, time), self.evidence[cause]))
        return found

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

    def _sentence(self, cause: str, time: int) -> str:
        count, one = self.gaps_by_cause.get(cause, 0), self.devices == 1
        gaps = f", {count:,} gaps" if count > 1 else ""
        sentence = (
            f"{'The device was' if one else f'All {self.devices} devices were'} idle for"
            f" {in_words(time, 'ns')} ({share(time, self.span_ns):.1f} % of"
            f" {'its' if one else 'their'} time{gaps}) because"
            f" {causes.CAUSES[cause]}"
        )
        culprits = [group for group in self.groups if group.cause == cause]
        if culprits:
            worst = culprits[0]
            sentence += f": most of it at {worst.words} ({in_words(worst.idle_ns, 'ns')})"
        elif cause == causes.LAUNCH and self.kernel_ns is not None:
            sentence += f", while the median kernel takes {in_words(self.kernel_ns, 'ns')}"
        elif self.evidence[cause]:
            where = "after" if cause == causes.DEPENDENCY else "at"
            sentence += f": the longest {where} {shortened(self.evidence[cause][0].event)}"
        advice = _ADVICE.get(cause)
        return f"{sentence}." + (f" {advice}" if advice else "")


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
    return Idle(
        span_ns=int(events.end_ns[found.rows].max() - events.begin_ns[found.rows].min()),
        idle_ns=int(found.dur_ns.sum()),
        by_cause=by_cause,
        gaps_by_cause={c: n for c, n in zip(NAMES, counts, strict=False) if c in by_cause},
        gaps=len(found.begin_ns),
        largest=[describe(where, found, parts, at) for at in _largest(found.dur_ns, TOP)],
        groups=group_by_culprit(where, parts),
        evidence={cause: _evidence(where, found, parts, cause) for cause in by_cause},
        kernel_ns=int(np.median(kernels)) if len(kernels) else None,
        devices=len(device_rows(trace)),
    )


def _evidence(where: Surroundings, found: Gaps, parts: Split, cause: str) -> tuple[Evidence, ...]:
    time = parts.parts[:, NAMES.index(cause)]
    shown = []
    for at in _largest(time, 3):
        gap = describe(where, found, parts, at, cause)
        event = gap.culprit or gap.next
        if cause == causes.DEPENDENCY and gap.waited_for is not None:
            event = gap.waited_for
        if gap.line and gap.line != event:
            event = f"{shortened(event)}, {gap.line}"
        shown.append(Evidence(event, gap.time_ns, int(time[at]), "ns"))
    return tuple(shown)


def _largest(time: Numbers, count: int) -> list[int]:
    order = np.argsort(-time, kind="stable")[:count].tolist()
    return [at for at in order if time[at]]
