"""Finds where the host waited for an Ascend device: `item`, `to` and synchronising calls."""

from __future__ import annotations

import msgspec
import numpy as np

from stagespan.pages.amounts import counted, in_percent, in_words
from stagespan.pages.figures import Count, Figures, Internal, Ns
from stagespan.pages.result import (
    Evidence,
    Finding,
    Severity,
    StructResult,
    Table,
    Thresholds,
    Unavailable,
    share,
    shortened,
)
from stagespan.trace.derived.call_site import call_sites, waiting_operators
from stagespan.trace.derived.device import device_work, launches
from stagespan.trace.derived.gains import idle_gain
from stagespan.trace.derived.idle_causes import SYNC_OPERATORS, WAITING_OPERATORS, WAITS
from stagespan.trace.derived.threads import ThreadIndex, name_codes, named
from stagespan.trace.evidence import evidence, window_of
from stagespan.trace.read.groups import grouped, values_of
from stagespan.trace.read.intervals import Cover, Mask, Numbers, covered
from stagespan.trace.read.model import Trace

# An operator that can wait counts as waiting from this duration on, even without a call.
_LONG_NS = 1_000_000
_SHARES = Thresholds(25.0, 10.0, 5.0)
_LARGEST = 20


class HostWait(Figures, frozen=True):
    """Waits of one operator by one call; times in ns."""

    operator: str | None
    call: str | None
    """None if the trace does not show the call; then the operator's own duration counts."""
    line: str | None = msgspec.field(name="python")
    """The line of Python of the longest."""
    waits: Count
    total_ns: Ns = msgspec.field(name="wait_us")
    busy_ns: Ns = msgspec.field(name="device_busy_us")
    """The part of it in which the device computed, communicated or copied."""
    longest_ns: Ns
    longest_at_ns: Ns
    longest: Internal[Evidence]

    @property
    def label(self) -> str:
        """Operator and call."""
        if self.operator is None:
            return self.call or ""
        return f"{self.operator} ({self.call})" if self.call else self.operator


class LongWait(Figures, frozen=True):
    """One of the longest waits."""

    operator: str | None
    event: str
    time_ns: Ns
    wait_ns: Ns


class HostWaits(StructResult, frozen=True):
    """All of the host's waits for the device; times in ns."""

    window_ns: Ns
    total_ns: Ns = msgspec.field(name="wait_us")
    """Time in which some thread waited."""
    count: Internal[int]
    groups: list[HostWait] = msgspec.field(name="waits")
    """Waits by operator and call, the most time first."""
    longest: list[LongWait]
    """The longest waits one by one."""

    def findings(self) -> list[Finding]:
        """A finding if waiting takes a large part of the time."""
        percent = share(self.total_ns, self.window_ns)
        severity: Severity | None = _SHARES.severity(percent)
        if severity is None:
            return []
        worst = self.groups[0]
        sentence = (
            f"For {in_words(self.total_ns, 'ns')} ({in_percent(percent)} of the trace) the host"
            f" waited for the device, {counted(self.count, 'time')},"
            f" mostly in {shortened(worst.label, 90)}"
        )
        if worst.line:
            sentence += f" at {shortened(worst.line, 90)}"
        sentence += f": {in_words(worst.total_ns, 'ns')} in {counted(worst.waits, 'call')}."
        busy = share(worst.busy_ns, worst.total_ns)
        if busy >= 50.0:
            severity = "low"  # less waiting would not end the work earlier
            action = ""
            details = (
                f"The device was busy for {busy:.0f} % of that, so its work took the time, and the"
                " next work was launched late."
            )
        else:
            action = "Keep values on the device, or read them once per step, to avoid the wait."
            details = f"The device was busy for only {busy:.0f} % of that."
        evidence = tuple(group.longest for group in self.groups[:3])
        numbers = {
            "time_ns": self.total_ns,
            "percent": percent,
            "waits": self.count,
            "worst_ns": worst.total_ns,
            "worst_calls": worst.waits,
            "busy_percent": busy,
        }
        idle = sum(each.total_ns - each.busy_ns for each in self.groups)
        gain = idle_gain(min(max(idle, 0), self.total_ns))
        return [
            Finding(
                severity,
                sentence,
                evidence,
                "ascend.host_waits",
                numbers,
                gain,
                action=action,
                details=details,
            )
        ]

    def tables(self) -> list[Table]:
        """A table of waits by operator and call, and the longest waits."""
        return [
            Table.of(
                "Where the host waited for the device",
                self.groups,
                ("operator", "operator", ""),
                ("call", "call", ""),
                ("line", "line", ""),
                ("waits", "waits", ""),
                ("total_ns", "time", "ns"),
                ("busy_ns", "device busy", "ns"),
                ("longest_ns", "longest", "ns"),
            ),
            Table.of(
                "Longest waits of the host",
                self.longest,
                ("operator", "operator", ""),
                ("event", "event", ""),
                ("time_ns", "at", "ns"),
                ("wait_ns", "time", "ns"),
            ),
        ]


def analyze(trace: Trace) -> HostWaits | Unavailable:
    """List the waits, the longest first; Unavailable if there are none."""
    events = trace.events
    calls = np.flatnonzero(launches(trace) & named(trace, WAITS))
    around = waiting_operators(trace, calls)
    alone = _operators_alone(trace, around[around >= 0], has_calls=len(calls) > 0)
    window = window_of(trace)
    rows = np.concatenate((calls, alone))
    if len(rows) == 0 or window is None:
        return Unavailable("The trace shows no call that waits for the device.", "no_waits")
    operator = np.concatenate((around, alone))
    is_call = np.arange(len(rows)) < len(calls)
    name_of_operator = name_codes(trace, operator)
    name_of_call = np.where(is_call, events.name[rows], -1)
    code = (name_of_operator + 1) * (len(trace.names) + 1) + name_of_call + 1
    busy = _busy_within(trace, rows)
    sites = call_sites(trace)
    groups = []
    for group in grouped(code, events.dur_ns[rows])[:_LARGEST]:
        of_group = np.flatnonzero(code == group.code)
        longest = int(of_group[np.argmax(events.dur_ns[rows[of_group]])])
        groups.append(
            HostWait(
                operator=_name(trace, int(name_of_operator[longest])),
                call=_name(trace, int(name_of_call[longest])),
                line=sites.line(int(rows[longest])),
                waits=group.count,
                total_ns=group.time_ns,
                busy_ns=int(busy[of_group].sum()),
                longest_ns=int(events.dur_ns[rows[longest]]),
                longest_at_ns=int(events.begin_ns[rows[longest]]) - window[0],
                longest=evidence(trace, int(rows[longest])),
            )
        )
    return HostWaits(
        window_ns=window[1] - window[0],
        total_ns=covered(events.begin_ns[rows], events.end_ns[rows]),
        count=len(rows),
        groups=groups,
        longest=[
            LongWait(
                operator=_name(trace, int(name_of_operator[at])),
                event=trace.names[int(events.name[rows[at]])],
                time_ns=int(events.begin_ns[rows[at]]) - window[0],
                wait_ns=int(events.dur_ns[rows[at]]),
            )
            for at in np.argsort(-events.dur_ns[rows], kind="stable")[:_LARGEST]
        ],
    )


def _operators_alone(trace: Trace, around: Numbers, has_calls: bool) -> Numbers:
    """Return long operators that are known to wait, but contain no waiting call.

    `to` and similar operators do not always wait, so they count only if the trace has no waiting
    calls.
    """
    names = WAITING_OPERATORS if has_calls else SYNC_OPERATORS
    codes = [code for code, name in enumerate(trace.names) if name in names]
    found: Mask = np.isin(trace.events.name, codes) & trace.rows_of(["cpu_op"])
    rows = np.flatnonzero(found & (trace.events.dur_ns >= _LONG_NS))
    outer = waiting_operators(trace, rows)
    rows = values_of(np.where(outer >= 0, outer, rows))
    # An operator around a call, and those around and within it.
    taken = np.isin(rows, around)
    if len(around) and len(rows):
        threads = ThreadIndex(trace, rows, around)
        if not threads.fits:
            return rows[:0]
        this_thread, others = (
            (
                threads.axis.place(thread, trace.events.begin_ns[of]),
                threads.axis.place(thread, trace.events.end_ns[of]),
            )
            for of, thread in zip((rows, around), threads.of, strict=True)
        )
        taken |= Cover(*others).length(*this_thread) > 0
    return rows[~taken]


def _busy_within(trace: Trace, rows: Numbers) -> Numbers:
    """Return how long the device was busy during each wait."""
    events = trace.events
    device = device_work(trace).rows
    first = int(events.begin_ns.min())
    cover = Cover(events.begin_ns[device] - first, events.end_ns[device] - first)
    inside: Numbers = cover.length(events.begin_ns[rows] - first, events.end_ns[rows] - first)
    return inside


def _name(trace: Trace, code: int) -> str | None:
    return None if code < 0 else trace.names[code]
