"""Says what limits an operator, from its rates and the shapes of its arguments."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from stagespan.pages.amounts import in_words
from stagespan.trace.rates.calls import Call, Cost, Tensor, element_bytes

Limit = Literal["compute", "memory", "latency", "neither"]
LIMITS: dict[Limit, str] = {
    "compute": "compute-bound",
    "memory": "memory-bound",
    "latency": "latency-bound",
    "neither": "below both peaks",
}
"""What limits a call, with its name on pages."""

USED_WELL = 60.0
"""Percent of a peak from which on it is what limits a call. Nsight Compute uses the same."""
_SHORT_NS = 10_000
# Matrix units load 16 bytes at once.
_ALIGNED_BYTES = 16
_FEWER_OPERATIONS = re.compile(r"winograd|fft", re.IGNORECASE)
# The largest tiles of a result that one unit computes at once. Smaller ones reach less of the peak.
_TILE = 128
# A product with fewer rows or columns reads its larger operand for little work.
_FEW_ROWS = 16


def limit_of(
    compute_percent: float | None, memory_percent: float | None, time_ns: float
) -> Limit | None:
    """Return what limits a call that takes `time_ns`; None if its shares of the peaks are unknown.

    A call that uses less than 60 % of both peaks is limited by latencies if it is shorter than
    10 µs, because starting and ending take most of that.
    """
    percents = [each for each in (compute_percent, memory_percent) if each is not None]
    if not percents:
        return None
    if max(percents) >= USED_WELL:
        return "compute" if compute_percent == max(percents) else "memory"
    return "latency" if time_ns < _SHORT_NS else "neither"


def unaligned_sizes(call: Call, cost: Cost) -> list[int]:
    """Return the sizes in a product because of which rows do not begin at multiples of 16 bytes.

    These are the distances between rows of the operands and of the result. The result is empty for
    other operators, and for vectors.
    """
    size = element_bytes(cost.type)
    if cost.product is None or not size or size > 2:
        # Products of float and double do not use 16 bytes at once in all kernels.
        return []
    _, m, n, k = cost.product
    if min(m, n, k) <= 1:
        return []
    least = int(_ALIGNED_BYTES / size)
    operands = [each for each in call.all_tensors() if len(each.dims) >= 2][-2:]
    steps = [_row_step(each) for each in operands]
    distances = [n, *(k if each is None else each for each in steps)]
    return sorted({each for each in distances if each % least})


def _row_step(tensor: Tensor) -> int | None:
    """Return the distance between two rows, or columns, of a matrix in elements."""
    if tensor.strides is None or len(tensor.strides) != len(tensor.dims):
        return None
    one, two = tensor.strides[-2:]
    return one if two == 1 else two


def thin_side(cost: Cost) -> str | None:
    """Return `m = 1` for a product whose operands are read for few rows or columns, or None."""
    if cost.product is None:
        return None
    _, m, n, k = cost.product
    name, least = min((("m", m), ("n", n), ("k", k)), key=lambda each: each[1])
    return f"{name} = {least}" if least < _FEW_ROWS else None


def tiles(cost: Cost) -> int | None:
    """Return into how many tiles the result of a product is divided; None for other operators."""
    if cost.product is None:
        return None
    batch, m, n, _ = cost.product
    return batch * -(-m // _TILE) * -(-n // _TILE)


def has_few_tiles(cost: Cost, units: int | None) -> bool:
    """Whether the result of a product has fewer tiles than a device has units."""
    found = tiles(cost)
    return found is not None and units is not None and found < units


def has_other_algorithm(kernels: Iterable[str]) -> bool:
    """Whether kernels compute a convolution with fewer operations than are counted."""
    return any(_FEWER_OPERATIONS.search(name) for name in kernels)


def reason_of(
    call: Call, cost: Cost, limit: Limit | None, time_ns: float, units: int | None = None
) -> str:
    """Return why a call does not reach the peak of its products, in a few words; "" if unknown.

    `units` is the number of the device's units (multiprocessors, compute units).
    """
    if limit is None and cost.flops is not None and has_other_algorithm(call.kernels):
        return "Winograd or FFT: fewer operations than counted"
    if limit in (None, "compute"):
        return ""
    thin = thin_side(cost)
    if thin is not None:
        return thin
    wrong = unaligned_sizes(call, cost)
    if limit == "neither" and has_few_tiles(cost, units):
        return f"{tiles(cost):,} tiles of {_TILE} x {_TILE} for {units:,} units"
    if wrong and limit != "memory":
        size = wrong[-1]
        multiple = int(_ALIGNED_BYTES / (element_bytes(cost.type) or 1))
        return f"{size:,} is odd" if size % 2 else f"{size:,} is not a multiple of {multiple}"
    return f"{in_words(time_ns, 'ns')} per call" if limit == "latency" else ""
