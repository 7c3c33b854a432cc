"""Combines ncu's measurements of a stage's kernels with their times in the trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from stagespan.trace.figures import Count, Figures
from stagespan.trace.ncu import reading as m
from stagespan.trace.ncu.command import Top, TopKernels, base_name, one_way, without_parameters
from stagespan.trace.ncu.limits import (
    CANNOT_TELL,
    Judgement,
    Point,
    Roofs,
    bytes_of,
    judge,
    point_of,
    roofs_of,
)
from stagespan.trace.ncu.reading import Measured, Reading
from stagespan.trace.result import (
    Block,
    Cell,
    Evidence,
    Finding,
    Line,
    Severity,
    Table,
    Thresholds,
    Titled,
    by_severity,
    in_words,
    share,
    shortened,
)

# Percentages of the stage's kernel time.
_SHARES = Thresholds(25.0, 10.0, 0.0)
# On the first screen.
_ROWS_SHOWN = 10
_ADVICE = {
    "memory-bound": "Less traffic helps: fuse it with its neighbours, or use a smaller type",
    "compute-bound": "Less arithmetic, or a type that the tensor cores support, helps",
    "latency-bound": "More parallel work in flight helps: larger inputs, more blocks or warps",
    "balanced": "It is close to both limits",
}


@dataclass(frozen=True, slots=True)
class Judged:
    """One kernel of the stage: the longest launch that ncu measured, and its launcher."""

    kernel: Measured
    launches: int
    """The number of launches of the same name that ncu measured."""
    judgement: Judgement
    point: Point | None
    traced: Top | None
    """The kernel of the breakdown; None if none or several match."""
    operator: str | None
    stage: str | None


class RoofFigures(Figures, frozen=True):
    """The peaks of the device, as far as they are known."""

    bytes_per_second: float | None
    operations_per_second: dict[str, float]


class NcuKernel(Figures, frozen=True):
    """A `Judged` kernel in JSON."""

    name: str
    bound: str
    reasons: list[str]
    operator: str | None
    stage: str | None
    traced_ms: float | None
    traced_percent: float | None
    """Percentage of the stage's kernel time."""
    launches_measured: Count
    duration_us: float | None
    compute_percent: float | None
    memory_percent: float | None
    memory_level: str | None
    occupancy_percent: float | None
    stall: str | None
    stall_percent: float | None
    dram_bytes: float | None
    dram_bytes_per_second: float | None
    operations: float | None
    operations_per_second: float | None
    operations_per_byte: float | None
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None


class NcuFigures(Figures, frozen=True):
    """The content of a file of ncu."""

    schema_version: int
    file: str
    incomplete: str | None
    left_out: dict[str, Count]
    stage: str | None
    not_measured: list[str]
    roofs: RoofFigures
    kernels: list[NcuKernel]


@dataclass(frozen=True, slots=True)
class NcuReport(Titled):
    """All kernels of a file of ncu, first the one that takes most of the stage's time."""

    reading: Reading
    top: TopKernels | None
    judged: list[Judged]
    roofs: Roofs
    missing: list[Top]
    """Kernels of the breakdown that were requested, but not measured."""

    def figures(self) -> NcuFigures:
        """For JSON."""
        return NcuFigures(
            schema_version=1,
            file=self.reading.path,
            incomplete=self.reading.incomplete,
            left_out=dict(self.reading.left_out),
            stage=None if self.top is None else self.top.stage,
            not_measured=[kernel.name for kernel in self.missing],
            roofs=RoofFigures(self.roofs.bandwidth, dict(self.roofs.rates)),
            kernels=[self._kernel(each) for each in self.judged],
        )

    def _kernel(self, each: Judged) -> NcuKernel:
        judgement, values, point = each.judgement, each.kernel.metrics, each.point
        seconds = values.get(m.DURATION)
        moved = bytes_of(each.kernel)
        stall, stall_percent = judgement.stall or (None, None)
        return NcuKernel(
            name=each.kernel.name,
            bound=judgement.bound,
            reasons=list(judgement.reasons),
            operator=each.operator,
            stage=each.stage,
            traced_ms=None if each.traced is None else each.traced.ms,
            traced_percent=self._percent(each),
            launches_measured=each.launches,
            duration_us=None if seconds is None else seconds * 1e6,
            compute_percent=judgement.compute,
            memory_percent=judgement.memory,
            memory_level=judgement.level,
            occupancy_percent=judgement.occupancy,
            stall=stall,
            stall_percent=stall_percent,
            dram_bytes=moved,
            dram_bytes_per_second=moved / seconds if moved and seconds else None,
            operations=None if point is None else point.operations,
            operations_per_second=None if point is None else point.rate,
            operations_per_byte=None if point is None else point.intensity,
            grid=each.kernel.grid,
            block=each.kernel.block,
        )

    def _percent(self, each: Judged) -> float | None:
        if each.traced is None or self.top is None or not self.top.total_ms:
            return None
        return share(each.traced.ms, self.top.total_ms)

    def title(self) -> tuple[str, str]:
        """The subject, and the number of launches that were read."""
        launches = self.reading.kernels
        stage = f"{self.top.stage}: " if self.top is not None else ""
        time = sum(kernel.metrics.get(m.DURATION, 0) for kernel in launches)
        length = f", {in_words(time * 1e9, 'ns')} on the device" if time else ""
        kernels = len(self.judged)
        sentence = f"{stage}{len(launches):,} launches of {kernels:,} kernels measured{length}"
        return "Kernels by Nsight Compute", sentence

    def head(self) -> list[Block]:
        """What was read, what is missing, and the first rows of the tables."""
        return [
            Line(self.title()[1], "strong"),
            *(Line(note, "remark") for note in self._notes()),
            *(table.selected(_ROWS_SHOWN) for table in self.tables()),
        ]

    def _notes(self) -> list[str]:
        """Damaged rows, kernels that were not measured, and unknown verdicts."""
        notes = [self.reading.incomplete] if self.reading.incomplete else []
        left_out = self.reading.left_out
        if left_out:
            listed = [f"{what} ({count:,})" for what, count in left_out.items()]
            notes.append(f"Skipped: {', '.join(listed)}.")
        if self.missing:
            names = ", ".join(shortened(kernel.name) for kernel in self.missing)
            time = in_words(sum(kernel.ms for kernel in self.missing) * 1e6, "ns")
            notes.append(f"Requested, but not measured ({time} in the trace): {names}.")
        reasons = Counter(
            "; ".join(each.judgement.reasons)
            for each in self.judged
            if each.judgement.bound == CANNOT_TELL
        )
        notes += [f"No verdict on {number:,} kernels: {text}." for text, number in reasons.items()]
        return notes

    def findings(self) -> list[Finding]:
        """One sentence for each kernel with a verdict, the most severe first."""
        found = []
        for each in self.judged:
            judgement = each.judgement
            if judgement.bound == CANNOT_TELL:
                continue
            percent = self._percent(each)
            severity: Severity = "low"
            if percent is not None:
                severity = _SHARES.severity(percent) or "low"
            known = {
                "percent": percent,
                "compute_percent": judgement.compute,
                "memory_percent": judgement.memory,
            }
            found.append(
                Finding(
                    severity,
                    self._sentence(each, percent),
                    _evidence(each),
                    f"ncu.{judgement.bound.replace('-', '_')}",
                    numbers={name: at for name, at in known.items() if at is not None},
                )
            )
        return by_severity(found)

    def _sentence(self, each: Judged, percent: float | None) -> str:
        judgement = each.judgement
        of = ""
        if percent is not None and self.top is not None:
            of = f" ({percent:.1f} % of the kernel time of {self.top.stage}"
            of += f", launched by {each.operator})" if each.operator else ")"
        where = f"computing {judgement.compute:.1f} %, memory {judgement.memory:.1f} % of the peak"
        reasons = "; ".join(judgement.reasons)
        return (
            f"{base_name(each.kernel.name)}{of} is {judgement.bound}: {where}; {reasons}."
            f" {_ADVICE[judgement.bound]}."
        )

    def tables(self) -> list[Table]:
        """Verdicts, and the figures of the roofline."""
        rows: list[tuple[Cell, ...]] = [
            (
                each.kernel.name,
                each.judgement.bound,
                self._percent(each),
                each.operator,
                _ns(each.kernel),
                each.judgement.compute,
                each.judgement.memory,
                each.judgement.occupancy,
                None
                if each.judgement.stall is None
                else f"{each.judgement.stall[0]} ({each.judgement.stall[1]:.1f} %)",
            )
            for each in self.judged
        ]
        note = ""
        if self.missing:
            names = ", ".join(base_name(kernel.name) for kernel in self.missing)
            note = f"Not measured: {names}."
        verdicts = _known_columns(
            "Kernels",
            (
                ("kernel", ""),
                ("bound", ""),
                ("of the stage", "%"),
                ("operator", ""),
                ("one launch", "ns"),
                ("computing", "%"),
                ("memory", "%"),
                ("occupancy", "%"),
                ("largest stall", ""),
            ),
            rows,
            note,
        )
        points = [
            (
                each.kernel.name,
                each.point.precision,
                each.point.intensity,
                each.point.rate / 1e9,
                each.point.bytes / each.point.seconds / 1e9,
            )
            for each in self.judged
            if each.point is not None
        ]
        roofs = [f"{rate / 1e12:.2f} TFLOP/s {name}" for name, rate in self.roofs.rates.items()]
        if self.roofs.bandwidth:
            roofs.append(f"{self.roofs.bandwidth / 1e9:,.1f} GB/s")
        roofline = Table(
            "Roofline",
            (
                ("kernel", ""),
                ("precision", ""),
                ("operations", "a byte"),
                ("computing", "GFLOP/s"),
                ("device memory", "GB/s"),
            ),
            points,
            f"Roofs: {', '.join(roofs)}."
            if roofs
            else "The file does not contain the device's peaks, so the roofs are unknown.",
        )
        return [table for table in (verdicts, roofline) if table.rows]


def report(
    reading: Reading,
    top: TopKernels | None = None,
    asked: int | None = None,
    launchers: Mapping[str, tuple[str | None, str | None]] | None = None,
) -> NcuReport:
    """Judge ncu's measurements. `launchers` are operator and stage by kernel name in the trace."""
    by_name: dict[str, list[Measured]] = {}
    for kernel in reading.kernels:
        by_name.setdefault(kernel.name, []).append(kernel)
    judged = []
    for kernels in by_name.values():
        longest = max(kernels, key=lambda kernel: kernel.metrics.get(m.DURATION, 0))
        traced = None if top is None else _traced(longest.name, top.kernels)
        operator, stage = (launchers or {}).get(traced.name if traced else "", (None, None))
        judged.append(
            Judged(
                kernel=longest,
                launches=len(kernels),
                judgement=judge(longest),
                point=point_of(longest),
                traced=traced,
                operator=operator,
                stage=stage or (top.stage if top is not None and traced is not None else None),
            )
        )
    judged.sort(
        key=lambda each: (
            -(each.traced.ms if each.traced else 0.0),
            -each.kernel.metrics.get(m.DURATION, 0),
        )
    )
    measured = {base_name(kernel.name) for kernel in reading.kernels}
    requested = [] if top is None or asked is None else top.kernels[:asked]
    return NcuReport(
        reading=reading,
        top=top,
        judged=judged,
        roofs=roofs_of(reading.kernels),
        missing=[kernel for kernel in requested if base_name(kernel.name) not in measured],
    )


def _traced(name: str, kernels: list[Top]) -> Top | None:
    """Return the kernel of the breakdown with ncu's `name`, or with a unique part of it."""
    for same in (one_way, without_parameters, base_name):
        found = [kernel for kernel in kernels if same(kernel.name) == same(name)]
        if len(found) == 1:
            return found[0]
    return None


def _known_columns(
    title: str, columns: tuple[tuple[str, str], ...], rows: list[tuple[Cell, ...]], note: str
) -> Table:
    """Return a table without the columns of metrics that ncu did not collect."""
    kept = [at for at in range(len(columns)) if any(row[at] is not None for row in rows)]
    return Table(
        title,
        tuple(columns[at] for at in kept),
        [tuple(row[at] for at in kept) for row in rows],
        note,
    )


def _ns(kernel: Measured) -> float | None:
    seconds = kernel.metrics.get(m.DURATION)
    return None if seconds is None else round(seconds * 1e9, 3)


def _evidence(each: Judged) -> tuple[Evidence, ...]:
    judgement, name = each.judgement, each.kernel.name
    found = [Evidence(name, None, _ns(each.kernel), "ns")]
    figures = (
        (m.COMPUTE, judgement.compute),
        (m.MEMORY, judgement.memory),
        (m.ACHIEVED, judgement.occupancy),
    )
    found += [Evidence(metric, None, value, "%") for metric, value in figures if value is not None]
    if judgement.stall is not None:
        found.append(Evidence(m.STALLED.format(judgement.stall[0]), None, judgement.stall[1], "%"))
    return tuple(found)
