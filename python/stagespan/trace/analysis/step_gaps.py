"""What lay between steps: the time from one step's last work to the next one's first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stagespan.trace.analysis.call_tree import Rows
from stagespan.trace.analysis.host_time import named
from stagespan.trace.analysis.result import (
    Evidence,
    Finding,
    Severity,
    Table,
    evidence,
    in_words,
    of_size,
    share,
    shortened,
)
from stagespan.trace.analysis.step_ranges import PROFILER_STEP, StepRanges
from stagespan.trace.analysis.step_time import COMPUTATION, HOST_PARTS, PARTS, StepTimes
from stagespan.trace.arrays import Numbers
from stagespan.trace.device import launch_of, launches
from stagespan.trace.model import Trace

_SHOWN = 5
_SHARES: tuple[tuple[float, Severity], ...] = ((50.0, "high"), (25.0, "medium"))
_FILLS = (0.8, 0.5)
_HOST = ("cpu_op", "user_annotation", "python_function", "overhead")


@dataclass(frozen=True, slots=True)
class Gap:
    """Behind one step, none of the device's work of any step; times in ns."""

    after: str
    """The step before it."""
    begin_ns: int
    """From the begin of the trace's window."""
    dur_ns: int
    parts: dict[str, int]
    """They sum to `dur_ns`."""
    host_event: str | None
    """The smallest event of the host that fills most of it, else the one that fills the most."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON, in microseconds."""
        return {
            "after": self.after,
            "time_us": self.begin_ns / 1000,
            "gap_us": self.dur_ns / 1000,
            "parts_us": {part: time / 1000 for part, time in self.parts.items()},
            "host_event": self.host_event,
        }


@dataclass(frozen=True, slots=True)
class StepGaps:
    """All gaps between steps; times in ns."""

    total_ns: int
    median_ns: int | None
    """None where there is one step."""
    parts: dict[str, int]
    largest: list[Gap]

    def to_dict(self) -> dict[str, Any]:
        """For JSON, in microseconds."""
        return {
            "total_us": self.total_ns / 1000,
            "median_us": None if self.median_ns is None else self.median_ns / 1000,
            "parts_us": {part: time / 1000 for part, time in self.parts.items()},
            "largest": [gap.to_dict() for gap in self.largest],
        }

    def table(self) -> Table | None:
        """What they went to; None where there are none."""
        if not self.total_ns:
            return None
        meaning = PARTS if COMPUTATION in self.parts else HOST_PARTS
        rows = [
            (meaning[part], time, share(time, self.total_ns))
            for part, time in self.parts.items()
            if time
        ]
        largest = self.largest[0]
        filled = "" if largest.host_event is None else f", in {shortened(largest.host_event)}"
        note = (
            "From the last work of a step to the first of the next,"
            f" {in_words(self.median_ns, 'ns')} in the median; the longest is behind"
            f" {shortened(largest.after)}{filled}: {in_words(largest.dur_ns, 'ns')}."
        )
        return Table("Between steps", (("", ""), ("time", "ns"), ("of it", "%")), rows, note)


def step_gaps(trace: Trace, ranges: StepRanges, times: StepTimes, origin_ns: int) -> StepGaps:
    """Sum up the gaps, and name what the host did in the largest."""
    gaps = times.gap_ns
    order = np.argsort(-gaps, kind="stable")[:_SHOWN]
    largest = [
        Gap(
            after=ranges.names[at],
            begin_ns=int(times.gap_begin_ns[at]) - origin_ns,
            dur_ns=int(gaps[at]),
            parts={part: int(time[at]) for part, time in times.gap_parts.items()},
            host_event=_name(trace, filled_by(trace, int(times.gap_begin_ns[at]), int(gaps[at]))),
        )
        for at in order.tolist()
        if gaps[at] > 0
    ]
    return StepGaps(
        total_ns=int(gaps.sum()),
        median_ns=int(np.median(gaps)) if len(gaps) else None,
        parts={part: int(time.sum()) for part, time in times.gap_parts.items()},
        largest=largest,
    )


def _name(trace: Trace, row: int) -> str | None:
    return None if row < 0 else trace.names[int(trace.events.name[row])]


@dataclass(frozen=True, slots=True)
class Edge:
    """Steps' time before the launch of the device's first event, or behind its last."""

    first: bool
    """Before the first, or behind the last."""
    dur_ns: int
    evidence: tuple[Evidence, ...]
    """The device's event, and what the host did."""
    host_event: str | None
    """The host's event that fills at least half of it."""

    def finding(self, total_ns: int, count: int) -> Finding | None:
        """A sentence if it is much of the steps' time: causes of idle time leave it out."""
        percent = share(self.dur_ns, total_ns)
        severity = next((s for least, s in _SHARES if percent >= least), None)
        if severity is None:
            return None
        where = "before the device's first work was launched"
        if not self.first:
            where = "after the device's last work"
        whose = "the step's" if count == 1 else f"the {count:,} steps'"
        sentence = (
            f"{in_words(self.dur_ns, 'ns')} of {whose} {in_words(total_ns, 'ns')}"
            f" ({percent:.1f} %) passed {where}"
        )
        if self.host_event is not None:
            sentence += f", most of it in {shortened(self.host_event, 90)}"
        code = "steps.before_device" if self.first else "steps.after_device"
        return Finding(of_size(severity, self.dur_ns), f"{sentence}.", self.evidence, code)


def edges_of(trace: Trace, times: StepTimes) -> list[Edge]:
    """Both edges of the steps, if there is time at them; none without a device."""
    events, rows = trace.events, times.device_rows
    if len(rows) == 0:
        return []
    first = int(rows[np.argmin(events.begin_ns[rows])])
    last = int(rows[np.argmax(events.end_ns[rows])])
    # What was launched long before it ran waited for work that began before the trace.
    launch = int(launch_of(trace, np.array([first]))[0])
    begin, end = int(events.begin_ns[first]), int(events.end_ns[last])
    if launch >= 0:
        begin = min(begin, int(events.begin_ns[launch]))
    before = int((np.clip(begin, times.begin_ns, times.end_ns) - times.begin_ns).sum())
    behind = int((times.end_ns - np.clip(end, times.begin_ns, times.end_ns)).sum())
    found = []
    for is_first, dur, row, start in (
        (True, before, first, begin - before),
        (False, behind, last, end),
    ):
        if dur:
            host = filled_by(trace, start, dur)
            shown = [evidence(trace, each) for each in (row, host) if each >= 0]
            most = mostly_filled_by(trace, start, dur)
            found.append(Edge(is_first, dur, tuple(shown), _name(trace, most)))
    return found


def filled_by(trace: Trace, begin_ns: int, dur_ns: int) -> int:
    """The smallest event of the host that fills most of a stretch, or the one that fills most."""
    found = mostly_filled_by(trace, begin_ns, dur_ns)
    rows, inside = _on_host_within(trace, begin_ns, dur_ns)
    return found if found >= 0 or len(rows) == 0 else int(rows[np.argmax(inside)])


def mostly_filled_by(trace: Trace, begin_ns: int, dur_ns: int) -> int:
    """The smallest event of the host that fills at least half of a stretch, or -1."""
    rows, inside = _on_host_within(trace, begin_ns, dur_ns)
    for least in _FILLS:
        enough = rows[inside >= least * dur_ns]
        if len(enough):
            return int(enough[np.argmin(trace.events.dur_ns[enough])])
    return -1


def _on_host_within(trace: Trace, begin_ns: int, dur_ns: int) -> tuple[Rows, Numbers]:
    """The host's events that lie in a stretch, and how much of each does."""
    events = trace.events
    inside = np.minimum(events.end_ns, begin_ns + dur_ns) - np.maximum(events.begin_ns, begin_ns)
    host = (trace.rows_of(_HOST) & ~named(trace, PROFILER_STEP)) | launches(trace)
    rows = np.flatnonzero((inside > 0) & host)
    return rows, inside[rows]
