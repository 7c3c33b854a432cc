"""Shows how a trace without a device spent its time: operators, communication, and gaps.

This analysis applies only to traces without device events, where operators are the work itself.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
import numpy as np

from stagespan.pages.amounts import in_words
from stagespan.pages.figures import Count, Internal, Ns, one_of
from stagespan.pages.result import (
    Evidence,
    Finding,
    Gain,
    StructResult,
    Table,
    Thresholds,
    Unavailable,
    share,
    shortened,
)
from stagespan.trace.derived.advice import STARTS_LOADER, Facts, advice_on
from stagespan.trace.derived.device import device_work, launches
from stagespan.trace.derived.gains import gain_shared_by
from stagespan.trace.derived.gaps import QUIET_NS
from stagespan.trace.derived.idle_causes import COMMUNICATES, MARKS, loads_data
from stagespan.trace.derived.missing import DAMAGED_TIMES
from stagespan.trace.derived.step_ranges import step_begins
from stagespan.trace.derived.threads import Axis, named
from stagespan.trace.derived.windows import base_window
from stagespan.trace.evidence import evidence, window_of
from stagespan.trace.rates.collectives import exposed_calls, work_of
from stagespan.trace.read.intervals import Cover, Mask, Numbers, Rows
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once

DATA_LOADING, OPERATORS, COMMUNICATING = "data_loading", "operators", "communication"
LOADER_START, BETWEEN_STEPS, OTHER = "loader_start", "between_steps", "other"
UNSEEN, BETWEEN_OPERATORS = "unseen", "between_operators"
PARTS = {
    DATA_LOADING: "loading data",
    LOADER_START: "starting the data loader",
    OPERATORS: "operators",
    COMMUNICATING: "communication while no operator ran",
    BETWEEN_STEPS: "no operator at the end of a step",
    OTHER: "no operator, but Python or an annotation",
    UNSEEN: "no operator, cause unknown",
    BETWEEN_OPERATORS: "between operators",
}
_SHARES = Thresholds(25.0, 10.0, 5.0)
# Percent: less time between consecutive operators is not reported.
_BETWEEN_LEAST = 25.0
_NAMED = 20
_ONLY = np.zeros(1, dtype=np.int64)
_FILLERS = ("python_function", "user_annotation", "overhead")
# Marks of steps cover all of the time, so they do not explain it.
_NO_FILLER = re.compile(r"^ProfilerStep[#*]|^PyTorch Profiler")
# Finding the event that fills an interval searches all candidates.
_MOST_STRETCHES = 500
_CODES = {part: f"host.{part}" for part in PARTS} | {DATA_LOADING: "host.data_loader"}
_SENTENCES = {
    DATA_LOADING: "the program loaded data",
    LOADER_START: "the program started the data loader",
    COMMUNICATING: "the program communicated while no operator ran",
    BETWEEN_STEPS: "no operator ran between two steps",
    OTHER: "no operator ran",
    UNSEEN: "no operator ran, and the trace shows no other activity in that time",
    BETWEEN_OPERATORS: "the host was between two operators",
}


_GAINS = {
    DATA_LOADING: "the next batch is ready in time",
    LOADER_START: "the data loader is started before",
    COMMUNICATING: "operators run beside all of it",
    BETWEEN_STEPS: "the next step begins at once",
    OTHER: "operators run in that time",
    UNSEEN: "operators run in that time",
    BETWEEN_OPERATORS: "each operator begins at once",
}


_Part = Annotated[str, one_of(PARTS)]


@once
def analyze(trace: Trace) -> Host | Unavailable:
    """Sum up the host's time; Unavailable for traces with a device, or without operators."""
    if device_work(trace).kind.any():
        return Unavailable(
            "The trace has device events: see the causes of idle time for the host.", "has_device"
        )
    events = trace.events
    communicates = named(trace, COMMUNICATES)
    marks = trace.rows_of(["user_annotation", "cpu_op"])
    frames = trace.rows_of(["python_function"])
    operators = trace.rows_of(["cpu_op"]) & ~named(trace, MARKS) & ~communicates
    if not operators.any():
        return Unavailable(
            "The trace has no operators, so the use of the host's time is unknown.", "no_operators"
        )
    begin, end = int(events.begin_ns[operators].min()), int(events.end_ns[operators].max())
    axis = Axis(begin, end, 1)
    base = base_window(trace)
    if not axis.fits or base is None:
        return DAMAGED_TIMES

    def cover(which: Mask) -> Cover:
        return Cover(*_placed(axis, trace, which))

    sets = [
        cover(loads_data(trace)),
        cover(frames & named(trace, STARTS_LOADER)),
        cover(operators),
        cover(marks & communicates),
    ]
    # For traces in which no operator runs for long.
    begins, ends = sets[2].end[:-1], sets[2].begin[1:]
    long = ends - begins > QUIET_NS
    begins, ends = begins[long], ends[long]
    steps = axis.place(_ONLY, step_begins(trace))
    crosses = np.searchsorted(steps, begins, "right") < np.searchsorted(steps, ends, "right")
    fillers = (trace.rows_of(_FILLERS) | launches(trace)) & ~named(trace, _NO_FILLER)
    seen = 2 * cover(fillers).within(begins, ends) >= ends - begins
    quiet = {BETWEEN_STEPS: crosses, OTHER: ~crosses & seen, UNSEEN: ~crosses & ~seen}
    fills = _fillers(trace, axis, fillers, operators, (begins, ends))
    sets += [Cover(begins[which], ends[which]) for which in quiet.values()]
    limits = axis.place(_ONLY, np.array([base.begin_ns, base.end_ns])).tolist()
    times, in_base = _parts(sets, 0, end - begin), _parts(sets, *limits)
    shown = _evidence(trace, operators, communicates & marks)
    filled = {}
    for part, which in quiet.items():
        # The part of an interval with communication or loading belongs to these.
        own = ends - begins - (sets[0] | sets[1] | sets[3]).within(begins, ends)
        chosen = np.flatnonzero(which & (own > 0))
        shown[part] = _of_stretches(trace, axis, begins[chosen], own[chosen], fills[chosen])
        filled[part] = _times_by_name(trace, own[chosen], fills[chosen])
    return Host(
        span_ns=end - begin,
        parts={part: time for part, time in zip(PARTS, times, strict=True) if time},
        in_base=dict(zip(PARTS, in_base, strict=True)),
        exposed_calls=exposed_calls(trace, *work_of(trace), (base.begin_ns, base.end_ns)),
        operators=int(operators.sum()),
        operator_ns=int(np.median(events.dur_ns[operators])),
        evidence=shown,
        filled={part: times for part, times in filled.items() if times},
        facts=Facts(trace),
    )


def _parts(sets: list[Cover], begin: int, end: int) -> list[int]:
    """Return the time of an interval in each set and in none before it, and the rest."""
    reached, so_far = [0], sets[0]
    for each in sets:
        so_far = so_far | each
        reached.append(int(so_far.within(np.array([begin]), np.array([end]))[0]))
    times: list[int] = np.diff([*reached, end - begin]).tolist()
    return times


class Host(StructResult, frozen=True):
    """Times of the whole process in ns. Each moment belongs to the first of PARTS that applies."""

    span_ns: Ns
    """From the first operator's begin to the end of the last."""
    parts: dict[_Part, Ns] = msgspec.field(name="parts_us")
    """They sum to `span_ns`."""
    operators: Count
    operator_ns: Ns = msgspec.field(name="median_operator_us")
    """Median duration of an operator."""
    filled: dict[_Part, dict[str, Ns]] = msgspec.field(name="instead_of_operators_us")
    """The time in ns by the name of what ran instead of operators, for each such part."""
    in_base: Internal[dict[str, int]]
    """The parts' times in the steps, or in the trace if it has no steps."""
    exposed_calls: Internal[tuple[Rows, Numbers]]
    """The collectives, and the time of each in the base in which no operator ran."""
    evidence: Internal[dict[str, tuple[Evidence, ...]]]
    facts: Internal[Facts]

    def findings(self) -> list[Finding]:
        """Findings about parts other than operators that took much of the time."""
        found = []
        for part, time in sorted(self.parts.items(), key=lambda item: -item[1]):
            percent = share(time, self.span_ns)
            severity = _SHARES.severity(percent)
            if severity is None or part == OPERATORS:
                continue
            if part == BETWEEN_OPERATORS and percent < _BETWEEN_LEAST:
                continue
            span = f"the {in_words(self.span_ns, 'ns')} from the first operator to the last"
            sentence = f"For {in_words(time, 'ns')} of {span} ({percent:.1f} %) "
            sentence += _SENTENCES[part]
            numbers = {"time_ns": time, "percent": percent, "whole_ns": self.span_ns}
            if part == BETWEEN_OPERATORS:
                numbers |= {"operators": self.operators, "median_operator_ns": self.operator_ns}
                sentence += (
                    f": there are {self.operators:,} operators, and the median operator takes"
                    f" {in_words(self.operator_ns, 'ns')}"
                )
            elif self.filled.get(part):
                name, inside = next(iter(self.filled[part].items()))
                numbers["longest_ns"] = inside
                sentence += f", mostly in {shortened(name, 90)} ({in_words(inside, 'ns')})"
            sentence = f"{sentence}. {advice_on(f'host.{part}', self.facts)}".rstrip()
            shown = self.evidence[part]
            gain = self._gain(part)
            found.append(Finding(severity, sentence, shown, _CODES[part], numbers, gain))
        return found

    def _gain(self, part: str) -> Gain | None:
        """Return what the steps win without a part, or if operators run beside it."""
        time, how = self.in_base[part], _GAINS[part]
        if part == COMMUNICATING:
            room = self.in_base[OPERATORS]
            if room < time:
                how = f"it runs beside all {in_words(room, 'ns')} of operators"
            time = min(time, room)
            return gain_shared_by(*self.exposed_calls, time, how) if time else None
        return Gain(time, at_most=True, how=how) if time else None

    def tables(self) -> list[Table]:
        """Time by part."""
        rows = [(PARTS[part], time, share(time, self.span_ns)) for part, time in self.parts.items()]
        return [Table("Host", (("", ""), ("time", "ns"), ("of all", "%")), rows)]


def _placed(axis: Axis, trace: Trace, which: Mask) -> tuple[Numbers, Numbers]:
    events = trace.events
    return (
        axis.place(_ONLY, events.begin_ns[which]),
        axis.place(_ONLY, events.end_ns[which]),
    )


def _fillers(
    trace: Trace,
    axis: Axis,
    fillers: Mask,
    operators: Mask,
    stretches: tuple[Numbers, Numbers],
) -> Rows:
    """Return the innermost event that fills half of each interval, or -1.

    Searches the thread with the most operators first, then the other threads. Only the longest
    intervals are searched.
    """
    events = trace.events
    begins, ends = stretches
    found = np.full(len(begins), -1, dtype=np.intp)
    possible = fillers & (2 * events.dur_ns > QUIET_NS)
    rows = np.flatnonzero(possible)
    if len(rows) == 0 or len(begins) == 0:
        return found
    begin, end = _placed(axis, trace, possible)
    threads, count = np.unique(events.tid[operators], return_counts=True)
    main = events.tid[rows] == threads[np.argmax(count)]
    for at in np.argsort(begins - ends, kind="stable")[:_MOST_STRETCHES].tolist():
        inside = np.minimum(end, ends[at]) - np.maximum(begin, begins[at])
        fills = 2 * inside >= ends[at] - begins[at]
        fills = fills & main if (fills & main).any() else fills
        filling = np.flatnonzero(fills)
        if len(filling):
            found[at] = rows[filling[np.lexsort((-begin[filling], (end - begin)[filling]))[0]]]
    return found


def _of_stretches(
    trace: Trace, axis: Axis, begins: Numbers, lengths: Numbers, fills: Rows
) -> tuple[Evidence, ...]:
    """Return the longest intervals with the event that fills each."""
    begin, _ = window_of(trace) or (0, 0)
    shown = []
    for at in np.argsort(-lengths, kind="stable")[:3].tolist():
        row = int(fills[at])
        name = trace.names[int(trace.events.name[row])] if row >= 0 else "no operator"
        time = int(begins[at]) + axis.begin_ns - begin
        shown.append(Evidence(name, time, int(lengths[at]), "ns"))
    return tuple(shown)


def _times_by_name(trace: Trace, lengths: Numbers, fills: Rows) -> dict[str, int]:
    """Return the time of intervals by the name of the event that fills them; the longest."""
    times: dict[str, int] = {}
    for row, length in zip(fills.tolist(), lengths.tolist(), strict=True):
        if row >= 0:
            name = trace.names[int(trace.events.name[row])]
            times[name] = times.get(name, 0) + length
    return dict(sorted(times.items(), key=lambda item: -item[1])[:_NAMED])


def _evidence(trace: Trace, operators: Mask, communicates: Mask) -> dict[str, tuple[Evidence, ...]]:
    """Return the longest events of each part."""
    events = trace.events
    found: dict[str, tuple[Evidence, ...]] = {}
    for part, which in (
        (DATA_LOADING, loads_data(trace)),
        (LOADER_START, named(trace, STARTS_LOADER)),
        (COMMUNICATING, communicates),
        (OPERATORS, operators),
        (BETWEEN_OPERATORS, operators),
    ):
        rows = np.flatnonzero(which)
        longest = rows[np.argsort(-events.dur_ns[rows], kind="stable")[:3]]
        found[part] = tuple(evidence(trace, int(row)) for row in longest)
    return found
