"""Numbers, times and lists of names as text, and the texts of a user as numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable

MOST_LISTED = 8
"""The number of names that `listed` shows."""
_UNITS: dict[str, tuple[tuple[float, str, int], ...]] = {
    "ns": ((1e9, "s", 3), (1e6, "ms", 3), (0.0, "µs", 3)),
    "FLOP": ((1e12, "TFLOP", 3), (1e9, "GFLOP", 3), (1e6, "MFLOP", 3)),
    "FLOP/s": ((1e12, "TFLOP/s", 3), (1e9, "GFLOP/s", 3), (1e6, "MFLOP/s", 3)),
    "bytes/s": ((1e9, "GB/s", 1), (1e6, "MB/s", 1), (0.0, "kB/s", 1)),
    "bytes": ((2**30, "GiB", 2), (2**20, "MiB", 2), (2**10, "KiB", 2)),
}
"""The larger units of a unit, each from this size on, and the digits after the point."""


def duration(ns: float) -> str:
    """Return a time, rounded for people: ``1.2 µs``, ``340 ms``, ``42.1 s``, ``3 min 20 s``.

    `in_words` returns a time with all its digits.
    """
    if ns <= 0:
        return "0 µs"
    for unit, size in (("µs", 1e3), ("ms", 1e6)):
        if ns < 1000 * size:
            return f"{ns / size:,.{1 if ns < 10 * size else 0}f} {unit}"
    seconds = ns / 1e9
    if seconds < 120:
        return f"{seconds:,.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def rate(per_s: float) -> str:
    """Return how often something happens, rounded for people: ``1,234``, ``86.4``, ``0.25``."""
    return f"{per_s:,.{0 if per_s >= 100 or not per_s else 1 if per_s >= 10 else 2}f}"


def in_words(figure: float | None, unit: str) -> str:
    """Return a figure with a suitable unit: 1,234,567 ns is "1.235 ms"; None is "unknown"."""
    if figure is None:
        return "unknown"
    if unit == "%":
        return f"{figure:.1f} %"
    for least, name, digits in _UNITS.get(unit, ()):
        if abs(figure) >= least:
            return f"{figure / (least or 1e3):,.{digits}f} {name}"
    number = f"{figure:,}" if isinstance(figure, int) else f"{figure:,.3f}"
    return f"{number} {unit.removesuffix('s') if figure == 1 else unit}".rstrip()


def amount(number: float) -> str:
    """Return an amount: an integer with all its digits, any other number with six of them."""
    return f"{number:,}" if isinstance(number, int) else f"{number:,.6g}"


def counted(count: int, what: str, several: str | None = None) -> str:
    """Return a count with its noun: "1 call", "1,200 calls", or ``several`` as the plural."""
    return f"{count:,} {what if count == 1 else several or f'{what}s'}"


def listed(names: Iterable[object], most: int = MOST_LISTED) -> str:
    """Return names with commas: the first ``most``, and how many more there are."""
    texts = list(map(str, names))
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more:,} more" if more > 0 else "")


def quoted(names: Iterable[str], most: int = MOST_LISTED) -> str:
    """Return names like `listed`, each in quotation marks; "none" if there are none."""
    return listed(map(repr, names), most) or "none"


def percent(fraction: float) -> str:
    """Return a fraction as a percentage with at most three digits: 0.05 is ``5 %``."""
    return f"{100 * fraction:.3g} %" if fraction < 10 else f"{100 * fraction:,.0f} %"


def signed(value: float, digits: int) -> str:
    """Return a number with its sign, ``+1.20``; a number that rounds to 0 is ``+0.00``."""
    return f"{round(value, digits) + 0.0:+,.{digits}f}"  # -0.0 + 0.0 is 0.0


def signed_percent(fraction: float) -> str:
    """Return the fraction by which something changed as a percentage: 0.05 is ``+5.0 %``."""
    return f"{signed(100 * fraction, 1)} %"


# --- what users write -----------------------------------------------------------------------------


def share(text: str | float) -> float:
    """Return a fraction: ``"5%"`` and ``0.05`` give 0.05. Raises ValueError."""
    value = _number(str(text).strip().removesuffix("%"))
    is_percent = str(text).strip().endswith("%")
    if value is None or value < 0 or (not is_percent and value >= 1):
        raise ValueError(f"{text!r} is not a percentage or a fraction: write 5% or 0.05.")
    return value / 100 if is_percent else value


def milliseconds(text: str | float) -> float:
    """Return a time in ms: ``"2"``, ``"2 ms"`` and ``2`` give 2.0. Raises ValueError."""
    found = _number(str(text).strip().removesuffix("ms"))
    if found is None or found < 0:
        raise ValueError(f"{text!r} is not a time in milliseconds: write for example 2 or 0.5.")
    return found


def _number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None
