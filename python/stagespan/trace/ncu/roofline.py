"""The roofline of a device: operations per byte and per second of its kernels, and its SVG.

Operations and bytes are defined as in Nsight Compute's section "GPU Speed Of Light Roofline Chart":
additions and multiplications count once, fused operations twice; bytes are those of device memory.
Work of the tensor cores is not in the counted instructions, so kernels with such work have no
point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from stagespan.trace.ncu import reading as m
from stagespan.trace.ncu.reading import Measured
from stagespan.trace.ncu.verdict import (
    BALANCED,
    CANNOT_TELL,
    COMPUTE_BOUND,
    LATENCY_BOUND,
    MEMORY_BOUND,
)
from stagespan.trace.result import shortened

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


@dataclass(frozen=True, slots=True)
class Roofs:
    """The device's peaks at the clocks that ncu measured; None if unknown."""

    bandwidth: float | None
    """Bytes per second of device memory."""
    rates: dict[str, float]
    """Operations per second by precision."""

    @property
    def ridges(self) -> dict[str, float]:
        """Return the operations per byte from which computing is the lower roof, by precision."""
        if not self.bandwidth:
            return {}
        return {name: rate / self.bandwidth for name, rate in self.rates.items()}


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


# --- The picture ---


COLOURS = {
    MEMORY_BOUND: "#2f7fd6",
    COMPUTE_BOUND: "#2f9e63",
    LATENCY_BOUND: "#e2674a",
    BALANCED: "#a44cc4",
    CANNOT_TELL: "#868d97",
}
_WIDTH, _HEIGHT = 900, 560
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 24, 56, 60
_LONGEST = 48
_OPEN = (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    ' font-family="sans-serif" font-size="12" role="img">'
)


@dataclass(frozen=True, slots=True)
class Placed:
    """A kernel in the picture."""

    name: str
    bound: str
    point: Point


def svg(title: str, kernels: Sequence[Placed], roofs: Roofs) -> str:
    """Return the SVG. If there are no points, it contains a sentence."""
    axes = _Axes(kernels, roofs)
    parts = [
        _OPEN,
        f"<title>{_text(title)}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="22" font-size="15" font-weight="600">{_text(title)}</text>',
        _legend(),
    ]
    if not kernels:
        parts.append(
            f'<text x="{_LEFT}" y="{_HEIGHT // 2}">No kernel has counted operations and bytes.'
            "</text>"
        )
    else:
        parts += [*axes.grid(), *_roofs(axes, roofs), *_points(axes, kernels)]
    return "\n".join([*parts, "</svg>", ""])


class _Axes:
    """Two logarithmic axes."""

    def __init__(self, kernels: Sequence[Placed], roofs: Roofs) -> None:
        across = [each.point.intensity for each in kernels] + list(roofs.ridges.values())
        up = [each.point.rate for each in kernels] + list(roofs.rates.values())
        self.across, self.up = _decades(across or [1.0]), _decades(up or [1e12])

    def x(self, value: float) -> float:
        low, high = self.across
        part = (math.log10(value) - low) / (high - low)
        return _LEFT + part * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self.up
        part = (math.log10(value) - low) / (high - low)
        return _HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM)

    def grid(self) -> list[str]:
        bottom, parts = _HEIGHT - _BOTTOM, []
        for power in range(self.across[0], self.across[1] + 1):
            x = self.x(10.0**power)
            parts.append(_line(x, _TOP, x, bottom, "#e3e6ea"))
            parts.append(_label(x, bottom + 18, f"{10.0**power:g}", "middle"))
        for power in range(self.up[0], self.up[1] + 1):
            y = self.y(10.0**power)
            parts.append(_line(_LEFT, y, _WIDTH - _RIGHT, y, "#e3e6ea"))
            parts.append(_label(_LEFT - 8, y + 4, in_words(10.0**power, 0), "end"))
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        parts.append(_label(middle, _HEIGHT - 16, "operations per byte of device memory", "middle"))
        across = (_TOP + bottom) / 2
        parts.append(
            f'<text transform="translate(18 {across:.1f}) rotate(-90)" text-anchor="middle">'
            "operations per second</text>"
        )
        return parts


def in_words(value: float, digits: int = 2) -> str:
    """Return operations or bytes per second as text: 1.5e12 is "1.50 T"."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= size * 0.9999:
            return f"{value / size:.{digits}f} {letter}"
    return f"{value:.{digits}f}"


def _roofs(axes: _Axes, roofs: Roofs) -> list[str]:
    if not roofs.bandwidth:
        return []
    parts = []
    left, right = 10.0 ** axes.across[0], 10.0 ** axes.across[1]
    for precision, rate in roofs.rates.items():
        ridge = rate / roofs.bandwidth
        parts.append(_line(axes.x(ridge), axes.y(rate), axes.x(right), axes.y(rate), "#1b1f24", 2))
        words = f"{in_words(rate)}FLOP/s, {precision} precision"
        parts.append(_label(_WIDTH - _RIGHT - 4, axes.y(rate) - 6, words, "end"))
    end = max(roofs.ridges.values(), default=right)
    begin = max(left, 10.0 ** axes.up[0] / roofs.bandwidth)
    if begin < end:
        top = end * roofs.bandwidth
        parts.append(
            _line(axes.x(begin), axes.y(begin * roofs.bandwidth), axes.x(end), axes.y(top),
                  "#1b1f24", 2)
        )  # fmt: skip
        words = f"{in_words(roofs.bandwidth)}B/s device memory"
        x0, y0 = axes.x(begin), axes.y(begin * roofs.bandwidth)
        x1, y1 = axes.x(end), axes.y(top)
        angle = math.degrees(math.atan2(y1 - y0, x1 - x0))
        place = f"translate({(x0 + x1) / 2:.1f} {(y0 + y1) / 2 - 8:.1f}) rotate({angle:.1f})"
        parts.append(f'<text transform="{place}" text-anchor="middle">{_text(words)}</text>')
    return parts


def _points(axes: _Axes, kernels: Sequence[Placed]) -> list[str]:
    parts: list[str] = []
    taken: list[float] = []
    for each in sorted(kernels, key=lambda placed: placed.point.rate, reverse=True):
        x, y = axes.x(each.point.intensity), axes.y(each.point.rate)
        title = (
            f"{shortened(each.name, 400)}: {each.bound}, {in_words(each.point.rate)}FLOP/s,"
            f" {each.point.intensity:.2f} operations per byte"
        )
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{COLOURS[each.bound]}"'
            f' fill-opacity="0.85" stroke="#ffffff"><title>{_text(title)}</title></circle>'
        )
        # Names are listed one below the other, as the roofs are above.
        at = y + 16
        while any(abs(at - other) < 13 for other in taken):
            at += 13
        taken.append(at)
        name = shortened(each.name, _LONGEST)
        if x < _WIDTH / 2:
            parts.append(_label(x + 6, at, name))
        else:
            parts.append(_label(x - 6, at, name, "end"))
    return parts


def _legend() -> str:
    parts, x = [], _LEFT
    for bound, colour in COLOURS.items():
        parts.append(f'<circle cx="{x + 5}" cy="40" r="5" fill="{colour}"/>')
        parts.append(_label(x + 15, 44, bound))
        x += 130
    return "".join(parts)


def _decades(values: list[float]) -> tuple[int, int]:
    """Return powers of ten around positive values, at least one decade."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def _line(x0: float, y0: float, x1: float, y1: float, colour: str, width: float = 1) -> str:
    return (
        f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="{colour}"'
        f' stroke-width="{width}"/>'
    )


def _label(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_text(text)}</text>'


def _text(text: str) -> str:
    return escape("".join(c if c.isprintable() else "?" for c in text))
