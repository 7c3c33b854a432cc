"""Shows the time of each step by part, the gaps between steps, and unusually long steps."""

from __future__ import annotations

from operator import itemgetter
from typing import Annotated

import msgspec
import numpy as np

from stagespan.pages.amounts import counted, in_percent, in_words, three_digits
from stagespan.pages.figures import Count, Figures, Internal, MeanNs, Ns, first, one_of
from stagespan.pages.kernel_names import kernel_label
from stagespan.pages.result import (
    LONGEST_NAME,
    Chart,
    Evidence,
    Finding,
    Gain,
    StructResult,
    Table,
    Thresholds,
    Unavailable,
    at_most,
    of_size,
    share,
    shortened,
)
from stagespan.trace.analyses.idle_time import FINISHING, PREPARATION, base_idle
from stagespan.trace.derived.advice import START_UP
from stagespan.trace.derived.device import launch_of
from stagespan.trace.derived.gaps import early_waiting, profiler_time
from stagespan.trace.derived.host_work import filled_by, mostly_filled_by
from stagespan.trace.derived.phases import PHASES, phase_of
from stagespan.trace.derived.recording_cost import StackCost, stack_cost
from stagespan.trace.derived.step_ranges import Source, StepRanges, step_ranges
from stagespan.trace.derived.step_times import (
    COMMUNICATING,
    COMPUTATION,
    COPIES,
    DATA_LOADING,
    HOST_PARTS,
    OPERATORS,
    OTHER,
    PARTS,
    StepTimes,
    events_of_part,
    step_times,
    steps_without_work,
)
from stagespan.trace.derived.windows import BaseWindow, base_window
from stagespan.trace.evidence import evidence, window_of
from stagespan.trace.read.groups import grouped, interpolated_quantile, median, sums
from stagespan.trace.read.intervals import Numbers, Rows
from stagespan.trace.read.model import Trace

_GAPS_SHOWN = 5
_GAP_SHARES = Thresholds(50.0, 25.0)


# Percent of the device's work: less work outside of the steps is told in tables only.
_LEAST_OUTSIDE = 5.0

_Part = Annotated[str, one_of([*PARTS, *(part for part in HOST_PARTS if part not in PARTS)])]


def analyze(trace: Trace) -> Steps | Unavailable:
    """Split each step's time; Unavailable if the trace shows no steps."""
    ranges = step_ranges(trace) if len(trace.events) else None
    window = window_of(trace)
    if ranges is None or window is None:
        return Unavailable(
            "Steps are unknown: none are marked, and nothing repeats. The profiler marks steps only"
            " if it has a schedule=..., and only the active ones: give it a schedule that the"
            " program reaches, or annotate each step with the same name.",
            "no_steps",
            needs=("steps", "the profiler marks them from the first active step of a schedule=..."),
        )
    times = step_times(trace, ranges)
    origin = window[0]
    on_device = len(times.device_rows) > 0
    outside = times.device_rows[times.step_of < 0]
    edges = edges_of(trace, times)
    steps = _rows(ranges, times, origin, on_device)
    earlier_end = times.earlier.end_ns
    # How long earlier work continues in the first step's mark.
    earlier_ns = 0 if earlier_end is None else max(earlier_end - int(ranges.begin_ns[0]), 0)
    return Steps(
        count=len(steps),
        source=ranges.source,
        how=ranges.how,
        inferred=ranges.inferred,
        step_ns=_quartiles(times.end_ns - times.begin_ns),
        parts={part: int(time.sum()) for part, time in times.parts.items()},
        steps=steps,
        phases=_phases(steps),
        steps_left_out=max(len(steps) - _MOST_IN_JSON, 0) + ranges.overlapping,
        without_work=len(steps_without_work(trace)) if on_device else None,
        gaps=step_gaps(trace, ranges, times, origin),
        before_device_ns=sum(edge.dur_ns for edge in edges if edge.first),
        behind_device_ns=sum(edge.dur_ns for edge in edges if not edge.first),
        outliers=outliers(trace, ranges, times, origin),
        earlier_ns=earlier_ns or None,
        earlier_recorded=times.earlier.recorded if earlier_ns else None,
        outside=len(outside),
        outside_ns=int(trace.events.dur_ns[outside].sum()),
        outside_most=_most_outside(trace, times.device_rows, outside),
        edges=edges,
        ranges=ranges,
        base=base_window(trace),
        stacks=stack_cost(trace),
    )


class Steps(StructResult, frozen=True):
    """All steps, and sums over them; times in ns."""

    count: Count
    source: Source
    """How the steps were found: see `step_ranges`."""
    how: str
    """A sentence about this."""
    inferred: bool
    step_ns: Quartiles
    """The steps' durations."""
    parts: dict[_Part, Ns] = msgspec.field(name="parts_us")
    """All steps' time by part."""
    steps: Annotated[list[Step], first(_MOST_IN_JSON)]
    phases: list[PhaseTime]
    """The steps of an inference server by what they do; [] for other steps."""
    steps_left_out: Count
    """Those that are not in the JSON, and marks that overlap an earlier step."""
    without_work: Count | None = msgspec.field(name="steps_without_device_events")
    """Steps of which the trace should have device events, but has none; None without a device."""
    gaps: StepGaps = msgspec.field(name="between")
    before_device_ns: Ns
    behind_device_ns: Ns
    outliers: list[Outlier]
    earlier_ns: Ns | None = msgspec.field(name="earlier_work_us")
    """The time from the first step's mark until the device had finished earlier work, which was
    launched before the trace began. The first step begins after it. None if there is none."""
    earlier_recorded: bool | None = msgspec.field(name="earlier_work_recorded")
    """Whether the trace contains the events of that work."""
    outside: Count = msgspec.field(name="device_events_outside")
    """The number of device events that were not launched in a step."""
    outside_ns: Ns = msgspec.field(name="device_events_outside_us")
    """Their total duration."""
    outside_most: Internal[str]
    """What most of it is, in words; "" if it is little of the device's work."""
    edges: Internal[list[Edge]]
    ranges: Internal[StepRanges]
    base: Internal[BaseWindow | None]
    """The time to which shares refer: the steps and the time between them."""
    stacks: Internal[StackCost | None]

    @property
    def on_device(self) -> bool:
        """Whether the trace has device events."""
        return self.without_work is not None

    @property
    def total_ns(self) -> int:
        """All steps' time."""
        return sum(self.parts.values())

    @property
    def whole_ns(self) -> int:
        """All steps' time, and the time between them."""
        return self.total_ns if self.base is None or not self.base.steps else self.base.whole_ns

    def findings(self) -> list[Finding]:
        """Findings about time at the edges of the trace, and about unusually long steps."""
        whole, count = self.whole_ns, len(self.steps)
        findings = [
            finding for edge in self.edges if (finding := edge.finding(whole, count, self.stacks))
        ]
        findings += [
            finding
            for outlier in self.outliers[:_OUTLIERS_SHOWN]
            if (finding := outlier.finding(whole, count, self.on_device, len(self.outliers) == 1))
        ]
        return findings

    def tables(self) -> list[Table]:
        """Tables of the time by part, the first steps, and the gaps between steps."""
        meaning = PARTS if self.on_device else HOST_PARTS
        whole, count = self.whole_ns, len(self.steps)
        between = whole - self.total_ns
        spread = self.step_ns
        note = self.how
        if self.without_work:
            note += (
                f" {self.without_work:,} of the {counted(count, 'step')}"
                f" {'has' if self.without_work == 1 else 'have'} no device events."
            )
        if count > 1:
            note += (
                f" {count:,} steps: the median is {in_words(spread.median, 'ns')}, half of them"
                f" took {in_words(spread.first_quartile, 'ns')} to"
                f" {in_words(spread.third_quartile, 'ns')}, and all took"
                f" {in_words(spread.min, 'ns')} to {in_words(spread.max, 'ns')}."
            )
        after = max((step.after_host_ns or 0 for step in self.steps), default=0)
        if after:
            note += (
                " Work belongs to the step that launched it, even if it runs after the step's mark"
                f" (here up to {in_words(after, 'ns')})."
            )
        if self.outside:
            note += (
                f" {counted(self.outside, 'device event')} ({in_words(self.outside_ns, 'ns')})"
                f" {'was' if self.outside == 1 else 'were'} not launched in a step."
            )
        if self.earlier_ns:
            note += (
                f" For the first {in_words(self.earlier_ns, 'ns')} of the first step's mark the"
                " device was still busy with work that was launched before the trace began"
                f"{'' if self.earlier_recorded else ' and is not in it'}. The step begins after"
                " that."
            )
        tables = [
            Table.of(
                "Where the steps' time went",
                [
                    *((meaning[part], time) for part, time in self.parts.items() if time),
                    *([("between the steps", between)] if between > 0 else []),
                ],
                (itemgetter(0), "", ""),
                (itemgetter(1), "time", "ns"),
                (lambda part: part[1] // count, "per step", "ns"),
                (lambda part: share(part[1], whole), _of(count), "%"),
                note=note,
            )
        ]
        parts = [part for part, time in self.parts.items() if time]
        tables.append(
            Table(
                "Steps",
                (("step", ""), ("time", "ns"), *((part.replace("_", " "), "ns") for part in parts)),
                [
                    (shortened(step.name), step.dur_ns, *(step.parts[part] for part in parts))
                    for step in self.steps[:_STEPS_SHOWN]
                ],
                f"The first {_STEPS_SHOWN} of {count:,}." if count > _STEPS_SHOWN else "",
            )
        )
        if self.phases:
            tables.append(
                Table.of(
                    "Prefill and decode",
                    self.phases,
                    ("phase", "phase", ""),
                    ("steps", "steps", ""),
                    ("median_ns", "median", "ns"),
                    ("total_ns", "time", "ns"),
                    (lambda phase: share(phase.total_ns, whole), _of(count), "%"),
                )
            )
        gaps = self.gaps.table()
        return tables if gaps is None else [*tables, gaps]

    def chart(self) -> Chart | None:
        """The parts of each step or, if there are many, of the first steps."""
        steps = self.steps[:MOST_DRAWN]
        if len(steps) < 2:
            return None
        words = PARTS if self.on_device else HOST_PARTS
        times = {part: [step.parts.get(part, 0) for step in steps] for part in self.parts}
        left = len(self.steps) - len(steps)
        return {
            "kind": "steps",
            "names": [shortened(step.name, LONGEST_NAME) for step in steps],
            "on_device": self.on_device,
            "parts": [(part, words.get(part, part), of) for part, of in times.items() if any(of)],
            "note": f"Not drawn: {counted(left, 'step')}." if left > 0 else "",
        }

    def line(self) -> str:
        """The number and the durations of the steps, and what they are if they are not marked."""
        spread = self.step_ns
        is_plain = self.source == "profiler" and not self.ranges.overlapping
        how = "" if is_plain else f". {self.how}"
        if self.outside_most:
            how = f"{how.removesuffix('.')}. {self.outside_most}"
        if len(self.steps) == 1:
            what = f" of {self.phases[0].phase}" if self.phases else ""
            return f"1{what}, {in_words(float(self.total_ns), 'ns')}{how}"
        if len(self.phases) > 1:
            listed = (
                f"{each.steps:,} of {each.phase}, {in_words(each.median_ns, 'ns')} in the median"
                for each in self.phases
            )
            return f"{len(self.steps):,}: {'; '.join(listed)}{how}"
        return (
            f"{len(self.steps):,}, {in_words(spread.median, 'ns')} in the median"
            f" ({in_words(spread.min, 'ns')} to {in_words(spread.max, 'ns')}){how}"
        )


class PhaseTime(Figures, frozen=True):
    """The steps of one phase of an inference server; times in ns."""

    phase: Annotated[str, one_of(PHASES)]
    steps: Count
    median_ns: Ns
    total_ns: Ns


def _most_outside(trace: Trace, device: Rows, outside: Rows) -> str:
    """A sentence about the device's work that no step launched; "" if it is little."""
    events = trace.events
    # What has no launch in the trace may be of a step.
    outside = outside[launch_of(trace, outside) >= 0]
    time_ns = events.dur_ns[outside]
    percent = share(int(time_ns.sum()), int(events.dur_ns[device].sum()))
    if percent < _LEAST_OUTSIDE:
        return ""
    most = grouped(events.name[outside].astype(np.int64), time_ns)[0]
    return (
        f"{in_percent(percent)} of device work ({in_words(int(time_ns.sum()), 'ns')}) is not in"
        f" them: the longest is {shortened(kernel_label(trace.names[most.code]), 60)}"
        f" ({in_words(most.time_ns, 'ns')})."
    )


def _phases(steps: list[Step]) -> list[PhaseTime]:
    """Sum up the steps by phase, the one with the most time first."""
    times: dict[str, list[int]] = {}
    for step in steps:
        phase = phase_of(step.name)
        if phase is not None:
            times.setdefault(phase, []).append(step.dur_ns)
    phases = [
        PhaseTime(phase, len(each), int(median(each)), sum(each)) for phase, each in times.items()
    ]
    return sorted(phases, key=lambda each: -each.total_ns)


class StepGap(Figures, frozen=True):
    """The time between two steps without device work of any step; times in ns."""

    after: str
    """The step before it."""
    begin_ns: Ns = msgspec.field(name="time_us")
    """From the start of the trace's window."""
    dur_ns: Ns = msgspec.field(name="gap_us")
    parts: dict[_Part, Ns] = msgspec.field(name="parts_us")
    """They sum to `dur_ns`."""
    host_event: str | None
    """The smallest host event that fills most of it, or else the one that fills the largest
    part."""


class StepGaps(Figures, frozen=True):
    """All gaps between steps; times in ns."""

    total_ns: Ns
    median_ns: Ns | None
    """None if there is one step."""
    parts: dict[_Part, Ns] = msgspec.field(name="parts_us")
    largest: list[StepGap]

    def table(self) -> Table | None:
        """Return a table of the parts of their time; None if there are none."""
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
            "The time from the last work of a step to the first work of the next. The median is"
            f" {in_words(self.median_ns, 'ns')}. The longest is after"
            f" {shortened(largest.after)}{filled}: {in_words(largest.dur_ns, 'ns')}."
        )
        return Table("Between steps", (("", ""), ("time", "ns"), ("of this time", "%")), rows, note)


def step_gaps(trace: Trace, ranges: StepRanges, times: StepTimes, origin_ns: int) -> StepGaps:
    """Sum up the gaps, and find the host's activity in the largest."""
    gaps = times.gap_ns
    order = np.argsort(-gaps, kind="stable")[:_GAPS_SHOWN]
    largest = [
        StepGap(
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
        median_ns=int(median(gaps)) if len(gaps) else None,
        parts={part: int(time.sum()) for part, time in times.gap_parts.items()},
        largest=largest,
    )


def _name(trace: Trace, row: int) -> str | None:
    return None if row < 0 else trace.names[int(trace.events.name[row])]


class Edge(msgspec.Struct, frozen=True):
    """The steps' time before the launch of the device's first event, or after its last event."""

    first: bool
    """True for the time before the first event, False for the time after the last."""
    dur_ns: int
    evidence: tuple[Evidence, ...]
    """The device event, and the host's activity."""
    host_event: str | None
    """The host's event that fills at least half of it."""
    recording_ns: int
    """The estimated time in it in which the profiler recorded Python's stacks."""

    def finding(self, whole_ns: int, count: int, stacks: StackCost | None) -> Finding | None:
        """Return a finding if it is long. The causes of idle time do not include this time."""
        percent = share(self.dur_ns, whole_ns)
        severity = _GAP_SHARES.severity(percent)
        if severity is None:
            return None
        where = "before the device's first work was launched"
        if not self.first:
            where = "after the device's last work"
        whose = "the step's" if count == 1 else f"the {count:,} steps'"
        sentence = (
            f"{in_words(self.dur_ns, 'ns')} of {whose} {in_words(whole_ns, 'ns')}"
            f" ({in_percent(percent)}) passed {where}"
        )
        if self.host_event is not None:
            sentence += f", mostly in {shortened(self.host_event, 90)}"
        sentence += "."
        caveat, numbers = "", dict[str, float]()
        if stacks is not None:
            caveat, numbers = stacks.caveat(self.recording_ns, self.dur_ns)
        code = "steps.before_device" if self.first else "steps.after_device"
        numbers |= {"time_ns": self.dur_ns, "percent": percent, "whole_ns": whole_ns}
        severity = of_size(severity, self.dur_ns)
        gain = Gain(self.dur_ns, at_most=True, how="the device works in that time")
        return Finding(severity, sentence, self.evidence, code, numbers, gain, caveat=caveat)


def edges_of(trace: Trace, times: StepTimes) -> list[Edge]:
    """Return the time at both edges of the steps; empty without a device.

    It is no more than the verdict has: what else the host did there, such as to capture a graph,
    has causes of its own.
    """
    events, rows, of_base = trace.events, times.device_rows, base_idle(trace)
    if len(rows) == 0 or of_base is None:
        return []
    first = int(rows[np.argmin(events.begin_ns[rows])])
    last = int(rows[np.argmax(events.end_ns[rows])])
    # Work that was launched long before it ran waited for work from before the trace.
    launch = int(launch_of(trace, np.array([first]))[0])
    begin, end = int(events.begin_ns[first]), int(events.end_ns[last])
    if launch >= 0:
        begin = min(begin, int(events.begin_ns[launch]))
    sides = (
        (True, first, times.begin_ns, np.clip(begin, times.begin_ns, times.end_ns)),
        (False, last, np.clip(end, times.begin_ns, times.end_ns), times.end_ns),
    )
    edges = []
    stacks, overhead, waits = stack_cost(trace), profiler_time(trace), early_waiting(trace)
    for is_first, row, starts, ends in sides:
        # The profiler's own time is not the program's, and a wait does not prepare work.
        dur = int((ends - starts - overhead.length(starts, ends)).sum())
        dur -= int(waits.length(starts, ends).sum()) if is_first else 0
        if of_base.base.steps:
            dur = min(dur, of_base.by_cause.get(PREPARATION if is_first else FINISHING, 0))
        if dur:
            length = int((ends - starts).sum())
            start = begin - length if is_first else end
            host = filled_by(trace, start, length)
            seen = [evidence(trace, each) for each in (row, host) if each >= 0]
            # The event that fills most of the edge may not be what the rest of it went into.
            most = mostly_filled_by(trace, start, length) if 2 * dur > length else -1
            recording = 0 if stacks is None else int(stacks.recorded_ns(starts, ends).sum())
            name = _name(trace, most)
            edges.append(Edge(is_first, dur, tuple(seen), name, min(recording, dur)))
    return edges


# --- Outliers ---


_FEWEST_STEPS = 4


# The least distance from the median: in median deviations, relative to it, and in how many steps.
_DISTANCES = 7.0


_LEAST_TIMES = 1.2


_MOST_SHARE = 1 / 3


# Of more steps than that, only those are outliers that exceed the median of these by this factor.
_FAR_TIMES = 3.0


# The least excess of an outlier over the median, as a part of all steps' time.
_OUTLIER_SHARES = Thresholds(25.0, 10.0, 3.0)


# A step that is slower by this factor is reported regardless of the number of steps.
_ALWAYS_TIMES = 1.5


_OUTLIERS_SHOWN = 3


_AS_USUAL = "it takes as long as the median step"


_MOST_REPORTED = 10


# The findings that contain the time of a part in all steps. On a device, other parts are idle time.
_SEEN_AS = {
    COMPUTATION: (),
    COMMUNICATING: ("device_use.exposed_communication",),
    COPIES: ("device_use.exposed_copies",),
}
_SEEN_AS_ON_HOST = {
    DATA_LOADING: ("host.data_loader",),
    OPERATORS: (),
    COMMUNICATING: ("host.communication",),
    OTHER: ("host.",),
}


class Outlier(Figures, frozen=True):
    """A step that took long; times in ns."""

    name: str
    dur_ns: Ns = msgspec.field(name="step_us")
    part: _Part
    """The part that grew the most."""
    part_ns: Ns
    part_usual_ns: Ns = msgspec.field(name="part_of_others_us")
    """The median of the other steps."""
    culprit: str | None = msgspec.field(name="event")
    """The event of that part with the largest growth; None if there is none."""
    step: Internal[int]
    """Its number in the order of time, from 0."""
    usual_ns: Internal[int]
    """The median of all steps."""
    culprit_ns: Internal[int]
    culprit_usual_ns: Internal[int]
    """The average in the other steps."""
    evidence: Internal[tuple[Evidence, ...]]

    def finding(self, whole_ns: int, count: int, on_device: bool, alone: bool) -> Finding | None:
        """Return a finding if it took much longer; `alone` if no other step did."""
        longer_ns = self.dur_ns - self.usual_ns
        severity = _OUTLIER_SHARES.severity(share(longer_ns, whole_ns))
        if severity is None and self.dur_ns >= _ALWAYS_TIMES * self.usual_ns:
            severity = "low"
        if severity is None:
            return None
        severity, action = of_size(severity, longer_ns), ""
        gain: Gain | None = Gain(longer_ns, at_most=True, how=_AS_USUAL)
        if self.step == 0 and alone:
            # What only the first step contains does not come again.
            action = f"It is the first step. {START_UP.text}"
            severity, gain = at_most(severity, "medium"), None
        numbers = {
            "step_ns": self.dur_ns,
            "median_ns": self.usual_ns,
            "part_ns": self.part_ns,
            "part_of_others_ns": self.part_usual_ns,
        }
        if self.culprit is not None:
            numbers["event_ns"] = self.culprit_ns
            numbers["event_of_others_ns"] = self.culprit_usual_ns
        seen_as = _SEEN_AS if on_device else _SEEN_AS_ON_HOST
        return Finding(
            severity,
            f"{shortened(self.name)} took {in_words(self.dur_ns, 'ns')},"
            f" {three_digits(self.dur_ns / self.usual_ns)} times the median of {count:,} steps"
            f" ({in_words(self.usual_ns, 'ns')}).",
            self.evidence,
            "steps.outlier",
            numbers,
            gain,
            action=action,
            details=self.details(on_device),
            about="place",
            seen_as=seen_as.get(self.part, ("idle.",)),
        )

    def details(self, on_device: bool) -> str:
        """Return sentences about the part that grew most."""
        meaning = (PARTS if on_device else HOST_PARTS)[self.part]
        text = (
            f'The part that grew most is "{meaning}": {in_words(self.part_ns, "ns")}, compared with'
            f" {in_words(self.part_usual_ns, 'ns')} in the other steps"
        )
        if self.culprit is not None:
            text += (
                f". {shortened(self.culprit)} took {in_words(self.culprit_ns, 'ns')} in this step,"
                f" and {in_words(self.culprit_usual_ns, 'ns')} in the other steps on average"
            )
        return text + "."


def outliers(trace: Trace, ranges: StepRanges, times: StepTimes, origin_ns: int) -> list[Outlier]:
    """Return the steps that took much longer than the others, the longest first."""
    durations = times.end_ns - times.begin_ns
    if len(durations) < _FEWEST_STEPS:
        return []
    middle = median(durations)
    spread = median(np.abs(durations - middle))
    least = max(middle + _DISTANCES * spread, _LEAST_TIMES * middle)
    slow = (durations > least) & (middle > 0)
    # The first step may contain the end of earlier work that the trace does not show.
    slow[0] &= ranges.end_ns[0] - ranges.begin_ns[0] > least
    long = np.flatnonzero(slow)
    if len(long) > _MOST_SHARE * len(durations):  # steps of several lengths
        long = long[durations[long] > _FAR_TIMES * median(durations[long])]
    long = long[np.argsort(-durations[long], kind="stable")]
    return [_explained(trace, ranges, times, int(at), origin_ns) for at in long[:_MOST_REPORTED]]


def _explained(
    trace: Trace, ranges: StepRanges, times: StepTimes, at: int, origin_ns: int
) -> Outlier:
    others = np.arange(len(ranges)) != at
    usual = {part: int(median(time[others])) for part, time in times.parts.items()}
    excess = {part: int(time[at]) - usual[part] for part, time in times.parts.items()}
    part = max(excess, key=lambda name: excess[name])
    dur = int(times.end_ns[at] - times.begin_ns[at])
    seen = [Evidence(ranges.names[at], int(times.begin_ns[at]) - origin_ns, dur, "ns")]
    culprit, time, average, row = _culprit(trace, times, at, part)
    if row >= 0:
        seen.append(evidence(trace, row))
    return Outlier(
        step=at,
        name=ranges.names[at],
        dur_ns=dur,
        usual_ns=int(median(times.end_ns - times.begin_ns)),
        part=part,
        part_ns=int(times.parts[part][at]),
        part_usual_ns=usual[part],
        culprit=culprit,
        culprit_ns=time,
        culprit_usual_ns=average,
        evidence=tuple(seen),
    )


def _culprit(
    trace: Trace, times: StepTimes, at: int, part: str
) -> tuple[str | None, int, int, int]:
    """Return name, time in the step, average in the others, and the longest event in the step."""
    events = trace.events
    chosen = events_of_part(trace, part, len(times.device_rows) > 0)
    if part == OTHER:
        # Work outside of operators has a name only with stacks or annotations.
        row = filled_by(trace, *times.longest_rest(at))
        if row >= 0:
            chosen = events.name == events.name[row]
    rows = np.flatnonzero(chosen)
    step = np.searchsorted(times.begin_ns, events.begin_ns[rows], side="right") - 1
    inside = (step >= 0) & (events.begin_ns[rows] < times.end_ns[np.maximum(step, 0)])
    rows, step = rows[inside], step[inside]
    in_step, others = (
        sums(events.name[which], events.dur_ns[which], len(trace.names) + 1)
        for which in (rows[step == at], rows[step != at])
    )
    average = others // max(len(times.begin_ns) - 1, 1)
    grown = in_step - average
    code = int(np.argmax(grown))
    if grown[code] <= 0:
        return None, 0, 0, -1
    named_so = rows[(step == at) & (events.name[rows] == code)]
    row = int(named_so[np.argmax(events.dur_ns[named_so])])
    return trace.names[code], int(in_step[code]), int(average[code]), row


_STEPS_SHOWN = 20


_MOST_IN_JSON = 2_000


MOST_DRAWN = 400


class Step(Figures, frozen=True):
    """One step; times in ns."""

    name: str
    begin_ns: Ns = msgspec.field(name="time_us")
    """From the start of the trace's window."""
    dur_ns: Ns = msgspec.field(name="step_us")
    """From the start of the step, or from the end of earlier work if that is later, to the end of
    its last work on the device. No time belongs to two steps."""
    host_ns: Ns | None
    """The length of its mark on the host; None for steps that were found from kernels."""
    parts: dict[_Part, Ns] = msgspec.field(name="parts_us")
    """They sum to `dur_ns`."""
    launched: Count | None = msgspec.field(name="device_events")
    """Device events that it launched; None without a device."""
    device_ns: Ns | None
    """Their durations' sum."""
    after_host_ns: Ns | None
    """How long the device worked on it after the end of its mark."""


class Quartiles(Figures, frozen=True):
    """The steps' durations; in ns."""

    mean: MeanNs
    min: Ns
    first_quartile: Ns
    median: Ns
    third_quartile: Ns
    max: Ns


def _quartiles(durations: Numbers) -> Quartiles:
    least, first, median, third, most = (
        int(interpolated_quantile(durations, at / 4)) for at in range(5)
    )
    return Quartiles(int(durations.sum()) / len(durations), least, first, median, third, most)


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
