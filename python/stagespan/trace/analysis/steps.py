"""Steps: where the time of each went, what lay between them, and which took longer than usual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stagespan.trace.analysis.result import (
    Finding,
    Nothing,
    Table,
    in_words,
    many,
    share,
    shortened,
    window_of,
)
from stagespan.trace.analysis.step_gaps import Edge, StepGaps, edges_of, step_gaps
from stagespan.trace.analysis.step_outliers import Outlier, findings_of, outliers
from stagespan.trace.analysis.step_ranges import StepRanges, step_ranges
from stagespan.trace.analysis.step_time import HOST_PARTS, PARTS, StepTimes, step_times
from stagespan.trace.model import Trace

_SHOWN = 20
_MOST_IN_JSON = 2_000


@dataclass(frozen=True, slots=True)
class Step:
    """One step; times in ns."""

    name: str
    begin_ns: int
    """From the begin of the trace's window."""
    dur_ns: int
    """To the end of its last work on the device, from its begin, or from the end of the work that
    was launched before it if that is later: so no time belongs to two steps."""
    host_ns: int | None
    """Length of its mark on the host; None for steps told from kernels."""
    parts: dict[str, int]
    """They sum to `dur_ns`."""
    launched: int | None
    """Device events that it launched; None without a device."""
    device_ns: int | None
    """Their durations' sum."""
    after_host_ns: int | None
    """How long the device still worked on it when its mark had ended."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON, in microseconds."""
        return {
            "name": self.name,
            "time_us": self.begin_ns / 1000,
            "step_us": self.dur_ns / 1000,
            "host_us": _us(self.host_ns),
            "parts_us": {part: time / 1000 for part, time in self.parts.items()},
            "device_events": self.launched,
            "device_us": _us(self.device_ns),
            "after_host_us": _us(self.after_host_ns),
        }


@dataclass(frozen=True, slots=True)
class Steps:
    """All steps; times in ns."""

    ranges: StepRanges
    steps: list[Step]
    figures: tuple[int, int, int, int, int]
    """Of the steps' durations: least, first quartile, median, third quartile, most."""
    gaps: StepGaps
    edges: list[Edge]
    outliers: list[Outlier]
    outside: tuple[int, int]
    """Device events that no step launched, and their durations' sum."""
    on_device: bool
    earlier_ns: int | None = None
    """From the first step's mark until the device was done with work that was launched before the
    trace began; the first step begins after it. None if the trace shows no such work."""
    earlier_recorded: bool = True
    """Whether the trace holds the events of that work."""

    @property
    def total_ns(self) -> int:
        """All steps' time."""
        return sum(step.dur_ns for step in self.steps)

    @property
    def parts(self) -> dict[str, int]:
        """All steps' time by part."""
        names = self.steps[0].parts
        return {part: sum(step.parts[part] for step in self.steps) for part in names}

    def to_dict(self) -> dict[str, Any]:
        """For JSON, in microseconds."""
        least, first, median, third, most = (figure / 1000 for figure in self.figures)
        return {
            "count": len(self.steps),
            "told_from": self.ranges.source,
            "how": self.ranges.how,
            "inferred": self.ranges.inferred,
            "step_us": {
                "mean": self.total_ns / len(self.steps) / 1000,
                "min": least,
                "first_quartile": first,
                "median": median,
                "third_quartile": third,
                "max": most,
            },
            "parts_us": {part: time / 1000 for part, time in self.parts.items()},
            "steps": [step.to_dict() for step in self.steps[:_MOST_IN_JSON]],
            "steps_left_out": max(len(self.steps) - _MOST_IN_JSON, 0),
            "between": self.gaps.to_dict(),
            "before_device_us": sum(edge.dur_ns for edge in self.edges if edge.first) / 1000,
            "behind_device_us": sum(edge.dur_ns for edge in self.edges if not edge.first) / 1000,
            "outliers": [
                {
                    "name": each.name,
                    "step_us": each.dur_ns / 1000,
                    "part": each.part,
                    "part_us": each.part_ns / 1000,
                    "part_of_others_us": each.part_usual_ns / 1000,
                    "event": each.culprit,
                }
                for each in self.outliers
            ],
            "earlier_work_us": _us(self.earlier_ns),
            "earlier_work_recorded": None if self.earlier_ns is None else self.earlier_recorded,
            "device_events_outside": self.outside[0],
            "device_events_outside_us": self.outside[1] / 1000,
        }

    def findings(self) -> list[Finding]:
        """Time of steps at the trace's edges, and steps that took much longer than the others."""
        total = self.total_ns
        found = [
            finding for edge in self.edges if (finding := edge.finding(total, len(self.steps)))
        ]
        return found + findings_of(self.outliers, total, len(self.steps), self.on_device)

    def tables(self) -> list[Table]:
        """What the steps' time went to, the first steps, and what lay between them."""
        meaning = PARTS if self.on_device else HOST_PARTS
        total = self.total_ns
        count = len(self.steps)
        least, first, median, third, most = self.figures
        note = self.ranges.how
        if count > 1:
            note += (
                f" {count:,} steps: {in_words(median, 'ns')} in the median, half of them from"
                f" {in_words(first, 'ns')} to {in_words(third, 'ns')}, all from"
                f" {in_words(least, 'ns')} to {in_words(most, 'ns')}."
            )
        after = max((step.after_host_ns or 0 for step in self.steps), default=0)
        if after:
            note += (
                " Work that runs on the device behind the mark of the step that launched it belongs"
                f" to that step: up to {in_words(after, 'ns')}."
            )
        if self.outside[0]:
            note += (
                f" {many(self.outside[0], 'device event')} ({in_words(self.outside[1], 'ns')})"
                f" {'was' if self.outside[0] == 1 else 'were'} launched by no step."
            )
        if self.earlier_ns:
            note += (
                f" For the first {in_words(self.earlier_ns, 'ns')} of the first step's mark the"
                " device was still busy with work that was launched before the trace began"
                f"{'' if self.earlier_recorded else ' and is not in it'}: the step begins after"
                " that."
            )
        rows = [
            (meaning[part], time, time // count, share(time, total))
            for part, time in self.parts.items()
            if time
        ]
        tables = [
            Table(
                "Where the steps' time went",
                (("", ""), ("time", "ns"), ("a step", "ns"), (_of(count), "%")),
                rows,
                note,
            )
        ]
        shown = [part for part, time in self.parts.items() if time]
        tables.append(
            Table(
                "Steps",
                (("step", ""), ("time", "ns"), *((part.replace("_", " "), "ns") for part in shown)),
                [
                    (shortened(step.name), step.dur_ns, *(step.parts[part] for part in shown))
                    for step in self.steps[:_SHOWN]
                ],
                f"The first {_SHOWN} of {count:,}." if count > _SHOWN else "",
            )
        )
        between = self.gaps.table()
        return tables if between is None else [*tables, between]


def analyze(trace: Trace) -> Steps | Nothing:
    """Split each step's time; Nothing where the trace does not tell steps."""
    ranges = step_ranges(trace) if len(trace.events) else None
    window = window_of(trace)
    if ranges is None or window is None:
        return Nothing(
            "The trace does not tell steps: nothing in it is marked as one or repeats. Call"
            " profiler.step() behind each, or mark each by an annotation of the same name."
        )
    times = step_times(trace, ranges)
    origin = window[0]
    on_device = len(times.device_rows) > 0
    durations = times.end_ns - times.begin_ns
    least, first, median, third, most = map(int, np.percentile(durations, [0, 25, 50, 75, 100]))
    outside = times.device_rows[times.step_of < 0]
    return Steps(
        ranges=ranges,
        steps=_rows(ranges, times, origin, on_device),
        figures=(least, first, median, third, most),
        gaps=step_gaps(trace, ranges, times, origin),
        edges=edges_of(trace, times),
        outliers=outliers(trace, ranges, times, origin),
        outside=(len(outside), int(trace.events.dur_ns[outside].sum())),
        on_device=on_device,
        earlier_ns=_earlier(ranges, times),
        earlier_recorded=times.earlier.recorded,
    )


def _earlier(ranges: StepRanges, times: StepTimes) -> int | None:
    """How far work from before the trace reaches into the first step's mark; None if not at all."""
    end = times.earlier.end_ns
    reach = 0 if end is None else end - int(ranges.begin_ns[0])
    return reach if reach > 0 else None


def _rows(ranges: StepRanges, times: StepTimes, origin_ns: int, on_device: bool) -> list[Step]:
    return [
        Step(
            name=ranges.names[at],
            begin_ns=int(times.begin_ns[at]) - origin_ns,
            dur_ns=int(times.end_ns[at] - times.begin_ns[at]),
            host_ns=int(ranges.end_ns[at] - ranges.begin_ns[at]) if ranges.on_host else None,
            parts={part: int(time[at]) for part, time in times.parts.items()},
            launched=int(times.launched[at]) if on_device else None,
            device_ns=int(times.device_ns[at]) if on_device else None,
            after_host_ns=int(times.after_host_ns[at]) if on_device and ranges.on_host else None,
        )
        for at in range(len(ranges))
    ]


def _of(count: int) -> str:
    return "of the step" if count == 1 else f"of the {count:,} steps"


def _us(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1000
