"""Parses tolerances such as ``5%``, ``0.05`` and ``2 ms``, and writes changes with their sign."""

from __future__ import annotations

import math


def share(text: str | float) -> float:
    """Return a fraction: ``"5%"`` and ``0.05`` give 0.05. Raises ValueError."""
    found = _number(str(text).strip().removesuffix("%"))
    is_percent = str(text).strip().endswith("%")
    if found is None or found < 0 or (not is_percent and found >= 1):
        raise ValueError(f"{text!r} is not a percentage or a fraction: write 5% or 0.05.")
    return found / 100 if is_percent else found


def milliseconds(text: str | float) -> float:
    """Return a time in ms: ``"2"``, ``"2 ms"`` and ``2`` give 2.0. Raises ValueError."""
    found = _number(str(text).strip().removesuffix("ms"))
    if found is None or found < 0:
        raise ValueError(f"{text!r} is not a time in milliseconds: write for example 2 or 0.5.")
    return found


def signed(value: float, digits: int) -> str:
    """Return a number with its sign, ``+1.20``; a number that rounds to 0 is ``+0.00``."""
    return f"{round(value, digits) + 0.0:+,.{digits}f}"  # -0.0 + 0.0 is 0.0


def _number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None
