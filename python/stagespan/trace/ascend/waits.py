"""Lists the waits of an Ascend device's streams for another stream or another rank."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.ascend.device import Interval, minus, on_device
from stagespan.trace.derived.device import COMMUNICATION, COMPUTE, COPY, device_work
from stagespan.trace.derived.threads import named
from stagespan.trace.figures import Count, Figures, Ns
from stagespan.trace.read.intervals import Mask, Numbers, covered, merged
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once
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

EVENT, NOTIFY = "event", "notify"
_EVENT = re.compile(r"^EVENT_WAIT")
_NOTIFY = re.compile(r"^notify[ _]?wait", re.IGNORECASE)
_SHARES = Thresholds(25.0, 10.0, 5.0)
_LARGEST = 20
_WHAT = {EVENT: "an event of another stream", NOTIFY: "another rank (Notify Wait)"}


@dataclass(frozen=True, slots=True)
class Wait:
    """One wait; times in ns."""

    kind: str
    event: Evidence
    stream: str
    operator: str | None
    """The waiting operator, or the collective that contains the wait."""
    beside: str | None
    """The event on another stream that overlapped it for longest."""
    exposed_ns: int
    """The part of the wait without computing."""


class WaitsOfKind(Figures, frozen=True):
    """All waits of one kind."""

    meaning: str
    waits: Count
    wait_ns: Ns
    nothing_computed_ns: Ns
    in_exposed_communication_ns: Ns


class WaitFigures(Figures, frozen=True):
    """A `Wait` in JSON."""

    kind: str
    event: str
    time_ns: Ns
    wait_ns: Ns
    nothing_computed_ns: Ns
    stream: str
    operator: str | None
    beside: str | None


class WaitsFigures(Figures, frozen=True):
    """The waits of streams."""

    span_ns: Ns
    by_kind: dict[str, WaitsOfKind]
    largest: list[WaitFigures]


@dataclass(frozen=True, slots=True)
class WaitsInCommunication:
    """Waits of one kind that are a part of exposed communication."""

    kind: str
    clause: str
    """A part of the sentence on exposed communication."""
    exposed: Evidence
    """The time of all these waits without computing."""
    longest: Evidence


@dataclass(frozen=True, slots=True)
class StreamWaits(Result):
    """Times in ns, by kind."""

    span_ns: int
    count: dict[str, int]
    total_ns: dict[str, int]
    """Sum of the waits' durations; waits of several streams at once are each counted."""
    exposed_ns: dict[str, int]
    """The time in which a stream waited without computing on the device."""
    communicating_ns: dict[str, int]
    """The part of that in which a collective ran: it is exposed communication."""
    largest: list[Wait]

    def figures(self) -> WaitsFigures:
        """For JSON."""
        return WaitsFigures(
            span_ns=self.span_ns,
            by_kind={
                kind: WaitsOfKind(
                    meaning=_WHAT[kind],
                    waits=self.count[kind],
                    wait_ns=self.total_ns[kind],
                    nothing_computed_ns=self.exposed_ns[kind],
                    in_exposed_communication_ns=self.communicating_ns[kind],
                )
                for kind in self.count
            },
            largest=[
                WaitFigures(
                    kind=wait.kind,
                    event=wait.event.event,
                    time_ns=wait.event.time_ns or 0,
                    wait_ns=int(wait.event.figure or 0),
                    nothing_computed_ns=wait.exposed_ns,
                    stream=wait.stream,
                    operator=wait.operator,
                    beside=wait.beside,
                )
                for wait in self.largest
            ],
        )

    def findings(self) -> list[Finding]:
        """Findings about long waits that are not waits of a collective."""
        found = []
        for kind in self.count:
            if self.is_communication(kind):
                continue  # the finding about exposed communication contains these
            percent = share(self.exposed_ns[kind], self.span_ns)
            severity = _SHARES.severity(percent)
            mine = [wait for wait in self.largest if wait.kind == kind]
            if severity is None or not mine:
                continue
            longest = max(mine, key=lambda wait: wait.exposed_ns)
            sentence = (
                f"For {in_words(self.exposed_ns[kind], 'ns')} of the {in_words(self.span_ns, 'ns')}"
                f" from the first event to the last ({percent:.1f} %) the"
                f" device waited for {_WHAT[kind]} without computing:"
                f" {counted(self.count[kind], 'wait')}, the longest of"
                f" {in_words(longest.event.figure, 'ns')} on {longest.stream}"
            )
            if longest.operator:
                where = "before" if kind == EVENT else "in"
                sentence += f" {where} {shortened(longest.operator)}"
            if longest.beside and kind == EVENT:
                sentence += f", while {shortened(longest.beside)} ran"
            sentence += "."
            if kind == NOTIFY:
                sentence += (
                    " The other ranks arrived later, or the link was slow: compare the ranks."
                )
            mine.sort(key=lambda wait: -wait.exposed_ns)
            evidence = tuple(wait.event for wait in mine[:3])
            numbers = {
                "time_ns": self.exposed_ns[kind],
                "percent": percent,
                "whole_ns": self.span_ns,
                "waits": self.count[kind],
            }
            code = f"ascend.{kind}_wait"
            found.append(Finding(severity, sentence, evidence, code, numbers=numbers))
        return found

    def is_communication(self, kind: str) -> bool:
        """Whether waits of this kind are mostly exposed waits of collectives."""
        exposed, inside = self.exposed_ns[kind], self.communicating_ns[kind]
        much = share(inside, self.span_ns) >= _SHARES.low
        return much and 2 * inside >= exposed

    def in_communication(self) -> list[WaitsInCommunication]:
        """Return the kinds that are communication, NOTIFY last."""
        found = []
        for kind in self.count:
            mine = [wait for wait in self.largest if wait.kind == kind]
            if not mine or not self.is_communication(kind):
                continue
            longest = max(mine, key=lambda wait: wait.exposed_ns)
            time = in_words(self.communicating_ns[kind], "ns")
            clause = f"{time} of this while a stream waited for {_WHAT[kind]}"
            name = f"{longest.event.event}, without computing"
            exposed = Evidence(name, None, self.exposed_ns[kind], "ns")
            found.append(WaitsInCommunication(kind, clause, exposed, longest.event))
        return found

    def tables(self) -> list[Table]:
        """Tables of waits by kind, and of the longest waits."""
        kinds = [
            (_WHAT[kind], self.count[kind], self.total_ns[kind], self.exposed_ns[kind])
            for kind in self.count
        ]
        rows = [
            (
                wait.event.event,
                wait.event.time_ns,
                wait.event.figure,
                wait.exposed_ns,
                wait.stream,
                wait.operator,
                wait.beside,
            )
            for wait in self.largest
        ]
        return [
            Table(
                "What streams waited for",
                (("", ""), ("waits", ""), ("time", "ns"), ("without computing", "ns")),
                kinds,
            ),
            Table(
                "Longest waits of streams",
                (
                    ("wait", ""),
                    ("at", "ns"),
                    ("time", "ns"),
                    ("without computing", "ns"),
                    ("stream", ""),
                    ("operator", ""),
                    ("overlapped by", ""),
                ),
                rows,
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
    exposed, communicating = {}, {}
    largest: list[Wait] = []
    for kind, rows in rows_of.items():
        left = minus(merged(begin[rows], end[rows]), computing)
        exposed[kind] = _length(left)
        communicating[kind] = exposed[kind] - _length(minus(left, exposed_communication))
        largest += [details.wait(kind, row) for row in _longest(trace, rows)]
    every = np.concatenate([busy, *rows_of.values()])
    return StreamWaits(
        span_ns=int(end[every].max() - begin[every].min()),
        count={kind: len(rows) for kind, rows in rows_of.items()},
        total_ns={kind: int(events.dur_ns[rows].sum()) for kind, rows in rows_of.items()},
        exposed_ns=exposed,
        communicating_ns=communicating,
        largest=sorted(largest, key=lambda wait: -(wait.event.figure or 0)),
    )


def _length(intervals: Interval) -> int:
    return int((intervals[1] - intervals[0]).sum())


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
            event=evidence(self._trace, row),
            stream=self._trace.thread_names.get((pid, tid), f"stream {tid}"),
            operator=operator,
            beside=self._longest(others),
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
