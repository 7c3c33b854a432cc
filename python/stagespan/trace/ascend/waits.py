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
from stagespan.trace.read.intervals import Numbers, covered, merged
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
    window_of,
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

    def in_communication(self) -> list[tuple[str, str, tuple[Evidence, Evidence]]]:
        """Return name, clause and evidence of each kind that is communication, NOTIFY last."""
        found = []
        for kind in self.count:
            mine = [wait for wait in self.largest if wait.kind == kind]
            if not mine or not self.is_communication(kind):
                continue
            longest = max(mine, key=lambda wait: wait.exposed_ns)
            time = in_words(self.communicating_ns[kind], "ns")
            clause = f"{time} of this while a stream waited for {_WHAT[kind]}"
            name = f"{longest.event.event}, without computing"
            evidence = Evidence(name, None, self.exposed_ns[kind], "ns")
            found.append((kind, clause, (evidence, longest.event)))
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
    computing = busy[work.kind[busy] == COMPUTE]
    computes = merged(begin[computing], end[computing])
    talking = busy[work.kind[busy] == COMMUNICATION]
    talks = minus(merged(begin[talking], end[talking]), computes)
    waits, exposed, communicating = {}, {}, {}
    for kind, rows in rows_of.items():
        waits[kind] = merged(begin[rows], end[rows])
        left = minus(waits[kind], computes)
        exposed[kind] = _length(left)
        communicating[kind] = exposed[kind] - _length(minus(left, talks))
    every = np.concatenate([busy, *rows_of.values()])
    look = _Look(trace, busy, work.kind)
    return StreamWaits(
        span_ns=int(end[every].max() - begin[every].min()),
        count={kind: len(rows) for kind, rows in rows_of.items()},
        total_ns={kind: int(events.dur_ns[rows].sum()) for kind, rows in rows_of.items()},
        exposed_ns=exposed,
        communicating_ns=communicating,
        largest=sorted(
            (look.wait(kind, row) for kind, rows in rows_of.items() for row in _long(trace, rows)),
            key=lambda wait: -(wait.event.figure or 0),
        ),
    )


def _length(intervals: Interval) -> int:
    return int((intervals[1] - intervals[0]).sum())


def _long(trace: Trace, rows: Numbers) -> list[int]:
    order = np.argsort(-trace.events.dur_ns[rows], kind="stable")[:_LARGEST]
    result: list[int] = rows[order].tolist()
    return result


class _Look:
    """Finds the waiting event and the event that overlapped it. Searches all rows of the device."""

    def __init__(self, trace: Trace, busy: Numbers, kind: NDArray[np.int8]) -> None:
        self._trace, self._busy, self._kind = trace, busy, kind[busy]
        self._window = window_of(trace) or (0, 0)

    def wait(self, kind: str, row: int) -> Wait:
        """Return the details of one wait."""
        events, busy = self._trace.events, self._busy
        begin, end = int(events.begin_ns[row]), int(events.end_ns[row])
        pid, tid = int(events.pid[row]), int(events.tid[row])
        same = (events.pid[busy] == pid) & (events.tid[busy] == tid)
        inside = np.minimum(events.end_ns[busy], end) - np.maximum(events.begin_ns[busy], begin)
        collective = self._kind == COMMUNICATION
        operator = -1
        if kind == NOTIFY:
            operator = self._most(busy, np.where(collective, inside, 0))
        else:
            after = busy[same & (events.begin_ns[busy] >= end)]
            if len(after):
                operator = int(after[np.argmin(events.begin_ns[after])])
        others = np.where(same | (self._kind == COPY) & (kind == NOTIFY), 0, inside)
        computes = inside[(self._kind == COMPUTE) & (inside > 0)]
        mine = np.flatnonzero((self._kind == COMPUTE) & (inside > 0))
        computed = 0
        if len(computes):
            first = np.maximum(events.begin_ns[busy[mine]], begin)
            computed = covered(first, np.minimum(events.end_ns[busy[mine]], end))
        name = self._trace.thread_names.get((pid, tid), f"stream {tid}")
        return Wait(
            kind=kind,
            event=evidence(self._trace, row),
            stream=name,
            operator=self._name(operator),
            beside=self._name(self._most(busy, others)),
            exposed_ns=end - begin - computed,
        )

    def _name(self, row: int) -> str | None:
        return None if row < 0 else self._trace.names[int(self._trace.events.name[row])]

    @staticmethod
    def _most(rows: Numbers, inside: Numbers) -> int:
        at = int(np.argmax(inside)) if len(inside) else -1
        return int(rows[at]) if at >= 0 and inside[at] > 0 else -1
