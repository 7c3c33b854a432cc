"""Finds the calls that repeat within a step: compiled regions, graphs, annotations, modules."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from stagespan.pages.amounts import in_percent, in_words
from stagespan.pages.figures import Count, Figures, Internal, Ns
from stagespan.pages.result import StructResult, Table, Unavailable, share, shortened
from stagespan.trace.derived.device import device_work, launch_of
from stagespan.trace.derived.idle_causes import GRAPH_LAUNCHES
from stagespan.trace.derived.modules import class_of_module
from stagespan.trace.derived.step_ranges import FRAMEWORK, PROFILER_STEP
from stagespan.trace.derived.threads import among, names_with, outermost, threads
from stagespan.trace.derived.windows import BaseWindow, base_window
from stagespan.trace.read.groups import by_group, distinct, median
from stagespan.trace.read.intervals import Mask, Numbers, Rows
from stagespan.trace.read.model import Trace

# Percent of the steps' device work, or of their time without a device: less is not listed.
_LEAST = 10.0
_SHOWN = 10
_MOST_NAMES = 500
_DIGITS = re.compile(r"\d+")
_REGION = re.compile(r"^Torch-Compiled Region|^## Call CompiledFxGraph")


def analyze(trace: Trace) -> Structure | Unavailable:
    """Find the calls that each step makes several times; Unavailable if there are none."""
    base = base_window(trace)
    groups = [] if base is None else _repeated(trace, base)
    if base is None or not groups:
        return Unavailable(
            "The trace shows no call that a step makes several times: no compiled region, device"
            " graph, annotation or module.",
            "nothing_repeats",
        )
    return Structure(groups, base)


class RepeatedCall(Figures, frozen=True):
    """Calls of one kind in the main thread; times in ns."""

    name: str
    """The name, in annotations with "#" for numbers; for modules, the class."""
    calls: Count
    per_step: float | None
    """Calls per step; None without steps."""
    call_ns: Ns
    """The median time of a call: on the device, from the start of the first work that it launched
    to the end of the last; on the host without a device."""
    total_ns: Ns
    """The durations of all work that the calls launched, or of the calls without a device."""
    percent: float
    """Of the device work in the steps, or of the steps' time without a device."""


class Structure(StructResult, frozen=True):
    """The calls that repeat, the one with the most work first."""

    calls: list[RepeatedCall]
    base: Internal[BaseWindow]

    def line(self) -> str:
        """The calls with the most work."""
        most = self.calls[0]
        return (
            f"{most.calls:,} x {shortened(most.name)}, {in_words(most.call_ns, 'ns')} each in the"
            f" median: {in_percent(most.percent)} of the work of {self.base.label}"
        )

    def tables(self) -> list[Table]:
        """All of them."""
        return [
            Table.of(
                "Repeated calls",
                self.calls,
                ("name", "call", ""),
                ("calls", "calls", ""),
                ("call_ns", "each", "ns"),
                ("total_ns", "work", "ns"),
                ("percent", "of the work", "%"),
                note="Each is the median from the start of the first work that a call launched to"
                f" the end of its last, in {self.base.label}.",
            )
        ]


def _repeated(trace: Trace, base: BaseWindow) -> list[RepeatedCall]:
    events = trace.events
    inside = (events.begin_ns >= base.begin_ns - base.unrecorded_ns) & (
        events.begin_ns < base.end_ns
    )
    rows, codes, names = _candidates(trace, inside)
    if len(rows) == 0:
        return []
    device = device_work(trace).rows
    device = device[base.contains(trace, device)]
    all_ns = int(events.dur_ns[device].sum())
    calls = launch_of(trace, device)
    device, calls = device[calls >= 0], calls[calls >= 0]
    _, thread = threads(trace, np.concatenate((calls, rows)))
    counted = thread[: len(calls)] if len(calls) else thread
    main = np.argmax(np.bincount(counted))
    on_main = thread[: len(calls)] == main
    device, calls = device[on_main], calls[on_main]
    mine = thread[len(calls) + int((~on_main).sum()) :] == main
    rows, codes = rows[mine], codes[mine]
    whole = all_ns or base.whole_ns
    steps = base.steps
    repeated = []
    groups = by_group(codes, len(names))
    order = sorted(range(len(names)), key=lambda at: -int(events.dur_ns[rows[groups[at]]].sum()))
    for at in order[:_MOST_NAMES]:
        some = outermost(trace, rows[groups[at]])
        if len(some) < 2 or (steps and len(some) < 2 * steps):
            continue
        length = events.dur_ns[some]
        total = int(length.sum())
        if all_ns:
            length, total = _times(trace, some, device, calls)
        if len(length) < 2 or share(total, whole) < _LEAST:
            continue
        repeated.append(
            RepeatedCall(
                name=names[at],
                calls=len(some),
                per_step=len(some) / steps if steps else None,
                call_ns=int(median(length)),
                total_ns=total,
                percent=share(total, whole),
            )
        )
    # Of calls with the same work, the outer ones are fewer.
    return sorted(repeated, key=lambda each: (-round(each.percent), each.calls))[:_SHOWN]


def _candidates(trace: Trace, inside: Mask) -> tuple[Rows, NDArray[np.int64], list[str]]:
    """Return rows of calls, the number of each row's name, and the names."""
    events = trace.events
    marks = trace.rows_of(["user_annotation"])
    marks = marks & ~(among(marks, trace, PROFILER_STEP) | among(marks, trace, FRAMEWORK))
    regions = names_with(trace, _REGION)[events.name]
    frames = trace.rows_of(["python_function"])
    graphs = among(~frames, trace, GRAPH_LAUNCHES)
    modules = np.array([class_of_module(name) is not None for name in trace.names] + [False])
    rows = np.flatnonzero(
        inside & (events.dur_ns > 0) & (marks | regions | graphs | (frames & modules[events.name]))
    )
    kinds, of_kind = distinct(events.name[rows], marks[rows].astype(np.int64))
    numbers: dict[str, int] = {}
    number_of = np.empty(len(kinds), dtype=np.int64)
    for at, (code, is_mark) in enumerate(kinds.tolist()):
        name = trace.names[code]
        word = class_of_module(name) or (_DIGITS.sub("#", name) if is_mark else name)
        number_of[at] = numbers.setdefault(word, len(numbers))
    return rows, number_of[of_kind], list(numbers)


def _times(trace: Trace, rows: Rows, device: Rows, calls: Rows) -> tuple[Numbers, int]:
    """Return the time on the device of each call that launched work, and the sum of that work."""
    events = trace.events
    launched = events.begin_ns[calls]
    at = np.searchsorted(events.begin_ns[rows], launched, side="right") - 1
    chosen = (at >= 0) & (launched < events.end_ns[rows[np.maximum(at, 0)]])
    at, device = at[chosen], device[chosen]
    first = np.full(len(rows), np.iinfo(np.int64).max)
    last = np.full(len(rows), np.iinfo(np.int64).min)
    np.minimum.at(first, at, events.begin_ns[device])
    np.maximum.at(last, at, events.end_ns[device])
    known = last > first
    return (last - first)[known], int(events.dur_ns[device].sum())
