"""Each step's time on an Ascend device: computing, communicating, free; checked three ways.

The lanes that the profiler wrote are summed up, made again from the operators, and compared with
step_trace_time.csv where that is at hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stagespan.trace.analysis import ascend_waits
from stagespan.trace.analysis.ascend_waits import NOTIFY, Waits
from stagespan.trace.analysis.result import (
    Evidence,
    Finding,
    Nothing,
    Severity,
    Table,
    in_words,
    many,
    share,
)
from stagespan.trace.ascend.communication import Collectives
from stagespan.trace.ascend.kernel_lanes import step_times_of_kernels
from stagespan.trace.ascend.lanes import lanes_from_events, lanes_in
from stagespan.trace.ascend.step_ranges import step_ranges, whole_range
from stagespan.trace.ascend.step_times import (
    COLUMNS,
    StepTime,
    step_times,
    step_times_of_file,
)
from stagespan.trace.ascend.tables import CsvTable
from stagespan.trace.device import device_work
from stagespan.trace.model import Trace

EXPOSED_COMMUNICATION = "ascend.exposed_communication"
"""The code of the finding that tells of all waits within collectives."""
LANES, OPERATORS, FILE, KERNELS = "lanes", "operators", "file", "kernels"
_SOURCES = {
    LANES: "the lanes of the trace's Overlap Analysis",
    OPERATORS: "the operators in the trace",
    FILE: "step_trace_time.csv",
    KERNELS: "the rows of kernel_details.csv",
}
_FREE: tuple[tuple[float, Severity], ...] = ((50.0, "high"), (25.0, "medium"), (10.0, "low"))
_EXPOSED: tuple[tuple[float, Severity], ...] = ((25.0, "high"), (10.0, "medium"), (5.0, "low"))
_WORST = 3
_SHARE = 1e-6
_SHOWN = 4
_COARSE = ("stage_ns", "preparing_ns")
# What kernel_details.csv cannot tell: not every release has collectives in it, and a step's free
# time reaches to the next one's first operator.
_OF_TRACE = tuple(name for name in COLUMNS if name != "computing_ns")


@dataclass(frozen=True, slots=True)
class Difference:
    """A figure that two of the three do not have in common; times in ns."""

    step: str
    figure: str
    """The name of its column."""
    says: str
    time_ns: int
    other: str
    other_ns: int

    @property
    def sentence(self) -> str:
        """Who says what."""
        return (
            f"{self.figure} of {self.step}: {in_words(self.time_ns, 'ns')} by"
            f" {_SOURCES[self.says]}, {in_words(self.other_ns, 'ns')} by {_SOURCES[self.other]}"
        )


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps by device, and who said so."""

    source: str
    steps: list[StepTime]
    checked: dict[str, list[StepTime]]
    """The same steps by the others that are there."""
    differences: list[Difference] = field(default_factory=list)
    waits: Waits | None = None
    """What the streams waited for, if the trace shows it."""
    collectives: Collectives | None = None
    """What communication.json says about the collectives."""

    @property
    def exposed_ns(self) -> int:
        """Communication beside which nothing computed, in the steps whose stage is known."""
        return sum(step.exposed_ns or 0 for step in self._staged)

    @property
    def stage_ns(self) -> int:
        """The length of these steps' stages."""
        return sum(step.stage_ns or 0 for step in self._staged)

    @property
    def _staged(self) -> list[StepTime]:
        return [s for s in self.steps if s.stage_ns and s.exposed_ns is not None]

    def to_dict(self) -> dict[str, Any]:
        """For JSON, in microseconds."""
        return {
            "source": self.source,
            "steps": [step.to_dict() for step in self.steps],
            "checked_against": {
                source: [step.to_dict() for step in steps] for source, steps in self.checked.items()
            },
            "differences": [
                {
                    "step": d.step,
                    "figure": d.figure,
                    "source": d.says,
                    "time_us": d.time_ns / 1000,
                    "other": d.other,
                    "other_us": d.other_ns / 1000,
                }
                for d in self.differences
            ],
        }

    def findings(self) -> list[Finding]:
        """Exposed communication, free time that no trace explains, figures that do not agree."""
        found = self._exposed()
        found += self._free() if self.source in (FILE, KERNELS) else []
        for differences, severity, what, code in (
            (
                [d for d in self.differences if d.other == FILE],
                "medium",
                "step_trace_time.csv has it",
                "ascend.steps_differ_from_file",
            ),
            (
                [d for d in self.differences if d.other != FILE],
                "low",
                "the operators have it",
                "ascend.steps_differ_from_operators",
            ),
        ):
            if differences:
                found.append(
                    Finding(
                        severity,  # type: ignore[arg-type]
                        f"{many(len(differences), 'figure')} of steps not as {what}:"
                        f" {differences[0].sentence}.",
                        tuple(
                            Evidence(d.sentence, None, abs(d.time_ns - d.other_ns), "ns")
                            for d in differences[:5]
                        ),
                        code,
                    )
                )
        return found

    def _free(self) -> list[Finding]:
        """Much free time, where no trace tells why."""
        known = [s for s in self.steps if s.free_ns is not None and _span(s)]
        free, span = sum(s.free_ns or 0 for s in known), sum(_span(s) for s in known)
        percent = share(free, span)
        severity = next((s for least, s in _FREE if percent >= least), None)
        if severity is None:
            return []
        worst = sorted(known, key=lambda s: -(s.free_ns or 0))[:3]
        sentence = (
            f"For {in_words(free, 'ns')} ({percent:.1f} % of its time) the device was free: it"
            " neither computed nor communicated. The trace (trace_view.json) tells why."
        )
        evidence = tuple(Evidence(f"Free of {s.name}", None, s.free_ns, "ns") for s in worst)
        return [Finding(severity, sentence, evidence, "ascend.free")]

    def _exposed(self) -> list[Finding]:
        """Communication beside which nothing computed, with all that is known about it."""
        percent = share(self.exposed_ns, self.stage_ns)
        severity = next((s for least, s in _EXPOSED if percent >= least), None)
        if severity is None:
            return []
        worst = sorted(self._staged, key=lambda s: -(s.exposed_ns or 0))[:_WORST]
        stages = "the stage's" if len(self._staged) == 1 else "the stages'"
        sentence = (
            f"For {in_words(self.exposed_ns, 'ns')} of {stages} {in_words(self.stage_ns, 'ns')}"
            f" ({percent:.1f} %) the device communicated and computed nothing"
        )
        evidence = [
            Evidence(f"exposed communication of {s.name}", None, s.exposed_ns, "ns") for s in worst
        ]
        waits = [] if self.waits is None else self.waits.in_communication()
        # The last of them is the closest to the cause; all are in the evidence.
        sentence += f", {waits[-1][1]}." if waits else "."
        evidence += [each[0] for _, _, each in waits]
        evidence += [each[1] for _, _, each in waits]
        late = any(kind == NOTIFY for kind, *_ in waits)
        moved = None if self.collectives is None else self.collectives.moved
        if moved is not None:
            sentence += (
                f" Data moved for {in_words(moved.transit_ns, 'ns')} of the collectives'"
                f" {in_words(moved.elapse_ns, 'ns')}."
            )
            evidence.append(moved.longest)
            late |= 2 * moved.transit_ns < moved.elapse_ns
        waited = None if self.collectives is None else self.collectives.waited
        if waited is not None and waited.severity is not None:
            sentence += f" {waited.sentence}"
            evidence += waited.evidence[:1]
            late = True
        if late:
            sentence += " The other ranks were late, or the link was slow: compare the ranks."
        else:
            sentence += (
                " Start communication earlier, on its own stream, so that computation hides it."
            )
        return [Finding(severity, sentence, tuple(evidence), EXPOSED_COMMUNICATION)]

    def tables(self) -> list[Table]:
        """Steps as rows, with the columns of step_trace_time.csv."""
        rows = [
            (s.step or "all", *([s.device] if self._devices else []), *s.figures().values())
            for s in self.steps
        ]
        columns = [("step", ""), *([("device", "")] if self._devices else [])]
        columns += [(title, "ns") for title in COLUMNS.values()]
        return [Table("Steps on the device", tuple(columns), rows, self._note())]

    @property
    def headlines(self) -> list[str]:
        """The first steps on a line each, for a screen."""
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
            told = [f"{what} {in_words(time, 'ns')}" for what, time in times.items() if time]
            lines.append(f"{step.name}: {', '.join(told)}")
        if len(self.steps) > _SHOWN:
            lines.append(f"and {len(self.steps) - _SHOWN:,} more: see --markdown")
        return lines

    @property
    def _devices(self) -> bool:
        return any(step.device for step in self.steps)

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
    communication: Collectives | None = None,
) -> Steps | Nothing:
    """Sum up steps from a trace, and compare with step_trace_time.csv and kernel_details.csv.

    `communication` is what communication.json says about the same steps.
    """
    ranges = step_ranges(trace)
    in_file = [] if table is None else step_times_of_file(table)
    if not ranges or (in_file and not any(step.step for step in in_file)):
        ranges = [whole_range(trace)]
    found = {
        LANES: step_times(lanes_in(trace), ranges),
        OPERATORS: step_times(lanes_from_events(trace, device_work(trace)), ranges),
        FILE: in_file,
        KERNELS: [] if kernels is None else step_times_of_kernels(kernels),
    }
    found = {source: steps for source, steps in found.items() if steps}
    if not found:
        return Nothing(
            "Neither the trace nor step_trace_time.csv tells about an Ascend device's time:"
            " record it with the NPU's activity."
        )
    source = next(iter(found))
    others = {other: steps for other, steps in found.items() if other != source}
    waits = ascend_waits.analyze(trace)
    return Steps(
        source,
        found[source],
        others,
        _differences(source, found[source], others),
        waits if isinstance(waits, Waits) else None,
        communication,
    )


def _differences(
    source: str, steps: list[StepTime], others: dict[str, list[StepTime]]
) -> list[Difference]:
    found = []
    for other, theirs in others.items():
        by_step = {(s.device, s.step): s for s in theirs}
        # Older files do not name the only device.
        alone = len({s.device for s in theirs} | {s.device for s in steps} - {""}) <= 1
        if alone or not any(s.device for s in theirs):
            by_step |= {("", s.step): s for s in theirs}
        for step in steps:
            same = by_step.get((step.device, step.step)) or by_step.get(("", step.step))
            if same is None:
                continue
            for name, mine in step.figures().items():
                if other == KERNELS and name in _OF_TRACE:
                    continue
                their = same.figures()[name]
                if mine is None or their is None:
                    continue
                if abs(mine - their) > _apart(name, other, mine, step, same):
                    found.append(Difference(step.name, COLUMNS[name], source, mine, other, their))
    return found


def _apart(figure: str, other: str, time_ns: int, *steps: StepTime) -> float:
    """How far apart two figures may be that are equal: 1 ns, 1e-6, or what rounding makes out."""
    apart = max(1.0, _SHARE * abs(time_ns))
    if other in (OPERATORS, KERNELS):
        # Operators last fractions of ns; trace and lanes round each to ns.
        return max(apart, *(step.intervals or 0 for step in steps))
    # The file's are differences of times of day in doubles, which are 250 ns apart.
    return max(apart, 500.0) if figure in _COARSE else apart


def _span(step: StepTime) -> int:
    return (step.computing_ns or 0) + (step.exposed_ns or 0) + (step.free_ns or 0)
