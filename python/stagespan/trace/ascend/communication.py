"""Collectives and links, from communication.json and communication_matrix.json."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

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
)
from stagespan.trace.ascend.folder import COMMUNICATION_JSON, MATRIX_JSON, disagreement
from stagespan.trace.derived.device import COMMUNICATION, device_work
from stagespan.trace.derived.gains import idle_gain
from stagespan.trace.read.csv_tables import scaled
from stagespan.trace.read.model import Trace

_TOTAL = "Total Op Info"
_TIMES = {
    "elapse_ns": "Elapse Time(ms)",
    "transit_ns": "Transit Time(ms)",
    "wait_ns": "Wait Time(ms)",
    "synchronization_ns": "Synchronization Time(ms)",
    "idle_ns": "Idle Time(ms)",
}
_BEGIN = "Start Timestamp(us)"
_SHARES = Thresholds(50.0, 25.0, 10.0)
_TOGETHER = "all ranks arrive at the same time"
_TOP = 50
_LARGEST = 1e15


class Sent(Figures, frozen=True):
    """The data that an operation sent over one link."""

    megabytes: float
    gb_per_s: float | None


class Collective(Figures, frozen=True):
    """One operation; times in ns, None if unknown."""

    step: str
    name: str
    elapse_ns: Ns | None
    transit_ns: Ns | None
    wait_ns: Ns | None
    synchronization_ns: Ns | None
    idle_ns: Ns | None
    begin_ns: Internal[int | None]
    sent: dict[str, Sent]
    """By link."""


class Moved(msgspec.Struct, frozen=True):
    """The time in which the collectives moved data, in ns."""

    elapse_ns: int
    transit_ns: int
    measured: int
    """The number of these collectives."""
    every: int
    """The number of all collectives."""
    longest: Evidence
    """The collective with the longest time without data movement."""

    @property
    def sentence(self) -> str:
        """How long data moved."""
        moved, took = in_words(self.transit_ns, "ns"), in_words(self.elapse_ns, "ns")
        if self.measured == self.every:
            return f"Data moved for {moved} of the collectives' {took}."
        which = f"{self.measured:,} of {counted(self.every, 'collective')}"
        return f"Only {which} contain how long data moved: {moved} of {took}."


class Waited(msgspec.Struct, frozen=True):
    """The time that the collectives waited for other ranks."""

    severity: Severity | None
    """None for a small share."""
    sentence: str
    evidence: tuple[Evidence, ...]
    numbers: dict[str, float]
    """The figures of the sentence: times in ns, and the share in percent."""


class Link(Figures, frozen=True):
    """The data that all operations sent from one rank to another; times in ns, sizes in MB."""

    step: str
    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    transport: str
    megabytes: float
    transit_ns: Ns
    gb_per_s: float | None


class CollectiveStats(StructResult, frozen=True):
    """Operations, the longest first, and links."""

    operations: list[Collective]
    links: list[Link]
    compared: Count = msgspec.field(name="compared_operations", default=0)
    """The number of operations that are also in the trace."""
    differences: list[str] = msgspec.field(default_factory=list)
    """Sentences about operations with a different time in the trace."""

    @property
    def waited(self) -> Waited | None:
        """The time that they waited for other ranks; None if the file does not contain it."""
        with_times = [
            e for e in self.operations if e.elapse_ns is not None and e.wait_ns is not None
        ]
        elapsed = sum(each.elapse_ns or 0 for each in with_times)
        waited = sum(each.wait_ns or 0 for each in with_times)
        if not elapsed:
            return None
        percent = share(waited, elapsed)
        worst = sorted(with_times, key=lambda each: -(each.wait_ns or 0))[:3]
        return Waited(
            _SHARES.severity(percent),
            f"Collectives spent {in_words(waited, 'ns')} of {in_words(elapsed, 'ns')}"
            f" ({in_percent(percent)}) waiting for other ranks.",
            tuple(Evidence(each.name, None, each.wait_ns, "ns") for each in worst),
            {"time_ns": waited, "percent": percent, "whole_ns": elapsed},
        )

    @property
    def moved(self) -> Moved | None:
        """The data movement of operations with a known transit time; None if there are none.

        Collectives that run on the cores have no transit tasks, so 0 means unknown.
        """
        with_times = [each for each in self.operations if each.elapse_ns and each.transit_ns]
        if not with_times:
            return None
        still = {id(each): (each.elapse_ns or 0) - (each.transit_ns or 0) for each in with_times}
        worst = max(with_times, key=lambda each: still[id(each)])
        return Moved(
            sum(each.elapse_ns or 0 for each in with_times),
            sum(each.transit_ns or 0 for each in with_times),
            len(with_times),
            len(self.operations),
            Evidence(f"{worst.name}, no data moved", None, still[id(worst)], "ns"),
        )

    def findings(self) -> list[Finding]:
        """Findings about operations that mostly waited, and about figures that disagree."""
        findings = []
        waited = self.waited
        if waited is not None and waited.severity is not None:
            findings.append(
                Finding(
                    waited.severity,
                    f"{waited.sentence} The ranks arrive at different times.",
                    waited.evidence,
                    "ascend.collectives_waited",
                    numbers=waited.numbers,
                    gain=idle_gain(int(waited.numbers["time_ns"]), _TOGETHER),
                )
            )
        files = f"{COMMUNICATION_JSON} and the trace"
        code = "ascend.collectives_differ"
        used = f"{COMMUNICATION_JSON}, which has the parts of each time"
        return findings + disagreement("low", files, self.differences, code, used)

    def tables(self) -> list[Table]:
        """Operations, then links."""
        note = f"From {COMMUNICATION_JSON}."
        if self.compared:
            agree = f"{len(self.differences):,} differ" if self.differences else "all agree"
            note += f" {counted(self.compared, 'operation')} in the trace too: {agree}."
        times = [(name, title.removesuffix("(ms)").lower(), "ns") for name, title in _TIMES.items()]
        tables = (
            Table.of(
                "Collectives",
                self.operations[:_TOP],
                ("name", "operation", ""),
                ("step", "step", ""),
                *times,
                note=note,
            ),
            Table.of(
                "Links between ranks",
                self.links[:_TOP],
                (lambda link: f"{link.source} to {link.target}", "ranks", ""),
                ("transport", "transport", ""),
                ("step", "step", ""),
                ("megabytes", "sent", "MB"),
                ("transit_ns", "transit", "ns"),
                ("gb_per_s", "bandwidth", "GB/s"),
                note=f"From {MATRIX_JSON}.",
            ),
        )
        return [table for table in tables if table.rows]


def collectives(
    documents: dict[str, Any], trace: Trace | None = None
) -> CollectiveStats | Unavailable:
    """Read the files that exist, and compare them with the trace's collectives.

    Unexpected entries are skipped.
    """
    operations: list[Collective] = []
    for step, name, value in _entries(documents.get(COMMUNICATION_JSON)):
        times = value.get("Communication Time Info")
        if isinstance(times, dict) and name != _TOTAL:
            read = {key: _time(times.get(title), "ms") for key, title in _TIMES.items()}
            sent = _sent(value.get("Communication Bandwidth Info"))
            begin = _time(times.get(_BEGIN), "us")
            name = name.partition("@")[0]
            operations.append(Collective(step, name, **read, begin_ns=begin, sent=sent))
    links = _links(documents.get(MATRIX_JSON))
    if not operations and not links:
        return Unavailable(
            f"The folder has neither {COMMUNICATION_JSON} nor {MATRIX_JSON} with operations: both"
            " are written from Level1 on when ranks communicate.",
            "no_files",
        )
    operations.sort(key=lambda each: -(each.elapse_ns or 0))
    compared, differences = (0, []) if trace is None else _compared(operations, trace)
    return CollectiveStats(operations, links, compared, differences)


def _compared(operations: list[Collective], trace: Trace) -> tuple[int, list[str]]:
    """Return the number of names that are also in the trace, and the differences."""
    events = trace.events
    rows = np.flatnonzero(device_work(trace).kind == COMMUNICATION)
    seen: dict[str, list[int]] = {}
    for code, time in zip(events.name[rows].tolist(), events.dur_ns[rows].tolist(), strict=True):
        seen.setdefault(trace.names[code], []).append(time)
    of_trace: dict[str, list[int]] = {}
    unknown = {each.name for each in operations if each.elapse_ns is None}
    for each in operations:
        if each.elapse_ns is not None:
            of_trace.setdefault(each.name, []).append(each.elapse_ns)
    # Operations outside of steps are only in the trace.
    both = {
        name: (sum(times), sum(seen[name]))
        for name, times in of_trace.items()
        if name not in unknown and len(seen.get(name, ())) == len(times)
    }
    differences = [
        f"{name} takes {in_words(time, 'ns')} in the file, {in_words(other, 'ns')} in the trace"
        for name, (time, other) in both.items()
        if abs(time - other) > max(2 * len(of_trace[name]), 1e-6 * time)
    ]
    return len(both), differences


def _entries(document: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """Return step, name and content of each operation."""
    return [
        (step.removeprefix("step"), name, content)
        for step, groups in _objects(document)
        for _, operations in _objects(groups)
        for name, content in _objects(operations)
    ]


def _links(document: Any) -> list[Link]:
    sums: dict[tuple[str, str, str, str], tuple[float, int]] = {}
    for step, name, value in _entries(document):
        if not name.partition("@")[0].endswith("-total"):
            continue  # it contains the fastest, median and slowest run of each operation
        for pair, content in _objects(value):
            source, _, target = pair.partition("-")
            time = _time(content.get("Transit Time(ms)"), "ms")
            size = _figure(content.get("Transit Size(MB)"))
            if time is None or size is None or source == target:
                continue
            key = (step, source, target, str(content.get("Transport Type", "")))
            size_before, time_before = sums.get(key, (0.0, 0))
            sums[key] = size_before + size, time_before + time
    links = [
        Link(*key, size, time, size / 1000 / (time / 1e9) if time else None)
        for key, (size, time) in sums.items()
    ]
    return sorted(links, key=lambda link: link.gb_per_s or 0.0)


def _sent(value: Any) -> dict[str, Sent]:
    sent = {}
    for link, content in _objects(value):
        size = _figure(content.get("Transit Size(MB)"))
        if size:
            sent[link] = Sent(size, _figure(content.get("Bandwidth(GB/s)")))
    return sent


def _figure(value: Any) -> float | None:
    """Return a size or a speed; None if it is not a valid number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < _LARGEST else None


def _objects(value: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return the keys of a JSON object whose values are objects, with these; [] for others."""
    items = value.items() if isinstance(value, dict) else ()
    return [(key, each) for key, each in items if isinstance(each, dict)]


def _time(value: Any, unit: str) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    # The file contains the shortest decimals of a double.
    return scaled(value if isinstance(value, str) else str(Decimal(repr(value))), unit)
