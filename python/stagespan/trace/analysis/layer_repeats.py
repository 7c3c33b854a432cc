"""Layers told from repetition: the same kernels, or operators, in the same order, several times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.analysis.call_tree import Rows
from stagespan.trace.analysis.causes import MARKS
from stagespan.trace.analysis.host_time import named, pairs, threads
from stagespan.trace.analysis.repeats import Repeat, all_repeats, same_block
from stagespan.trace.analysis.result import window_of
from stagespan.trace.analysis.step_ranges import StepRanges
from stagespan.trace.arrays import Numbers
from stagespan.trace.device import device_work, launch_of, streams
from stagespan.trace.model import Trace

_LEAST_TIMES = 4
_LEAST_LENGTH = 3
_MOST = 6
# How many layers more than repetitions there can be.
_MOST_MORE = 2
# How many layers a block can hold, and how much of it is of one of them alone.
_MOST_PARTS = 4
_FEW = 0.1
# Of the events' time: a repetition of less is no layer.
_LEAST_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Block:
    """A sequence that repeats, at least four times in a row; times in ns."""

    first: str
    """The name of its first event."""
    heaviest: str
    """That of the event that takes the most time in it."""
    length: int
    """Events a repetition."""
    times: int
    layers: int
    """How many layers that makes: more than `times` if the first or the last layer is a little
    different, or if a block holds several layers."""
    begin_ns: int
    """From the begin of the trace's window."""
    total_ns: int
    """Durations of all its events; overlaps counted twice."""
    block_ns: tuple[int, int, int]
    """Of the repetitions: least, median, most."""
    slowest: int
    """Which of them took the most, from 1."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON, in microseconds."""
        least, median, most = (figure / 1000 for figure in self.block_ns)
        return {
            "first": self.first,
            "heaviest": self.heaviest,
            "events": self.length,
            "times": self.times,
            "layers": self.layers,
            "time_us": self.begin_ns / 1000,
            "total_us": self.total_ns / 1000,
            "block_us": {"min": least, "median": median, "max": most},
            "slowest": self.slowest,
        }


@dataclass(frozen=True, slots=True)
class Blocks:
    """All repetitions of a trace, or of one of its steps."""

    blocks: list[Block]
    """In the order of time."""
    of_kernels: bool
    """Of kernels on the device, or of operators on the host."""
    step: str | None
    """The step that was looked at; None for the whole trace."""
    total_ns: int
    """Durations of all events that were looked at."""

    @property
    def what(self) -> str:
        """What it is that repeats."""
        return "kernels" if self.of_kernels else "operators"


def blocks_of(trace: Trace, ranges: StepRanges | None) -> Blocks | None:
    """Find what repeats in the middle one of the steps, or in a trace without steps."""
    events = trace.events
    rows = device_work(trace).rows
    of_kernels = len(rows) > 0
    step, chosen = None, None
    if ranges is not None:
        chosen = int(np.argsort(ranges.end_ns - ranges.begin_ns, kind="stable")[len(ranges) // 2])
        step = ranges.names[chosen]
    if of_kernels:
        times = events.begin_ns[rows]
        if ranges is not None and ranges.on_host:
            calls = launch_of(trace, rows)
            times = np.where(calls >= 0, events.begin_ns[calls], np.iinfo(np.int64).min)
        if ranges is not None:
            rows = rows[ranges.at(times) == chosen]
        if len(rows) == 0:
            return None
        _, lane = pairs(*streams(trace, rows))
        rows = rows[lane == np.argmax(np.bincount(lane))]
        rows = rows[np.argsort(events.begin_ns[rows], kind="stable")]
    else:
        rows = _outermost(trace)
        if ranges is not None:
            rows = rows[ranges.at(events.begin_ns[rows]) == chosen]
    total = int(events.dur_ns[rows].sum())
    codes = events.name[rows].astype(np.int64)
    begin, _ = window_of(trace) or (0, 0)
    found = [_block(trace, rows, runs, begin) for runs in _alike(codes)]
    found = [block for block in found if block.total_ns >= _LEAST_SHARE * total]
    if not found:
        return None
    return Blocks(sorted(found, key=lambda block: block.begin_ns), of_kernels, step, total)


def _alike(codes: Numbers) -> list[list[Repeat]]:
    """The repetitions, those of the same block together."""
    groups: list[list[Repeat]] = []
    for repeat in all_repeats(codes, _LEAST_TIMES, _LEAST_LENGTH, _MOST):
        block = codes[repeat.begin : repeat.begin + repeat.length]
        for group in groups:
            first = group[0]
            if same_block(codes[first.begin : first.begin + first.length], block):
                group.append(repeat)
                break
        else:
            groups.append([repeat])
    return groups


def _block(trace: Trace, rows: Rows, runs: list[Repeat], origin_ns: int) -> Block:
    events = trace.events
    here = np.concatenate([rows[run.begin : run.end] for run in runs])
    length = runs[0].length
    each: Numbers = events.dur_ns[here].reshape(-1, length).sum(axis=1)
    names, of = np.unique(events.name[here], return_inverse=True)
    heaviest = names[np.argmax(np.bincount(of.reshape(-1), weights=events.dur_ns[here]))]
    return Block(
        first=trace.names[events.name[here[0]]],
        heaviest=trace.names[heaviest],
        length=length,
        times=len(each),
        layers=_layers(events.name[rows], here.reshape(-1, length)[0], len(each), trace),
        begin_ns=int(events.begin_ns[here[0]]) - origin_ns,
        total_ns=int(each.sum()),
        block_ns=(int(each.min()), int(np.median(each)), int(each.max())),
        slowest=int(np.argmax(each)) + 1,
    )


def _layers(names: NDArray[np.int32], block: Rows, times: int, trace: Trace) -> int:
    """How many layers a block that repeats stands for.

    What begins or ends the model can run into its first or last layer, which then is not one of the
    repetitions, but holds most of a block's events all the same. And layers that take turns, as
    with two sorts of attention, are one block, in which almost every event occurs several times.
    """
    inside, each = np.unique(trace.events.name[block], return_counts=True)
    found, counts = np.unique(names, return_counts=True)
    total = counts[np.searchsorted(found, inside)]
    layers = times
    for more in range(times + 1, times + _MOST_MORE + 1):
        if each[total == more * each].sum() > len(block) / 2:
            layers = more
    for parts in range(_MOST_PARTS, 1, -1):
        single = each[each % parts != 0].sum()
        if single <= _FEW * len(block):
            return layers * parts
    return layers


def _outermost(trace: Trace) -> Rows:
    """The operators that lie in no other, of the thread that has the most."""
    events = trace.events
    rows = np.flatnonzero(trace.rows_of(["cpu_op"]) & ~named(trace, MARKS) & (events.dur_ns > 0))
    if len(rows) == 0:
        return rows
    _, lane = threads(trace, rows)
    rows = rows[lane == np.argmax(np.bincount(lane))]
    rows = rows[np.lexsort((-events.end_ns[rows], events.begin_ns[rows]))]
    reach = np.maximum.accumulate(events.end_ns[rows])
    outer: Rows = rows[np.concatenate(([True], events.begin_ns[rows][1:] >= reach[:-1]))]
    return outer
