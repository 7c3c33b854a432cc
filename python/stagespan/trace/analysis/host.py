"""Where the time went in a trace of the host alone: operators, communication, and what is between.

Only for traces without device events: there, operators are the work itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from stagespan.trace.analysis.axis import Axis, Cover
from stagespan.trace.analysis.causes import LOADS_DATA, MARKS
from stagespan.trace.analysis.host_time import QUIET_NS, named
from stagespan.trace.analysis.result import (
    Evidence,
    Finding,
    Nothing,
    Severity,
    Table,
    evidence,
    in_words,
    share,
    window_of,
)
from stagespan.trace.analysis.step_ranges import step_begins
from stagespan.trace.arrays import Mask, Numbers
from stagespan.trace.device import device_work
from stagespan.trace.model import Trace

DATA_LOADING, OPERATORS, COMMUNICATION = "data_loading", "operators", "communication"
BETWEEN_STEPS, OTHER, BETWEEN_OPERATORS = "between_steps", "other", "between_operators"
PARTS = {
    DATA_LOADING: "loading data",
    OPERATORS: "operators",
    COMMUNICATION: "communication, no operator beside it",
    BETWEEN_STEPS: "no operator for long, as a step ended",
    OTHER: "no operator for long",
    BETWEEN_OPERATORS: "between operators",
}
_SHARES: tuple[tuple[float, Severity], ...] = ((25.0, "high"), (10.0, "medium"), (5.0, "low"))
# Of operators that are called one after the other so much may pass between them.
_BETWEEN_LEAST = 25.0
_ONLY = np.zeros(1, dtype=np.int64)
COMMUNICATES = re.compile(r"^(?:gloo|mpi|ucc|nccl|hccl|xccl)\w*:|^c10d::|^record_param_comms$")
_SENTENCES = {
    DATA_LOADING: "the program loaded data. More loader workers or prefetching would help",
    COMMUNICATION: "it communicated with no operator beside it, so that nothing hid it",
    BETWEEN_STEPS: "no operator ran between two steps",
    OTHER: "no operator ran, and the trace does not say what did",
    BETWEEN_OPERATORS: "it passed from one operator to the next",
}


@dataclass(frozen=True, slots=True)
class Host:
    """Times in ns of the whole process, each moment the first of PARTS that applies."""

    span_ns: int
    """From the first operator's begin to the end of the last."""
    parts: dict[str, int]
    """They sum to `span_ns`."""
    operators: int
    operator_ns: int
    """Median duration of an operator."""
    evidence: dict[str, tuple[Evidence, ...]]

    def to_dict(self) -> dict[str, Any]:
        """For JSON, in microseconds."""
        return {
            "span_us": self.span_ns / 1000,
            "parts_us": {part: time / 1000 for part, time in self.parts.items()},
            "operators": self.operators,
            "median_operator_us": self.operator_ns / 1000,
        }

    def findings(self) -> list[Finding]:
        """What took a good part of the time and was no operator."""
        found = []
        for part, time in sorted(self.parts.items(), key=lambda item: -item[1]):
            percent = share(time, self.span_ns)
            severity = next((s for least, s in _SHARES if percent >= least), None)
            if severity is None or part == OPERATORS:
                continue
            if part == BETWEEN_OPERATORS and percent < _BETWEEN_LEAST:
                continue
            sentence = f"For {in_words(time, 'ns')} ({percent:.1f} % of its time) "
            sentence += _SENTENCES[part]
            if part == BETWEEN_OPERATORS:
                sentence += (
                    f": there are {self.operators:,} of them, the median takes"
                    f" {in_words(self.operator_ns, 'ns')}. Fewer and larger ones, or torch.compile,"
                    " would help"
                )
            found.append(Finding(severity, f"{sentence}.", self.evidence[part]))
        return found

    def tables(self) -> list[Table]:
        """Time by part."""
        rows = [(PARTS[part], time, share(time, self.span_ns)) for part, time in self.parts.items()]
        return [Table("Host", (("", ""), ("time", "ns"), ("of all", "%")), rows)]


def analyze(trace: Trace) -> Host | Nothing:
    """Sum up the host's time; Nothing for traces with a device, or without operators."""
    if device_work(trace).kind.any():
        return Nothing("The trace has device events: the causes of idle time tell about the host.")
    events = trace.events
    communicates = named(trace, COMMUNICATES)
    marks = trace.rows_of(["user_annotation", "cpu_op"])
    operators = trace.rows_of(["cpu_op"]) & ~named(trace, MARKS) & ~communicates
    if not operators.any():
        return Nothing("The trace has no operators, so nothing is known about the host's time.")
    begin, end = int(events.begin_ns[operators].min()), int(events.end_ns[operators].max())
    axis = Axis(begin, end, 1)
    if not axis.fits:
        return Nothing("The trace's operators lie years apart: its times are damaged.")

    def cover(which: Mask) -> Cover:
        return Cover(*_placed(axis, trace, which))

    sets = [
        cover(marks & named(trace, LOADS_DATA)),
        cover(operators),
        cover(marks & communicates),
    ]
    # Where no operator runs for long.
    begins, ends = sets[1].end[:-1], sets[1].begin[1:]
    long = ends - begins > QUIET_NS
    begins, ends = begins[long], ends[long]
    steps = axis.place(_ONLY, step_begins(trace))
    crosses = np.searchsorted(steps, begins, "right") < np.searchsorted(steps, ends, "right")
    sets += [Cover(begins[which], ends[which]) for which in (crosses, ~crosses)]
    whole = (np.array([0]), np.array([end - begin]))
    reached, so_far = [0], sets[0]
    for each in sets:
        so_far = so_far | each
        reached.append(int(so_far.within(*whole)[0]))
    reached.append(end - begin)
    times = np.diff(reached).tolist()
    return Host(
        span_ns=end - begin,
        parts={part: time for part, time in zip(PARTS, times, strict=True) if time},
        operators=int(operators.sum()),
        operator_ns=int(np.median(events.dur_ns[operators])),
        evidence=_evidence(trace, axis, sets, operators, communicates & marks),
    )


def _placed(axis: Axis, trace: Trace, which: Mask) -> tuple[Numbers, Numbers]:
    events = trace.events
    return (
        axis.place(_ONLY, events.begin_ns[which]),
        axis.place(_ONLY, events.end_ns[which]),
    )


def _evidence(
    trace: Trace, axis: Axis, sets: list[Cover], operators: Mask, communicates: Mask
) -> dict[str, tuple[Evidence, ...]]:
    events = trace.events
    begin, _ = window_of(trace) or (0, 0)
    found: dict[str, tuple[Evidence, ...]] = {}
    for part, which in (
        (DATA_LOADING, named(trace, LOADS_DATA)),
        (COMMUNICATION, communicates),
        (OPERATORS, operators),
        (BETWEEN_OPERATORS, operators),
    ):
        rows = np.flatnonzero(which)
        longest = rows[np.argsort(-events.dur_ns[rows], kind="stable")[:3]]
        found[part] = tuple(evidence(trace, int(row)) for row in longest)
    for part, stretches in ((BETWEEN_STEPS, sets[3]), (OTHER, sets[4])):
        order = np.argsort(stretches.begin - stretches.end, kind="stable")[:3]
        found[part] = tuple(
            Evidence(
                "no operator",
                int(stretches.begin[at]) + axis.begin_ns - begin,
                int(stretches.end[at] - stretches.begin[at]),
                "ns",
            )
            for at in order
        )
    return found
