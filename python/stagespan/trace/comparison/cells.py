"""A trace's time per step in cells: one for each kernel of an operator in a stage and layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.analysis import kinds
from stagespan.trace.analysis.host_time import threads
from stagespan.trace.arrays import Numbers
from stagespan.trace.comparison.spent import apportioned, spent
from stagespan.trace.comparison.structure import Labels, Rows, Structure
from stagespan.trace.comparison.windows import Windows
from stagespan.trace.device import COMMUNICATION, COPY
from stagespan.trace.intervals import exclusive
from stagespan.trace.model import Trace

COMPUTING, COMMUNICATING, COPYING, IDLE, HOST = "compute", "communication", "copy", "idle", "host"
OUTSIDE = "outside of operators"


@dataclass(frozen=True, slots=True)
class Cell:
    """A part of the time that no other cell has; texts are "" where the trace does not tell."""

    group: str
    """COMPUTING, COMMUNICATING or COPYING, IDLE, or HOST in a trace without a device."""
    part: str
    """The kind of the kernel, or the cause of the idleness."""
    stage: str = ""
    layer: str = ""
    operator: str = ""
    kernel: str = ""


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of a trace; the times are of one step (or of all, without steps) and sum to it."""

    time_ns: dict[Cell, int]
    count: dict[Cell, int]
    """Events in all steps together; only cells of events."""
    per: int
    """How many steps the times were divided by."""

    @property
    def total_ns(self) -> int:
        """The time of a step."""
        return sum(self.time_ns.values())


def device_cells(trace: Trace, windows: Windows, written: list[str]) -> Cells:
    """The cells of a trace with a device; `written` are the names of annotations, by code."""
    found = spent(trace, windows)
    structure = Structure(trace)
    kernel = structure.names_of(found.rows)
    columns = [
        Labels([], found.kind.astype(np.int64)),
        structure.stages(found.calls, written),
        structure.layers(found.calls),
        structure.operator(found.rows),
        kernel,
    ]
    kept = (found.time_ns > 0) | found.inside
    times, counts = _grouped(
        columns, np.flatnonzero(kept), found.time_ns, found.inside, _device_cell
    )
    times |= {Cell(IDLE, cause): time for cause, time in found.idle_ns.items()}
    return _per_step(times, counts, windows)


def _device_cell(kind: int, texts: list[str]) -> Cell:
    name = texts[-1]
    if kind == COMMUNICATION:
        return Cell(COMMUNICATING, kinds.COMMUNICATION, *texts)
    if kind == COPY:
        return Cell(COPYING, kinds.COPY, *texts)
    return Cell(COMPUTING, kinds.kind_of(name), *texts)


def host_cells(trace: Trace, windows: Windows, written: list[str]) -> Cells:
    """The cells of a trace without a device: own times of operators on the thread with most."""
    structure = Structure(trace)
    events, rows = trace.events, structure.operators
    if len(rows):
        _, lane = threads(trace, rows)
        rows = rows[lane == np.bincount(lane, weights=events.dur_ns[rows]).argmax()]
    window = np.searchsorted(windows.begin_ns, events.begin_ns[rows], side="right") - 1
    inside = (window >= 0) & (events.begin_ns[rows] < windows.end_ns[np.maximum(window, 0)])
    rows, window = rows[inside], window[inside]
    begin = np.concatenate((windows.begin_ns, events.begin_ns[rows]))
    end = np.minimum(events.end_ns[rows], windows.end_ns[window])
    end = np.concatenate((windows.end_ns, end))
    own = exclusive(begin, end, np.zeros(len(begin), dtype=np.int64))
    outside, own = own[: len(windows.begin_ns)], own[len(windows.begin_ns) :]
    columns = [
        Labels([], np.zeros(len(rows), dtype=np.int64)),
        structure.stages(rows, written),
        structure.layers(rows),
        structure.names_of(rows),
    ]
    every = np.ones(len(rows), dtype=np.bool_)
    times, counts = _grouped(columns, np.arange(len(rows)), own, every, _host_cell)
    times[Cell(HOST, OUTSIDE)] = int(outside.sum())
    return _per_step(times, counts, windows)


def _host_cell(_: int, texts: list[str]) -> Cell:
    return Cell(HOST, kinds.kind_of(texts[-1]), *texts)


def _grouped(
    columns: list[Labels],
    rows: Rows,
    time_ns: Numbers,
    counted: NDArray[np.bool_],
    cell_of: Callable[[int, list[str]], Cell],
) -> tuple[dict[Cell, int], dict[Cell, int]]:
    """Times and counts of `rows` by cell; the first column's codes are kinds."""
    if len(rows) == 0:
        return {}, {}
    code = columns[0].codes[rows]
    for column in columns[1:]:
        # Made dense again each time, so that the product of all fits 64 bits.
        _, code = np.unique(code * len(column.texts) + column.codes[rows], return_inverse=True)
        code = code.reshape(-1).astype(np.int64)
    _, first = np.unique(code, return_index=True)
    order = np.argsort(code, kind="stable")
    starts = np.searchsorted(code[order], np.arange(len(first)))
    sums = np.add.reduceat(time_ns[rows][order], starts)
    counts = np.add.reduceat(counted[rows][order].astype(np.int64), starts)
    times: dict[Cell, int] = {}
    numbers: dict[Cell, int] = {}
    for number, at in enumerate(first.tolist()):
        row = rows[at]
        texts = [column.texts[int(column.codes[row])] for column in columns[1:]]
        cell = cell_of(int(columns[0].codes[row]), texts)
        times[cell] = times.get(cell, 0) + int(sums[number])
        numbers[cell] = numbers.get(cell, 0) + int(counts[number])
    return times, numbers


def _per_step(times: dict[Cell, int], counts: dict[Cell, int], windows: Windows) -> Cells:
    per = max(windows.steps, 1)
    shares = apportioned(np.array(list(times.values()), dtype=np.int64), 1, per)
    divided = {cell: int(time) for cell, time in zip(times, shares, strict=True)}
    return Cells(divided, counts, per)
