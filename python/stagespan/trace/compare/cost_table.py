"""Divides a trace's time per step into cells: each kernel of an operator in a stage and layer."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.compare.attribution import apportioned, attribute
from stagespan.trace.derived import kernel_kinds as kinds
from stagespan.trace.derived.device import COMMUNICATION, COPY
from stagespan.trace.derived.idle_causes import MARKS
from stagespan.trace.derived.launch_sources import launch_sources
from stagespan.trace.derived.step_ranges import step_ranges
from stagespan.trace.derived.threads import Nesting, ThreadIndex, named, threads
from stagespan.trace.derived.trees import Paths
from stagespan.trace.derived.windows import Windows
from stagespan.trace.read.intervals import Numbers, Rows, exclusive
from stagespan.trace.read.model import Trace

_MODULE = "nn.Module: "
_BETWEEN = " / "
# `hcom_allReduce__586_0_1` is number 0 of group 586. The group's number differs in each run.
_ASCEND_COLLECTIVE = re.compile(r"^(hcom_[A-Za-z]+)__\d+_\d+_\d+$")


@dataclass(frozen=True, slots=True)
class Labels:
    """A text for each of some events: `texts[codes[i]]`; "" for events without one."""

    texts: list[str]
    codes: NDArray[np.int64]


class Structure:
    """The program's structure in its trace: annotations, modules and operators around a call."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        operators = trace.rows_of(["cpu_op"])
        marks = trace.rows_of(["user_annotation"])
        if not marks.any():
            marks = operators & named(trace, MARKS)
        operators &= ~marks
        steps = step_ranges(trace)
        if steps is not None:
            marks[steps.marks] = False
            operators[steps.marks] = False
        self.operators = np.flatnonzero(operators)
        self.marks = np.flatnonzero(marks)

    def stages(self, calls: Rows, written: list[str]) -> Labels:
        """The annotations around each call (-1 for none); `written` are their names, by code.

        Work on a thread without annotations, such as the backward pass, belongs to the annotation
        that is open on the thread with the most annotations.
        """
        return self._paths(self.marks, calls, written, everywhere=True)

    def layers(self, calls: Rows) -> Labels:
        """The modules around each call, if the trace has Python stacks."""
        trace = self.trace
        is_module = np.array([name.startswith(_MODULE) for name in trace.names] + [False])
        rows = np.flatnonzero(is_module[trace.events.name] & trace.rows_of(["python_function"]))
        names = [name.removeprefix(_MODULE) for name in trace.names]
        return self._paths(rows, calls, names)

    def operator(self, rows: Rows) -> Labels:
        """The name of the innermost operator that launched each device event."""
        found = launch_sources(self.trace, rows)
        return self.names_of(np.full(len(rows), -1) if found is None else found.operator)

    def names_of(self, rows: Rows) -> Labels:
        """The names of events (-1 for none); those of Ascend's collectives without numbers."""
        names = [_ASCEND_COLLECTIVE.sub(r"\1", name) for name in self.trace.names]
        codes = np.where(rows >= 0, self.trace.events.name[rows], len(names))
        return Labels([*names, ""], codes.astype(np.int64))

    def _paths(self, rows: Rows, calls: Rows, names: list[str], everywhere: bool = False) -> Labels:
        """The names of those of `rows` around each call, from the outermost to the innermost."""
        trace, codes = self.trace, np.zeros(len(calls), dtype=np.int64)
        known = np.flatnonzero(calls >= 0)
        lanes = ThreadIndex(trace, rows, calls[known])
        if len(rows) == 0 or len(known) == 0 or not lanes.fits:
            return Labels([""], codes)
        nesting = Nesting.of(trace, lanes.axis, rows, lanes.of[0])
        time = trace.events.begin_ns[calls[known]]
        found = nesting.at(lanes.axis.place(lanes.of[1], time))
        if everywhere:
            main = np.full(len(known), np.bincount(lanes.of[0]).argmax())
            found = np.where(found >= 0, found, nesting.at(lanes.axis.place(main, time)))
        used, which = np.unique(trace.events.name[nesting.rows], return_inverse=True)
        number: dict[str, int] = {}
        words = [number.setdefault(names[code], len(number)) for code in used.tolist()]
        paths = Paths(nesting.parent, np.array(words, dtype=np.int64)[which.reshape(-1)])
        spelled = list(number)
        texts = [""]
        for parent, word in zip(paths.parent.tolist(), paths.word.tolist(), strict=True):
            text = spelled[word]
            texts.append(f"{texts[parent + 1]}{_BETWEEN}{text}" if parent >= 0 else text)
        codes[known] = np.append(paths.node, -1)[found] + 1
        return Labels(texts, codes)


# --- Cells ---


COMPUTING, COMMUNICATING, COPYING, IDLE, HOST = "compute", "communication", "copy", "idle", "host"
OUTSIDE = "outside of operators"


@dataclass(frozen=True, slots=True)
class Cell:
    """A part of the time that is in no other cell; texts are "" if unknown."""

    group: str
    """COMPUTING, COMMUNICATING or COPYING, IDLE, or HOST in a trace without a device."""
    part: str
    """The kind of the kernel, or the cause of the idle time."""
    stage: str = ""
    layer: str = ""
    operator: str = ""
    kernel: str = ""


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of a trace; the times sum to the time of one step, or of the whole trace."""

    time_ns: dict[Cell, int]
    count: dict[Cell, int]
    """The number of events in all steps, only for cells of events."""
    per: int
    """The number of steps by which the times were divided."""

    @property
    def total_ns(self) -> int:
        """The time of a step."""
        return sum(self.time_ns.values())


def device_cells(trace: Trace, windows: Windows, written: list[str]) -> Cells:
    """The cells of a trace with a device; `written` are the names of annotations, by code."""
    found = attribute(trace, windows)
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
    """The cells of a trace without a device: operators' own times on the busiest thread."""
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
        # Codes are made dense each time, so that their product fits 64 bits.
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
