"""The work of some calls of operators, and its rates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec

from stagespan.pages.figures import Count, Figures, Internal, Ns, one_of
from stagespan.pages.result import Gain, share
from stagespan.trace.rates.calls import Call, Cost
from stagespan.trace.rates.limits import LIMITS
from stagespan.trace.rates.peaks import Peaks

# Equal calls differ if the longest takes so many times as long as the shortest, and the mean call
# so many times.
_UNEVEN_TIMES, _LONGER_TIMES = 1.5, 1.1


class Rate(Figures, frozen=True):
    """The work of some calls and their rates. What a trace does not show is None."""

    time_ns: Ns
    percent: float
    """Of the work of the steps, or of the trace if it has no steps."""
    calls: Count
    flops: float | None
    bytes: float | None
    tflop_s: float | None
    tb_s: float | None
    peak_percent: float | None
    """Of the peak of the products' type."""
    memory_percent: float | None
    """Of the peak of the memory."""


class ShapeRate(Rate, frozen=True):
    """The rate of an operator with inputs of one shape; FLOPs and bytes are those of all calls."""

    operator: str
    shape: str
    type: str
    """The name of the peak, such as "bf16", or else the type as in the trace."""
    kernel: str | None
    shortest_ns: Ns | None
    longest_ns: Ns | None
    """The shortest and the longest call; None if calls launched several kernels."""
    bytes_at_least: bool
    """Whether the operator may have moved more bytes than the shapes show."""
    limit: Annotated[str, one_of(LIMITS)] | None
    reason: str
    call: Internal[Call]
    cost: Internal[Cost]
    units: Internal[int | None]
    """The multiprocessors or compute units of the device; None if they are unknown."""
    gain_at: Internal[Callable[[float], Gain | None]]
    """Returns the gain if all calls reach a percentage of the peak."""

    @property
    def is_uneven(self) -> bool:
        """Whether equal calls take differently long, and that is much of their time."""
        if self.shortest_ns is None or self.longest_ns is None:
            return False
        usual = self.time_ns / self.calls
        longer = usual >= _LONGER_TIMES * self.shortest_ns
        return longer and self.longest_ns >= _UNEVEN_TIMES * self.shortest_ns


class Work(msgspec.Struct, frozen=True):
    """Some calls with the same arguments."""

    kind: int
    call: Call
    cost: Cost
    time_ns: int
    calls: int
    peaks: Peaks | None
    shortest_ns: int | None = None
    longest_ns: int | None = None

    @property
    def flops(self) -> float | None:
        """The operations of all calls."""
        return None if self.cost.flops is None else self.cost.flops * self.calls

    @property
    def bytes(self) -> float | None:
        """The bytes of all calls."""
        return None if self.cost.bytes is None else self.cost.bytes * self.calls

    @property
    def uses_memory(self) -> bool:
        """Whether its bytes pass through the memory of the device, as far as is known."""
        cached = 0 if self.peaks is None else self.peaks.cached_bytes
        return not self.cost.over_bus and (self.cost.bytes or 0) >= cached

    @property
    def peak(self) -> tuple[str, float] | None:
        """The name and the peak of its products; None if it is unknown."""
        return None if self.peaks is None else self.peaks.of_type(self.cost.type, self.call.kernels)


def _per_second(amount: float | None, time_ns: float) -> float | None:
    """Return an amount per second in units of 10**12; None without time."""
    return None if amount is None or time_ns <= 0 else amount / time_ns / 1e3


def ideal_ns(work: list[Work]) -> float | None:
    """Return the time of all products at the peaks of their types; None if one is unknown."""
    products = [(each.flops, each.peak) for each in work if each.flops is not None]
    times = [flops / peak[1] / 1e3 for flops, peak in products if peak is not None]
    return sum(times) if products and len(times) == len(products) else None


def together(work: list[Work], total_ns: int) -> Rate:
    """Return the rate of several calls. Operations are per second of the calls that have them."""
    products = [each for each in work if each.flops is not None]
    moved = [each for each in work if each.bytes is not None]
    of_products = sum(each.time_ns for each in products)
    in_memory = [each for each in moved if each.uses_memory]
    flops = sum(each.flops or 0.0 for each in products) if products else None
    bytes_ = sum(each.bytes or 0.0 for each in moved) if moved else None
    ideal = ideal_ns(work)
    memory = work[0].peaks.memory_tb_s if work and work[0].peaks is not None else None
    of_memory = _per_second(
        sum(each.bytes or 0.0 for each in in_memory), sum(each.time_ns for each in in_memory)
    )
    time = sum(each.time_ns for each in work)
    return Rate(
        time_ns=time,
        percent=share(time, total_ns),
        calls=sum(each.calls for each in work),
        flops=flops,
        bytes=bytes_,
        tflop_s=_per_second(flops, of_products),
        tb_s=_per_second(bytes_, sum(each.time_ns for each in moved)),
        peak_percent=None if ideal is None or not of_products else share(ideal, of_products),
        memory_percent=None if memory is None or of_memory is None else share(of_memory, memory),
    )
