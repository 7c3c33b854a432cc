"""Each step's time on an Ascend device: computing, communicating, free; from four sources."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
import numpy as np

from stagespan.pages.amounts import counted, in_percent, in_words
from stagespan.pages.figures import Figures, Internal, Ns, one_of
from stagespan.pages.result import (
    Block,
    Evidence,
    Finding,
    Gain,
    Line,
    Severity,
    StructResult,
    Table,
    Thresholds,
    Unavailable,
    share,
)
from stagespan.trace.ascend import waits as ascend_waits
from stagespan.trace.ascend.communication import CollectiveStats
from stagespan.trace.ascend.device import (
    COMMUNICATING,
    COMPUTING,
    EXPOSED,
    FREE,
    LAUNCH_FLOWS,
    OPERATOR_FLOWS,
    RECEIVE,
    RECEIVING,
    TRACK_KINDS,
    KindIntervals,
    overlap_from_events,
    overlap_in,
    overlap_of,
)
from stagespan.trace.ascend.folder import KERNEL_DETAILS, STEP_TRACE_TIME, TRACE
from stagespan.trace.ascend.waits import NOTIFY, StreamWaits
from stagespan.trace.derived.device import device_work
from stagespan.trace.derived.flows import joined_flows
from stagespan.trace.derived.gains import how_nothing_is_left, idle_gain
from stagespan.trace.read.csv_tables import CsvTable
from stagespan.trace.read.groups import by_group, values_of
from stagespan.trace.read.intervals import Intervals, Numbers
from stagespan.trace.read.model import Trace
from stagespan.trace.read.plausibility import is_ascend_idle
from stagespan.trace.read.sources import is_collective

_STEP = re.compile(r"^ProfilerStep#(\d+)$")
_ALL_TIME_NS = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


class StepRange(msgspec.Struct, frozen=True):
    """A step. Device work that begins from `begin_ns` until before `end_ns` belongs to it."""

    step: str
    """Its number; "" for a trace without steps, which is one step."""
    begin_ns: int
    end_ns: int
    host_begin_ns: int | None
    """The time at which it begins on the host; None if the trace shows no operator."""


def ascend_step_ranges(trace: Trace) -> list[StepRange]:
    """Return the steps in order, from the first work of each to its end on host and device.

    If there are no flows from host to device, a step is its time on the host.
    """
    events = trace.events
    named = {code: _STEP.match(name) for code, name in enumerate(trace.names)}
    steps = {code: match[1] for code, match in named.items() if match}
    rows = np.flatnonzero(np.isin(events.name, list(steps)))
    rows = rows[np.argsort(events.begin_ns[rows], kind="stable")]
    launched, begin, end = _launched(trace)
    order = np.argsort(launched, kind="stable")
    launched, begin, end = launched[order], begin[order], end[order]
    ranges = []
    for row in rows.tolist():
        first, last = int(events.begin_ns[row]), int(events.end_ns[row])
        launched_in = slice(*np.searchsorted(launched, (first, last)).tolist())
        ranges.append(
            StepRange(
                steps[int(events.name[row])],
                int(begin[launched_in].min()) if len(begin[launched_in]) else first,
                int(end[launched_in].max(initial=last)),
                first,
            )
        )
    return ranges


def whole_range(trace: Trace) -> StepRange:
    """Return the whole trace as one step; on the host it begins with the first operator."""
    events = trace.events
    operators = events.begin_ns[trace.rows_of(["cpu_op"])]
    begin = int(operators.min()) if len(operators) else None
    return StepRange("", *_ALL_TIME_NS, begin)


def step_of(ranges: list[StepRange], begin_ns: Numbers) -> Numbers:
    """Return the index in `ranges` of the step of each time on the device, or -1."""
    order = np.argsort(begin_ns, kind="stable")
    ascending = begin_ns[order]
    first = np.searchsorted(ascending, [each.begin_ns for each in ranges])
    last = np.searchsorted(ascending, [each.end_ns for each in ranges])
    steps = np.full(len(begin_ns), -1, dtype=np.int64)
    # In reverse, because a time in several steps belongs to the first of them.
    for number in reversed(range(len(ranges))):
        steps[first[number] : last[number]] = number
    found = np.empty_like(steps)
    found[order] = steps
    return found


def _launched(trace: Trace) -> tuple[Numbers, Numbers, Numbers]:
    """Return the times of launches with a flow to device work, and begin and end of that work."""
    flows = trace.flows
    starts, ends = joined_flows(trace, OPERATOR_FLOWS)
    if len(starts) == 0:
        starts, ends = joined_flows(trace, LAUNCH_FLOWS)
    begin = flows.begin_ns[ends]
    return flows.begin_ns[starts], begin, _ends_of(trace, begin, flows.pid[ends])


def _ends_of(trace: Trace, begin: Numbers, pid: Numbers) -> Numbers:
    """Return the latest end of the events that begin at these times."""
    events = trace.events
    rows = np.flatnonzero(events.pid.having(values_of(pid)))
    rows = rows[np.lexsort((events.end_ns[rows], events.begin_ns[rows]))]
    if len(rows) == 0:
        return begin
    at = np.searchsorted(events.begin_ns[rows], begin, side="right") - 1
    row = rows[np.maximum(at, 0)]
    exact = (at >= 0) & (events.begin_ns[row] == begin)
    result: Numbers = np.where(exact, events.end_ns[row], begin)
    return result


# --- Times of a step ---


COLUMNS = {
    "computing_ns": "Computing",
    "exposed_ns": "Communication(Not Overlapped)",
    "overlapped_ns": "Overlapped",
    "communication_ns": "Communication",
    "free_ns": "Free",
    "stage_ns": "Stage",
    "bubble_ns": "Bubble",
    "exposed_without_receive_ns": "Communication(Not Overlapped and Exclude Receive)",
    "preparing_ns": "Preparing",
}
"""The name and the column of each figure."""


class StepTime(Figures, frozen=True):
    """Times in ns; None is unknown."""

    device: str | None
    step: str | None
    """None for a trace without steps, which is one step."""
    computing_ns: Ns | None
    exposed_ns: Ns | None = msgspec.field(name="communication_not_overlapped_us")
    """Communication without computing."""
    overlapped_ns: Ns | None
    communication_ns: Ns | None
    free_ns: Ns | None
    """Neither computing nor communicating; includes copies."""
    stage_ns: Ns | None
    """From the step's first work on the device to the end of its last, less `bubble_ns`."""
    bubble_ns: Ns | None
    """Time of operators that receive from another stage of a pipeline."""
    exposed_without_receive_ns: Ns | None = msgspec.field(
        name="communication_not_overlapped_exclude_receive_us"
    )
    preparing_ns: Ns | None
    """From the step's start on the host to its first operator on the device."""
    intervals: Internal[int | None] = None
    """The number of summed intervals, each rounded to ns; None for a file."""

    def times(self) -> dict[str, int | None]:
        """The times by field name, in the order of `COLUMNS`."""
        return {name: getattr(self, name) for name in COLUMNS}

    @property
    def name(self) -> str:
        """The name of the step for pages."""
        step = f"step {self.step}" if self.step else "the whole trace"
        return f"{step}, device {self.device}" if self.device else step


def ascend_step_times(tracks: dict[str, KindIntervals], ranges: list[StepRange]) -> list[StepTime]:
    """Sum up each device's tracks by step. Steps without work on a device are left out."""
    times = []
    for device, of_device in sorted(tracks.items()):
        kinds = [of_device[kind] for kind in TRACK_KINDS]
        steps = [step_of(ranges, begin) for begin, _ in kinds]
        present = values_of(np.concatenate(steps))
        groups = [by_group(np.searchsorted(present, each), len(present)) for each in steps]
        for step, *rows in zip(present.tolist(), *groups, strict=True):
            if step >= 0:
                parts = [
                    (begin[mine], end[mine]) for (begin, end), mine in zip(kinds, rows, strict=True)
                ]
                times.append(_summed(device, ranges[step], KindIntervals(dict(enumerate(parts)))))
    return times


def _summed(device: str, step: StepRange, tracks: KindIntervals) -> StepTime:
    total = {k: int((tracks[k][1] - tracks[k][0]).sum()) for k in TRACK_KINDS}
    begin = np.concatenate([tracks[kind][0] for kind in TRACK_KINDS])
    end = np.concatenate([tracks[kind][1] for kind in TRACK_KINDS])
    work = np.concatenate((tracks[COMPUTING][0], tracks[COMMUNICATING][0]))
    preparing = None
    if len(work) and step.host_begin_ns is not None:
        preparing = int(work.min()) - step.host_begin_ns
    return StepTime(
        device=device or None,
        step=step.step or None,
        computing_ns=total[COMPUTING],
        exposed_ns=total[EXPOSED],
        overlapped_ns=total[COMMUNICATING] - total[EXPOSED],
        communication_ns=total[COMMUNICATING],
        free_ns=total[FREE],
        stage_ns=int(end.max() - begin.min()) - total[RECEIVING],
        bubble_ns=total[RECEIVING],
        exposed_without_receive_ns=total[EXPOSED] - total[RECEIVING],
        preparing_ns=preparing,
        intervals=len(begin),
    )


def step_times_of_file(table: CsvTable) -> list[StepTime]:
    """Return the rows of step_trace_time.csv. Cells that are not numbers are unknown.

    The file has the device -1 if it is unknown, and the step None if there are no steps.
    """
    cells = [table.amounts(column, "us") for column in COLUMNS.values()]
    devices = [None if text in ("", "-1") else text for text in table.texts("device_id", "device")]
    steps = [
        None if text.lower() in ("", "none") else text for text in table.texts("step", "step id")
    ]
    return [StepTime(*row) for row in zip(devices, steps, *cells, strict=True)]


# --- Times from kernel_details.csv ---


def step_times_of_kernels(table: CsvTable) -> list[StepTime]:
    """Return each step's times by device; empty if the table has no times of day.

    A step is the rows with its `Step Id`, or all rows if there is no such column. Collectives are
    rows of core HCCL or COMMUNICATION, which only some releases write.
    """
    rows = _rows(table)
    times = []
    for (device, step), mine in sorted(rows.items(), key=lambda item: (item[0], item[1][0])):
        whole = StepRange(step, *_ALL_TIME_NS, None)
        times += ascend_step_times({device: _tracks(np.array(mine, dtype=np.int64))}, [whole])
    return times


def intervals_of_kernels(table: CsvTable) -> Intervals | None:
    """Return the intervals of computing rows; None if the table has no times of day."""
    every = [row for rows in _rows(table).values() for row in rows]
    if not every:
        return None
    computes = [(begin, end) for begin, end, kind in every if kind == COMPUTING]
    edges = np.array(computes, dtype=np.int64).reshape(-1, 2)
    return edges[:, 0], edges[:, 1]


def _rows(table: CsvTable) -> dict[tuple[str, str], list[tuple[int, int, int]]]:
    """Return begin, end and kind of each row, by device and step."""
    if not table.has("start time", "duration"):
        return {}
    rows: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
    kinds: dict[tuple[str, str], int] = {}
    cells = zip(
        table.texts("device_id"),
        table.texts("step id", "step"),
        table.texts("name"),
        table.texts("accelerator core", "core type", "task type"),
        table.amounts("start time", "us"),
        table.amounts("duration", "us"),
        strict=True,
    )
    for device, step, name, core, begin, time in cells:
        if begin is None or time is None or time < 0:
            continue
        if not is_collective(core, name) and is_ascend_idle(core, name):
            continue
        kind = kinds.get((core, name))
        if kind is None:
            kind = kinds[core, name] = _kind(core, name)
        rows.setdefault((device, step), []).append((begin, begin + time, kind))
    return rows


def _kind(core: str, name: str) -> int:
    if RECEIVE.match(name):
        return RECEIVING
    return COMMUNICATING if is_collective(core, name) else COMPUTING


def _tracks(rows: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> KindIntervals:
    begin, end, kind = rows[:, 0], rows[:, 1], rows[:, 2]
    computes, receives = kind == COMPUTING, kind == RECEIVING
    return overlap_of(
        (begin[computes], end[computes]),
        (begin[~computes], end[~computes]),
        (begin[receives], end[receives]),
    )


# --- The analysis ---


_TRACKS, _OPERATORS, _FILE, _KERNELS = "tracks", "operators", "file", "kernels"
_SOURCES = {
    _TRACKS: "the tracks of the trace's Overlap Analysis",
    _OPERATORS: "the operators in the trace",
    _FILE: STEP_TRACE_TIME,
    _KERNELS: f"the rows of {KERNEL_DETAILS}",
}
_FREE = Thresholds(50.0, 25.0, 10.0)
_EXPOSED = Thresholds(25.0, 10.0, 5.0)
_WORST = 3
# The most steps that a screen shows.
_SHOWN = 4
_RELATIVE_TOLERANCE = 1e-6
# Figures that step_trace_time.csv contains only as differences of times of day.
_COARSE, _COARSE_NS = ("stage_ns", "preparing_ns"), 500.0
# Figures that kernel_details.csv does not contain, because not every release writes collectives to
# it, and a step's free time extends to the next step's first operator.
_OF_TRACE = tuple(name for name in COLUMNS if name != "computing_ns")


_Source = Annotated[str, one_of((_TRACKS, _OPERATORS, _FILE, _KERNELS))]


class Difference(Figures, frozen=True):
    """A figure that differs between two of the sources; times in ns."""

    step: str
    figure: str
    """The name of its column."""
    source: _Source
    time_ns: Ns
    other: _Source
    other_ns: Ns

    @property
    def sentence(self) -> str:
        """A sentence with both figures and their sources."""
        return (
            f"{self.figure} of {self.step}: {in_words(self.time_ns, 'ns')} by"
            f" {_SOURCES[self.source]}, {in_words(self.other_ns, 'ns')} by {_SOURCES[self.other]}"
        )


class AscendSteps(StructResult, frozen=True):
    """Steps by device, and the source of their times."""

    source: _Source
    steps: list[StepTime]
    checked: dict[str, list[StepTime]] = msgspec.field(name="checked_against")
    """The same steps from the other sources."""
    differences: list[Difference]
    waits: Internal[StreamWaits | None]
    """The waits of streams, if the trace shows them."""
    collectives: Internal[CollectiveStats | None]
    """The collectives of communication.json."""

    @property
    def exposed_ns(self) -> int:
        """Communication without computing, in steps with a known stage time."""
        return sum(step.exposed_ns or 0 for step in self._staged)

    @property
    def stage_ns(self) -> int:
        """The stage time of these steps."""
        return sum(step.stage_ns or 0 for step in self._staged)

    @property
    def _staged(self) -> list[StepTime]:
        return [s for s in self.steps if s.stage_ns and s.exposed_ns is not None]

    def findings(self) -> list[Finding]:
        """Findings about exposed communication, free time without a trace, and differences."""
        from_file = [each for each in self.differences if each.other == _FILE]
        from_operators = [each for each in self.differences if each.other != _FILE]
        return [
            *self._exposed(),
            *(self._free() if self.source in (_FILE, _KERNELS) else []),
            *self._differing(from_file, "medium", STEP_TRACE_TIME, "ascend.steps_differ_from_file"),
            *self._differing(
                from_operators, "low", "other sources", "ascend.steps_differ_from_operators"
            ),
        ]

    def _free(self) -> list[Finding]:
        """Return a finding about much idle time, if there is no trace that shows why."""
        with_times = [s for s in self.steps if s.free_ns is not None and _span(s)]
        free, span = sum(s.free_ns or 0 for s in with_times), sum(_span(s) for s in with_times)
        percent = share(free, span)
        severity = _FREE.severity(percent)
        if severity is None:
            return []
        worst = sorted(with_times, key=lambda s: -(s.free_ns or 0))[:3]
        sentence = (
            f"For {in_words(free, 'ns')} of the steps' {in_words(span, 'ns')}"
            f" ({in_percent(percent)}) the device was idle: it neither computed nor communicated."
        )
        evidence = tuple(Evidence(f"free time of {s.name}", None, s.free_ns, "ns") for s in worst)
        numbers = {"time_ns": free, "percent": percent, "whole_ns": span}
        action, gain = f"The trace ({TRACE}) shows why.", idle_gain(free)
        code = "ascend.free"
        return [Finding(severity, sentence, evidence, code, numbers, gain, action=action)]

    def _exposed(self) -> list[Finding]:
        """Return a finding about communication without computing, with its known causes."""
        percent = share(self.exposed_ns, self.stage_ns)
        severity = _EXPOSED.severity(percent)
        if severity is None:
            return []
        worst = sorted(self._staged, key=lambda s: -(s.exposed_ns or 0))[:_WORST]
        stages = "the stage's" if len(self._staged) == 1 else "the stages'"
        sentence = (
            f"For {in_words(self.exposed_ns, 'ns')} of {stages} {in_words(self.stage_ns, 'ns')}"
            f" ({in_percent(percent)}) the device communicated without computing"
        )
        evidence = [
            Evidence(f"exposed communication of {s.name}", None, s.exposed_ns, "ns") for s in worst
        ]
        waits = [] if self.waits is None else self.waits.in_communication()
        # The last of them is the closest to the cause; all are in the evidence.
        sentence += f", {waits[-1].clause}." if waits else "."
        evidence += [each.exposed for each in waits]
        evidence += [each.longest for each in waits]
        late = any(each.kind == NOTIFY for each in waits)
        moved = None if self.collectives is None else self.collectives.moved
        details: list[str] = []
        if moved is not None:
            details.append(moved.sentence)
            evidence.append(moved.longest)
            late |= 2 * moved.transit_ns < moved.elapse_ns
        waited, more = None if self.collectives is None else self.collectives.waited, {}
        if waited is not None and waited.severity is not None:
            details.append(waited.sentence)
            evidence += waited.evidence[:1]
            more = {f"waited_{name}": figure for name, figure in waited.numbers.items()}
            late = True
        action = "Start communication earlier, on its own stream, so that computation hides it."
        if late:
            action = "Compare the ranks."
            details.append("The other ranks were late, or the link was slow.")
        numbers: dict[str, float] = {
            "time_ns": self.exposed_ns,
            "percent": percent,
            "whole_ns": self.stage_ns,
        }
        if waits:
            numbers["waiting_ns"] = waits[-1].time_ns
        if moved is not None:
            numbers |= {"moved_ns": moved.transit_ns, "collectives_ns": moved.elapse_ns}
        seen, numbers = tuple(evidence), numbers | more
        code, gain = "ascend.exposed_communication", self._hidden_or_shorter()
        covers = ("ascend.collectives_waited", "device_use.exposed_communication")
        return [
            Finding(
                severity,
                sentence,
                seen,
                code,
                numbers,
                gain,
                action=action,
                details=" ".join(details),
                covers=covers,
            )
        ]

    def _hidden_or_shorter(self) -> Gain:
        """Return what is won if no communication is exposed: some is hidden, the rest shorter."""
        rooms = [
            min(s.exposed_ns or 0, max((s.computing_ns or 0) - (s.overlapped_ns or 0), 0))
            for s in self._staged
        ]
        how = how_nothing_is_left(sum(rooms), self.exposed_ns)
        return Gain(self.exposed_ns, at_most=True, how=how)

    def _differing(
        self, differences: list[Difference], severity: Severity, what: str, code: str
    ) -> list[Finding]:
        """Return the finding about figures that differ from `what`; [] without differences."""
        if not differences:
            return []
        figures = counted(len(differences), "figure")
        differ = "differs" if len(differences) == 1 else "differ"
        sentence = f"{figures} of steps {differ} from {what}: {differences[0].sentence}."
        evidence = tuple(
            Evidence(each.sentence, None, abs(each.time_ns - each.other_ns), "ns")
            for each in differences[:5]
        )
        numbers = {"differences": len(differences)}
        used = f"The figures are those of {_SOURCES[self.source]}."
        return [Finding(severity, sentence, evidence, code, numbers=numbers, details=used)]

    def tables(self) -> list[Table]:
        """Steps as rows, with the columns of step_trace_time.csv."""
        devices = any(step.device for step in self.steps)
        return [
            Table.of(
                "Steps on the device",
                self.steps,
                (lambda step: step.step or "all", "step", ""),
                *([("device", "device", "")] if devices else []),
                *((name, title, "ns") for name, title in COLUMNS.items()),
                note=self._note(),
            )
        ]

    def head(self) -> list[Block]:
        """One line for each of the first steps."""
        lines = []
        for step in self.steps[:_SHOWN]:
            times = {
                "computing": step.computing_ns,
                "communicating alone": step.exposed_ns,
                "free": step.free_ns,
                "stage": step.stage_ns,
                "bubble": step.bubble_ns,
                "preparing": step.preparing_ns,
            }
            listed = [f"{what} {in_words(time, 'ns')}" for what, time in times.items() if time]
            lines.append(f"{step.name}: {', '.join(listed)}")
        if len(self.steps) > _SHOWN:
            lines.append(f"and {len(self.steps) - _SHOWN:,} more: see --markdown")
        return [Line(line) for line in lines]

    def _note(self) -> str:
        note = f"From {_SOURCES[self.source]}."
        if self.checked:
            others = ", ".join(_SOURCES[other] for other in self.checked)
            agree = f"{len(self.differences):,} figures differ" if self.differences else "all agree"
            note += f" Checked against {others}: {agree}."
        return note


def analyze(
    trace: Trace,
    table: CsvTable | None = None,
    kernels: CsvTable | None = None,
    communication: CollectiveStats | None = None,
) -> AscendSteps | Unavailable:
    """Sum up steps from a trace, and compare with step_trace_time.csv and kernel_details.csv.

    `communication` is what communication.json says about the same steps.
    """
    ranges = ascend_step_ranges(trace)
    in_file = [] if table is None else step_times_of_file(table)
    if not ranges or (in_file and not any(step.step for step in in_file)):
        ranges = [whole_range(trace)]
    by_source = {
        _TRACKS: ascend_step_times(overlap_in(trace), ranges),
        _OPERATORS: ascend_step_times(overlap_from_events(trace, device_work(trace)), ranges),
        _FILE: in_file,
        _KERNELS: [] if kernels is None else step_times_of_kernels(kernels),
    }
    by_source = {source: steps for source, steps in by_source.items() if steps}
    if not by_source:
        return Unavailable(
            f"Neither the trace nor {STEP_TRACE_TIME} contains the time of an Ascend device:"
            " record it with the NPU's activity.",
            "no_device",
        )
    source = next(iter(by_source))
    if source == _TRACKS and _OPERATORS in by_source:
        tracks, operators = by_source[_TRACKS], by_source[_OPERATORS]
        intervals = sum(step.intervals or 0 for step in (*tracks, *operators))
        more = _work(operators) - _work(tracks)
        # The tracks may lack work; if they show more, a view has it in its operators too.
        if more > max(intervals, _RELATIVE_TOLERANCE * _work(tracks)):
            source = _OPERATORS
    others = {other: steps for other, steps in by_source.items() if other != source}
    waits = ascend_waits.analyze(trace)
    return AscendSteps(
        source,
        by_source[source],
        others,
        _differences(source, by_source[source], others),
        waits if isinstance(waits, StreamWaits) else None,
        communication,
    )


def _differences(
    source: str, steps: list[StepTime], others: dict[str, list[StepTime]]
) -> list[Difference]:
    differences = []
    for other, theirs in others.items():
        by_step = {(s.device, s.step): s for s in theirs}
        # Older files do not name the only device.
        alone = len({s.device for s in theirs} | {s.device for s in steps} - {None}) <= 1
        if alone or not any(s.device for s in theirs):
            by_step |= {(None, s.step): s for s in theirs}
        for step in steps:
            same = by_step.get((step.device, step.step)) or by_step.get((None, step.step))
            if same is None:
                continue
            for name, this_ns in step.times().items():
                if other == _KERNELS and name in _OF_TRACE:
                    continue
                their = same.times()[name]
                if this_ns is None or their is None:
                    continue
                if abs(this_ns - their) > _tolerance(name, other, this_ns, step, same):
                    differences.append(
                        Difference(step.name, COLUMNS[name], source, this_ns, other, their)
                    )
    return differences


def _tolerance(figure: str, other: str, time_ns: int, *steps: StepTime) -> float:
    """Return the largest difference at which two figures count as equal.

    This is 1 ns, 1e-6 of the time, or the error of rounding.
    """
    tolerance = max(1.0, _RELATIVE_TOLERANCE * abs(time_ns))
    if other in (_OPERATORS, _KERNELS):
        # Durations of operators have fractions of ns, which trace and tracks round to ns.
        return max(tolerance, *(step.intervals or 0 for step in steps))
    # Times of day in doubles are 250 ns apart.
    return max(tolerance, _COARSE_NS) if figure in _COARSE else tolerance


def _work(steps: list[StepTime]) -> int:
    """Return the time with computing or communication."""
    return sum((step.computing_ns or 0) + (step.exposed_ns or 0) for step in steps)


def _span(step: StepTime) -> int:
    return (step.computing_ns or 0) + (step.exposed_ns or 0) + (step.free_ns or 0)
