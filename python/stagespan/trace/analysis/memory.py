"""Memory over time: its peak on each device, who allocated what, and what steps leave behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stagespan.trace.analysis.call_tree import Rows
from stagespan.trace.analysis.memory_events import MemoryEvents, memory_events
from stagespan.trace.analysis.memory_growth import Growth, growth_of
from stagespan.trace.analysis.memory_place import Place
from stagespan.trace.analysis.result import (
    Finding,
    Nothing,
    Table,
    in_words,
    share,
    shortened,
    window_of,
)
from stagespan.trace.analysis.step_ranges import StepRanges, step_ranges
from stagespan.trace.analysis.where import Surroundings
from stagespan.trace.model import Trace

_HOLDERS = 20
_POINTS = 400
# A device with a lower peak, such as the host with its scalars, has no tables of its own.
_LEAST_TOLD = 1 << 20
# Looking up a line goes through the whole trace.
_WITH_LINES = 5


@dataclass(frozen=True, slots=True)
class Holder:
    """All allocations by one operator in one stage; bytes."""

    operator: str | None
    """The innermost around the allocation; None for what was allocated outside of all."""
    stage: str | None
    line: str | None
    """The line of Python of its largest allocation, where the trace has stacks."""
    allocations: int
    allocated: int
    """Sum over the trace."""
    at_peak: int | None
    """Not yet freed at the device's peak; None where the trace has no addresses."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "operator": self.operator,
            "stage": self.stage,
            "python": self.line,
            "allocations": self.allocations,
            "allocated_bytes": self.allocated,
            "bytes_at_peak": self.at_peak,
        }


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """One device's memory; times in ns from the begin of the trace's window."""

    device: str
    is_total: bool
    """False where figures only count what was allocated and freed within the trace."""
    events: int
    peak: int
    peak_ns: int
    step: str | None
    """In which the peak was."""
    holder: Holder | None
    """Who allocated as the peak was reached."""
    before: int | None
    """At the peak, of what was allocated before the trace; None where it cannot be told."""
    first: int
    """Behind the first event."""
    last: int
    """Behind the last."""
    reserved: int | None
    """At the peak; None where unknown."""
    most_reserved: int | None
    holders: list[Holder]
    """Those that held the most at the peak, else that allocated the most."""
    growth: Growth | None
    """None without steps."""
    curve: list[tuple[int, int]]
    """Time and bytes, of each of some hundred stretches the highest."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON, in bytes and microseconds."""
        unused = None if self.reserved is None else self.reserved - self.peak
        return {
            "device": self.device,
            "events": self.events,
            "total_known": self.is_total,
            "peak_bytes": self.peak,
            "peak_time_us": self.peak_ns / 1000,
            "peak_in_step": self.step,
            "peak_by": None if self.holder is None else self.holder.to_dict(),
            "from_before_at_peak_bytes": self.before,
            "first_bytes": self.first,
            "last_bytes": self.last,
            "reserved_at_peak_bytes": self.reserved,
            "reserved_unused_at_peak_bytes": unused,
            "most_reserved_bytes": self.most_reserved,
            "holders": [holder.to_dict() for holder in self.holders],
            "steps": None if self.growth is None else self.growth.to_dict(),
            "curve": [[time / 1000, size] for time, size in self.curve],
        }


@dataclass(frozen=True, slots=True)
class Memory:
    """All devices, that with the highest peak first."""

    devices: list[DeviceMemory]
    left_out: int
    """Events without a size, or with one that cannot be."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "devices": [device.to_dict() for device in self.devices],
            "events_left_out": self.left_out,
        }

    def findings(self) -> list[Finding]:
        """Memory that step after step leaves behind."""
        found = []
        for device in self.devices:
            finding = None
            if device.growth is not None:
                finding = device.growth.finding(device.device, device.peak)
            if finding is not None:
                found.append(finding)
        return found

    def tables(self) -> list[Table]:
        """Peaks, and who held them."""
        rows = []
        for each in self.devices:
            at = in_words(each.peak_ns, "ns") + (f", {each.step}" if each.step else "")
            by = each.holder.operator if each.holder else None
            unused = None if each.reserved is None else each.reserved - each.peak
            rows.append((each.device, each.peak, at, by, each.last, each.most_reserved, unused))
        note = ""
        if any(not each.is_total for each in self.devices):
            note = (
                "The trace does not say what was allocated before it began: figures are above that."
            )
        if self.left_out:
            note += f" {self.left_out:,} events without a size were left out."
        tables = [
            Table(
                "Memory",
                (
                    ("device", ""),
                    ("peak", "bytes"),
                    ("at", ""),
                    ("reached in", ""),
                    ("at the end", "bytes"),
                    ("most reserved", "bytes"),
                    ("reserved, unused at the peak", "bytes"),
                ),
                rows,
                note.strip(),
            )
        ]
        least = min(_LEAST_TOLD, self.devices[0].peak)
        for each in self.devices:
            if each.peak < least:
                continue
            tables.append(_holders_table(each))
            if each.growth is not None:
                tables.append(each.growth.table(each.device))
        return tables


def analyze(trace: Trace) -> Memory | Nothing:
    """Follow each device's memory; Nothing for traces without memory events."""
    found, left_out = memory_events(trace)
    if not found:
        return Nothing(
            "The trace has no memory events, so nothing is known about memory: record it with"
            " profile_memory=True."
        )
    ranges = step_ranges(trace) if len(trace.events) else None
    begin, _ = window_of(trace) or (int(found[0].time_ns[0]), 0)
    place = Place(trace)
    devices = [_device(trace, events, ranges, place, begin) for events in found]
    return Memory(devices, left_out)


def _device(
    trace: Trace, events: MemoryEvents, ranges: StepRanges | None, place: Place, begin_ns: int
) -> DeviceMemory:
    peak = events.peak
    operators, stages = place.operators(events.rows), place.stages(events.rows)
    live = events.live_at(peak)
    before = None
    if events.is_total and events.freed_at is not None:
        before = int(events.allocated[peak] - events.bytes[live].sum())
    holders, group = _holders(trace, events, operators, stages, live)
    step = None
    if ranges is not None and ranges.on_host:
        number = int(ranges.at(events.time_ns[peak : peak + 1])[0])
        step = ranges.names[number] if number >= 0 else None
    reserved = events.reserved
    by_weight = sorted(holders.values(), key=lambda each: (-(each.at_peak or 0), -each.allocated))
    return DeviceMemory(
        device=events.device,
        is_total=events.is_total,
        events=len(events),
        peak=int(events.allocated[peak]),
        peak_ns=int(events.time_ns[peak]) - begin_ns,
        step=step,
        holder=holders.get(int(group[peak])),
        before=before,
        first=int(events.allocated[0]),
        last=int(events.allocated[-1]),
        reserved=None if reserved is None or reserved[peak] < 0 else int(reserved[peak]),
        most_reserved=None if reserved is None else int(reserved.max()),
        holders=by_weight[:_HOLDERS],
        growth=growth_of(trace, events, ranges, operators, begin_ns),
        curve=_curve(events, begin_ns),
    )


def _holders(
    trace: Trace, events: MemoryEvents, operators: Rows, stages: Rows, live: Rows
) -> tuple[dict[int, Holder], Rows]:
    """Allocations by operator and stage, and of each event which of them it belongs to."""
    names = np.append(trace.events.name, -1).astype(np.int64)
    width = len(trace.names) + 1
    group = (names[operators] + 1) * width + names[stages] + 1
    allocates = np.flatnonzero(events.bytes > 0)
    codes, of = np.unique(group[allocates], return_inverse=True)
    of = of.reshape(-1)
    counts = np.bincount(of)
    sizes = np.bincount(of, weights=events.bytes[allocates]).astype(np.int64)
    held = np.zeros(len(codes), dtype=np.int64)
    np.add.at(held, np.searchsorted(codes, group[live]), events.bytes[live])
    known = events.freed_at is not None
    weight = held if known else sizes
    with_lines = set(np.argsort(-weight, kind="stable")[:_WITH_LINES].tolist())
    surroundings = Surroundings(trace)
    found = {}
    for number, code in enumerate(codes.tolist()):
        line = None
        if number in with_lines:
            mine = live[group[live] == code] if known and held[number] else allocates[of == number]
            largest = int(mine[np.argmax(events.bytes[mine])])
            row = int(operators[largest])
            line = surroundings.line(row) if row >= 0 else None
        operator, stage = divmod(code, width)
        found[code] = Holder(
            operator=trace.names[operator - 1] if operator else None,
            stage=trace.names[stage - 1] if stage else None,
            line=line,
            allocations=int(counts[number]),
            allocated=int(sizes[number]),
            at_peak=int(held[number]) if known else None,
        )
    return found, group


def _curve(events: MemoryEvents, begin_ns: int) -> list[tuple[int, int]]:
    """The highest of each of some stretches of equal length, where it was."""
    times, sizes = events.time_ns, events.allocated
    length = int(times[-1] - times[0])
    stretch = (times - times[0]) * _POINTS // (length + 1)
    order = np.lexsort((np.arange(len(times)), -sizes, stretch))
    firsts = np.flatnonzero(np.diff(stretch[order], prepend=-1))
    chosen = np.unique(np.concatenate((order[firsts], [0, len(times) - 1])))
    return [(int(times[at]) - begin_ns, int(sizes[at])) for at in chosen]


def _holders_table(memory: DeviceMemory) -> Table:
    known = any(holder.at_peak is not None for holder in memory.holders)
    columns = [("operator", ""), ("stage", ""), ("allocations", ""), ("allocated", "bytes")]
    if known:
        columns += [("held at the peak", "bytes"), ("of it", "%")]
    columns.append(("Python", ""))
    rows: list[tuple[str | int | float | None, ...]] = []
    for holder in memory.holders:
        row: list[str | int | float | None] = [holder.operator or "(none)", holder.stage]
        row += [holder.allocations, holder.allocated]
        if known:
            row += [holder.at_peak, share(holder.at_peak or 0, memory.peak)]
        row.append(None if holder.line is None else shortened(holder.line))
        rows.append(tuple(row))
    note = ""
    if memory.before:
        note = f"{in_words(memory.before, 'bytes')} of the peak were allocated before the trace."
    return Table(f"Who allocated on {memory.device}", tuple(columns), rows, note)
