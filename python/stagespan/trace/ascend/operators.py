"""Operators on the device by type and core, from op_statistic.csv and kernel_details.csv.

If both files exist, op_statistic.csv is used, because it sums durations before rounding them to ns.
The trace shows only the core. operator_details.csv lists the operators of the framework.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import numpy as np

from stagespan.trace.ascend.device import on_device
from stagespan.trace.ascend.folder import (
    KERNEL_DETAILS,
    OP_STATISTIC,
    OPERATOR_DETAILS,
    disagreement,
)
from stagespan.trace.derived.device import device_work
from stagespan.trace.figures import Count, Figures, MeanNs, Ns
from stagespan.trace.read.csv_tables import CsvTable, count, scaled
from stagespan.trace.read.groups import grouped
from stagespan.trace.read.model import Trace
from stagespan.trace.result import (
    Evidence,
    Finding,
    Result,
    Table,
    Thresholds,
    Unavailable,
    counted,
    evidence,
    in_words,
    share,
    shortened,
)

_AI_CPU = re.compile(r"AI_?CPU", re.IGNORECASE)
_CONVERSIONS = {
    "TransData": "between formats",
    "Cast": "between types",
    "Transpose": "between layouts",
}
_SHARES = Thresholds(50.0, 25.0, 10.0)
_NOT_GIVEN = ("", "N/A")
_TOP = 50
_NAMED = 5
# The file's cells are rounded to ns, and each is a sum of doubles.
_NS_EACH = 1


class OperatorTypeFigures(Figures, frozen=True):
    """An `OperatorType` in JSON."""

    type: str
    core: str
    count: Count
    total_ns: Ns
    total_of_kernel_details_ns: Ns | None
    min_ns: Ns | None
    avg_ns: MeanNs | None
    max_ns: Ns | None
    percent: float


@dataclass(frozen=True, slots=True)
class OperatorType:
    """All operators of one type on one kind of core; times in ns."""

    type: str
    core: str
    count: int
    total_ns: int
    min_ns: int | None
    max_ns: int | None

    def figures(self, whole_ns: int, kernels_ns: int | None) -> OperatorTypeFigures:
        """For JSON, with the columns of op_statistic.csv."""
        return OperatorTypeFigures(
            type=self.type,
            core=self.core,
            count=self.count,
            total_ns=self.total_ns,
            total_of_kernel_details_ns=kernels_ns,
            min_ns=self.min_ns,
            avg_ns=self.total_ns / self.count if self.count else None,
            max_ns=self.max_ns,
            percent=share(self.total_ns, whole_ns),
        )


class OperatorsFigures(Figures, frozen=True):
    """Operators by type."""

    source: str
    operators: Count
    total_ns: Ns
    unread_rows: Count
    by_type: list[OperatorTypeFigures]
    compared: bool
    differences: list[str]


@dataclass(frozen=True, slots=True)
class Operators(Result):
    """Types, the one with the most time first."""

    source: str
    types: list[OperatorType]
    kernels_ns: dict[tuple[str, str], int] = field(default_factory=dict)
    """The sums of the rows of kernel_details.csv by type and core, if both files exist."""
    unread: int = 0
    """The number of rows whose duration is not a number."""
    compared: bool = False
    differences: list[str] = field(default_factory=list)
    """Sentences about types with different figures in the other file."""

    @property
    def total_ns(self) -> int:
        """The total time of all types."""
        return sum(each.total_ns for each in self.types)

    def figures(self) -> OperatorsFigures:
        """For JSON."""
        return OperatorsFigures(
            source=self.source,
            operators=sum(each.count for each in self.types),
            total_ns=self.total_ns,
            unread_rows=self.unread,
            by_type=[
                each.figures(self.total_ns, self.kernels_ns.get((each.type, each.core)))
                for each in self.types
            ],
            compared=self.compared,
            differences=self.differences,
        )

    def findings(self) -> list[Finding]:
        """Findings about operators of the AI CPU, conversions, and files that disagree."""
        found = []
        slow = [each for each in self.types if _AI_CPU.search(each.core)]
        if slow:
            time, calls = sum(t.total_ns for t in slow), sum(t.count for t in slow)
            names = ", ".join(each.type for each in slow[:_NAMED])
            shown = tuple(map(_evidence, slow[:_NAMED]))
            found.append(_on_ai_cpu(calls, time, self.total_ns, f", of types {names}", shown))
        changes = [t for t in self.types if t.type in _CONVERSIONS]
        time = sum(t.total_ns for t in changes)
        percent = share(time, self.total_ns)
        limit = _SHARES.severity(percent)
        if limit is not None:
            listed = ", ".join(
                f"{t.type} {counted(t.count, 'time')} ({_CONVERSIONS[t.type]})" for t in changes
            )
            found.append(
                Finding(
                    limit,
                    f"Conversions take {in_words(time, 'ns')} ({percent:.1f} % of all operators'"
                    f" time): {listed}. Keep data in one format and type between operators to avoid"
                    " them.",
                    tuple(map(_evidence, changes[:_NAMED])),
                    "ascend.conversions",
                    numbers={"time_ns": time, "percent": percent},
                )
            )
        if self.differences:
            found.append(
                disagreement(
                    "medium",
                    f"{KERNEL_DETAILS} and {OP_STATISTIC}",
                    self.differences,
                    "ascend.operators_differ",
                )
            )
        return found

    def tables(self) -> list[Table]:
        """Types with the columns of op_statistic.csv."""
        rows = [
            (
                each.type,
                each.core,
                each.count,
                each.total_ns,
                each.min_ns,
                each.total_ns // each.count if each.count else None,
                each.max_ns,
                share(each.total_ns, self.total_ns),
            )
            for each in self.types[:_TOP]
        ]
        columns = (
            ("type", ""),
            ("core", ""),
            ("count", ""),
            ("total", "ns"),
            ("min", "ns"),
            ("mean", "ns"),
            ("max", "ns"),
            ("of all", "%"),
        )
        note = f"From {self.source}."
        if self.compared:
            agree = f"{len(self.differences):,} types differ" if self.differences else "equal"
            note += f" Against the sums of {KERNEL_DETAILS}: {agree}."
        if self.unread:
            note += f" {self.unread:,} rows without a duration are skipped."
        return [Table("Operators by type", columns, rows, note)]


def _evidence(each: OperatorType) -> Evidence:
    name = f"{each.type} on {each.core}, {counted(each.count, 'time')}"
    return Evidence(name, None, each.total_ns, "ns")


def _on_ai_cpu(
    count: int, time_ns: int, whole_ns: int, which: str, shown: tuple[Evidence, ...]
) -> Finding:
    """Return the finding about operators that ran on the AI CPU; `which` lists some of them."""
    percent = share(time_ns, whole_ns)
    return Finding(
        _SHARES.severity(percent) or "low",
        f"{counted(count, 'operator')} ran on the AI CPU, which is slow: {in_words(time_ns, 'ns')}"
        f" ({percent:.1f} % of all operators' time){which}. With other data types, or other"
        " operators, this work runs on the AI Core.",
        shown,
        "ascend.ai_cpu",
        numbers={"operators": count, "time_ns": time_ns, "percent": percent},
    )


def operators(tables: dict[str, CsvTable]) -> Operators | Unavailable:
    """Return types from op_statistic.csv, compared with the kernels, or from the kernels."""
    known, kernels = tables.get(OP_STATISTIC), tables.get(KERNEL_DETAILS)
    theirs = Operators(OP_STATISTIC, []) if known is None else _of_statistic(known)
    mine, unread = _of_kernels(kernels) if kernels is not None else ([], 0)
    if theirs.types and mine and kernels is not None and kernels.has("type"):
        sums = {(each.type, each.core): each.total_ns for each in mine}
        differences = _differences(mine, theirs.types)
        return Operators(
            OP_STATISTIC, theirs.types, sums, theirs.unread + unread, True, differences
        )
    if theirs.types:
        return theirs
    if mine:
        return Operators(KERNEL_DETAILS, mine, unread=unread)
    return Unavailable(
        f"The folder has neither {KERNEL_DETAILS} nor {OP_STATISTIC} with rows: both are written"
        " from Level1 on with the NPU's activity.",
        "no_files",
    )


def _of_kernels(table: CsvTable) -> tuple[list[OperatorType], int]:
    unit = table.unit("duration", "us")
    if not table.has("duration"):
        return [], len(table)
    types = table.texts("type", "op type", "name")
    cores = table.texts("accelerator core", "core type", "task type")
    times: dict[tuple[str, str], list[int]] = defaultdict(list)
    unread = 0
    names = table.texts("name")
    for type_, core, text, name in zip(types, cores, table.texts("duration"), names, strict=True):
        # Level 0 leaves both out.
        type_ = name if type_ in _NOT_GIVEN else type_
        core = "" if core in _NOT_GIVEN else core
        time = scaled(text, unit)
        if time is None:
            unread += 1
        elif not core.startswith(("HCCL", "COMMUNICATION")):  # collectives are not operators
            times[type_, core].append(time)
    found = [
        OperatorType(type_, core, len(all_), sum(all_), min(all_), max(all_))
        for (type_, core), all_ in times.items()
    ]
    return sorted(found, key=lambda each: (-each.total_ns, each.type)), unread


def _of_statistic(table: CsvTable) -> Operators:
    sums: dict[tuple[str, str], OperatorType] = {}
    unread = 0
    cells = zip(
        table.texts("op type"),
        table.texts("core type"),
        table.texts("count"),
        *(table.texts(name) for name in ("total time", "min time", "max time")),
        strict=True,
    )
    units = [table.unit(name, "us") for name in ("total time", "min time", "max time")]
    for type_, core, calls, total, least, most in cells:
        number, time = count(calls), scaled(total, units[0])
        if number is None or time is None:
            unread += 1
            continue
        low, high = scaled(least, units[1]), scaled(most, units[2])
        other = sums.get((type_, core))  # a row of another device
        if other is not None:
            number, time = number + other.count, time + other.total_ns
            low, high = _either(min, low, other.min_ns), _either(max, high, other.max_ns)
        sums[type_, core] = OperatorType(type_, core, number, time, low, high)
    found = sorted(sums.values(), key=lambda each: (-each.total_ns, each.type))
    return Operators(OP_STATISTIC, found, unread=unread)


def _either(
    choose: Callable[[list[int]], int], first: int | None, second: int | None
) -> int | None:
    known = [each for each in (first, second) if each is not None]
    return choose(known) if known else None


def _differences(mine: list[OperatorType], theirs: list[OperatorType]) -> list[str]:
    other = {(each.type, each.core): each for each in theirs}
    found = []
    for each in mine:
        same = other.pop((each.type, each.core), None)
        name = f"{each.type} on {each.core}"
        if same is None:
            found.append(f"{name} is not in {OP_STATISTIC}")
        elif same.count != each.count:
            found.append(
                f"{name}: {each.count:,} in {KERNEL_DETAILS}, {same.count:,} in {OP_STATISTIC}"
            )
        elif abs(same.total_ns - each.total_ns) > max(_NS_EACH * each.count, 1e-6 * each.total_ns):
            found.append(
                f"{name}: {in_words(each.total_ns, 'ns')} in {KERNEL_DETAILS},"
                f" {in_words(same.total_ns, 'ns')} in {OP_STATISTIC}"
            )
    found += [f"{type_} on {core} is not in {KERNEL_DETAILS}" for type_, core in other]
    return found


# --- Operators by core, from the trace ---


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
        names = ", ".join(shortened(name) for name, *_ in self.slow[:_NAMED])
        shown = tuple(longest for *_, longest in self.slow[:_NAMED])
        whole = sum(core.total_ns for core in self.cores)
        return [_on_ai_cpu(count, time, whole, f": {names}", shown)]

    def tables(self) -> list[Table]:
        """A table of the kinds of core."""
        whole = sum(core.total_ns for core in self.cores)
        rows = [
            (core.name, core.count, core.total_ns, share(core.total_ns, whole))
            for core in self.cores
        ]
        columns = (("core", ""), ("operators", ""), ("time", "ns"), ("of all", "%"))
        return [Table("Operators by core", columns, rows)]


def cores(trace: Trace) -> Cores | Unavailable:
    """Group by kind of core; Unavailable without operators on an Ascend device."""
    events = trace.events
    rows = np.flatnonzero(device_work(trace).is_kernel & on_device(trace))
    if len(rows) == 0:
        return Unavailable(
            "The trace has no operators on an Ascend device: record the NPU's activity.",
            "no_device",
        )
    types = grouped(events.task_type[rows].astype(np.int64), events.dur_ns[rows])
    by_core = [Core(trace.names[each.code], each.count, each.time_ns) for each in types]
    cpu_types = [each.code for each in types if _AI_CPU.match(trace.names[each.code])]
    on_cpu = rows[np.isin(events.task_type[rows], cpu_types)]
    longest_first = on_cpu[np.argsort(-events.dur_ns[on_cpu], kind="stable")]
    names, first = np.unique(events.name[longest_first], return_index=True)
    longest = dict(zip(names.tolist(), longest_first[first].tolist(), strict=True))
    slow = [
        (trace.names[each.code], each.count, each.time_ns, evidence(trace, longest[each.code]))
        for each in grouped(events.name[on_cpu].astype(np.int64), events.dur_ns[on_cpu])
    ]
    return Cores(sorted(by_core, key=lambda core: (-core.total_ns, core.name)), slow)


# --- Operators of the framework ---


_COLUMNS = (
    "host self duration",
    "host total duration",
    "device self duration",
    "device total duration",
)


class HostOperator(Figures, frozen=True):
    """All calls of one operator; ns, None if unknown.

    Total times include the operators that it calls, self times do not.
    """

    name: str
    calls: Count
    host_self_ns: Ns | None
    host_total_ns: Ns | None
    device_self_ns: Ns | None
    device_total_ns: Ns | None


class DetailsFigures(Figures, frozen=True):
    """Operators of the framework, from operator_details.csv."""

    operators: list[HostOperator]
    unread_rows: Count


@dataclass(frozen=True, slots=True)
class OperatorDetails(Result):
    """Operators, first those with the most own time on the host."""

    operators: list[HostOperator]
    unread: int

    def figures(self) -> DetailsFigures:
        """For JSON."""
        return DetailsFigures(self.operators, self.unread)

    def tables(self) -> list[Table]:
        """A table with host and device times."""
        rows = [
            (
                each.name,
                each.calls,
                each.host_self_ns,
                each.host_total_ns,
                each.device_self_ns,
                each.device_total_ns,
            )
            for each in self.operators[:_TOP]
        ]
        columns = (
            ("operator", ""),
            ("calls", ""),
            ("host, itself", "ns"),
            ("host, including calls", "ns"),
            ("device, itself", "ns"),
            ("device, including calls", "ns"),
        )
        return [Table("Operators of the framework", columns, rows, f"From {OPERATOR_DETAILS}.")]


def ascend_host_operators(table: CsvTable | None) -> OperatorDetails | Unavailable:
    """Sum up by name; Unavailable without rows."""
    calls: dict[str, int] = defaultdict(int)
    sums: dict[str, list[int | None]] = defaultdict(lambda: [None] * len(_COLUMNS))
    unread = 0
    if table is not None and table.has(_COLUMNS[0]):
        units = [table.unit(name, "us") for name in _COLUMNS]
        cells = zip(table.texts("name"), *(table.texts(name) for name in _COLUMNS), strict=True)
        for name, *texts in cells:
            times = [scaled(text, unit) for text, unit in zip(texts, units, strict=True)]
            if times[0] is None:
                unread += 1
                continue
            calls[name] += 1
            row = sums[name]
            for at, time in enumerate(times):
                if time is not None:
                    row[at] = (row[at] or 0) + time
    if not sums:
        return Unavailable(
            f"The folder has no {OPERATOR_DETAILS} with rows: record with the CPU's activity and"
            " record_shapes=True.",
            "no_files",
        )
    found = [HostOperator(name, calls[name], *row) for name, row in sums.items()]
    found.sort(key=lambda each: (-(each.host_self_ns or 0), each.name))
    return OperatorDetails(found, unread)
