"""Where kernels stand below the roofs of their device: operations a byte, operations a second.

As the section "GPU Speed Of Light Roofline Chart" of Nsight Compute defines it: operations are
additions, multiplications and twice the fused ones, bytes those of device memory. What the tensor
cores do is not among the counted instructions: such a kernel has no point.
"""

from __future__ import annotations

from dataclasses import dataclass

from stagespan.trace.ncu import metrics as m
from stagespan.trace.ncu.reading import Measured

_KINDS = {"single": "f", "double": "d", "half": "h"}
_COUNTS = (
    "sm__sass_thread_inst_executed_op_{}{}_pred_on.sum",
    "smsp__sass_thread_inst_executed_op_{}{}_pred_on.sum",
)


@dataclass(frozen=True, slots=True)
class Point:
    """One launch."""

    precision: str
    """Of most of its operations: "single", "double" or "half"."""
    operations: float
    bytes: float
    seconds: float

    @property
    def rate(self) -> float:
        """Operations a second."""
        return self.operations / self.seconds

    @property
    def intensity(self) -> float:
        """Operations a byte of device memory."""
        return self.operations / self.bytes


@dataclass(frozen=True, slots=True)
class Roofs:
    """What the device could do at the clocks that ncu measured; None is unknown."""

    bandwidth: float | None
    """Bytes a second of device memory."""
    rates: dict[str, float]
    """Operations a second by precision."""

    @property
    def ridges(self) -> dict[str, float]:
        """By precision the operations a byte from which computing is the lower roof."""
        if not self.bandwidth:
            return {}
        return {name: rate / self.bandwidth for name, rate in self.rates.items()}


def point_of(kernel: Measured) -> Point | None:
    """A launch's place; None where a figure is missing, or the tensor cores worked."""
    values = kernel.metrics
    seconds, moved = values.get(m.DURATION), bytes_of(kernel)
    if any(values.get(name, 0) > 0 for name in m.TENSOR):
        return None
    # A damaged table may hold figures below 0.
    if not seconds or seconds < 0 or not moved or moved < 0:
        return None
    counted = {name: _operations(kernel, letter) for name, letter in _KINDS.items()}
    known = {name: count for name, count in counted.items() if count and count > 0}
    if not known:
        return None
    return Point(
        precision=max(known, key=lambda name: known[name]),
        operations=sum(known.values()),
        bytes=moved,
        seconds=seconds,
    )


def bytes_of(kernel: Measured) -> float | None:
    """Bytes read from and written to device memory."""
    values = kernel.metrics
    if m.DRAM_BYTES in values:
        return float(values[m.DRAM_BYTES])
    if m.DRAM_READ in values and m.DRAM_WRITTEN in values:
        return float(values[m.DRAM_READ] + values[m.DRAM_WRITTEN])
    if m.DRAM_RATE in values and m.DURATION in values:
        return float(values[m.DRAM_RATE] * values[m.DURATION])
    return None


def roofs_of(kernels: list[Measured]) -> Roofs:
    """The highest roofs that any kernel shows; from throughputs where peaks are missing."""
    bandwidth: float | None = None
    rates: dict[str, float] = {}
    for kernel in kernels:
        values = kernel.metrics
        peak, clock = values.get(m.DRAM_PEAK), values.get(m.DRAM_CLOCK)
        found = None if peak is None or clock is None else peak * clock
        moved, seconds, share = bytes_of(kernel), values.get(m.DURATION), values.get(m.DRAM)
        if found is None and moved and seconds and seconds > 0 and share and share >= 1:
            found = moved / seconds / (share / 100.0)
        if found is not None and found > 0:
            bandwidth = max(bandwidth or 0.0, found)
        for name, letter in _KINDS.items():
            fused = values.get(_COUNTS[0].format(letter, "fma") + ".peak_sustained")
            clock = values.get(m.SM_CLOCK)
            if fused and clock and fused > 0 and clock > 0:
                rates[name] = max(rates.get(name, 0.0), 2.0 * fused * clock)
    return Roofs(bandwidth, rates)


def _operations(kernel: Measured, letter: str) -> float | None:
    values = kernel.metrics
    total, known = 0.0, False
    for operation, weight in (("add", 1), ("mul", 1), ("fma", 2)):
        for pattern in _COUNTS:
            name = pattern.format(letter, operation)
            count = values.get(name)
            if count is None:
                # Per cycle, as the roofline's section collects it.
                rate, seconds = values.get(f"{name}.per_cycle_elapsed"), values.get(m.DURATION)
                clock = values.get(m.SMSP_CLOCK, values.get(m.SM_CLOCK))
                count = rate * clock * seconds if rate is not None and clock and seconds else None
            if count is not None:
                total, known = total + weight * count, True
                break
    return total if known else None
