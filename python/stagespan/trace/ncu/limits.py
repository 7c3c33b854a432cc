"""Decides what limits the kernels of a stage.

The verdict uses the metrics and thresholds of Nsight Compute's guidance. Throughput decides, as in
the rule `SOLBottleneck`: if computing and memory both stay below 60 % of their peak, latencies
limit the kernel; otherwise the one that is at least 10 points higher; otherwise both. A grid of
less than one wave, an occupancy below 80 % and stalls of at least 30 % of the cycles between two
instructions of a warp (`CPIStall`) show why a kernel waits.
"""

from __future__ import annotations

import re

from stagespan.pages.amounts import in_percent, in_words
from stagespan.pages.figures import Count, Figures
from stagespan.pages.result import (
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
from stagespan.trace.ncu.command import TopKernels, base_name, normal_form
from stagespan.trace.ncu.reading import Reading

_DURATION = "gpu__time_duration.sum"
_COMPUTE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
_MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
_THEORETICAL = "sm__maximum_warps_per_active_cycle_pct"
_ACHIEVED = "sm__warps_active.avg.pct_of_peak_sustained_active"
_WAVES = "launch__waves_per_multiprocessor"
_CYCLES = "smsp__average_warp_latency_per_inst_issued.ratio"
# A warp that was not selected was ready.
_STALLED = re.compile(
    r"smsp__average_warps_issue_stalled_(?!not_selected)(\w+)_per_issue_active\.ratio"
)
# Percentages of the stage's kernel time.
_SHARES = Thresholds(25.0, 10.0, 0.0)
_ADVICE = {
    "memory-bound": "Less traffic helps: fuse it with its neighbours, or use a smaller type",
    "compute-bound": "Less arithmetic, or a type that the tensor cores support, helps",
    "latency-bound": "More parallel work in flight helps: larger inputs, more blocks or warps",
    "balanced": "It is close to both limits",
}


class NcuKernel(Figures, frozen=True):
    """One kernel of the stage: the longest launch that ncu measured."""

    name: str
    bound: str
    reasons: list[str]
    """Clauses that explain why it waits, or which limit it is close to."""
    traced_ms: float | None
    """Its time in the breakdown; None if the breakdown does not list it."""
    traced_percent: float | None
    """Percentage of the stage's kernel time."""
    launches_measured: Count
    duration_us: float | None
    compute_percent: float | None
    """Of the peak, as is that of memory."""
    memory_percent: float | None
    occupancy_percent: float | None
    """Achieved."""

    @property
    def launch_ns(self) -> float | None:
        """The time of the launch."""
        return None if self.duration_us is None else round(self.duration_us * 1e3, 3)

    def finding(self, stage: str | None) -> Finding:
        """Return the verdict in a sentence."""
        percent = self.traced_percent
        of = "" if percent is None else f" ({in_percent(percent)} of the kernel time of {stage})"
        return Finding(
            _SHARES.severity(percent or 0.0) or "low",
            f"{base_name(self.name)}{of} is {self.bound}: computing"
            f" {in_words(self.compute_percent, '%')}, "
            f"memory {in_words(self.memory_percent, '%')} of the peak; {'; '.join(self.reasons)}.",
            (Evidence(self.name, None, self.launch_ns, "ns"),),
            f"ncu.{self.bound.replace('-', '_')}",
            {} if percent is None else {"percent": percent},
            action=f"{_ADVICE[self.bound]}.",
        )


class NcuReport(StructResult, Titled, frozen=True):
    """All kernels of a file of ncu, first the one that takes most of the stage's time."""

    schema_version: int
    file: str
    left_out: Count
    """The number of rows and values that cannot be read."""
    stage: str | None
    not_measured: list[str]
    """Kernels of the breakdown that were requested, but not measured."""
    kernels: list[NcuKernel]

    def title(self) -> tuple[str, str]:
        """The subject, and the number of kernels that were read."""
        launches = sum(kernel.launches_measured for kernel in self.kernels)
        measured = f"{launches:,} launches of {len(self.kernels):,} kernels measured"
        return "Kernels by Nsight Compute", measured

    def head(self) -> list[Block]:
        """What was read, what is missing, and the table."""
        lines = [Line(self.title()[1], "strong")]
        if self.left_out:
            lines.append(Line(f"{self.left_out:,} rows or values cannot be read.", "remark"))
        if self.not_measured:
            names = ", ".join(map(shortened, self.not_measured))
            lines.append(Line(f"Requested, but not measured: {names}.", "remark"))
        return [*lines, *self.tables()]

    def findings(self) -> list[Finding]:
        """One sentence for each kernel with a verdict, the most severe first."""
        judged = (kernel for kernel in self.kernels if kernel.bound in _ADVICE)
        return by_severity(kernel.finding(self.stage) for kernel in judged)

    def tables(self) -> list[Table]:
        """The verdicts, with the columns that are known."""
        columns = (
            ("name", "kernel", ""),
            ("bound", "bound", ""),
            ("traced_percent", "of the stage", "%"),
            ("launch_ns", "one launch", "ns"),
            ("compute_percent", "computing", "%"),
            ("memory_percent", "memory", "%"),
            ("occupancy_percent", "occupancy", "%"),
        )
        rows = self.kernels
        known = [of for of in columns if any(getattr(row, of[0]) is not None for row in rows)]
        return [Table.of("Kernels", rows, *known)]


def judge(values: dict[str, float]) -> tuple[str, list[str]]:
    """Return what limits a kernel with these metrics, or "cannot tell", and the reasons."""
    compute, memory = values.get(_COMPUTE), values.get(_MEMORY)
    if compute is None or memory is None:
        return "cannot tell", ["its throughput is unknown: let ncu collect SpeedOfLight"]
    if compute < 60 and memory < 60:
        return "latency-bound", _waits(values)
    if abs(compute - memory) < 10:
        return "balanced", ["both are in use, so reducing only one gains little"]
    if compute > memory:
        return "compute-bound", ["the arithmetic pipes are the busiest part"]
    return "memory-bound", ["memory is the busiest part"]


def _waits(values: dict[str, float]) -> list[str]:
    reasons = []
    if values.get(_WAVES, 1.0) < 1:
        reasons.append(f"its grid fills the device only {values[_WAVES]:.2f} times: too few blocks")
    possible = values.get(_THEORETICAL, 100.0)
    if possible < 80:
        reasons.append(f"its occupancy is limited to {in_percent(possible)}")
    if possible - values.get(_ACHIEVED, possible) > 10:
        reasons.append(f"it reaches only {in_percent(values[_ACHIEVED])} of the possible occupancy")
    stalls = ((at, name[1]) for key, at in values.items() if (name := _STALLED.fullmatch(key)))
    cycles, stall = max(stalls, default=(0.0, ""))
    percent = share(cycles, values.get(_CYCLES, 0.0))
    if percent >= 30:
        reasons.append(f"its warps spend {in_percent(percent)} of the time in the stall `{stall}`")
    return reasons or ["neither computing nor memory is in use for most of the time"]


def report(reading: Reading, top: TopKernels | None = None, count: int = 0) -> NcuReport:
    """Judge ncu's measurements; the first `count` kernels of `top` were requested."""
    rows = [] if top is None else top.top_kernels
    traced = {normal_form(row.name): row.ms for row in rows}
    whole_ms = 0.0 if top is None else top.total_kernel_time_ms or 0.0
    kernels = []
    for name in dict.fromkeys(launch.name for launch in reading.kernels):
        launches = [launch.metrics for launch in reading.kernels if launch.name == name]
        values = max(launches, key=lambda metrics: metrics.get(_DURATION, 0))
        traced_ms = traced.get(normal_form(name))
        bound, reasons = judge(values)
        kernel = NcuKernel(
            name=name,
            bound=bound,
            reasons=reasons,
            traced_ms=traced_ms,
            traced_percent=share(traced_ms, whole_ms) if traced_ms and whole_ms else None,
            launches_measured=len(launches),
            duration_us=values[_DURATION] * 1e6 if _DURATION in values else None,
            compute_percent=values.get(_COMPUTE),
            memory_percent=values.get(_MEMORY),
            occupancy_percent=values.get(_ACHIEVED),
        )
        kernels.append(kernel)
    kernels.sort(key=lambda kernel: (-(kernel.traced_ms or 0.0), -(kernel.duration_us or 0.0)))
    measured = {base_name(kernel.name) for kernel in kernels}
    missing = [row.name for row in rows[:count] if base_name(row.name) not in measured]
    stage = None if top is None else top.name
    return NcuReport(1, reading.path, reading.left_out, stage, missing, kernels)
