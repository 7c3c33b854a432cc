"""Combines ncu's measurements of a stage's kernels with their times in the trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace

from stagespan.text.amounts import in_words
from stagespan.trace.figures import Count, Figures, Internal
from stagespan.trace.ncu import reading as m
from stagespan.trace.ncu.command import Top, TopKernels, base_name, one_way, without_parameters
from stagespan.trace.ncu.limits import (
    CANNOT_TELL,
    LATENCY_BELOW,
    Roofs,
    bytes_of,
    judge,
    point_of,
    roofs_of,
)
from stagespan.trace.ncu.reading import Measured, Reading
from stagespan.trace.result import (
    Block,
    Evidence,
    Finding,
    Line,
    StructResult,
    Table,
    Thresholds,
    Titled,
    by_severity,
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


class NcuKernel(Figures, frozen=True):
    """One kernel of the stage: the longest launch that ncu measured, and its launcher."""

    name: str
    bound: str
    reasons: list[str]
    operator: str | None
    stage: str | None
    traced_ms: float | None
    """Its time in the breakdown; None if no kernel or several of the breakdown match."""
    traced_percent: float | None
    """Percentage of the stage's kernel time."""
    launches_measured: Count
    """The number of launches of the same name that ncu measured."""
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
    precision: Internal[str | None]
    """The precision of most of its operations."""
    launch_ns: Internal[float | None]

    @property
    def largest_stall(self) -> str | None:
        """The largest cause of waiting, with its percentage."""
        return None if self.stall is None else f"{self.stall} ({self.stall_percent:.1f} %)"


class NcuReport(StructResult, Titled, frozen=True):
    """All kernels of a file of ncu, first the one that takes most of the stage's time."""

    schema_version: int
    file: str
    incomplete: str | None
    left_out: dict[str, Count]
    stage: str | None
    not_measured: list[str]
    """Kernels of the breakdown that were requested, but not measured."""
    roofs: Roofs
    kernels: list[NcuKernel]
    launches: Internal[int]
    """The number of launches that were read."""
    launches_ns: Internal[float]
    """Their time."""
    not_measured_ns: Internal[float]
    """The time of the kernels that were not measured, in the trace."""

    def title(self) -> tuple[str, str]:
        """The subject, and the number of launches that were read."""
        stage = f"{self.stage}: " if self.stage is not None else ""
        time_ns = self.launches_ns
        length = f", {in_words(time_ns, 'ns')} on the device" if time_ns else ""
        kernels = f"{self.launches:,} launches of {len(self.kernels):,} kernels"
        sentence = f"{stage}{kernels} measured{length}"
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
        notes = [self.incomplete] if self.incomplete else []
        if self.left_out:
            listed = [f"{what} ({count:,})" for what, count in self.left_out.items()]
            notes.append(f"Skipped: {', '.join(listed)}.")
        if self.not_measured:
            names = ", ".join(map(shortened, self.not_measured))
            time = in_words(self.not_measured_ns, "ns")
            notes.append(f"Requested, but not measured ({time} in the trace): {names}.")
        unknown = (each for each in self.kernels if each.bound == CANNOT_TELL)
        reasons = Counter("; ".join(each.reasons) for each in unknown)
        notes += [f"No verdict on {number:,} kernels: {text}." for text, number in reasons.items()]
        return notes

    def findings(self) -> list[Finding]:
        """One sentence for each kernel with a verdict or a low rate, the most severe first."""
        found = []
        for each in self.kernels:
            if each.bound == CANNOT_TELL:
                found += self._of_rate(each)
                continue
            percent = each.traced_percent
            severity = None if percent is None else _SHARES.severity(percent)
            known = {
                "percent": percent,
                "compute_percent": each.compute_percent,
                "memory_percent": each.memory_percent,
            }
            found.append(
                Finding(
                    severity or "low",
                    self._sentence(each),
                    _evidence(each),
                    f"ncu.{each.bound.replace('-', '_')}",
                    numbers={name: at for name, at in known.items() if at is not None},
                )
            )
        return by_severity(found)

    def _of_rate(self, each: NcuKernel) -> list[Finding]:
        """Return a finding on a kernel without a verdict, if it computes slowly.

        The device's peak is at least the rate of the fastest kernel in the file.
        """
        alike = [
            other
            for other in self.kernels
            if other.precision == each.precision and other.operations_per_second is not None
        ]
        if each.operations_per_second is None or not alike:
            return []
        fastest = max(alike, key=lambda other: other.operations_per_second or 0.0)
        peak, rate = fastest.operations_per_second or 0.0, each.operations_per_second
        percent = share(rate, peak)
        if percent >= LATENCY_BELOW:
            return []
        sentence = (
            f"{base_name(each.name)} computes {in_words(rate, 'FLOP/s')}, at most {percent:.1f} %"
            f" of the device's peak in {each.precision} precision, because"
            f" {base_name(fastest.name)} reaches {in_words(peak, 'FLOP/s')}."
            " So arithmetic does not limit it."
        )
        numbers = {"percent": percent, "rate_flop_s": rate, "peak_flop_s": peak}
        shown = _evidence(each) + _evidence(fastest)
        return [Finding("low", sentence, shown, "ncu.low_rate", numbers)]

    def _sentence(self, each: NcuKernel) -> str:
        of = ""
        if each.traced_percent is not None:
            of = f" ({each.traced_percent:.1f} % of the kernel time of {self.stage}"
            of += f", launched by {each.operator})" if each.operator else ")"
        return (
            f"{base_name(each.name)}{of} is {each.bound}: computing {each.compute_percent:.1f} %,"
            f" memory {each.memory_percent:.1f} % of the peak; {'; '.join(each.reasons)}."
            f" {_ADVICE[each.bound]}."
        )

    def tables(self) -> list[Table]:
        """Verdicts, and the figures of the roofline."""
        names = ", ".join(map(base_name, self.not_measured))
        verdicts = Table.of(
            "Kernels",
            self.kernels,
            ("name", "kernel", ""),
            ("bound", "bound", ""),
            ("traced_percent", "of the stage", "%"),
            ("operator", "operator", ""),
            ("launch_ns", "one launch", "ns"),
            ("compute_percent", "computing", "%"),
            ("memory_percent", "memory", "%"),
            ("occupancy_percent", "occupancy", "%"),
            ("largest_stall", "largest stall", ""),
            note=f"Not measured: {names}." if names else "",
        )
        roofs = [f"{rate / 1e12:.2f} TFLOP/s {name}" for name, rate in self.roofs.rates.items()]
        if self.roofs.bandwidth:
            roofs.append(f"{self.roofs.bandwidth / 1e9:,.1f} GB/s")
        unknown = "The file does not contain the device's peaks, so the roofs are unknown."
        roofline = Table.of(
            "Roofline",
            [each for each in self.kernels if each.precision is not None],
            ("name", "kernel", ""),
            ("precision", "precision", ""),
            ("operations_per_byte", "operations", "a byte"),
            (lambda each: each.operations_per_second / 1e9, "computing", "GFLOP/s"),
            (lambda each: each.dram_bytes_per_second / 1e9, "device memory", "GB/s"),
            note=f"Roofs: {', '.join(roofs)}." if roofs else unknown,
        )
        return [_known_columns(table) for table in (verdicts, roofline) if table.rows]


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
    kernels = [_kernel(each, top, launchers or {}) for each in by_name.values()]
    kernels.sort(key=lambda each: (-(each.traced_ms or 0.0), -(each.duration_us or 0.0)))
    measured = {base_name(kernel.name) for kernel in reading.kernels}
    requested = [] if top is None or asked is None else top.kernels[:asked]
    missing = [kernel for kernel in requested if base_name(kernel.name) not in measured]
    return NcuReport(
        schema_version=1,
        file=reading.path,
        incomplete=reading.incomplete,
        left_out=dict(reading.left_out),
        stage=None if top is None else top.stage,
        not_measured=[kernel.name for kernel in missing],
        roofs=roofs_of(reading.kernels),
        kernels=kernels,
        launches=len(reading.kernels),
        launches_ns=sum(kernel.metrics.get(m.DURATION, 0) for kernel in reading.kernels) * 1e9,
        not_measured_ns=sum(kernel.ms for kernel in missing) * 1e6,
    )


def _kernel(
    launches: list[Measured],
    top: TopKernels | None,
    launchers: Mapping[str, tuple[str | None, str | None]],
) -> NcuKernel:
    """Return the figures of the longest launch of a kernel."""
    longest = max(launches, key=lambda kernel: kernel.metrics.get(m.DURATION, 0))
    point, moved = point_of(longest), bytes_of(longest)
    seconds = longest.metrics.get(m.DURATION)
    traced = None if top is None else _traced(longest.name, top.kernels)
    operator, stage = launchers.get(traced.name if traced else "", (None, None))
    percent = None
    if top is not None and traced is not None:
        stage = stage or top.stage
        percent = share(traced.ms, top.total_ms) if top.total_ms else None
    return NcuKernel(
        **asdict(judge(longest)),
        name=longest.name,
        operator=operator,
        stage=stage,
        traced_ms=None if traced is None else traced.ms,
        traced_percent=percent,
        launches_measured=len(launches),
        duration_us=None if seconds is None else seconds * 1e6,
        dram_bytes=moved,
        dram_bytes_per_second=moved / seconds if moved and seconds else None,
        operations=None if point is None else point.operations,
        operations_per_second=None if point is None else point.rate,
        operations_per_byte=None if point is None else point.intensity,
        grid=longest.grid,
        block=longest.block,
        precision=None if point is None else point.precision,
        launch_ns=None if seconds is None else round(seconds * 1e9, 3),
    )


def _traced(name: str, kernels: list[Top]) -> Top | None:
    """Return the kernel of the breakdown with ncu's `name`, or with a unique part of it."""
    for same in (one_way, without_parameters, base_name):
        found = [kernel for kernel in kernels if same(kernel.name) == same(name)]
        if len(found) == 1:
            return found[0]
    return None


def _known_columns(table: Table) -> Table:
    """Return the table without the columns of metrics that ncu did not collect."""
    known = [
        heading
        for (heading, _), cells in zip(table.columns, zip(*table.rows, strict=True), strict=True)
        if any(cell is not None for cell in cells)
    ]
    return replace(table.selected(len(table.rows), known), note=table.note)


def _evidence(each: NcuKernel) -> tuple[Evidence, ...]:
    found = [Evidence(each.name, None, each.launch_ns, "ns")]
    figures = (
        (m.COMPUTE, each.compute_percent),
        (m.MEMORY, each.memory_percent),
        (m.ACHIEVED, each.occupancy_percent),
    )
    found += [Evidence(metric, None, value, "%") for metric, value in figures if value is not None]
    if each.stall is not None:
        found.append(Evidence(m.STALLED.format(each.stall), None, each.stall_percent, "%"))
    return tuple(found)
