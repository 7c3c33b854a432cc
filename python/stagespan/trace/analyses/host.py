"""Shows how a trace without a device spent its time: operators, communication, and gaps.

This analysis applies only to traces without device events, where operators are the work itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
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
from stagespan.trace.derived.gains import gain_of_work, gain_shared_by
from stagespan.trace.derived.gaps import QUIET_NS
from stagespan.trace.derived.host_work import FIRST_BATCH, LOADER_STARTS, host_work
from stagespan.trace.derived.idle_causes import (
    COMMUNICATES,
    MARKS,
    PREPARES_COMPILED,
    loads_data,
)
from stagespan.trace.derived.missing import DAMAGED_TIMES
from stagespan.trace.derived.step_ranges import step_begins, step_ranges
from stagespan.trace.derived.threads import Axis, named
from stagespan.trace.derived.windows import BaseWindow, base_window
from stagespan.trace.evidence import evidence, window_of
from stagespan.trace.rates.collectives import exposed_calls, work_of
from stagespan.trace.read.groups import counts_of, median, values_of
from stagespan.trace.read.intervals import Cover, Mask, Numbers, Rows, merged
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once

DATA_LOADING, OPERATORS, COMMUNICATING = "data_loading", "operators", "communication"
LOADER_START, BETWEEN_STEPS, OTHER = "loader_start", "between_steps", "other"
UNSEEN, BETWEEN_OPERATORS, COMPILING = "unseen", "between_operators", "compilation"
PARTS = {
    LOADER_START: "starting and ending the data loader",
    DATA_LOADING: "loading data",
    OPERATORS: "operators",
    COMMUNICATING: "communication while no operator ran",
    COMPILING: "compiling",
    BETWEEN_STEPS: "no operator at the end of a step, or between two",
    OTHER: "no operator, but Python or an annotation",
    UNSEEN: "no operator, cause unknown",
    BETWEEN_OPERATORS: "between operators",
}
_SHARES = Thresholds(25.0, 10.0, 5.0)
# Percent: less time between consecutive operators is not reported.
_BETWEEN_LEAST = 25.0
# In the others, the host waited, or the next batch takes as long.
_MAY_WORK = (LOADER_START, OTHER, UNSEEN, BETWEEN_OPERATORS)
# The finding on compiled code is about compiling.
_NO_FINDING = (OPERATORS, COMPILING)
_ENDS_LOADER = re.compile(r"torch/utils/data/dataloader\.py\(\d+\): _shutdown_workers$")
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
    LOADER_START: "the program started the data loader, waited for its first batch or ended it",
    COMMUNICATING: "the program communicated while no operator ran",
    BETWEEN_STEPS: "no operator ran at the end of a step",
    OTHER: "annotated code or Python ran, and no operator",
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
    prepares = trace.rows_of(["cpu_op"]) & named(trace, PREPARES_COMPILED)
    operators = trace.rows_of(["cpu_op"]) & ~named(trace, MARKS) & ~communicates & ~prepares
    if not operators.any():
        return Unavailable(
            "The trace has no operators, so the use of the host's time is unknown.", "no_operators"
        )
    base = base_window(trace)
    if base is None or not (axis := Axis(base.begin_ns, base.end_ns, 1)).fits:
        return DAMAGED_TIMES
    work = host_work(trace)

    def cover(times: Cover) -> Cover:
        return Cover(axis.place(_ONLY, times.begin), axis.place(_ONLY, times.end))

    def cover_of(which: Mask) -> Cover:
        return Cover(*_placed(axis, trace, which))

    started = frames & named(trace, STARTS_LOADER)
    covers = {
        LOADER_START: cover_of(started | (frames & named(trace, _ENDS_LOADER)))
        | cover(_first_waits(trace, np.sort(events.end_ns[started]))),
        DATA_LOADING: cover(work.loading),
        OPERATORS: cover(work.computing),
        COMMUNICATING: cover(work.communicating),
        COMPILING: cover(work.compiling),
    }
    # For traces in which nothing that is known runs for long.
    begins, ends = _between(covers.values(), base.whole_ns)
    long = ends - begins > QUIET_NS
    begins, ends = begins[long], ends[long]
    fillers = (trace.rows_of(_FILLERS) | launches(trace)) & ~named(trace, _NO_FILLER) | prepares
    seen = 2 * cover_of(fillers).length(begins, ends) >= ends - begins
    starts = ~seen & _starts_loader(trace, axis, begins, ends)
    covers[LOADER_START] |= Cover(begins[starts], ends[starts])
    covers[LOADER_START] |= cover(_first_waits(trace, axis.time_ns(begins[starts])))
    begins, ends, seen = begins[~starts], ends[~starts], seen[~starts]
    steps = axis.place(_ONLY, step_begins(trace))
    crosses = np.searchsorted(steps, begins, "right") < np.searchsorted(steps, ends, "right")
    quiet = {BETWEEN_STEPS: crosses, OTHER: ~crosses & seen, UNSEEN: ~crosses & ~seen}
    fills = _fillers(trace, axis, fillers, operators, (begins, ends))
    sets = [*covers.values(), *(Cover(begins[which], ends[which]) for which in quiet.values())]
    evidence_of = _evidence(trace, base, operators, communicates & marks)
    if starts.any():
        evidence_of[LOADER_START] = (*_first_batches(trace, base), *evidence_of[LOADER_START])[:3]
    filled = {}
    for part, which in quiet.items():
        chosen = np.flatnonzero(which)
        own = (ends - begins)[chosen]
        evidence_of[part] = _of_stretches(trace, axis, begins[chosen], own, fills[chosen])
        filled[part] = _times_by_name(trace, axis, begins[chosen], own, fills[chosen])
    times = _parts(sets, base.whole_ns)
    in_base = operators & (events.end_ns >= base.begin_ns) & (events.begin_ns <= base.end_ns)
    in_base = in_base if in_base.any() else operators
    computing, communicating = covers[OPERATORS], covers[COMMUNICATING]
    hidden = communicating.time_in(0, base.whole_ns) + computing.time_in(0, base.whole_ns)
    hidden -= (computing | communicating).time_in(0, base.whole_ns)
    return Host(
        span_ns=base.whole_ns,
        room_ns=computing.time_in(0, base.whole_ns) - hidden,
        parts={part: time for part, time in zip(PARTS, times, strict=True) if time},
        exposed_calls=exposed_calls(trace, *work_of(trace), (base.begin_ns, base.end_ns)),
        operators=int(in_base.sum()),
        operator_ns=int(median(events.dur_ns[in_base])),
        evidence=evidence_of,
        filled={part: times for part, times in filled.items() if times},
        facts=Facts(trace),
        base=base,
        steps_touch=_steps_touch(trace),
    )


def _between(sets: Iterable[Cover], length: int) -> tuple[Numbers, Numbers]:
    """Return the intervals of the base that are in none of the sets."""
    begin = np.concatenate([each.begin for each in sets])
    end = np.concatenate([each.end for each in sets])
    begin, end = merged(begin, end)
    return np.append(0, end), np.append(begin, length)


def _starts_loader(trace: Trace, axis: Axis, begins: Numbers, ends: Numbers) -> Mask:
    """Which intervals end with the first batch of a loader with workers, and are unusually long.

    The loader starts its workers then, of which a trace without stacks shows nothing.
    """
    rows = _first_batches_rows(trace)
    starts = np.zeros(len(begins), dtype=np.bool_)
    batches = axis.place(_ONLY, np.sort(trace.events.begin_ns[rows]))
    if len(batches) == 0 or len(begins) == 0:
        return starts
    at = np.flatnonzero(np.isin(ends, batches))
    first = at[ends[at] == batches[0]]
    others = (ends - begins)[np.setdiff1d(at, first)]
    usual = int(median(others)) if len(others) else 0
    starts[first] = (ends - begins)[first] >= LOADER_STARTS * usual
    return starts


def _first_batches_rows(trace: Trace) -> Rows:
    return np.flatnonzero(loads_data(trace) & named(trace, FIRST_BATCH))


def _first_waits(trace: Trace, started_ns: Numbers) -> Cover:
    """Return how long the program waited for the first batches of new workers.

    That is beyond the wait for other batches. The times are those at which loaders were started.
    """
    events, rows = trace.events, _first_batches_rows(trace)
    rows = rows[np.argsort(events.begin_ns[rows], kind="stable")]
    first = np.searchsorted(events.begin_ns[rows], started_ns)
    first = values_of(first[first < len(rows)])
    others = np.delete(rows, first)
    if len(others) == 0:
        return Cover(_ONLY[:0], _ONLY[:0])
    begin = events.begin_ns[rows[first]] + int(median(events.dur_ns[others]))
    return Cover(begin, events.end_ns[rows[first]])


def _first_batches(trace: Trace, base: BaseWindow) -> tuple[Evidence, ...]:
    """Return the first batch of a loader with workers."""
    rows = _first_batches_rows(trace)
    rows = rows[base.contains(trace, rows)]
    return (evidence(trace, int(rows[np.argmin(trace.events.begin_ns[rows])])),)


def _steps_touch(trace: Trace) -> bool:
    """Whether each step begins where the one before it ends."""
    steps = step_ranges(trace)
    if steps is None or len(steps) < 2:
        return False
    between = int((steps.begin_ns[1:] - steps.end_ns[:-1]).sum())
    return 100 * between <= int(steps.end_ns[-1] - steps.begin_ns[0])


def _parts(sets: list[Cover], length: int) -> list[int]:
    """Return the time of the base in each set and in none before it, and the rest."""
    reached, so_far = [0], sets[0]
    for each in sets:
        so_far = so_far | each
        reached.append(so_far.time_in(0, length))
    times: list[int] = np.diff([*reached, length]).tolist()
    return times


class Host(StructResult, frozen=True):
    """Times of the process in ns. Each moment belongs to the first of PARTS that applies."""

    span_ns: Ns
    """The length of the steps, or of the trace if it has no steps."""
    parts: dict[_Part, Ns] = msgspec.field(name="parts_us")
    """They sum to `span_ns`."""
    operators: Count
    operator_ns: Ns = msgspec.field(name="median_operator_us")
    """Median duration of an operator."""
    filled: dict[_Part, dict[str, Ns]] = msgspec.field(name="instead_of_operators_us")
    """The time in ns by the name of what ran instead of operators, for each such part."""
    room_ns: Internal[int]
    """The time in which operators ran and nothing communicated."""
    exposed_calls: Internal[tuple[Rows, Numbers]]
    """The collectives, and the time of each in the base in which no operator ran."""
    evidence: Internal[dict[str, tuple[Evidence, ...]]]
    facts: Internal[Facts]
    base: Internal[BaseWindow]
    steps_touch: Internal[bool]
    """Whether each step begins where the one before it ends, so that no time is between them."""

    def findings(self) -> list[Finding]:
        """Findings about parts other than operators that took much of the time."""
        findings = []
        for part, time in sorted(self.parts.items(), key=lambda item: -item[1]):
            percent = share(time, self.span_ns)
            severity = _SHARES.severity(percent)
            if severity is None or part in _NO_FINDING:
                continue
            if part == BETWEEN_OPERATORS and percent < _BETWEEN_LEAST:
                continue
            sentence = f"For {self.base.part(time)} {_SENTENCES[part]}"
            if part == BETWEEN_STEPS and not self.steps_touch:
                sentence += " or between two steps"
            numbers = self.base.figures_of(time)
            if part == BETWEEN_OPERATORS:
                numbers |= {"operators": self.operators, "median_operator_ns": self.operator_ns}
                sentence += (
                    f": there are {self.operators:,} operators, and the median operator takes"
                    f" {in_words(self.operator_ns, 'ns')}"
                )
            elif self.filled.get(part):
                name, inside = next(iter(self.filled[part].items()))
                numbers["longest_ns"] = inside
                sentence += f", {filled_mostly(name, inside, time)}"
            findings.append(
                Finding(
                    severity,
                    f"{sentence}.",
                    self.evidence[part],
                    _CODES[part],
                    numbers,
                    self._gain(part),
                    action=advice_on(f"host.{part}", self.facts),
                )
            )
        return findings

    def _gain(self, part: str) -> Gain | None:
        """Return what the steps win without a part, or if operators run beside it."""
        time, how = self.parts[part], _GAINS[part]
        if part == COMMUNICATING:
            if self.room_ns < time:
                room = in_words(self.room_ns, "ns")
                how = f"it runs beside all {room} of operators that have none beside them"
            time = min(time, self.room_ns)
            return gain_shared_by(*self.exposed_calls, time, how) if time else None
        if part in _MAY_WORK and time:
            return gain_of_work(time, self.span_ns, how)
        return Gain(time, at_most=True, how=how) if time else None

    def tables(self) -> list[Table]:
        """Time by part."""
        rows = [(PARTS[part], time, share(time, self.span_ns)) for part, time in self.parts.items()]
        columns = (("", ""), ("time", "ns"), (f"of {self.base.label}", "%"))
        return [Table("Host", columns, rows)]


def filled_mostly(name: str, inside_ns: int, time_ns: int) -> str:
    """Return where a time was, and whether that is most of it."""
    word = "mostly in" if 2 * inside_ns >= time_ns else "the longest part in"
    return f"{word} {shortened(name, 90)} ({in_words(inside_ns, 'ns')})"


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
    filler = np.full(len(begins), -1, dtype=np.intp)
    possible = fillers & (2 * events.dur_ns > QUIET_NS)
    rows = np.flatnonzero(possible)
    if len(rows) == 0 or len(begins) == 0:
        return filler
    begin, end = _placed(axis, trace, possible)
    threads, count = counts_of(events.tid[operators])
    main = events.tid[rows] == threads[np.argmax(count)]
    for at in np.argsort(begins - ends, kind="stable")[:_MOST_STRETCHES].tolist():
        inside = np.minimum(end, ends[at]) - np.maximum(begin, begins[at])
        fills = 2 * inside >= ends[at] - begins[at]
        fills = fills & main if (fills & main).any() else fills
        filling = np.flatnonzero(fills)
        if len(filling):
            filler[at] = rows[filling[np.lexsort((-begin[filling], (end - begin)[filling]))[0]]]
    return filler


def _of_stretches(
    trace: Trace, axis: Axis, begins: Numbers, lengths: Numbers, fills: Rows
) -> tuple[Evidence, ...]:
    """Return the longest intervals with the event that fills each."""
    begin, _ = window_of(trace) or (0, 0)
    stretches = []
    for at in np.argsort(-lengths, kind="stable")[:3].tolist():
        row, start, length = int(fills[at]), int(begins[at]), int(lengths[at])
        name = "no operator"
        if row >= 0:
            name = trace.names[int(trace.events.name[row])]
            start, length = _overlap(trace, axis, row, start, length)
        stretches.append(Evidence(name, start + axis.begin_ns - begin, length, "ns"))
    return tuple(stretches)


def _overlap(trace: Trace, axis: Axis, row: int, begin: int, length: int) -> tuple[int, int]:
    """Return the start and the length of the part of an interval in which an event was open."""
    first = max(begin, int(trace.events.begin_ns[row]) - axis.begin_ns)
    last = min(begin + length, int(trace.events.end_ns[row]) - axis.begin_ns)
    return first, last - first


def _times_by_name(
    trace: Trace, axis: Axis, begins: Numbers, lengths: Numbers, fills: Rows
) -> dict[str, int]:
    """Return the time of the events that fill intervals by name; the longest."""
    times: dict[str, int] = {}
    each = zip(fills.tolist(), begins.tolist(), lengths.tolist(), strict=True)
    for row, begin, length in each:
        if row >= 0:
            name = trace.names[int(trace.events.name[row])]
            times[name] = times.get(name, 0) + _overlap(trace, axis, row, begin, length)[1]
    return dict(sorted(times.items(), key=lambda item: -item[1])[:_NAMED])


def _evidence(
    trace: Trace, base: BaseWindow, operators: Mask, communicates: Mask
) -> dict[str, tuple[Evidence, ...]]:
    """Return the longest events of each part that begin in the base."""
    events = trace.events
    evidence_of: dict[str, tuple[Evidence, ...]] = {}
    for part, which in (
        (DATA_LOADING, loads_data(trace)),
        (LOADER_START, named(trace, STARTS_LOADER)),
        (COMMUNICATING, communicates),
        (OPERATORS, operators),
        (BETWEEN_OPERATORS, operators),
    ):
        rows = np.flatnonzero(which)
        rows = rows[base.contains(trace, rows)]
        longest = rows[np.argsort(-events.dur_ns[rows], kind="stable")[:3]]
        evidence_of[part] = tuple(evidence(trace, int(row)) for row in longest)
    return evidence_of
