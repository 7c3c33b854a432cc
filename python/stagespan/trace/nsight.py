"""Nsight Compute (ncu): its command line for a stage's top kernels, its CSV, and what limits them.

The verdict has the metrics and thresholds of Nsight Compute's rules, which docs/ncu.md lists.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from stagespan.errors import TraceError
from stagespan.pages.amounts import in_percent, in_words
from stagespan.pages.figures import Count, Figures, MeanNs
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
from stagespan.trace.read.csv_tables import bytes_of

_ANONYMOUS = re.compile(r"\(anonymous namespace\)|\{anonymous\}|<unnamed>")
_INNERMOST = re.compile(r"<[^<>()]*>|\([^<>()]*\)")
# ncu writes `(int)32` for a template's argument that the profiler writes as `32`.
_CAST = re.compile(r"^(?:void|auto)\s|\((?:unsigned |signed )?(?:int|long|short|char|bool)\)|\s+")
_SECTIONS = ("SpeedOfLight", "SchedulerStats", "WarpStateStats", "Occupancy", "LaunchStats")
_MOST_LAUNCHES = 50  # each is replayed several times
_SECONDS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0}
_TIME = re.compile(r"([num]?)(?:s|sec|second)")
_NUMBER = re.compile(r"[+-]?\d{1,30}(?:\.\d*)?(?:[eE][+-]?\d\d?)?")
_SIGNS = re.compile("[\\s'\u2019\ufffd%]")
# It depends on the locale of ncu. A comma that separates thousands is followed by three digits.
_DECIMAL_COMMA = re.compile(r'\d,(?:\d{1,2}|\d{4,})"|"0,\d')
# ncu quotes all cells, other programs that have saved its tables only some.
_CELL = re.compile(r'(?:^|,)(?:"((?:[^"]|"")*)"|([^",]*))(?=,|$)')
_DURATION = "gpu__time_duration.sum"
_COMPUTE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
_MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
_THEORETICAL = "sm__maximum_warps_per_active_cycle_pct"
_ACHIEVED = "sm__warps_active.avg.pct_of_peak_sustained_active"
_WAVES = "launch__waves_per_multiprocessor"
_CYCLES = "smsp__average_warp_latency_per_inst_issued.ratio"
# A warp that was not selected was ready.
_STALLED = re.compile(r"smsp__average_warps_issue_stalled_(?!not_)(\w+)_per_issue_active\.ratio")
_SHARES = Thresholds(25.0, 10.0, 0.0)  # in percent of the stage's kernel time
ADVICE = {
    "memory-bound": "Less traffic helps: fuse it with its neighbours, or use a smaller type",
    "compute-bound": "Less arithmetic, or a type that the tensor cores support, helps",
    "latency-bound": "More parallel work in flight helps: larger inputs, more blocks or warps",
    "balanced": "It is close to both limits",
}


def base_name(name: str) -> str:
    """Return a function's name without return type, namespaces, template arguments, parameters.

    ncu compares it with `--kernel-name-base function`, its default.
    """
    plain = _ANONYMOUS.sub("_anonymous_", name)
    while (shorter := _INNERMOST.sub("", plain)) != plain:
        plain = shorter
    return (plain.split("::")[-1].split() or [name])[-1]


def normal_form(name: str) -> str:
    """Return a whole name without blanks, casts and return type, which tools write differently."""
    return _CAST.sub("", _ANONYMOUS.sub("_anonymous_", name.strip()))


class Top(msgspec.Struct, frozen=True):
    """A kernel of a breakdown."""

    name: str
    ms: float | None = None
    count: int | None = None
    cuda_ms: float | None = None


class TopKernels(msgspec.Struct, frozen=True):
    """The contents of `{stage}_breakdown.json`."""

    top_kernels: list[Top]
    name: str = ""
    """Of the stage."""
    total_kernel_time_ms: float | None = None
    profile_steps: int | None = None


def measuring(
    top: TopKernels, count: int, warmup: int, report: Path, program: Sequence[str]
) -> list[str]:
    """Return the command that writes a report on the `count` kernels that take the longest.

    `program` is a stage's script with its options, which runs without a profiler. The launches of
    one iteration after the warm-up are measured, at most 50.
    """
    names = dict.fromkeys(base_name(kernel.name) for kernel in top.top_kernels[:count])
    # Some versions of ncu keep the namespace.
    pattern = f"regex:(^|::)({'|'.join(map(re.escape, names))})$"
    # ncu counts launches by function name, and other kernels of the list may have the same name.
    launches = sum(k.count or 1 for k in top.top_kernels if base_name(k.name) in names)
    per_step = max(round(launches / (top.profile_steps or 1)), 1)
    return [
        *("ncu", "--target-processes", "all", "--kernel-name-base", "function"),
        *("--kernel-name", pattern, "--launch-skip", str(warmup * per_step)),
        *("--launch-count", str(min(per_step, _MOST_LAUNCHES))),
        *(word for section in _SECTIONS for word in ("--section", section)),
        *("--force-overwrite", "--export", str(report), sys.executable, *program),
        *("--warmup", str(warmup), "--timing-steps", "1", "--steps", "0"),
    ]


def exporting(report: str | Path) -> list[str]:
    """Return the command that prints a report as CSV."""
    return ["ncu", "--import", str(report), "--csv", "--page", "raw"]


def exported(report: str | Path) -> str:
    """Return a report of ncu as CSV. Raises TraceError if ncu is missing or cannot read it."""
    try:
        done = subprocess.run(exporting(report), check=False, capture_output=True, text=True)
    except FileNotFoundError:
        raise TraceError(
            "ncu is not installed here: run `" + shlex.join(exporting(report)) + "` where it is, "
            "and pass its output to `stagespan bench --ncu --csv`."
        ) from None
    if done.returncode != 0:
        output = " ".join((done.stderr or done.stdout).split())[-300:]
        raise TraceError(f"ncu cannot read {report}: {output or 'it gives no reason'}")
    return done.stdout


class Measured(NamedTuple):
    """One launch of a kernel, measured by ncu."""

    name: str
    metrics: dict[str, float]
    """Values by the metric's name, with times in seconds and all others in the unit of the file."""


class Reading(NamedTuple):
    """The contents of a file of ncu."""

    path: str
    kernels: list[Measured]
    left_out: int
    """The number of rows and values that cannot be read."""


def read_ncu(path: str | Path) -> Reading:
    """Read a CSV file that ncu wrote, even with other output of the program, or its `.ncu-rep`.

    Raises TraceError if the file cannot be read or contains no kernel, or ncu is missing.
    """
    if str(path).endswith(".ncu-rep"):
        return parse(exported(path), str(path))
    content, problem = bytes_of(Path(path))
    if problem is not None:
        raise TraceError(problem)
    return parse(content.decode("utf-8-sig", "replace"), str(path))


def parse(text: str, path: str) -> Reading:
    """Read the text of a CSV file of ncu. Raises TraceError if it contains no kernel."""
    decimal, thousands = ",." if _DECIMAL_COMMA.search(text) else ".,"
    head, units = list[str](), dict[str, str]()
    kernels: dict[object, Measured] = {}
    least = left_out = 0
    for line in re.findall(r"^(?!==).*\S", text, re.MULTILINE):
        cells = [(a or b).replace('""', '"').strip() for a, b in _CELL.findall(line)]
        if {"ID", "Kernel Name"} <= set(cells):
            head = cells
            # Rows of metrics may end before the columns of rules, with a comma.
            least = head.index("Metric Value") + 1 if "Metric Value" in head else len(head)
        elif head and least <= len(cells) <= len(head):
            row = dict(zip(head, cells, strict=False))
            if not (name := row.get("Kernel Name", "")):
                units = row
                continue
            values = {metric: value for metric, value in row.items() if "__" in metric}
            if metric := row.get("Metric Name", ""):
                values, units[metric] = {metric: cells[least - 1]}, row.get("Metric Unit", "")
            # The ids of each process start from 0.
            launch = kernels.setdefault((row.get("Process ID"), row["ID"]), Measured(name, {}))
            for metric in filter(values.get, values):
                value = _SIGNS.sub("", values[metric]).replace(thousands, "").replace(decimal, ".")
                if _NUMBER.fullmatch(value):
                    time = _TIME.fullmatch(units.get(metric, ""))
                    launch.metrics[metric] = float(value) * (_SECONDS[time[1]] if time else 1)
                # Descriptions of the launch can be text. Measured metrics have a dot in their name.
                elif "." in metric:
                    left_out += 1
        else:
            left_out += bool(head)
    if not kernels:
        error = re.search(r"^==ERROR== *([ -~]{1,200})", text, re.MULTILINE)
        raise TraceError(
            f"{path} contains no kernels{f' ({error[1]})' if error else ''}: write a CSV file with "
            "`ncu --import REPORT --csv --page raw`."
        )
    return Reading(path, list(kernels.values()), left_out)


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
    duration_ns: MeanNs | None
    """The time of that launch."""
    compute_percent: float | None
    """Of the peak, as is that of memory."""
    memory_percent: float | None
    occupancy_percent: float | None
    """Achieved."""

    def finding(self, stage: str | None) -> Finding:
        """Return the verdict in a sentence."""
        percent = self.traced_percent
        of = "" if percent is None else f" ({in_percent(percent)} of the kernel time of {stage})"
        return Finding(
            _SHARES.severity(percent or 0.0) or "low",
            f"{base_name(self.name)}{of} is {self.bound}: computing"
            f" {in_words(self.compute_percent, '%')}, "
            f"memory {in_words(self.memory_percent, '%')} of the peak; {'; '.join(self.reasons)}.",
            (Evidence(self.name, None, self.duration_ns, "ns"),),
            f"ncu.{self.bound.replace('-', '_')}",
            {} if percent is None else {"percent": percent},
            action=f"{ADVICE[self.bound]}.",
        )


class NcuReport(StructResult, Titled, frozen=True):
    """All kernels of a file of ncu, first the one that takes most of the stage's time."""

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
        judged = (kernel for kernel in self.kernels if kernel.bound in ADVICE)
        return by_severity(kernel.finding(self.stage) for kernel in judged)

    def tables(self) -> list[Table]:
        """The verdicts, with the columns that are known."""
        table = Table.of(
            "Kernels",
            self.kernels,
            ("name", "kernel", ""),
            ("bound", "bound", ""),
            ("traced_percent", "of the stage", "%"),
            ("duration_ns", "one launch", "ns"),
            ("compute_percent", "computing", "%"),
            ("memory_percent", "memory", "%"),
            ("occupancy_percent", "occupancy", "%"),
        )
        return [table.filled()]


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
    top = top or TopKernels([])
    traced = {normal_form(row.name): row.ms for row in top.top_kernels}
    whole_ms = top.total_kernel_time_ms or 0.0
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
            duration_ns=round(values[_DURATION] * 1e9, 3) if _DURATION in values else None,
            compute_percent=values.get(_COMPUTE),
            memory_percent=values.get(_MEMORY),
            occupancy_percent=values.get(_ACHIEVED),
        )
        kernels.append(kernel)
    kernels.sort(key=lambda kernel: (-(kernel.traced_ms or 0.0), -(kernel.duration_ns or 0.0)))
    measured = {base_name(kernel.name) for kernel in kernels}
    missing = [row.name for row in top.top_kernels[:count] if base_name(row.name) not in measured]
    return NcuReport(reading.path, reading.left_out, top.name or None, missing, kernels)
