"""Steps that took much longer than the others, and what differs in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stagespan.trace.analysis.call_tree import Rows
from stagespan.trace.analysis.causes import LOADS_DATA, MARKS
from stagespan.trace.analysis.host_time import named
from stagespan.trace.analysis.result import (
    Evidence,
    Finding,
    Severity,
    evidence,
    in_words,
    of_size,
    share,
    shortened,
)
from stagespan.trace.analysis.step_gaps import filled_by
from stagespan.trace.analysis.step_ranges import StepRanges
from stagespan.trace.analysis.step_time import (
    COMMUNICATING,
    COMPUTATION,
    COPIES,
    DATA_LOADING,
    HOST_PARTS,
    OPERATORS,
    OTHER,
    PARTS,
    RUNTIME,
    StepTimes,
)
from stagespan.trace.arrays import Mask, Numbers
from stagespan.trace.device import COMMUNICATION, COMPUTE, COPY, device_work, launches
from stagespan.trace.model import Trace

_FEWEST_STEPS = 4
# Beyond the median, in median distances from it, and in it; and of how many steps at most.
_DISTANCES = 7.0
_LEAST_TIMES = 1.2
_MOST_SHARE = 1 / 3
# Of all steps' time that an outlier took more than the median.
_SHARES: tuple[tuple[float, Severity], ...] = ((25.0, "high"), (10.0, "medium"), (3.0, "low"))
# So much slower is worth a word, however many steps there are.
_ALWAYS_TIMES = 1.5
_SHOWN = 3
_MOST_TOLD = 10


@dataclass(frozen=True, slots=True)
class Outlier:
    """A step that took long; times in ns."""

    step: int
    """Its number in the order of time, from 0."""
    name: str
    dur_ns: int
    usual_ns: int
    """The median of all steps."""
    part: str
    """The part that grew the most."""
    part_ns: int
    part_usual_ns: int
    """The median of the other steps."""
    culprit: str | None
    """Of the events of that part those whose time grew the most; None where there are none."""
    culprit_ns: int
    culprit_usual_ns: int
    """The other steps' average."""
    evidence: tuple[Evidence, ...]

    def sentence(self, count: int, on_device: bool) -> str:
        """What happened."""
        meaning = (PARTS if on_device else HOST_PARTS)[self.part]
        text = (
            f"{shortened(self.name)} took {in_words(self.dur_ns, 'ns')},"
            f" {self.dur_ns / self.usual_ns:.2f} times the median of {count:,} steps"
            f" ({in_words(self.usual_ns, 'ns')}). What grew most: {meaning},"
            f" {in_words(self.part_ns, 'ns')} against {in_words(self.part_usual_ns, 'ns')} in the"
            " other steps"
        )
        if self.culprit is not None:
            text += (
                f". Its {shortened(self.culprit)} took {in_words(self.culprit_ns, 'ns')}, in the"
                f" other steps {in_words(self.culprit_usual_ns, 'ns')} on average"
            )
        return text + "."


def outliers(trace: Trace, ranges: StepRanges, times: StepTimes, origin_ns: int) -> list[Outlier]:
    """The steps that took much longer than the others, the longest first; of many the first."""
    durations = times.end_ns - times.begin_ns
    if len(durations) < _FEWEST_STEPS:
        return []
    median = float(np.median(durations))
    spread = float(np.median(np.abs(durations - median)))
    least = max(median + _DISTANCES * spread, _LEAST_TIMES * median)
    slow = (durations > least) & (median > 0)
    # The first step may hold the end of earlier work that the trace does not show.
    slow[0] &= ranges.end_ns[0] - ranges.begin_ns[0] > least
    long = np.flatnonzero(slow)
    if len(long) > _MOST_SHARE * len(durations):
        return []
    long = long[np.argsort(-durations[long], kind="stable")]
    return [_explained(trace, ranges, times, int(at), origin_ns) for at in long[:_MOST_TOLD]]


def findings_of(found: list[Outlier], total_ns: int, count: int, on_device: bool) -> list[Finding]:
    """Those of them that are worth a reader's time."""
    result = []
    for each in found[:_SHOWN]:
        percent = share(each.dur_ns - each.usual_ns, total_ns)
        severity = next((s for least, s in _SHARES if percent >= least), None)
        if severity is None and each.dur_ns >= _ALWAYS_TIMES * each.usual_ns:
            severity = "low"
        if severity is not None:
            severity = of_size(severity, each.dur_ns - each.usual_ns)
            sentence = each.sentence(count, on_device)
            result.append(Finding(severity, sentence, each.evidence, "steps.outlier"))
    return result


def _explained(
    trace: Trace, ranges: StepRanges, times: StepTimes, at: int, origin_ns: int
) -> Outlier:
    others = np.arange(len(ranges)) != at
    usual = {part: int(np.median(time[others])) for part, time in times.parts.items()}
    excess = {part: int(time[at]) - usual[part] for part, time in times.parts.items()}
    part = max(excess, key=lambda name: excess[name])
    dur = int(times.end_ns[at] - times.begin_ns[at])
    shown = [Evidence(ranges.names[at], int(times.begin_ns[at]) - origin_ns, dur, "ns")]
    culprit, time, average, row = _culprit(trace, times, at, part)
    if row >= 0:
        longest = evidence(trace, row)
        shown.append(longest)
    return Outlier(
        step=at,
        name=ranges.names[at],
        dur_ns=dur,
        usual_ns=int(np.median(times.end_ns - times.begin_ns)),
        part=part,
        part_ns=int(times.parts[part][at]),
        part_usual_ns=usual[part],
        culprit=culprit,
        culprit_ns=time,
        culprit_usual_ns=average,
        evidence=tuple(shown),
    )


def _culprit(
    trace: Trace, times: StepTimes, at: int, part: str
) -> tuple[str | None, int, int, int]:
    """Name, time in the step, average of the others, and the longest event in the step."""
    events = trace.events
    chosen = _events_of(trace, part, len(times.device_rows) > 0)
    if part == OTHER:
        # What was no operator has a name where the trace has stacks, or annotations.
        row = filled_by(trace, *times.longest_rest(at))
        if row >= 0:
            chosen = events.name == events.name[row]
    rows = np.flatnonzero(chosen)
    step = np.searchsorted(times.begin_ns, events.begin_ns[rows], side="right") - 1
    inside = (step >= 0) & (events.begin_ns[rows] < times.end_ns[np.maximum(step, 0)])
    rows, step = rows[inside], step[inside]
    mine, others = _by_name(trace, rows[step == at]), _by_name(trace, rows[step != at])
    average = others // max(len(times.begin_ns) - 1, 1)
    grown = mine - average
    code = int(np.argmax(grown))
    if grown[code] <= 0:
        return None, 0, 0, -1
    named_so = rows[(step == at) & (events.name[rows] == code)]
    row = int(named_so[np.argmax(events.dur_ns[named_so])])
    return trace.names[code], int(mine[code]), int(average[code]), row


def _by_name(trace: Trace, rows: Rows) -> Numbers:
    events = trace.events
    sums = np.bincount(
        events.name[rows], weights=events.dur_ns[rows], minlength=len(trace.names) + 1
    )
    result: Numbers = sums.astype(np.int64)
    return result


def _events_of(trace: Trace, part: str, on_device: bool) -> Mask:
    kinds = {COMPUTATION: COMPUTE, COMMUNICATING: COMMUNICATION, COPIES: COPY}
    if on_device and part in kinds:
        chosen: Mask = device_work(trace).kind == kinds[part]
        return chosen
    marks = trace.rows_of(["user_annotation", "cpu_op"])
    if part == RUNTIME:
        return launches(trace)
    if part == DATA_LOADING:
        return marks & named(trace, LOADS_DATA)
    if part == OPERATORS:
        return trace.rows_of(["cpu_op"]) & ~named(trace, MARKS)
    if part == COMMUNICATING:
        from stagespan.trace.analysis.host import COMMUNICATES

        return marks & named(trace, COMMUNICATES)
    return np.zeros(len(trace.events), dtype=np.bool_)
