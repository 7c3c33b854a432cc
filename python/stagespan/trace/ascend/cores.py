"""Groups the operators of an Ascend trace by the kind of core that ran them."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from stagespan.trace.ascend.device import on_device
from stagespan.trace.derived.device import device_work
from stagespan.trace.figures import Count, Figures, Ns
from stagespan.trace.read.intervals import by_group
from stagespan.trace.read.model import Trace
from stagespan.trace.result import (
    Evidence,
    Finding,
    Result,
    Severity,
    Table,
    Thresholds,
    Unavailable,
    counted,
    evidence,
    in_words,
    share,
    shortened,
)

AI_CPU = "AI_CPU"
_SHARES = Thresholds(50.0, 25.0)
_NAMED = 5


class Core(Figures, frozen=True):
    """All operators of one kind of core; times in ns."""

    name: str = msgspec.field(name="core")
    count: Count = msgspec.field(name="operators")
    total_ns: Ns


class AiCpuOperator(Figures, frozen=True):
    """All runs of an operator on the AI CPU; times in ns."""

    name: str
    count: Count
    total_ns: Ns


class CoresFigures(Figures, frozen=True):
    """Time by the kind of core."""

    cores: list[Core]
    ai_cpu_operators: list[AiCpuOperator]


@dataclass(frozen=True, slots=True)
class Cores(Result):
    """Kinds of cores, the one with the most time first."""

    cores: list[Core]
    slow: list[tuple[str, int, int, Evidence]]
    """Operators of the AI CPU: name, count, time, and the longest run; the most time first."""

    def figures(self) -> CoresFigures:
        """For JSON."""
        return CoresFigures(
            cores=self.cores,
            ai_cpu_operators=[AiCpuOperator(*each[:3]) for each in self.slow],
        )

    def findings(self) -> list[Finding]:
        """A finding about operators that ran on the AI CPU."""
        if not self.slow:
            return []
        time, count = sum(t for _, _, t, _ in self.slow), sum(n for _, n, _, _ in self.slow)
        percent = share(time, sum(core.total_ns for core in self.cores))
        severity: Severity = _SHARES.severity(percent) or "low"
        names = ", ".join(shortened(name) for name, *_ in self.slow[:_NAMED])
        return [
            Finding(
                severity,
                f"{counted(count, 'operator')} ran on the AI CPU, which is slow:"
                f" {in_words(time, 'ns')} ({percent:.1f} % of all operators' time): {names}."
                " With other data types, or other operators, this work runs on the AI Core.",
                tuple(longest for *_, longest in self.slow[:_NAMED]),
                "ascend.ai_cpu",
                numbers={"operators": count, "time_ns": time, "percent": percent},
            )
        ]

    def tables(self) -> list[Table]:
        """A table of the kinds of core."""
        whole = sum(core.total_ns for core in self.cores)
        rows = [
            (core.name, core.count, core.total_ns, share(core.total_ns, whole))
            for core in self.cores
        ]
        columns = (("core", ""), ("operators", ""), ("time", "ns"), ("of all", "%"))
        return [Table("Operators by core", columns, rows)]


def analyze(trace: Trace) -> Cores | Unavailable:
    """Group by the task's type; Unavailable without operators on an Ascend device."""
    events = trace.events
    rows = np.flatnonzero(device_work(trace).is_kernel & on_device(trace))
    if len(rows) == 0:
        return Unavailable(
            "The trace has no operators on an Ascend device: record the NPU's activity.",
            "no_device",
        )
    codes, group = np.unique(events.task_type[rows], return_inverse=True)
    group = group.reshape(-1)
    cores = []
    for code, here in zip(codes.tolist(), by_group(group, len(codes)), strict=True):
        mine = rows[here]
        cores.append(Core(trace.names[code], len(mine), int(events.dur_ns[mine].sum())))
    slow = []
    on_cpu = rows[np.isin(events.task_type[rows], [c for c in codes if _is_cpu(trace, c)])]
    names, named = np.unique(events.name[on_cpu], return_inverse=True)
    for code, here in zip(names.tolist(), by_group(named.reshape(-1), len(names)), strict=False):
        mine = on_cpu[here]
        longest = evidence(trace, int(mine[np.argmax(events.dur_ns[mine])]))
        slow.append((trace.names[code], len(mine), int(events.dur_ns[mine].sum()), longest))
    return Cores(
        sorted(cores, key=lambda core: (-core.total_ns, core.name)),
        sorted(slow, key=lambda each: -each[2]),
    )


def _is_cpu(trace: Trace, code: int) -> bool:
    return trace.names[code].startswith(AI_CPU)
