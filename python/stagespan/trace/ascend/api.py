"""Calls of CANN's APIs, from api_statistic.csv, compared with those in the trace."""

from __future__ import annotations

import re

import msgspec
import numpy as np

from stagespan.pages.amounts import counted, in_percent, in_words
from stagespan.pages.figures import Count, Figures, Internal, MeanNs, Ns
from stagespan.pages.result import (
    Evidence,
    Finding,
    StructResult,
    Table,
    Thresholds,
    Unavailable,
    share,
)
from stagespan.trace.ascend.folder import API_STATISTIC, TRACE, disagreement
from stagespan.trace.derived.gains import gain_on_host
from stagespan.trace.derived.threads import ASCEND_HOST, in_processes
from stagespan.trace.evidence import window_of
from stagespan.trace.read.csv_tables import CsvTable, count
from stagespan.trace.read.groups import by_group, numbered
from stagespan.trace.read.model import Trace

_COMPILES = re.compile(r"^aclopCompile")
_SYNCHRONISES = re.compile(r"^aclrtSynchronize")
_SHARES = Thresholds(25.0, 10.0, 5.0)
_NO_TRACE = "only the trace shows when the device waited"
_TOP = 50


class ApiCall(Figures, frozen=True):
    """All calls of one function; times in ns."""

    level: str | None
    name: str
    count: Count
    total_ns: Ns
    mean_ns: MeanNs | None = msgspec.field(name="avg_us")
    """None without calls."""
    min_ns: Ns | None
    max_ns: Ns | None


class Calls(StructResult, frozen=True):
    """Calls by function, those with the most time first; calls within others are counted too."""

    source: str
    calls: list[ApiCall]
    window_ns: Internal[int | None]
    """The length of the trace, if there is one."""
    trace: Internal[Trace | None]
    unread: Count = msgspec.field(name="unread_rows", default=0)
    compared: Count = msgspec.field(name="compared_functions", default=0)
    """The number of functions that are in both the file and the trace."""
    differences: list[str] = msgspec.field(default_factory=list)

    def findings(self) -> list[Finding]:
        """Findings about operators compiled at run time and, without a trace, synchronisation."""
        findings = []
        for pattern, code, words, advice in (
            (
                _COMPILES,
                "ascend.compiled_while_running",
                "compiled or looked up operators while the program ran",
                "torch_npu.npu.set_compile_mode(jit_compile=False) uses precompiled operators",
            ),
            (
                _SYNCHRONISES,
                "ascend.host_waits",
                "waited for the device",
                f"The trace ({TRACE}) shows which operator waits",
            ),
        ):
            of_pattern = [call for call in self.calls if pattern.search(call.name)]
            if not of_pattern or (pattern is _SYNCHRONISES and self.window_ns is not None):
                continue
            time, calls = sum(c.total_ns for c in of_pattern), sum(c.count for c in of_pattern)
            whole = self.window_ns or sum(call.total_ns for call in self.calls)
            percent = share(time, whole)
            severity = _SHARES.severity(percent)
            if severity is None:
                continue
            of = "the trace"
            if self.window_ns is None:  # calls within others are counted twice
                severity, of = "low", "all calls"
            gain, unknown = None, _NO_TRACE
            if self.trace is not None:
                gain = gain_on_host(self.trace, time, "all operators are compiled before")
                unknown = "" if gain else "the device did not wait for the host"
            findings.append(
                Finding(
                    severity,
                    f"For {in_words(time, 'ns')} ({in_percent(percent)} of {of}) the host"
                    f" {words}, in {counted(calls, 'call')}.",
                    tuple(
                        Evidence(f"{c.name}, {counted(c.count, 'time')}", None, c.total_ns, "ns")
                        for c in of_pattern[:3]
                    ),
                    code,
                    numbers={"time_ns": time, "percent": percent, "calls": calls},
                    gain=gain,
                    no_gain=unknown,
                    action=f"{advice}.",
                )
            )
        files = f"{API_STATISTIC} and the trace"
        code, used = "ascend.calls_differ", f"the one with more calls, or else of {API_STATISTIC}"
        return findings + disagreement("low", files, self.differences, code, used)

    def tables(self) -> list[Table]:
        """Functions with the columns of api_statistic.csv."""
        note = f"From {self.source}; nested calls are also counted in the calls around them."
        if self.compared:
            agree = f"{len(self.differences):,} differ" if self.differences else "all agree"
            note += f" {self.compared:,} functions are in the trace too: {agree}."
        return [
            Table.of(
                "Calls of CANN",
                self.calls[:_TOP],
                ("name", "function", ""),
                ("level", "level", ""),
                ("count", "calls", ""),
                ("total_ns", "total", "ns"),
                ("mean_ns", "mean", "ns"),
                ("min_ns", "min", "ns"),
                ("max_ns", "max", "ns"),
                note=note,
            )
        ]


def calls(table: CsvTable | None, trace: Trace | None) -> Calls | Unavailable:
    """Return the calls in the file, or in the trace if there is no file."""
    seen = {} if trace is None else _of_trace(trace)
    window = None if trace is None else window_of(trace)
    length = None if window is None else window[1] - window[0]
    read, unread = ([], 0) if table is None else _of_table(table)
    if read:
        both = [call for call in read if call.name in seen]
        differences = [text for call in both if (text := _difference(call, seen[call.name]))]
        used = [_with_more(call, seen) for call in read] if differences else read
        used.sort(key=lambda call: (-call.total_ns, call.name))
        return Calls(API_STATISTIC, used, length, trace, unread, len(both), differences)
    if seen:
        most = sorted(seen.values(), key=lambda call: (-call.total_ns, call.name))
        return Calls("the trace", most, length, trace)
    return Unavailable(
        f"The folder has neither {API_STATISTIC} nor a trace with CANN's calls: both are written"
        " from Level1 on.",
        "no_files",
    )


def _of_table(table: CsvTable) -> tuple[list[ApiCall], int]:
    calls, unread = [], 0
    unit = table.unit("time", "us")
    cells = zip(
        table.texts("level"),
        table.texts("api name", "name"),
        map(count, table.texts("count")),
        *(table.amounts(name, unit) for name in ("time", "min", "max")),
        strict=True,
    )
    for level, name, times, time, low, high in cells:
        if times is None or time is None or not name:
            unread += 1
        else:
            calls.append(_call(level, name, times, time, low, high))
    return sorted(calls, key=lambda call: (-call.total_ns, call.name)), unread


def _of_trace(trace: Trace) -> dict[str, ApiCall]:
    """Return the calls in the process CANN by name, without the part before the @."""
    events = trace.events
    rows = np.flatnonzero(in_processes(trace, ASCEND_HOST))
    codes, group = numbered(events.name[rows])
    calls: dict[str, ApiCall] = {}
    for code, here in zip(codes.tolist(), by_group(group, len(codes)), strict=False):
        level, _, name = trace.names[code].rpartition("@")
        times = events.dur_ns[rows[here]]
        if name and level:
            calls[name] = _call(
                level, name, len(times), int(times.sum()), int(times.min()), int(times.max())
            )
    return calls


def _call(
    level: str, name: str, number: int, total_ns: int, least: int | None, most: int | None
) -> ApiCall:
    mean = total_ns / number if number else None
    return ApiCall(level or None, name, number, total_ns, mean, least, most)


def _with_more(written: ApiCall, seen: dict[str, ApiCall]) -> ApiCall:
    """Return the function as the file or the trace has it: the one with more calls."""
    other = seen.get(written.name, written)
    return other if other.count > written.count else written


def _difference(written: ApiCall, seen: ApiCall) -> str | None:
    if written.count != seen.count:
        return (
            f"{written.name}: {counted(written.count, 'call')} in the file, {seen.count:,} in the"
            " trace"
        )
    if abs(written.total_ns - seen.total_ns) > max(written.count, 1e-6 * written.total_ns):
        return (
            f"{written.name}: {in_words(written.total_ns, 'ns')} in the file,"
            f" {in_words(seen.total_ns, 'ns')} in the trace"
        )
    return None
