"""Cells of Ascend's tables: numbers as written, to integers, exactly."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_EVEN, Decimal, DecimalException

_UNIT = re.compile(r"^(.*?)\s*\(\s*(ns|us|ms|s|b|kb|mb|gb|%)\s*\)$", re.IGNORECASE)
# Nanoseconds, or bytes.
_SCALES = {
    "ns": Decimal(1),
    "us": Decimal(10**3),
    "ms": Decimal(10**6),
    "s": Decimal(10**9),
    "b": Decimal(1),
    "kb": Decimal(2**10),
    "mb": Decimal(2**20),
    "gb": Decimal(2**30),
}
_LARGEST = 2**62
_THOUSANDS = re.compile(r"^[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?$")


def heading(text: str) -> tuple[str, str]:
    """A heading's name in lower case, and its unit: `Duration(us)` is ("duration", "us").

    What stands in brackets and is no unit belongs to the name.
    """
    found = _UNIT.match(text.strip())
    name, unit = (found[1], found[2].lower()) if found else (text, "")
    return " ".join(name.lower().split()), unit


def number(text: str) -> Decimal | None:
    """A cell's number, thousands separators and blanks around it left out; None if it has none."""
    text = text.strip()
    if "," in text and _THOUSANDS.match(text):
        text = text.replace(",", "")
    if "_" in text:  # which Decimal would take
        return None
    try:
        value = Decimal(text)
    except DecimalException:
        return None
    return value if value.is_finite() and abs(value) < _LARGEST else None


def scaled(text: str, unit: str) -> int | None:
    """A cell in a unit of time to ns, or in one of size to bytes: the nearest integer.

    None when the cell holds no number, or one that does not fit 64 bits.
    """
    whole, _, rest = text.partition(".")
    # The common case: microseconds with at most three decimals.
    if (
        unit == "us"
        and len(rest) <= 3
        and len(whole) < 20
        and whole.isdecimal()
        and (not rest or rest.isdecimal())
    ):
        result = int(whole) * 1000 + int(rest.ljust(3, "0"))
        return result if result < _LARGEST else None
    value = number(text)
    if value is None or unit not in _SCALES:
        return None
    result = int((value * _SCALES[unit]).to_integral_value(rounding=ROUND_HALF_EVEN))
    return result if abs(result) < _LARGEST else None


def count(text: str) -> int | None:
    """A cell that counts something; None when it holds no whole number."""
    value = number(text)
    return int(value) if value is not None and value == value.to_integral_value() else None
