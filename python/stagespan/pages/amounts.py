"""Numbers, times and lists of names as text, and the texts of a user as numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable

MOST_LISTED = 8
"""The number of names that `listed` shows."""
_UNITS: dict[str, tuple[tuple[float, str], ...]] = {
    "ns": ((1e9, "s"), (1e6, "ms"), (1e3, "µs")),
    "FLOP": ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP")),
    "FLOP/s": ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s")),
    "bytes/s": ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")),
    "bytes": ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")),
}
"""The larger units of a unit, with their sizes."""
# Units that people do not use: their figures are in the smallest larger unit.
_NOT_USED = ("ns", "bytes/s")
_MOST_DECIMALS = 3


def three_digits(number: float, most_decimals: int = 15) -> str:
    """Return a number with three significant digits: ``0.0631``, ``1.20``, ``98.9``, ``1,307``.

    All pages show figures so; JSON has them exactly. Digits before the point are never replaced by
    zeros, because a number such as 1,310 would seem to be exact, and 0 is ``0``. There are at most
    ``most_decimals`` digits after the point.
    """
    if not number or not math.isfinite(number):
        return f"{number:.0f}".removeprefix("-") if not number else f"{number}"
    # 9.996 has the exponent of 10.0, to which it is rounded.
    exponent = int(f"{number:.2e}".partition("e")[2])
    return f"{number:,.{min(max(2 - exponent, 0), most_decimals)}f}"


def in_percent(percent: float) -> str:
    """Return a share in percent with one digit after the point, and from 100 % on without:
    ``8.5 %``, ``92.5 %``, ``100 %``.
    """
    text = f"{percent:,.1f}"
    return f"{text if abs(percent) < 99.95 else f'{percent:,.0f}'} %"


def of_time(ns: float, size: float) -> str:
    """Return a time in a unit of ``size`` ns for a table: `three_digits`, at most three of them
    after the point.
    """
    return three_digits(ns / size, _MOST_DECIMALS)


def duration(ns: float) -> str:
    """Return a time, rounded for people: ``1.2 µs``, ``340 ms``, ``42.1 s``, ``3 min 20 s``.

    `in_words` returns a time with three digits.
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


def point_in_time(ns: float) -> str:
    """Return a time since a beginning, such as that of a trace, with three digits after the point:
    ``12.892 s``, ``943.100 µs``. Unlike a length, it is a place that people search for.
    """
    size, name = next((each for each in _UNITS["ns"] if abs(ns) >= each[0]), (1e3, "µs"))
    return f"{ns / size:,.3f} {name}"


def in_words(figure: float | None, unit: str) -> str:
    """Return a figure with a suitable unit: 1,234,567 ns is "1.23 ms"; None is "unknown".

    Integers of a unit that has no larger units, such as counts, have all their digits; all other
    figures have three (`three_digits`, `in_percent`), except for points in time
    (`point_in_time`).
    """
    if figure is None:
        return "unknown"
    if unit == "%":
        return in_percent(figure)
    sizes = _UNITS.get(unit, ())
    for size, name in sizes:
        # 999,600 ns are rounded to 1.00 ms.
        if float(f"{abs(figure) / size:.2e}") >= 1:
            return f"{three_digits(figure / size)} {name}"
    if unit in _NOT_USED:
        size, name = sizes[-1]
        return f"{of_time(figure, size)} {name}"
    number = f"{figure:,}" if isinstance(figure, int) else three_digits(figure)
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
    """Return the fraction by which something changed as a percentage: 0.05 is ``+5.0 %``; from
    100 % on there is no digit after the point.
    """
    percent = 100 * fraction
    return f"{signed(percent, 1 if abs(percent) < 99.95 else 0)} %"


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
    number = _number(str(text).strip().removesuffix("ms"))
    if number is None or number < 0:
        raise ValueError(f"{text!r} is not a time in milliseconds: write for example 2 or 0.5.")
    return number


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
