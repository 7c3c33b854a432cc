"""Memory over time: the peak of each device, who allocated it, and growth between steps."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from stagespan.pages.amounts import counted, in_words, point_in_time
from stagespan.pages.figures import Count, Figures, Internal, Ns, first
from stagespan.pages.result import (
    LONGEST_NAME,
    Chart,
    Column,
    Evidence,
    Finding,
    StructResult,
    Table,
    Thresholds,
    Unavailable,
    share,
    shortened,
)
from stagespan.trace.derived.call_site import call_sites
from stagespan.trace.derived.idle_causes import MARKS
from stagespan.trace.derived.launch_sources import stage_calls, values_at
from stagespan.trace.derived.step_ranges import StepRanges, step_ranges
from stagespan.trace.derived.threads import name_codes, named, numbers_of
from stagespan.trace.derived.trees import forest_of
from stagespan.trace.evidence import window_of
from stagespan.trace.read.groups import numbered, pairs, parts, values_of
from stagespan.trace.read.intervals import ROW, Numbers, Rows
from stagespan.trace.read.model import Trace

_CPU = 0
_EVENT = "[memory]"
_MOST = 2.0**52
# torch's numbers for kinds of devices.
_DEVICES = {
    0: "cpu", 1: "cuda", 6: "hip", 9: "xla", 12: "xpu", 13: "mps", 15: "hpu", 19: "mtia",
    20: "npu",
}  # fmt: skip


def analyze(trace: Trace) -> Memory | Unavailable:
    """Analyse the memory of each device; Unavailable if the trace has no memory events."""
    of_devices, left_out = memory_events(trace)
    if not of_devices:
        return Unavailable(
            "The trace has no memory events, so the use of memory is unknown: record it with"
            " profile_memory=True.",
            "no_memory_events",
            needs=("memory", "profile_memory=True"),
        )
    ranges = step_ranges(trace) if len(trace.events) else None
    begin, _ = window_of(trace) or (int(of_devices[0].time_ns[0]), 0)
    place = Locator(trace)
    devices = [_device_of(trace, events, ranges, place, begin) for events in of_devices]
    return Memory(devices, left_out)


class Memory(StructResult, frozen=True):
    """All devices, that with the highest peak first."""

    devices: list[DeviceMemoryUse]
    left_out: Count = msgspec.field(name="events_left_out")
    """The number of events without a valid size."""

    def findings(self) -> list[Finding]:
        """Findings about memory that grows with each step."""
        findings = [
            device.growth.finding(device.device, device.peak_bytes)
            for device in self.devices
            if device.growth is not None
        ]
        return [each for each in findings if each is not None]

    def tables(self) -> list[Table]:
        """Peaks, and the operators that held the memory."""
        note = ""
        if any(not each.is_total for each in self.devices):
            note = (
                "The trace does not show what was allocated before it began; figures do not"
                " include it."
            )
        if self.left_out:
            note += f" Skipped {counted(self.left_out, 'event')} without a size."
        tables = [
            Table.of(
                "Memory",
                self.devices,
                ("device", "device", ""),
                ("peak_bytes", "peak", "bytes"),
                (_time_of_peak, "at", ""),
                (lambda device: device.holder and device.holder.operator, "reached in", ""),
                ("last_bytes", "at the end", "bytes"),
                ("most_reserved_bytes", "most reserved", "bytes"),
                ("unused_bytes", "reserved, unused at the peak", "bytes"),
                note=note.strip(),
            )
        ]
        least = min(_LEAST_REPORTED, self.devices[0].peak_bytes)
        for memory in self.devices:
            if memory.peak_bytes < least:
                continue
            tables.append(_holders_table(memory))
            if memory.growth is not None:
                tables.append(memory.growth.table(memory.device))
        return tables

    def chart(self) -> Chart | None:
        """Bytes over time, of each device."""
        devices = [
            {"device": shortened(each.device, LONGEST_NAME), "curve": each.curve}
            for each in self.devices
            if len(each.curve) > 1
        ]
        return {"kind": "memory", "devices": devices} if devices else None

    def line(self) -> str:
        """The highest peak."""
        first = self.devices[0]
        if first.peak_bytes < _LEAST_REPORTED:
            return ""
        return (
            f"at most {in_words(first.peak_bytes, 'bytes')} on {shortened(first.device, 30)},"
            f" at {point_in_time(first.peak_ns)}"
        )


class MemoryEvents(msgspec.Struct, frozen=True):
    """The events of one device in the order of time. All arrays have one element for each event."""

    device: str
    rows: Rows
    """Rows of `trace.instants`."""
    time_ns: Numbers
    bytes: Numbers
    """Allocated bytes; negative for freed bytes."""
    allocated: Numbers
    """The allocated total after each event or, if unknown, the change since the trace began."""
    before_bytes: int
    """The same before the first event."""
    is_total: bool
    """Whether the trace contains the allocated total."""
    reserved: Numbers | None
    """Bytes that the allocator has reserved; -1 if unknown."""
    freed_at: Rows | None
    """For each allocation, the index of the event that frees it. For others, the number of events.
    None if some events have no address."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def levels(self) -> Numbers:
        """The allocated bytes before the first event and after each event."""
        return np.concatenate(([self.before_bytes], self.allocated))

    @property
    def peak(self) -> int:
        """The index of the event after which the most bytes were allocated.

        It is -1 if more bytes were allocated before the first event than after any event.
        """
        highest = int(np.argmax(self.allocated))
        return highest if self.allocated[highest] >= self.before_bytes else -1

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were allocated."""
        return int(self.levels[self.peak + 1])

    def live_at(self, index: int) -> Rows:
        """Return the indices of the allocations that were not yet freed after an event."""
        if self.freed_at is None:
            return np.empty(0, dtype=np.intp)
        here = np.arange(len(self)) <= index
        return np.flatnonzero(here & (self.bytes > 0) & (self.freed_at > index))


def memory_events(trace: Trace) -> tuple[list[MemoryEvents], int]:
    """Return the events of each device, and the number of events without a valid size.

    The device with the highest figures comes first. Events without a valid size are left out.
    """
    if _EVENT not in trace.names:
        return [], 0
    instants = trace.instants
    chosen = instants.name == trace.names.index(_EVENT)
    size = _numbers(trace, "Bytes")
    if size is None:
        return [], int(chosen.sum())
    left_out = int((chosen & ~size[1]).sum())
    chosen &= size[1]
    kind, number = _numbers(trace, "Device Type"), _numbers(trace, "Device Id")
    total, reserved = _numbers(trace, "Total Allocated"), _numbers(trace, "Total Reserved")
    address, has_address = _addresses(trace)
    rows = np.flatnonzero(chosen).astype(ROW)
    rows = rows[np.argsort(instants.begin_ns[rows], kind="stable")]
    none = np.full(len(instants), -1, dtype=np.int64)
    kinds = none if kind is None else np.where(kind[1], kind[0], -1)
    numbers = none if number is None else np.where(number[1], number[0], -1)
    of_devices = []
    devices, of = pairs(kinds[rows], numbers[rows])
    del none, kinds, numbers, kind, number
    for at, device in enumerate(devices.tolist()):
        of_device = rows[of == at]
        sizes = size[0][of_device]
        # The total of a CPU misses what was freed while no profiler ran.
        is_total = total is not None and bool(total[1][of_device].all()) and device[0] != _CPU
        # An event without an address may free any allocation.
        is_known = bool(has_address[of_device][sizes != 0].all())
        allocated = total[0][of_device] if total is not None and is_total else np.cumsum(sizes)
        of_devices.append(
            MemoryEvents(
                device=_device(*device),
                rows=of_device,
                time_ns=instants.begin_ns[of_device],
                bytes=sizes,
                allocated=allocated,
                before_bytes=int(allocated[0] - sizes[0]),
                is_total=is_total,
                reserved=np.where(reserved[1][of_device], reserved[0][of_device], -1)
                if reserved is not None and bool((reserved[0][of_device] > 0).any())
                else None,
                freed_at=_freed_at(address[of_device], sizes) if is_known else None,
            )
        )
    return sorted(of_devices, key=lambda each: -each.peak_bytes), left_out


def _numbers(trace: Trace, key: str) -> tuple[Numbers, NDArray[np.bool_]] | None:
    """Return an argument of all instants, and which instants have it."""
    written = trace.argument(key, "instants")
    if written is None:
        return None
    numbers = written.numbers
    if numbers is None:
        # If one value is not a number, all values are texts.
        numbers = np.array([_number(text) for text in written.texts])[written.codes]
    # No memory is larger, and sums of larger doubles are not exact.
    valid = np.abs(numbers.astype(np.float64)) <= _MOST
    return _of_instants(trace, written.rows[valid], numbers[valid])


def _of_instants(
    trace: Trace, rows: Rows, numbers: NDArray[np.generic]
) -> tuple[Numbers, NDArray[np.bool_]]:
    """Return the numbers that some instants have, 0 for others, and which instants these are."""
    values = np.zeros(len(trace.instants), dtype=np.int64)
    is_written = np.zeros(len(trace.instants), dtype=np.bool_)
    values[rows] = numbers.astype(np.int64)
    is_written[rows] = True
    return values, is_written


def _addresses(trace: Trace) -> tuple[Numbers, NDArray[np.bool_]]:
    """Return the addresses of all instants as 64 bits, and which instants have one."""
    written = trace.argument("Addr", "instants")
    if written is None:
        return _of_instants(trace, np.empty(0, dtype=ROW), np.empty(0))
    numbers = written.numbers
    if numbers is None:
        # If one value exceeds 63 bits or is not a number, all values are texts.
        each = [_address(text) for text in written.texts]
        addresses = np.array([value or 0 for value in each], dtype=np.int64)[written.codes]
        whole = np.array([value is not None for value in each])[written.codes]
    else:
        whole = (numbers == np.trunc(numbers)) & (np.abs(numbers.astype(np.float64)) < 2.0**63)
        whole |= numbers.dtype.kind == "i"
        addresses = np.where(whole, numbers, 0).astype(np.int64)
    return _of_instants(trace, written.rows[whole], addresses[whole])


def _address(text: str) -> int | None:
    """Parse a number of 64 bits, which can be written with or without a sign."""
    try:
        value = int(text, 0)
    except ValueError:
        return None
    if not -(2**63) <= value < 2**64:
        return None
    return value - 2**64 if value >= 2**63 else value


def _number(text: str) -> float:
    """Parse a number; infinite for other texts. Numbers below `_MOST` are exact."""
    try:
        return float(text)
    except ValueError:
        return np.inf


def _freed_at(address: Numbers, sizes: Numbers) -> Rows:
    """Return the next event with the same address, if it frees memory."""
    count = len(address)
    order = np.argsort(address, kind="stable")
    following = np.full(count, count, dtype=np.intp)
    here, then = order[:-1], order[1:]
    pairs = (address[here] == address[then]) & (sizes[here] > 0) & (sizes[then] < 0)
    following[here[pairs]] = then[pairs]
    return following


def _device(kind: int, number: int) -> str:
    name = _DEVICES.get(kind, "device" if kind < 0 else f"device type {kind}")
    return name if number < 0 else f"{name}:{number}"


# --- Where in the program memory was allocated ---


# Operators that only allocate. Other operators call them for their results.
_ALLOCATORS = re.compile(r"^aten::(?:empty|empty_strided|empty_like|new_empty\w*|resize_)$")


class Locator:
    """Looks up the innermost operator and annotation around events of `trace.instants`."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        rows = np.flatnonzero(trace.rows_of(["cpu_op"]) & ~named(trace, MARKS))
        self._nested = forest_of(trace, rows) if len(rows) else None
        if self._nested is not None:
            forest = self._nested[1]
            caller = forest.first_around(~named(trace, _ALLOCATORS, forest.rows))
            itself = np.arange(len(forest), dtype=ROW)
            self._named_rows = forest.rows[np.where(caller >= 0, caller.astype(ROW), itself)]

    def operators(self, instants: Rows) -> Rows:
        """Return the row of the innermost operator around each instant, or -1.

        Operators that only allocate are skipped if another operator calls them.
        """
        rows: Rows = np.full(len(instants), -1, dtype=ROW)
        if self._nested is None:
            return rows
        index, forest = self._nested
        table = self._trace.instants
        for some in parts(len(instants)):
            mine = instants[some]
            place = index.places(table.pid[mine], table.tid[mine], table.begin_ns[mine])
            here = np.flatnonzero(place >= 0)
            inner = forest.at(place[here])
            inside = inner >= 0
            rows[some.start + here[inside]] = self._named_rows[inner[inside]]
        return rows

    def stages(self, instants: Rows) -> Rows:
        """Return the row of the innermost annotation around each instant on its thread, or -1.

        Without one, the annotation of another thread counts if it is the only thread in an
        annotation at that time.
        """
        calls, table = stage_calls(self._trace), self._trace.instants
        if calls is None:
            return np.full(len(instants), -1, dtype=np.intp)
        times = table.begin_ns[instants]
        thread = numbers_of(calls.threads, table.pid[instants], table.tid[instants])
        own = calls.tree.at(thread, times)
        only = calls.tree.in_one_thread(values_of(calls.thread), times)
        return values_at(calls.rows, np.where(own >= 0, own, only))


# --- Growth from step to step ---


# Memory must grow in this many consecutive steps. The first steps are a warm-up.
_LEAST_STEPS = 4


# Percent of the peak, and bytes: less growth, such as of a list of losses, is not reported.
_LEAST_PERCENT = 0.1


_LEAST_BYTES = 1 << 16


_SHARES = Thresholds(20.0, 5.0, 0.0)


_SHOWN = 20


_MOST_IN_JSON = 2_000


class StepMemory(Figures, frozen=True):
    """The memory of a step, in bytes."""

    name: str
    peak_bytes: int
    end_bytes: int


class Growth(Figures, frozen=True):
    """Memory by step, in bytes."""

    steps: Annotated[list[StepMemory], first(_MOST_IN_JSON)]
    growing: Count = msgspec.field(name="growing_steps")
    """The number of last steps that each left more memory allocated than the step before."""
    left_bytes: int
    """The total growth in these steps."""
    by: str | None = msgspec.field(name="left_by")
    """The operator that allocated most of this memory; None if unknown."""
    by_bytes: Internal[int]
    since_ns: Internal[int | None]
    """When the first of these steps began, from the start of the trace's window."""

    def finding(self, device: str, peak_bytes: int) -> Finding | None:
        """A finding if several steps in a row leave more memory allocated."""
        if self.growing < _LEAST_STEPS or peak_bytes <= 0:
            return None
        each = self.left_bytes / self.growing
        if each < _LEAST_BYTES or share(each, peak_bytes) < _LEAST_PERCENT:
            return None
        severity = _SHARES.severity(share(self.left_bytes, peak_bytes)) or "low"
        sentence = (
            f"Each of the last {self.growing:,} steps left more memory allocated on {device} than"
            f" the one before, {in_words(self.left_bytes, 'bytes')} in all"
            f" ({in_words(self.left_bytes // self.growing, 'bytes')} per step)"
        )
        if self.by is not None:
            sentence += (
                f". {in_words(self.by_bytes, 'bytes')} of this were allocated in"
                f" {shortened(self.by)}"
            )
        sentence += "."
        last = self.steps[-1]
        seen = (
            Evidence(f"allocated at the end of {last.name}", None, last.end_bytes, "bytes"),
            Evidence("first of these steps", self.since_ns, self.left_bytes, "bytes"),
        )
        numbers = {"steps": self.growing, "left_bytes": self.left_bytes}
        if self.by is not None:
            numbers["by_bytes"] = self.by_bytes
        action = "If the steps are alike, the program keeps tensors that it no longer needs."
        code = "memory.growth"
        return Finding(severity, sentence, seen, code, numbers=numbers, action=action)

    def table(self, device: str) -> Table:
        """Return a table of the first steps."""
        count = len(self.steps)
        return Table.of(
            f"Memory by step on {device}",
            self.steps[:_SHOWN],
            ("name", "step", ""),
            ("peak_bytes", "peak", "bytes"),
            ("end_bytes", "at the end", "bytes"),
            note=f"The first {_SHOWN} of {count:,}." if count > _SHOWN else "",
        )


def growth_of(
    trace: Trace,
    events: MemoryEvents,
    ranges: StepRanges | None,
    operators: Rows,
    begin_ns: int,
) -> Growth | None:
    """Compute the memory at the end of each step; None without steps on the host."""
    if ranges is None or not ranges.on_host:
        return None
    firsts = np.searchsorted(events.time_ns, ranges.begin_ns, side="left")
    ends = np.searchsorted(events.time_ns, ranges.end_ns, side="left")
    levels = events.levels
    at_end = levels[ends]
    steps = []
    for at, name in enumerate(ranges.names):
        within = levels[firsts[at] : ends[at] + 1]
        steps.append(StepMemory(name, int(within.max()), int(at_end[at])))
    more = np.diff(at_end) > 0
    growing = len(more) if more.all() else int(np.argmin(more[::-1]))
    left = int(at_end[-1] - at_end[-1 - growing])
    by, by_bytes = _allocated_in(trace, events, operators, firsts, ends, growing)
    since = int(ranges.begin_ns[len(ranges) - growing]) - begin_ns if growing else None
    return Growth(steps, growing, left, by, by_bytes, since)


def _allocated_in(
    trace: Trace, events: MemoryEvents, operators: Rows, firsts: Rows, ends: Rows, growing: int
) -> tuple[str | None, int]:
    """Return the operator that allocated most of the memory that the last steps did not free."""
    if not growing or events.freed_at is None:
        return None, 0
    first, last = int(firsts[-growing]), int(ends[-1])
    live = events.live_at(last - 1) if last else np.empty(0, dtype=np.intp)
    live = live[(live >= first) & (operators[live] >= 0)]
    if len(live) == 0:
        return None, 0
    names = trace.events.name[operators[live]]
    sizes = np.bincount(names, weights=events.bytes[live])
    code = int(np.argmax(sizes))
    return trace.names[code], int(sizes[code])


_HOLDERS = 20


_POINTS = 400


# A device with a lower peak, such as the host with its scalars, has no tables of its own.
_LEAST_REPORTED = 1 << 20


# The number of holders whose line of Python is looked up.
_WITH_LINES = 5


class Holder(Figures, frozen=True):
    """All allocations by one operator in one stage; bytes."""

    operator: str | None
    """The innermost operator around the allocation; None if there is none."""
    stage: str | None
    line: str | None = msgspec.field(name="python")
    """The line of Python of its largest allocation, if the trace has stacks."""
    allocations: Count
    allocated: Count = msgspec.field(name="allocated_bytes")
    """All allocated bytes, including those freed later."""
    at_peak: Count | None = msgspec.field(name="bytes_at_peak")
    """Not yet freed at the device's peak; None if the trace has no addresses."""


class DeviceMemoryUse(Figures, frozen=True):
    """One device's memory; times in ns from the start of the trace's window."""

    device: str
    events: Count
    is_total: bool = msgspec.field(name="total_known")
    """False if the figures only cover allocations within the trace."""
    peak_bytes: int
    peak_ns: Ns = msgspec.field(name="peak_time_us")
    """If the peak was reached before the first event, the time of that event."""
    step: str | None = msgspec.field(name="peak_in_step")
    """The step with the peak."""
    holder: Holder | None = msgspec.field(name="peak_by")
    """The operator whose allocation reached the peak; None if it was reached in another way."""
    before_bytes: int | None = msgspec.field(name="from_before_at_peak_bytes")
    """The part of the peak that was allocated before the trace; None if unknown."""
    first_bytes: int
    """Allocated bytes after the first event."""
    last_bytes: int
    """Allocated bytes after the last event."""
    reserved_bytes: int | None = msgspec.field(name="reserved_at_peak_bytes")
    """Reserved bytes at the peak; None if unknown."""
    unused_bytes: int | None = msgspec.field(name="reserved_unused_at_peak_bytes")
    """Bytes that were reserved and not allocated at the peak; None if unknown."""
    most_reserved_bytes: int | None
    holders: list[Holder]
    """Operators that held the most memory at the peak or, if unknown, that allocated the most."""
    growth: Growth | None = msgspec.field(name="steps")
    """The growth by step; None without steps."""
    curve: list[tuple[Ns, int]]
    """Time and bytes of the peak in each of some hundred intervals."""


def _device_of(
    trace: Trace,
    events: MemoryEvents,
    ranges: StepRanges | None,
    place: Locator,
    begin_ns: int,
) -> DeviceMemoryUse:
    peak = events.peak
    operators, stages = place.operators(events.rows), place.stages(events.rows)
    live = events.live_at(peak)
    before = None
    if events.is_total and events.freed_at is not None:
        before = int(events.peak_bytes - events.bytes[live].sum())
    holders, group = _holders(trace, events, operators, stages, live)
    # A peak from before the first event lasted until that event.
    at = max(peak, 0)
    step = None
    if ranges is not None and ranges.on_host:
        number = int(ranges.at(events.time_ns[at : at + 1])[0])
        step = ranges.names[number] if number >= 0 else None
    reserved = events.reserved
    by_weight = sorted(holders.values(), key=lambda each: (-(each.at_peak or 0), -each.allocated))
    reserved_bytes = None
    if reserved is not None and peak >= 0 and reserved[peak] >= 0:
        reserved_bytes = int(reserved[peak])
    return DeviceMemoryUse(
        device=events.device,
        is_total=events.is_total,
        events=len(events),
        peak_bytes=events.peak_bytes,
        peak_ns=int(events.time_ns[at]) - begin_ns,
        step=step,
        holder=holders[int(group[peak])] if peak >= 0 and events.bytes[peak] > 0 else None,
        before_bytes=before,
        first_bytes=int(events.allocated[0]),
        last_bytes=int(events.allocated[-1]),
        reserved_bytes=reserved_bytes,
        unused_bytes=None if reserved_bytes is None else reserved_bytes - events.peak_bytes,
        most_reserved_bytes=None if reserved is None else int(reserved.max()),
        holders=by_weight[:_HOLDERS],
        growth=growth_of(trace, events, ranges, operators, begin_ns),
        curve=_curve(events, begin_ns),
    )


def _holders(
    trace: Trace, events: MemoryEvents, operators: Rows, stages: Rows, live: Rows
) -> tuple[dict[int, Holder], Rows]:
    """Return the allocations by operator and stage, and the group of each event."""
    width = len(trace.names) + 1
    group = (name_codes(trace, operators) + 1).astype(np.int64) * width
    group += name_codes(trace, stages) + 1
    allocates = np.flatnonzero(events.bytes > 0)
    codes, of = numbered(group[allocates])
    counts = np.bincount(of)
    sizes = np.bincount(of, weights=events.bytes[allocates]).astype(np.int64)
    held = np.zeros(len(codes), dtype=np.int64)
    np.add.at(held, np.searchsorted(codes, group[live]), events.bytes[live])
    frees_known = events.freed_at is not None
    weight = held if frees_known else sizes
    with_lines = set(np.argsort(-weight, kind="stable")[:_WITH_LINES].tolist())
    surroundings = call_sites(trace)
    holders = {}
    for number, code in enumerate(codes.tolist()):
        line = None
        if number in with_lines:
            of_holder = (
                live[group[live] == code]
                if frees_known and held[number]
                else allocates[of == number]
            )
            largest = int(of_holder[np.argmax(events.bytes[of_holder])])
            row = int(operators[largest])
            line = surroundings.line(row) if row >= 0 else None
        operator, stage = divmod(code, width)
        holders[code] = Holder(
            operator=trace.names[operator - 1] if operator else None,
            stage=trace.names[stage - 1] if stage else None,
            line=line,
            allocations=int(counts[number]),
            allocated=int(sizes[number]),
            at_peak=int(held[number]) if frees_known else None,
        )
    return holders, group


def _curve(events: MemoryEvents, begin_ns: int) -> list[tuple[int, int]]:
    """Return the position of the peak in each of several intervals of equal length."""
    times, sizes = events.time_ns, events.allocated
    length = int(times[-1] - times[0])
    stretch = (times - times[0]) * _POINTS // (length + 1)
    order = np.lexsort((-sizes, stretch))
    firsts = np.flatnonzero(np.diff(stretch[order], prepend=-1))
    chosen = values_of(np.concatenate((order[firsts], [0, len(times) - 1])))
    points = [(int(times[at]) - begin_ns, int(sizes[at])) for at in chosen]
    # The peak is in the curve, also if it was reached before the first event.
    return points if events.peak >= 0 else [(points[0][0], events.before_bytes), *points]


def _holders_table(memory: DeviceMemoryUse) -> Table:
    columns: list[Column] = [
        (lambda holder: holder.operator or "(none)", "operator", ""),
        ("stage", "stage", ""),
        ("allocations", "allocations", ""),
        ("allocated", "allocated", "bytes"),
    ]
    if any(holder.at_peak is not None for holder in memory.holders):
        columns += [
            ("at_peak", "held at the peak", "bytes"),
            (lambda holder: share(holder.at_peak or 0, memory.peak_bytes), "of the peak", "%"),
        ]
    columns.append((lambda holder: holder.line and shortened(holder.line), "Python", ""))
    note = ""
    if memory.before_bytes:
        note = (
            f"{in_words(memory.before_bytes, 'bytes')} of the peak were allocated before the trace."
        )
    return Table.of(f"What allocated on {memory.device}", memory.holders, *columns, note=note)


def _time_of_peak(memory: DeviceMemoryUse) -> str:
    return point_in_time(memory.peak_ns) + (f", {memory.step}" if memory.step else "")
