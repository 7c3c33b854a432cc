"""Operators on the device by type and core, from op_statistic.csv and kernel_details.csv.

If both files exist, op_statistic.csv is used, because it sums durations before rounding them to ns,
unless kernel_details.csv has more operators.
The trace shows only the core. operator_details.csv lists the operators of the framework.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable

import msgspec
import numpy as np
from msgspec import structs

from stagespan.pages.amounts import counted, in_percent, in_words
from stagespan.pages.figures import Count, Figures, Internal, MeanNs, Ns
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
from stagespan.trace.ascend.device import on_device
from stagespan.trace.ascend.folder import (
    KERNEL_DETAILS,
    OP_STATISTIC,
    OPERATOR_DETAILS,
    disagreement,
)
from stagespan.trace.derived.device import device_work
from stagespan.trace.evidence import evidence
from stagespan.trace.read.csv_tables import CsvTable, count
from stagespan.trace.read.groups import firsts_of, grouped
from stagespan.trace.read.model import Trace
from stagespan.trace.read.plausibility import is_ascend_idle

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


class OperatorType(Figures, frozen=True):
    """All operators of one type on one kind of core, with the columns of op_statistic.csv."""

    type: str
    core: str
    count: Count
    total_ns: Ns
    kernels_ns: Ns | None = msgspec.field(name="total_of_kernel_details_us")
    """The sum of the rows of kernel_details.csv, if both files exist."""
    min_ns: Ns | None
    mean_ns: MeanNs | None = msgspec.field(name="avg_us")
    max_ns: Ns | None
    percent: float


class Operators(StructResult, frozen=True):
    """Types, the one with the most time first."""

    source: str
    operators: Count
    total_ns: Ns
    unread: Count = msgspec.field(name="unread_rows")
    """The number of rows whose duration is not a number."""
    types: list[OperatorType] = msgspec.field(name="by_type")
    compared: bool
    differences: list[str]
    """Sentences about types with different figures in the other file."""

    def findings(self) -> list[Finding]:
        """Findings about operators of the AI CPU, conversions, and files that disagree."""
        findings = []
        slow = [each for each in self.types if _AI_CPU.search(each.core)]
        if slow:
            time, calls = sum(t.total_ns for t in slow), sum(t.count for t in slow)
            names = ", ".join(each.type for each in slow[:_NAMED])
            shown = tuple(map(_evidence, slow[:_NAMED]))
            findings.append(_on_ai_cpu(calls, time, self.total_ns, f", of types {names}", shown))
        changes = [t for t in self.types if t.type in _CONVERSIONS]
        time = sum(t.total_ns for t in changes)
        percent = share(time, self.total_ns)
        limit = _SHARES.severity(percent)
        if limit is not None:
            listed = ", ".join(
                f"{t.type} {counted(t.count, 'time')} ({_CONVERSIONS[t.type]})" for t in changes
            )
            findings.append(
                Finding(
                    limit,
                    f"Conversions take {in_words(time, 'ns')} ({in_percent(percent)} of all"
                    f" operators' time): {listed}.",
                    tuple(map(_evidence, changes[:_NAMED])),
                    "ascend.conversions",
                    numbers={"time_ns": time, "percent": percent},
                    gain=Gain(time, at_most=True, how="none of them is necessary"),
                    action="Keep data in one format and type between operators.",
                    covers=("kernels.layout",),
                )
            )
        files = f"{KERNEL_DETAILS} and {OP_STATISTIC}"
        code = "ascend.operators_differ"
        used = f"{self.source}, which has at least as many operators"
        return findings + disagreement("medium", files, self.differences, code, used)

    def tables(self) -> list[Table]:
        """Types with the columns of op_statistic.csv."""
        note = f"From {self.source}."
        if self.compared:
            agree = f"{len(self.differences):,} types differ" if self.differences else "equal"
            against = OP_STATISTIC if self.source == KERNEL_DETAILS else KERNEL_DETAILS
            note += f" Against the sums of {against}: {agree}."
        if self.unread:
            note += f" {self.unread:,} rows without a duration are skipped."
        return [
            Table.of(
                "Operators by type",
                self.types[:_TOP],
                ("type", "type", ""),
                ("core", "core", ""),
                ("count", "count", ""),
                ("total_ns", "total", "ns"),
                ("min_ns", "min", "ns"),
                ("mean_ns", "mean", "ns"),
                ("max_ns", "max", "ns"),
                ("percent", "of all", "%"),
                note=note,
            )
        ]


def _evidence(of_type: OperatorType) -> Evidence:
    name = f"{of_type.type} on {of_type.core}, {counted(of_type.count, 'time')}"
    return Evidence(name, None, of_type.total_ns, "ns")


def _on_ai_cpu(
    count: int, time_ns: int, whole_ns: int, which: str, examples: tuple[Evidence, ...]
) -> Finding:
    """Return the finding about operators that ran on the AI CPU; `which` lists some of them."""
    percent = share(time_ns, whole_ns)
    return Finding(
        _SHARES.severity(percent) or "low",
        f"{counted(count, 'operator')} ran on the AI CPU, which is slow: {in_words(time_ns, 'ns')}"
        f" ({in_percent(percent)} of all operators' time){which}.",
        examples,
        "ascend.ai_cpu",
        numbers={"operators": count, "time_ns": time_ns, "percent": percent},
        action="With other data types, or other operators, this work runs on the AI Core.",
        gain=Gain(time_ns, at_most=True, how="they take next to no time on the AI Core")
        if time_ns
        else None,
    )


class _Sum(msgspec.Struct, frozen=True):
    """The operators of one type on one kind of core; times in ns."""

    count: int
    total_ns: int
    min_ns: int | None
    max_ns: int | None


_Sums = dict[tuple[str, str], _Sum]


def operators(tables: dict[str, CsvTable]) -> Operators | Unavailable:
    """Return types from op_statistic.csv, compared with the kernels, or from the kernels."""
    known, kernels = tables.get(OP_STATISTIC), tables.get(KERNEL_DETAILS)
    theirs, not_theirs = ({}, 0) if known is None else _of_statistic(known)
    of_kernels, unread = ({}, 0) if kernels is None else _of_kernels(kernels)
    if theirs and of_kernels and kernels is not None and kernels.has("type"):
        result = _operators(OP_STATISTIC, theirs, not_theirs + unread, of_kernels)
        more = sum(each.count for each in of_kernels.values()) > result.operators
        if result.differences and more:
            other = _operators(KERNEL_DETAILS, of_kernels, not_theirs + unread)
            result = structs.replace(other, compared=True, differences=result.differences)
        return result
    if theirs:
        return _operators(OP_STATISTIC, theirs, not_theirs)
    if of_kernels:
        return _operators(KERNEL_DETAILS, of_kernels, unread)
    return Unavailable(
        f"The folder has neither {KERNEL_DETAILS} nor {OP_STATISTIC} with rows: both are written"
        " from Level1 on with the NPU's activity.",
        "no_files",
    )


def _operators(source: str, sums: _Sums, unread: int, kernels: _Sums | None = None) -> Operators:
    whole = sum(each.total_ns for each in sums.values())
    kernels_ns = {key: each.total_ns for key, each in (kernels or {}).items()}
    types = [
        OperatorType.taken(
            work,
            type=type_,
            core=core,
            kernels_ns=kernels_ns.get((type_, core)),
            mean_ns=work.total_ns / work.count if work.count else None,
            percent=share(work.total_ns, whole),
        )
        for (type_, core), work in sums.items()
    ]
    return Operators(
        source=source,
        operators=sum(each.count for each in types),
        total_ns=whole,
        unread=unread,
        types=sorted(types, key=lambda each: (-each.total_ns, each.type)),
        compared=kernels is not None,
        differences=[] if kernels is None else _differences(kernels, sums),
    )


def _of_kernels(table: CsvTable) -> tuple[_Sums, int]:
    if not table.has("duration"):
        return {}, len(table)
    types = table.texts("type", "op type", "name")
    cores = table.texts("accelerator core", "core type", "task type")
    times: dict[tuple[str, str], list[int]] = defaultdict(list)
    unread = 0
    names, durations = table.texts("name"), table.amounts("duration", "us")
    for type_, core, time, name in zip(types, cores, durations, names, strict=True):
        # Level 0 leaves both out.
        type_ = name if type_ in _NOT_GIVEN else type_
        core = "" if core in _NOT_GIVEN else core
        if time is None:
            unread += 1
        # Collectives and waits are not operators.
        elif not core.startswith(("HCCL", "COMMUNICATION")) and not is_ascend_idle(core, name):
            times[type_, core].append(time)
    found = {key: _Sum(len(all_), sum(all_), min(all_), max(all_)) for key, all_ in times.items()}
    return found, unread


def _of_statistic(table: CsvTable) -> tuple[_Sums, int]:
    sums: _Sums = {}
    unread = 0
    cells = zip(
        table.texts("op type"),
        table.texts("core type"),
        map(count, table.texts("count")),
        *(table.amounts(name, "us") for name in ("total time", "min time", "max time")),
        strict=True,
    )
    for type_, core, number, time, low, high in cells:
        if number is None or time is None:
            unread += 1
            continue
        other = sums.get((type_, core))  # a row of another device
        if other is not None:
            number, time = number + other.count, time + other.total_ns
            low, high = _either(min, low, other.min_ns), _either(max, high, other.max_ns)
        sums[type_, core] = _Sum(number, time, low, high)
    return sums, unread


def _either(
    choose: Callable[[list[int]], int], first: int | None, second: int | None
) -> int | None:
    known = [each for each in (first, second) if each is not None]
    return choose(known) if known else None


def _differences(first: _Sums, second: _Sums) -> list[str]:
    other, differences = dict(second), []
    longest = sorted(first.items(), key=lambda item: (-item[1].total_ns, item[0][0]))
    for (type_, core), work in longest:
        same = other.pop((type_, core), None)
        name = f"{type_} on {core}"
        if same is None:
            differences.append(f"{name} is not in {OP_STATISTIC}")
        elif same.count != work.count:
            differences.append(
                f"{name}: {work.count:,} in {KERNEL_DETAILS}, {same.count:,} in {OP_STATISTIC}"
            )
        elif abs(same.total_ns - work.total_ns) > max(_NS_EACH * work.count, 1e-6 * work.total_ns):
            differences.append(
                f"{name}: {in_words(work.total_ns, 'ns')} in {KERNEL_DETAILS},"
                f" {in_words(same.total_ns, 'ns')} in {OP_STATISTIC}"
            )
    differences += [f"{type_} on {core} is not in {KERNEL_DETAILS}" for type_, core in other]
    return differences


# --- Operators by core, from the trace ---


class Core(Figures, frozen=True):
    """All operators of one kind of core; times in ns."""

    name: str = msgspec.field(name="core")
    count: Count = msgspec.field(name="operators")
    total_ns: Ns
    percent: Internal[float]
    """Of the time of all cores."""


class AiCpuOperator(Figures, frozen=True):
    """All runs of an operator on the AI CPU; times in ns."""

    name: str
    count: Count
    total_ns: Ns
    longest: Internal[Evidence]


class Cores(StructResult, frozen=True):
    """Kinds of cores, the one with the most time first."""

    cores: list[Core]
    slow: list[AiCpuOperator] = msgspec.field(name="ai_cpu_operators")
    """The most time first."""

    def findings(self) -> list[Finding]:
        """A finding about operators that ran on the AI CPU."""
        if not self.slow:
            return []
        time, count = sum(e.total_ns for e in self.slow), sum(e.count for e in self.slow)
        names = ", ".join(shortened(each.name) for each in self.slow[:_NAMED])
        shown = tuple(each.longest for each in self.slow[:_NAMED])
        whole = sum(core.total_ns for core in self.cores)
        return [_on_ai_cpu(count, time, whole, f": {names}", shown)]

    def tables(self) -> list[Table]:
        """A table of the kinds of core."""
        return [
            Table.of(
                "Operators by core",
                self.cores,
                ("name", "core", ""),
                ("count", "operators", ""),
                ("total_ns", "time", "ns"),
                ("percent", "of all", "%"),
            )
        ]


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
    whole = sum(each.time_ns for each in types)
    by_core = [
        Core(trace.names[each.code], each.count, each.time_ns, share(each.time_ns, whole))
        for each in types
    ]
    cpu_types = [each.code for each in types if _AI_CPU.match(trace.names[each.code])]
    on_cpu = rows[np.isin(events.task_type[rows], cpu_types)]
    longest_first = on_cpu[np.argsort(-events.dur_ns[on_cpu], kind="stable")]
    names, first = firsts_of(events.name[longest_first])
    longest = dict(zip(names.tolist(), longest_first[first].tolist(), strict=True))
    slow = [
        AiCpuOperator(
            trace.names[each.code], each.count, each.time_ns, evidence(trace, longest[each.code])
        )
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


class OperatorDetails(StructResult, frozen=True):
    """Operators of the framework, first those with the most own time on the host."""

    operators: list[HostOperator]
    unread_rows: Count

    def tables(self) -> list[Table]:
        """A table with host and device times."""
        return [
            Table.of(
                "Operators of the framework",
                self.operators[:_TOP],
                ("name", "operator", ""),
                ("calls", "calls", ""),
                ("host_self_ns", "host, itself", "ns"),
                ("host_total_ns", "host, including calls", "ns"),
                ("device_self_ns", "device, itself", "ns"),
                ("device_total_ns", "device, including calls", "ns"),
                note=f"From {OPERATOR_DETAILS}.",
            )
        ]


def ascend_host_operators(table: CsvTable | None) -> OperatorDetails | Unavailable:
    """Sum up by name; Unavailable without rows."""
    calls: dict[str, int] = defaultdict(int)
    sums: dict[str, list[int | None]] = defaultdict(lambda: [None] * len(_COLUMNS))
    unread = 0
    if table is not None and table.has(_COLUMNS[0]):
        columns = (table.amounts(name, "us") for name in _COLUMNS)
        for name, *times in zip(table.texts("name"), *columns, strict=True):
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
