"""What a change would win, computed from the events that it makes shorter."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from stagespan.pages.amounts import in_words
from stagespan.pages.result import Gain, Spared
from stagespan.trace.derived.device import device_work
from stagespan.trace.derived.trees import Nesting
from stagespan.trace.derived.windows import base_window
from stagespan.trace.read.intervals import Mask, Rows, covered
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once

PAUSE_NS = 50_000
"""Python takes up to this long from one operator of a loop to the next, if nothing interrupts it.
"""
# What runs on a host also slows down what follows: it displaces data from the caches, takes new
# memory, or forks the process. In pairs of programs, that was mostly less than a third of its own
# time (docs/internals/measurements.md).
_SLOWS_DOWN = 3
# Without it, what follows is at most this many times as fast.
_FASTER = 2


HOW_IDLE = "the device does not wait there"


def idle_gain(idle_ns: int, how: str = HOW_IDLE) -> Gain | None:
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
    if idle is None and time_ns > 0:
        return gain_of_work(min(time_ns, base.whole_ns), base.whole_ns, how)
    most = min(time_ns, idle or 0)
    return Gain(most, at_most=True, how=how) if most > 0 else None


def without(trace: Trace, forest: Nesting, vanishes: Mask) -> Spared:
    """Return the time of operators of the host that vanish with all in them, and of their pauses.

    After an operator, the host returns to the program, which goes on to the next one, and frees
    memory, for less time than it took to write it. A pause is an event of its own, numbered `~row`,
    so that the time in an operator is that of its rows and of the pauses between them. Only
    operators that begin in the base count.
    """
    base, parent = base_window(trace), forest.parent
    if base is None:
        vanishes = np.zeros(len(forest), dtype=np.bool_)
    else:
        vanishes = vanishes & base.contains(trace, forest.rows)
    inner = parent >= 0
    in_vanishing = vanishes[parent] & inner
    whole_ns = forest.pause_ns()
    between = np.bincount(parent[inner], weights=whole_ns[inner], minlength=len(forest))
    most = PAUSE_NS + (forest.end - forest.begin) // 2
    after = np.where(vanishes, np.minimum(whole_ns, most), 0)
    pause = np.where(in_vanishing, whole_ns, after)
    rows = np.concatenate((forest.rows[vanishes], ~forest.rows[pause > 0]))
    time = np.concatenate(((forest.own_ns() - between)[vanishes], pause[pause > 0]))
    return Spared(rows, np.maximum(time, 0).astype(np.float64))


def gain_of_work(time_ns: int, most_ns: int, how: str) -> Gain:
    """Return the gain if the host does not do work of a time, which also slows others down."""
    others = min(time_ns // _SLOWS_DOWN, (most_ns - time_ns) // _FASTER)
    how = f"{how}, and what follows takes {in_words(others, 'ns')} less"
    return Gain(time_ns + others, at_most=True, how=how, others_ns=others)


def gain_without(trace: Trace, spared: Spared, how: str) -> Gain | None:
    """Return the gain if the host does not do the work of some events; None if it is nothing."""
    base = base_window(trace)
    if base is None or not spared.total_ns:
        return None
    gain = gain_of_work(min(spared.total_ns, base.whole_ns), base.whole_ns, how)
    longer = spared.time_ns * (gain.time_ns / spared.total_ns)
    return structs.replace(gain, spared=Spared(spared.rows, longer))


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
    return gain_of(trace, spared, how)


def gain_without_rows(trace: Trace, rows: Rows, spared_ns: NDArray[Any], how: str) -> Gain | None:
    """Return the gain of `gain_of_rows` or, of work of the host, of `gain_without`."""
    gain = gain_of_rows(trace, rows, spared_ns, how)
    if gain is None or gain.spared is None or len(device_work(trace).rows):
        return gain
    return gain_without(trace, gain.spared, how)


def gain_of(trace: Trace, spared: Spared, how: str) -> Gain | None:
    """Return the gain if some events of the base are so much shorter; None if it is nothing."""
    base = base_window(trace)
    time = 0 if base is None else min(spared.total_ns, base.whole_ns)
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
