"""Microseconds as written in a trace, to integer nanoseconds, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal, DecimalException
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stagespan.trace.model import MISSING, Numbers

# Below this a double still tells neighbouring nanoseconds apart: its steps are under 0.001 us.
EXACT_BELOW_US = float(2**43)
# Far from the ends of int64, so that adding a base and a duration cannot overflow.
_LARGEST_US = 2**62 // 1000

Time = int | float | str | msgspec.Raw | None


class NotExact(Exception):
    """A time was decoded to a double that is too large to hold its nanoseconds."""


def time_ns(value: Time) -> int:
    """One time in microseconds to nanoseconds (the nearest); `MISSING` when it is not a time."""
    if isinstance(value, msgspec.Raw):
        text = bytes(value).decode("utf-8", "replace").strip('"')
    elif isinstance(value, (int, float, str)) and not isinstance(value, bool):
        text = repr(value) if isinstance(value, float) else str(value)
    else:
        return MISSING
    try:
        exact = (Decimal(text) * 1000).to_integral_value(rounding=ROUND_HALF_EVEN)
    except DecimalException:
        return MISSING
    if not exact.is_finite() or abs(exact) >= _LARGEST_US * 1000:
        return MISSING
    return int(exact)


def durations_ns(values: Sequence[Time]) -> Numbers:
    """Durations in microseconds to nanoseconds, `MISSING` where there is none.

    A duration is far below what a double holds exactly; one of months is rounded.
    """
    try:
        return times_ns(values)
    except NotExact:
        return np.fromiter(map(time_ns, values), dtype=np.int64, count=len(values))


def times_ns(values: Sequence[Time]) -> Numbers:
    """Times in microseconds to nanoseconds, `MISSING` where there is none.

    Raises NotExact when some of them are doubles that have already lost their nanoseconds: the
    caller then decodes the numbers as text and asks again.
    """
    if not values:
        return np.empty(0, dtype=np.int64)
    kind = type(values[0])
    fast = None
    if kind is int:
        fast = _from_integers(values)
    elif kind is str and _all_of(values, str):
        fast = _from_text("".join(values).encode(), len(values))  # type: ignore[arg-type]
    elif kind is msgspec.Raw and _all_of(values, msgspec.Raw):
        fast = _from_text(b"".join(map(bytes, values)), len(values))  # type: ignore[arg-type]
    if fast is None and kind is not msgspec.Raw:
        fast = _from_numbers(values)
    if fast is not None:
        return fast
    if any(type(value) is float and abs(value) >= EXACT_BELOW_US for value in values):
        raise NotExact
    return np.fromiter(map(time_ns, values), dtype=np.int64, count=len(values))


def _all_of(values: Sequence[Time], kind: type) -> bool:
    return set(map(type, values)) == {kind}


def _from_integers(values: Sequence[Any]) -> Numbers | None:
    """Whole microseconds; None when some value is something else."""
    if not _all_of(values, int):
        return None
    try:
        microseconds = np.fromiter(values, dtype=np.int64, count=len(values))
    except OverflowError:
        return None
    if microseconds.max() > _LARGEST_US or microseconds.min() < -_LARGEST_US:
        return None
    return microseconds * 1000


def _from_numbers(values: Sequence[Any]) -> Numbers | None:
    """Numbers small enough for doubles to hold them exactly; None when some value is not."""
    try:
        microseconds: NDArray[np.float64] = np.fromiter(values, np.float64, count=len(values))
    except (TypeError, ValueError, OverflowError):
        return None
    if not np.all(np.abs(microseconds) < EXACT_BELOW_US):
        return None
    whole = np.floor(microseconds)
    # The fraction is split off without loss, so only the double's own last step is rounded away.
    rest = np.rint((microseconds - whole) * 1000.0)
    result: Numbers = whole.astype(np.int64) * 1000 + rest.astype(np.int64)
    return result


def _from_text(joined: bytes, count: int) -> Numbers | None:
    """Texts of one length with three decimals, the common case, as a table of digits; else None."""
    width, rest = divmod(len(joined), count)
    if rest or not 5 <= width <= 20:
        return None
    table = np.frombuffer(joined, dtype=np.uint8).reshape(count, width)
    if not np.all(table[:, -4] == ord(".")):
        return None
    digits = np.delete(table, width - 4, axis=1).astype(np.int64) - ord("0")
    # Nineteen digits fit 64 bits when the first is below 9.
    if digits.min() < 0 or digits.max() > 9 or (width == 20 and digits[:, 0].max() > 8):
        return None
    powers = 10 ** np.arange(width - 2, -1, -1, dtype=np.int64)
    result: Numbers = digits @ powers
    return result if result.max() < _LARGEST_US * 1000 else None
