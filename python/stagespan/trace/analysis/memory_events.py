"""What the profiler wrote about memory: each allocation and each freeing, by device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.analysis.call_tree import Rows
from stagespan.trace.analysis.host_time import pairs
from stagespan.trace.arrays import Numbers
from stagespan.trace.model import Trace

_EVENT = "[memory]"
_MOST = 2.0**52
# torch's numbers of devices.
_DEVICES = {
    0: "cpu", 1: "cuda", 6: "hip", 9: "xla", 12: "xpu", 13: "mps", 15: "hpu", 19: "mtia",
    20: "npu",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MemoryEvents:
    """One device's events in the order of time; all arrays have one element an event."""

    device: str
    rows: Rows
    """Rows of `trace.instants`."""
    time_ns: Numbers
    bytes: Numbers
    """Allocated, or below zero freed."""
    allocated: Numbers
    """In all behind each event; where the trace does not say, what came to it since its begin."""
    is_total: bool
    """Whether the trace says how much was allocated in all."""
    reserved: Numbers | None
    """By the allocator from the device; -1 where the trace does not say."""
    freed_at: Rows | None
    """Of an allocation the index of its freeing; of one that the trace does not see freed, and of
    freeings, the number of events. None where not all events have addresses."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def peak(self) -> int:
        """Index of the event behind which the most was allocated."""
        return int(np.argmax(self.allocated))

    def live_at(self, index: int) -> Rows:
        """Indices of the allocations of the trace that were not yet freed behind an event."""
        if self.freed_at is None:
            return np.empty(0, dtype=np.intp)
        here = np.arange(len(self)) <= index
        return np.flatnonzero(here & (self.bytes > 0) & (self.freed_at > index))


def memory_events(trace: Trace) -> tuple[list[MemoryEvents], int]:
    """The events of each device, that with the highest figures first; empty without any.

    And how many events have no size, or one that cannot be: they are left out.
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
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(instants.begin_ns[rows], kind="stable")]
    none = np.full(len(instants), -1, dtype=np.int64)
    kinds = none if kind is None else np.where(kind[1], kind[0], -1)
    numbers = none if number is None else np.where(number[1], number[0], -1)
    found = []
    devices, of = pairs(kinds[rows], numbers[rows])
    for at, device in enumerate(devices.tolist()):
        mine = rows[of == at]
        sizes = size[0][mine]
        is_total = total is not None and bool(total[1][mine].all())
        # One without an address may free what any other has allocated.
        is_known = bool(has_address[mine][sizes != 0].all())
        found.append(
            MemoryEvents(
                device=_device(*device),
                rows=mine,
                time_ns=instants.begin_ns[mine],
                bytes=sizes,
                allocated=total[0][mine] if total is not None and is_total else np.cumsum(sizes),
                is_total=is_total,
                reserved=np.where(reserved[1][mine], reserved[0][mine], -1)
                if reserved is not None and bool((reserved[0][mine] > 0).any())
                else None,
                freed_at=_freed_at(address[mine], sizes) if is_known else None,
            )
        )
    return sorted(found, key=lambda each: -int(each.allocated.max())), left_out


def _numbers(trace: Trace, key: str) -> tuple[Numbers, NDArray[np.bool_]] | None:
    """An argument of all instants, and which of them have it."""
    written = trace.argument(key, "instants")
    if written is None:
        return None
    found = written.numbers
    if found is None:
        # One that is no number makes all of them texts.
        found = np.array([_number(text) for text in written.texts])[written.codes]
    values = np.zeros(len(trace.instants), dtype=np.int64)
    known = np.zeros(len(trace.instants), dtype=np.bool_)
    # Beyond it no memory is, and sums of doubles are not exact.
    sane = np.abs(found.astype(np.float64)) <= _MOST
    values[written.rows[sane]] = found[sane].astype(np.int64)
    known[written.rows[sane]] = True
    return values, known


def _addresses(trace: Trace) -> tuple[Numbers, NDArray[np.bool_]]:
    """The addresses of all instants as 64 bits, and which of them have one."""
    values = np.zeros(len(trace.instants), dtype=np.int64)
    known = np.zeros(len(trace.instants), dtype=np.bool_)
    written = trace.argument("Addr", "instants")
    if written is None:
        return values, known
    numbers = written.numbers
    if numbers is None:
        # One beyond 63 bits, or no number, makes all of them texts.
        each = [_address(text) for text in written.texts]
        found = np.array([value or 0 for value in each], dtype=np.int64)[written.codes]
        whole = np.array([value is not None for value in each])[written.codes]
    else:
        whole = (numbers == np.trunc(numbers)) & (np.abs(numbers.astype(np.float64)) < 2.0**63)
        whole |= numbers.dtype.kind == "i"
        found = np.where(whole, numbers, 0).astype(np.int64)
    values[written.rows[whole]] = found[whole]
    known[written.rows[whole]] = True
    return values, known


def _address(text: str) -> int | None:
    """A numeral of 64 bits, which some write with a sign and some without."""
    try:
        value = int(text, 0)
    except ValueError:
        return None
    if not -(2**63) <= value < 2**64:
        return None
    return value - 2**64 if value >= 2**63 else value


def _number(text: str) -> float:
    """A numeral; infinite for all else. Those below `_MOST` are exact."""
    try:
        return float(text)
    except ValueError:
        return np.inf


def _freed_at(address: Numbers, sizes: Numbers) -> Rows:
    """The next event of the same address, if that frees."""
    count = len(address)
    order = np.lexsort((np.arange(count), address))
    following = np.full(count, count, dtype=np.intp)
    here, then = order[:-1], order[1:]
    pairs = (address[here] == address[then]) & (sizes[here] > 0) & (sizes[then] < 0)
    following[here[pairs]] = then[pairs]
    return following


def _device(kind: int, number: int) -> str:
    name = _DEVICES.get(kind, "device" if kind < 0 else f"device type {kind}")
    return name if number < 0 else f"{name}:{number}"
