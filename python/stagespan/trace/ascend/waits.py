"""Lists the waits of an Ascend device's streams for another stream or another rank."""

from __future__ import annotations

import re

import msgspec
import numpy as np
from numpy.typing import NDArray

from stagespan.pages.amounts import counted, in_percent, in_words
from stagespan.pages.figures import Count, Figures, Ns
from stagespan.pages.result import (
    Evidence,
    Finding,
    StructResult,
    Table,
    Thresholds,
    Unavailable,
    share,
    shortened,
)
from stagespan.trace.ascend.device import on_device
from stagespan.trace.derived.device import COMMUNICATION, COMPUTE, COPY, device_work
from stagespan.trace.derived.gains import idle_gain
from stagespan.trace.derived.threads import named
from stagespan.trace.read.intervals import Mask, Numbers, covered, merged, minus
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once

EVENT, NOTIFY = "event", "notify"
_EVENT = re.compile(r"^EVENT_WAIT")
_NOTIFY = re.compile(r"^notify[ _]?wait", re.IGNORECASE)
_SHARES = Thresholds(25.0, 10.0, 5.0)
_LARGEST = 20
_WHAT = {EVENT: "an event of another stream", NOTIFY: "another rank (Notify Wait)"}


class Wait(Figures, frozen=True):
    """One wait; times in ns."""

    kind: str
    event: str
    time_ns: Ns
    """From the start of the trace's window."""
    wait_ns: Ns
    exposed_ns: Ns = msgspec.field(name="nothing_computed_us")
    """The part of the wait without computing."""
    stream: str
    operator: str | None
    """The waiting operator, or the collective that contains the wait."""
    overlapped_by: str | None
    """The event on another stream that overlapped it for longest."""

    @property
    def evidence(self) -> Evidence:
        """The wait as evidence."""
        return Evidence(self.event, self.time_ns, self.wait_ns, "ns")


class WaitsOfKind(Figures, frozen=True):
    """All waits of one kind."""

    meaning: str
    count: Count = msgspec.field(name="waits")
    total_ns: Ns = msgspec.field(name="wait_us")
    """Sum of the waits' durations; waits of several streams at once are each counted."""
    exposed_ns: Ns = msgspec.field(name="nothing_computed_us")
    """The time in which a stream waited without computing on the device."""
    communicating_ns: Ns = msgspec.field(name="in_exposed_communication_us")
    """The part of that in which a collective ran: it is exposed communication."""


class WaitsInCommunication(msgspec.Struct, frozen=True):
    """Waits of one kind that are a part of exposed communication."""

    kind: str
    time_ns: int
    clause: str
    """A part of the sentence on exposed communication."""
    exposed: Evidence
    """The time of all these waits without computing."""
    longest: Evidence


class StreamWaits(StructResult, frozen=True):
    """The waits of streams."""

    span_ns: Ns
    by_kind: dict[str, WaitsOfKind]
    largest: list[Wait]

    def findings(self) -> list[Finding]:
        """Findings about long waits that are not waits of a collective."""
        findings = []
        for kind, waits in self.by_kind.items():
            if self.is_communication(kind):
                continue  # the finding about exposed communication contains these
            percent = share(waits.exposed_ns, self.span_ns)
            severity = _SHARES.severity(percent)
            of_kind = [wait for wait in self.largest if wait.kind == kind]
            if severity is None or not of_kind:
                continue
            longest = max(of_kind, key=lambda wait: wait.exposed_ns)
            sentence = (
                f"For {in_words(waits.exposed_ns, 'ns')} of the {in_words(self.span_ns, 'ns')}"
                f" from the first event to the last ({in_percent(percent)}) the"
                f" device waited for {waits.meaning} without computing:"
                f" {counted(waits.count, 'wait')}, the longest of"
                f" {in_words(longest.wait_ns, 'ns')} on {longest.stream}"
            )
            if longest.operator:
                where = "before" if kind == EVENT else "in"
                sentence += f" {where} {shortened(longest.operator)}"
            if longest.overlapped_by and kind == EVENT:
                sentence += f", while {shortened(longest.overlapped_by)} ran"
            sentence += "."
            action, details = "", ""
            if kind == NOTIFY:
                action = "Compare the ranks."
                details = "The other ranks arrived later, or the link was slow."
            of_kind.sort(key=lambda wait: -wait.exposed_ns)
            evidence = tuple(wait.evidence for wait in of_kind[:3])
            numbers = {
                "time_ns": waits.exposed_ns,
                "percent": percent,
                "whole_ns": self.span_ns,
                "waits": waits.count,
            }
            code = f"ascend.{kind}_wait"
            gain = idle_gain(waits.exposed_ns)
            findings.append(
                Finding(
                    severity,
                    sentence,
                    evidence,
                    code,
                    numbers,
                    gain,
                    action=action,
                    details=details,
                )
            )
        return findings

    def is_communication(self, kind: str) -> bool:
        """Whether waits of this kind are mostly exposed waits of collectives."""
        exposed, inside = self.by_kind[kind].exposed_ns, self.by_kind[kind].communicating_ns
        much = share(inside, self.span_ns) >= _SHARES.low
        return much and 2 * inside >= exposed

    def in_communication(self) -> list[WaitsInCommunication]:
        """Return the kinds that are communication, NOTIFY last."""
        inside = []
        for kind, waits in self.by_kind.items():
            of_kind = [wait for wait in self.largest if wait.kind == kind]
            if not of_kind or not self.is_communication(kind):
                continue
            longest = max(of_kind, key=lambda wait: wait.exposed_ns)
            time = in_words(waits.communicating_ns, "ns")
            clause = f"{time} of this while a stream waited for {waits.meaning}"
            name = f"{longest.event}, without computing"
            exposed = Evidence(name, None, waits.exposed_ns, "ns")
            inside.append(
                WaitsInCommunication(
                    kind, waits.communicating_ns, clause, exposed, longest.evidence
                )
            )
        return inside

    def tables(self) -> list[Table]:
        """Tables of waits by kind, and of the longest waits."""
        return [
            Table.of(
                "What streams waited for",
                self.by_kind.values(),
                ("meaning", "", ""),
                ("count", "waits", ""),
                ("total_ns", "time", "ns"),
                ("exposed_ns", "without computing", "ns"),
            ),
            Table.of(
                "Longest waits of streams",
                self.largest,
                ("event", "wait", ""),
                ("time_ns", "at", "ns"),
                ("wait_ns", "time", "ns"),
                ("exposed_ns", "without computing", "ns"),
                ("stream", "stream", ""),
                ("operator", "operator", ""),
                ("overlapped_by", "overlapped by", ""),
            ),
        ]


@once
def analyze(trace: Trace) -> StreamWaits | Unavailable:
    """List the waits of streams; Unavailable if there are none."""
    events, work = trace.events, device_work(trace)
    rows_of = {
        EVENT: np.flatnonzero(named(trace, _EVENT) & on_device(trace)),
        NOTIFY: np.flatnonzero(named(trace, _NOTIFY) & on_device(trace)),
    }
    if len(rows_of[NOTIFY]) == 0:  # then the tracks of communication may contain them
        rows_of[NOTIFY] = np.flatnonzero(named(trace, _NOTIFY))
    rows_of = {kind: rows for kind, rows in rows_of.items() if len(rows)}
    busy = work.rows
    if not rows_of or len(busy) == 0:
        return Unavailable(
            "The trace has no waits of streams (EVENT_WAIT, Notify Wait).", "no_waits"
        )
    begin, end = events.begin_ns, events.end_ns
    computes = busy[work.kind[busy] == COMPUTE]
    computing = merged(begin[computes], end[computes])
    communicates = busy[work.kind[busy] == COMMUNICATION]
    exposed_communication = minus(merged(begin[communicates], end[communicates]), computing)
    details = _Details(trace, busy, work.kind)
    by_kind = {}
    largest: list[Wait] = []
    for kind, rows in rows_of.items():
        left = minus(merged(begin[rows], end[rows]), computing)
        exposed = covered(*left)
        by_kind[kind] = WaitsOfKind(
            meaning=_WHAT[kind],
            count=len(rows),
            total_ns=int(events.dur_ns[rows].sum()),
            exposed_ns=exposed,
            communicating_ns=exposed - covered(*minus(left, exposed_communication)),
        )
        largest += [details.wait(kind, row) for row in _longest(trace, rows)]
    every = np.concatenate([busy, *rows_of.values()])
    return StreamWaits(
        span_ns=int(end[every].max() - begin[every].min()),
        by_kind=by_kind,
        largest=sorted(largest, key=lambda wait: -wait.wait_ns),
    )


def _longest(trace: Trace, rows: Numbers) -> list[int]:
    order = np.argsort(-trace.events.dur_ns[rows], kind="stable")[:_LARGEST]
    result: list[int] = rows[order].tolist()
    return result


class _Details:
    """Finds the operator that a wait belongs to, and the event that overlapped it.

    Searches all rows of the device for each wait.
    """

    def __init__(self, trace: Trace, busy: Numbers, kind: NDArray[np.int8]) -> None:
        self._trace, self._busy = trace, busy
        self._begin, self._end = trace.events.begin_ns[busy], trace.events.end_ns[busy]
        self._kind = kind[busy]
        self._window_ns = int(trace.events.begin_ns.min())

    def wait(self, kind: str, row: int) -> Wait:
        """Return the details of one wait."""
        events = self._trace.events
        begin, end = int(events.begin_ns[row]), int(events.end_ns[row])
        pid, tid = int(events.pid[row]), int(events.tid[row])
        on_stream = (events.pid[self._busy] == pid) & (events.tid[self._busy] == tid)
        overlap = np.minimum(self._end, end) - np.maximum(self._begin, begin)
        if kind == NOTIFY:
            operator = self._longest(np.where(self._kind == COMMUNICATION, overlap, 0))
            others = np.where(on_stream | (self._kind == COPY), 0, overlap)
        else:
            operator = self._first_after(end, on_stream)
            others = np.where(on_stream, 0, overlap)
        computes = (self._kind == COMPUTE) & (overlap > 0)
        computed = covered(
            np.maximum(self._begin[computes], begin), np.minimum(self._end[computes], end)
        )
        return Wait(
            kind=kind,
            event=self._trace.names[int(events.name[row])],
            time_ns=begin - self._window_ns,
            wait_ns=end - begin,
            stream=self._trace.thread_names.get((pid, tid), f"stream {tid}"),
            operator=operator,
            overlapped_by=self._longest(others),
            exposed_ns=end - begin - computed,
        )

    def _first_after(self, time_ns: int, chosen: Mask) -> str | None:
        """Return the name of the first of the chosen events that begins at a time or later."""
        after = np.flatnonzero(chosen & (self._begin >= time_ns))
        return self._name(after[np.argmin(self._begin[after])]) if len(after) else None

    def _longest(self, time_ns: Numbers) -> str | None:
        """Return the name of the event with the most of these times; None if all are 0 or less."""
        at = np.argmax(time_ns)
        return self._name(at) if time_ns[at] > 0 else None

    def _name(self, at: np.intp) -> str:
        return self._trace.names[int(self._trace.events.name[self._busy[at]])]
