"""Finds out why an Ascend device was idle ("Free"), from the host's activity before each launch.

An operator passes these phases: the framework enqueues it (Enqueue), it waits in the task queue,
the queue's thread prepares and launches it (Dequeue, CANN), and it waits on the device. Each free
moment belongs to the phase of the next operator.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np

from stagespan.pages.amounts import in_percent, in_words
from stagespan.pages.figures import Count, Figures, Ns, one_of
from stagespan.pages.result import (
    Evidence,
    Finding,
    StructResult,
    Table,
    Thresholds,
    Unavailable,
    share,
)
from stagespan.trace.ascend.device import on_device
from stagespan.trace.derived.device import COPY, device_work, launched
from stagespan.trace.derived.gains import idle_gain
from stagespan.trace.derived.task_queue import tasks_at
from stagespan.trace.read.groups import median
from stagespan.trace.read.intervals import Mask, Numbers, covered, merged
from stagespan.trace.read.model import MISSING, Trace

_FRAMEWORK, _IN_QUEUE, _LAUNCHING, _LAUNCHED = "framework", "task_queue", "launching", "launched"
_COPYING, _UNKNOWN = "copying", "unknown"
_PARTS = {
    _FRAMEWORK: "the framework had not yet asked for the next operator",
    _IN_QUEUE: "the next operator waited in the host's task queue",
    _LAUNCHING: "the host prepared and launched the next operator",
    _LAUNCHED: "the next operator was launched, but had not begun",
    _COPYING: "the device copied",
    _UNKNOWN: "the trace does not show the next operator's launch",
}
_HOST = (_FRAMEWORK, _IN_QUEUE, _LAUNCHING)
_ADVICE = {
    _FRAMEWORK: "Fewer and larger operators, graph mode, or less Python between them would help",
    _IN_QUEUE: "The thread that empties the queue is the bottleneck: check its longest calls",
    _LAUNCHING: "Possible causes are compiling operators while running (jit_compile) and tiling of"
    " changing shapes: precompiled operators, fixed shapes or graph mode would help",
}
_SHARES = Thresholds(25.0, 10.0, 5.0)
_SHORT_NS = 10_000
_LARGEST = 20


_Part = Annotated[str, one_of(_PARTS)]


class FreeGap(Figures, frozen=True):
    """A time when the device was free; ns."""

    begin_ns: Ns = msgspec.field(name="time_us")
    """From the start of the trace's window."""
    time_ns: Ns = msgspec.field(name="free_us")
    parts: dict[_Part, Ns] = msgspec.field(name="parts_us")
    following: str = msgspec.field(name="next_operator")
    """The operator that ended it."""


class Free(StructResult, frozen=True):
    """The device's free time; `parts` sum to `free_ns`."""

    span_ns: Ns
    free_ns: Ns
    host_ns: Ns = msgspec.field(name="host_bound_us")
    """The time that the device was free because of the host."""
    parts: dict[_Part, Ns] = msgspec.field(name="parts_us")
    gaps: Count
    operators: Count
    operator_ns: Ns = msgspec.field(name="median_operator_us")
    """Of operators that compute."""
    short: Count = msgspec.field(name="operators_below_10_us")
    largest: list[FreeGap] = msgspec.field(name="largest_gaps")

    @property
    def _span(self) -> str:
        return f"the {in_words(self.span_ns, 'ns')} from the first operator to the last"

    def findings(self) -> list[Finding]:
        """Findings about idle time because of the host, after a timely launch, or unexplained."""
        findings = []
        percent = share(self.host_ns, self.span_ns)
        severity = _SHARES.severity(percent)
        if severity is not None:
            most = max(_HOST, key=lambda part: self.parts.get(part, 0))
            sentence = (
                f"Host-bound: for {in_words(self.host_ns, 'ns')} of {self._span} "
                f"({in_percent(percent)}) the device was free because the host was late, mostly"
                f" ({in_words(self.parts[most], 'ns')}) because {_PARTS[most]}."
            )
            details = ""
            if 2 * self.short >= self.operators:
                details = (
                    f"{self.short:,} of its {self.operators:,} operators take less than 10 µs."
                )
            findings.append(
                Finding(
                    severity,
                    sentence,
                    self._largest(_HOST),
                    "ascend.host_bound",
                    action=f"{_ADVICE[most]}.",
                    details=details,
                    numbers={
                        "time_ns": self.host_ns,
                        "percent": percent,
                        "whole_ns": self.span_ns,
                        "worst_ns": self.parts[most],
                        "short_operators": self.short,
                        "operators": self.operators,
                    },
                    gain=idle_gain(self.host_ns),
                    covers=("idle.host_unseen", "idle.host_work", "idle.launch"),
                )
            )
        for part, code, words in (
            (
                _LAUNCHED,
                "ascend.late_start",
                f"while {_PARTS[_LAUNCHED]}: it waited for an event or for the device itself",
            ),
            (
                _UNKNOWN,
                "ascend.free_unexplained",
                f"for an unknown reason: {_PARTS[_UNKNOWN]}",
            ),
        ):
            time = self.parts.get(part, 0)
            percent = share(time, self.span_ns)
            severity = _SHARES.severity(percent)
            if severity is not None:
                sentence = (
                    f"For {in_words(time, 'ns')} of {self._span} ({in_percent(percent)}) the device"
                    f" was idle {words}."
                )
                numbers = {"time_ns": time, "percent": percent, "whole_ns": self.span_ns}
                seen = self._largest((part,))
                gain = idle_gain(time) if part == _LAUNCHED else None
                unknown = "" if gain else "it depends on what the device waited for"
                covers = ("idle.unexplained",) if part == _UNKNOWN else ()
                findings.append(
                    Finding(
                        severity,
                        sentence,
                        seen,
                        code,
                        numbers,
                        gain,
                        no_gain=unknown,
                        covers=covers,
                    )
                )
        return findings

    def tables(self) -> list[Table]:
        """Free time by part, and the largest gaps."""
        rows = [(_PARTS[part], t, share(t, self.free_ns)) for part, t in self.parts.items()]
        note = (
            f"{self.operators:,} operators, the median takes {in_words(self.operator_ns, 'ns')},"
            f" {self.short:,} take less than 10 µs."
        )
        return [
            Table("Why the device was free", (("", ""), ("time", "ns"), ("of free", "%")), rows),
            Table.of(
                "Largest free times",
                self.largest,
                ("begin_ns", "at", "ns"),
                ("time_ns", "free", "ns"),
                (lambda gap: max(gap.parts, key=gap.parts.__getitem__), "mostly", ""),
                ("following", "next operator", ""),
                note=note,
            ),
        ]

    def _largest(self, parts: tuple[str, ...]) -> tuple[Evidence, ...]:
        def of(gap: FreeGap) -> int:
            return sum(gap.parts.get(part, 0) for part in parts)

        worst = sorted(self.largest, key=of, reverse=True)[:3]
        chosen = [gap for gap in worst if of(gap)] or worst
        return tuple(
            Evidence(f"free before {g.following}", g.begin_ns, g.time_ns, "ns") for g in chosen
        )


def analyze(trace: Trace) -> Free | Unavailable:
    """Split the device's idle time; Unavailable without operators on an Ascend device."""
    events, work = trace.events, device_work(trace)
    rows = work.rows
    operators = rows[work.kind[rows] != COPY]
    computing = np.flatnonzero(work.is_kernel & on_device(trace))
    if len(operators) == 0 or len(computing) == 0:
        return Unavailable(
            "The trace has no operators on an Ascend device: record the NPU's activity.",
            "no_device",
        )
    begin, end = events.begin_ns, events.end_ns
    window = int(begin.min())
    first, last = int(begin[operators].min()), int(end[operators].max())
    # Copies within the time of the operators count as free time.
    busy_begin, busy_end = merged(
        np.clip(begin[rows], first, last), np.clip(end[rows], first, last)
    )
    gap_begin, gap_end = busy_end[:-1], busy_begin[1:]
    free = last - first - covered(begin[operators], end[operators])
    way = _way_of_next(trace, rows, gap_end)
    parts = _parts(gap_begin, gap_end, way)
    sums = {name: int(times.sum()) for name, times in parts.items()}
    sums[_COPYING] = free - int((gap_end - gap_begin).sum())
    largest = np.argsort(gap_begin - gap_end, kind="stable")[:_LARGEST]
    duration = events.dur_ns[computing]
    return Free(
        span_ns=last - first,
        free_ns=free,
        host_ns=sum(sums.get(part, 0) for part in _HOST),
        parts={p: sums[p] for p in sorted(sums, key=lambda p: -sums[p]) if sums[p]},
        gaps=len(gap_begin),
        largest=[
            FreeGap(
                int(gap_begin[at]) - window,
                int(gap_end[at] - gap_begin[at]),
                {p: int(times[at]) for p, times in parts.items() if times[at]},
                trace.names[int(events.name[way.following[at]])],
            )
            for at in largest
        ],
        operators=len(computing),
        operator_ns=int(median(duration)),
        short=int((duration < _SHORT_NS).sum()),
    )


class _Way(msgspec.Struct, frozen=True):
    """The phases of the operator after each gap; ascending times in ns."""

    following: Numbers
    is_known: Mask
    """Whether its launch is in the trace."""
    asked_ns: Numbers
    taken_ns: Numbers
    """When it left the queue; `asked_ns` if it was not in a queue."""
    launched_ns: Numbers


def _way_of_next(trace: Trace, rows: Numbers, gap_end: Numbers) -> _Way:
    events = trace.events
    order = rows[np.argsort(events.begin_ns[rows], kind="stable")]
    following = order[np.searchsorted(events.begin_ns[order], gap_end, side="left")]
    begin, end, thread = launched(trace, following)
    is_known = begin != MISSING
    ended, taken = np.where(is_known, end, gap_end), np.where(is_known, begin, gap_end)
    asked = taken.copy()
    dequeue, put = tasks_at(trace, thread, taken)
    through = is_known & (dequeue >= 0)
    taken[through] = events.begin_ns[dequeue[through]]
    asked[through] = np.minimum(taken[through], trace.flows.begin_ns[put[through]])
    return _Way(following, is_known, asked, taken, ended)


def _parts(begin: Numbers, end: Numbers, way: _Way) -> dict[str, Numbers]:
    """Return the time of each gap in each phase; they sum to the gap."""
    asked, taken, launched = (
        np.clip(time, begin, end) for time in (way.asked_ns, way.taken_ns, way.launched_ns)
    )
    is_known = way.is_known
    return {
        _FRAMEWORK: np.where(is_known, asked - begin, 0),
        _IN_QUEUE: np.where(is_known, taken - asked, 0),
        _LAUNCHING: np.where(is_known, np.maximum(launched, taken) - taken, 0),
        _LAUNCHED: np.where(is_known, end - np.maximum(launched, taken), 0),
        _UNKNOWN: np.where(is_known, 0, end - begin),
    }
