"""Decides what limits a kernel, and where it is in the roofline of its device.

The verdict uses the metrics and thresholds of Nsight Compute's guidance. Throughput decides, as in
the rule `SOLBottleneck` of the section "GPU Speed Of Light Throughput" (Nsight Compute,
sections/SpeedOfLight.py). If computing and memory both stay below 60 % of their peak, latencies
limit the kernel; otherwise the one that is at least 10 points higher; otherwise both. Occupancy and
stalls show why a kernel waits: a grid of less than one wave (the same rule, and
LaunchStatistics.py), a theoretical occupancy below 80 % (TheoreticalOccupancy.py) or an achieved
one 10 points below it (AchievedOccupancy.py), and the reasons that take at least 30 % of the cycles
between two instructions of a warp while schedulers issue in less than 80 % of the cycles
(CPIStall.py, IssueSlotUtilization.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from stagespan.trace.figures import Figures
from stagespan.trace.ncu import reading as m
from stagespan.trace.ncu.reading import Measured

MEMORY_BOUND = "memory-bound"
COMPUTE_BOUND = "compute-bound"
LATENCY_BOUND = "latency-bound"
BALANCED = "balanced"
CANNOT_TELL = "cannot tell"

LATENCY_BELOW = 60.0
BALANCED_WITHIN = 10.0
FEWEST_WAVES = 1.0
LOW_OCCUPANCY = 80.0
LOST_OCCUPANCY = 10.0
LARGE_STALL = 30.0
BUSY_SCHEDULER = 0.8


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one launch, and its reasons; percentages of the peak."""

    bound: str
    compute_percent: float | None
    memory_percent: float | None
    memory_level: str | None
    """The part of memory that is used most: "device memory", "L2" or "L1"."""
    occupancy_percent: float | None
    """Achieved."""
    stall: str | None
    """The largest cause of waiting."""
    stall_percent: float | None
    """Its percentage of the time between two instructions."""
    reasons: list[str]
    """Clauses that explain why it waits, or which limit it is close to."""


def judge(kernel: Measured) -> Judgement:
    """Return the verdict on a kernel. The reason for "cannot tell" names the missing metrics."""
    values = kernel.metrics
    compute, memory = values.get(m.COMPUTE), values.get(m.MEMORY)
    level, top = _level(values)
    if memory is None and top is not None and values.get(m.DRAM) is not None:
        memory = top  # the throughput of memory is that of its busiest part
    stall = _largest_stall(values)
    if compute is None or memory is None:
        missing = [
            what for what, value in (("computing", compute), ("memory", memory)) if value is None
        ]
        bound = CANNOT_TELL
        lacks = " and ".join(missing)
        reasons = [
            f"the file has no throughput of {lacks}: let ncu collect the section SpeedOfLight"
        ]
    elif compute < LATENCY_BELOW and memory < LATENCY_BELOW:
        bound = LATENCY_BOUND
        reasons = _waits(values, stall)
    elif abs(compute - memory) < BALANCED_WITHIN:
        bound = BALANCED
        reasons = ["computing and memory are both in use, so reducing only one gains little"]
    else:
        bound = MEMORY_BOUND if memory > compute else COMPUTE_BOUND
        reasons = [_busiest(bound, level, values)]
    reason, percent = stall or (None, None)
    occupancy = values.get(m.ACHIEVED)
    return Judgement(bound, compute, memory, level, occupancy, reason, percent, reasons)


def _level(values: dict[str, float | int]) -> tuple[str | None, float | None]:
    known = [
        (float(values[name]), what)
        for name, what in ((m.DRAM, "device memory"), (m.L2, "L2"), (m.L1, "L1"))
        if name in values
    ]
    if not known:
        return None, None
    value, what = max(known)
    return what, value


def _busiest(bound: str, level: str | None, values: dict[str, float | int]) -> str:
    if bound == COMPUTE_BOUND:
        if any(values.get(name, 0) > 0 for name in m.TENSOR):
            return "the arithmetic pipes, including the tensor cores, are the busiest part"
        return "the arithmetic pipes are the busiest part"
    return f"{level or 'memory'} is the busiest part"


def _largest_stall(values: dict[str, float | int]) -> tuple[str, float] | None:
    """Return the largest cause of waiting, in percent of the cycles between two instructions."""
    shares: dict[str, float] = {}
    whole = values.get(m.CYCLES_PER_ISSUE)
    for name in m.STALLS:
        cycles = values.get(m.STALLED.format(name), values.get(m.STALLED_LATENCY.format(name)))
        percent = values.get(m.STALLED_PERCENT.format(name))
        if cycles is not None and whole:
            shares[name] = 100.0 * cycles / whole
        elif percent is not None:
            shares[name] = float(percent)
    if not shares:
        return None
    most = max(shares, key=lambda name: shares[name])
    return most, shares[most]


def _waits(values: dict[str, float | int], stall: tuple[str, float] | None) -> list[str]:
    reasons = []
    waves = values.get(m.WAVES)
    if waves is not None and waves < FEWEST_WAVES:
        reasons.append(f"its grid fills the device only {waves:.2f} times: too few blocks")
    theoretical, achieved = values.get(m.THEORETICAL), values.get(m.ACHIEVED)
    if theoretical is not None and theoretical < LOW_OCCUPANCY:
        limits = {what: values[name] for name, what in m.LIMITS.items() if values.get(name, 0) > 0}
        by = f", by {min(limits, key=lambda what: limits[what])}" if limits else ""
        reasons.append(f"its occupancy is limited to {theoretical:.1f} %{by}")
    if theoretical is not None and achieved is not None and theoretical - achieved > LOST_OCCUPANCY:
        reasons.append(
            f"it reaches {achieved:.1f} % of the possible occupancy of {theoretical:.1f} %: blocks"
            " differ in length, or there are too few"
        )
    issued = values.get(m.ISSUED)
    if issued is None and m.ISSUED_PERCENT in values:
        issued = values[m.ISSUED_PERCENT] / 100.0
    if (
        stall is not None
        and stall[1] >= LARGE_STALL
        and (issued is None or issued < BUSY_SCHEDULER)
    ):
        reasons.append(
            f"its warps spend {stall[1]:.1f} % of the time waiting for {m.STALLS[stall[0]]}"
        )
    return reasons or ["neither computing nor memory is in use for most of the time"]


# --- The roofline ---


# Operations and bytes are defined as in the section "GPU Speed Of Light Roofline Chart": additions
# and multiplications count once, fused operations twice; bytes are those of device memory. Work of
# the tensor cores is not in the counted instructions, so kernels with such work have no point.
_KINDS = {"single": "f", "double": "d", "half": "h"}
_COUNTS = (
    "sm__sass_thread_inst_executed_op_{}{}_pred_on.sum",
    "smsp__sass_thread_inst_executed_op_{}{}_pred_on.sum",
)


@dataclass(frozen=True, slots=True)
class Point:
    """One launch in the roofline."""

    precision: str
    """The precision of most of its operations: "single", "double" or "half"."""
    operations: float
    bytes: float
    seconds: float

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.operations / self.seconds

    @property
    def intensity(self) -> float:
        """Operations per byte of device memory."""
        return self.operations / self.bytes


class Roofs(Figures, frozen=True):
    """The device's peaks at the clocks that ncu measured, as far as they are known."""

    bandwidth: float | None = msgspec.field(name="bytes_per_second")
    """Of device memory."""
    rates: dict[str, float] = msgspec.field(name="operations_per_second")
    """By precision."""


def point_of(kernel: Measured) -> Point | None:
    """Return the point of a launch; None if figures are missing or tensor cores were used."""
    values = kernel.metrics
    seconds, moved = values.get(m.DURATION), bytes_of(kernel)
    if any(values.get(name, 0) > 0 for name in m.TENSOR):
        return None
    # A damaged table may contain negative figures.
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
    """Return the bytes read from and written to device memory."""
    values = kernel.metrics
    if m.DRAM_BYTES in values:
        return float(values[m.DRAM_BYTES])
    if m.DRAM_READ in values and m.DRAM_WRITTEN in values:
        return float(values[m.DRAM_READ] + values[m.DRAM_WRITTEN])
    if m.DRAM_RATE in values and m.DURATION in values:
        return float(values[m.DRAM_RATE] * values[m.DURATION])
    return None


def roofs_of(kernels: list[Measured]) -> Roofs:
    """Return the highest roofs of all kernels, from throughputs if peaks are missing."""
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
