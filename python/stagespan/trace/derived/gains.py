"""What a change would win, computed from the device events that it makes shorter."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagespan.pages.amounts import in_words
from stagespan.pages.result import Gain, Spared
from stagespan.trace.derived.device import device_work
from stagespan.trace.derived.windows import base_window
from stagespan.trace.read.intervals import Rows, covered
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once


def idle_gain(idle_ns: int, how: str = "the device does not wait there") -> Gain | None:
    """Return the gain if the device does not wait for a time; None if it does not wait."""
    return Gain(idle_ns, at_most=True, how=how) if idle_ns else None


@once
def idle_in_base(trace: Trace) -> int | None:
    """Return the time in ns of the base in which no device works; None without a device."""
    base, rows = base_window(trace), device_work(trace).rows
    if base is None or len(rows) == 0:
        return None
    begin, end = (
        np.clip(edges[rows], base.begin_ns, base.end_ns)
        for edges in (trace.events.begin_ns, trace.events.end_ns)
    )
    return base.whole_ns - covered(begin, end)


def gain_on_host(trace: Trace, time_ns: int, how: str) -> Gain | None:
    """Return the gain if the host does not spend a time; None if that wins nothing.

    With a device it is no more than the device's idle time: while the device works, the host can
    run ahead of it.
    """
    base, idle = base_window(trace), idle_in_base(trace)
    if base is None:
        return None
    most = min(time_ns, base.whole_ns if idle is None else idle)
    return Gain(most, at_most=True, how=how) if most > 0 else None


def gain_of_rows(trace: Trace, rows: Rows, spared_ns: NDArray[Any], how: str) -> Gain | None:
    """Return the gain of a change that spares a time of each of some device events.

    Only events that begin in the steps count, or in the trace if it has no steps. It is a bound,
    because the device may run other work at the same time. None if it spares no time.
    """
    base = base_window(trace)
    if base is None:
        return None
    inside = base.contains(trace, rows)
    spared = Spared(rows[inside], np.maximum(spared_ns[inside], 0).astype(np.float64))
    time = min(round(float(spared.time_ns.sum())), base.whole_ns)
    return Gain(time, at_most=True, how=how, spared=spared) if time else None


def how_nothing_is_left(room_ns: float, exposed_ns: float, of: str = "") -> str:
    """Return how exposed communication or copies would take no time.

    ``room_ns`` is the computation, ``of`` whom if several compute, beside which they could run.
    """
    if room_ns >= exposed_ns:
        return "computation hides all of it"
    if not room_ns:
        return "it takes no time, because there is no computation that could hide it"
    room = in_words(room_ns, "ns")
    return f"{room} of computation{of} hide a part of it, and the rest takes no time"


def gain_shared_by(
    rows: Rows, weights: NDArray[Any], time_ns: int, how: str, *, launched: bool = False
) -> Gain:
    """Return the gain of a change that spares a known time of some events together.

    It is divided among them by weight, so that it is not added to other gains of the same events.
    ``launched`` is whether the host goes on launching those of which nothing is left.
    """
    total = float(weights.sum())
    if total <= 0:
        return Gain(time_ns, at_most=True, how=how)
    spared = Spared(rows, weights.astype(np.float64) * (time_ns / total), launched)
    return Gain(time_ns, at_most=True, how=how, spared=spared)
