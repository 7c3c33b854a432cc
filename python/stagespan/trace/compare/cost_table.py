"""Divides a trace's time per step into cells: each kernel of an operator in a stage and layer.

Every nanosecond of the steps belongs to one device event or to one cause of idle time. If several
device events run at the same time, computation comes before communication, communication before
copies, and among events of one kind the one that began first. The times of all events and all
causes therefore sum exactly to the steps' length.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from stagespan.trace.derived import kernel_kinds as kinds
from stagespan.trace.derived.device import COMMUNICATION, COMPUTE, COPY, device_work, launch_of
from stagespan.trace.derived.gaps import (
    AFTER,
    BEFORE,
    DURING,
    NAMES,
    UNKNOWN,
    Gaps,
    gaps,
    split_idle,
)
from stagespan.trace.derived.idle_causes import MARKS
from stagespan.trace.derived.launch_sources import (
    launch_sources,
    stage_calls,
    stages_around,
    values_at,
)
from stagespan.trace.derived.modules import MODULE, module_calls
from stagespan.trace.derived.step_ranges import step_begins, step_ranges
from stagespan.trace.derived.threads import named, threads
from stagespan.trace.derived.trees import Paths, first_around
from stagespan.trace.derived.windows import Windows
from stagespan.trace.derived.work_table import Column
from stagespan.trace.rates.collectives import argument_of
from stagespan.trace.read.groups import distinct, numbered, sums
from stagespan.trace.read.intervals import Cover, Numbers, Rows, exclusive, minus
from stagespan.trace.read.model import Trace

DONE = "device_done"
"""The cause of idle time after the device's last work, while the last step continued."""


class Attribution(msgspec.Struct, frozen=True):
    """Times in ns; `time_ns` and `idle_ns` together sum to the windows' length."""

    rows: Rows
    """Device events."""
    calls: Rows
    """The call that launched each event, or -1."""
    kind: NDArray[np.int8]
    """The kind of each event: COMPUTE, COMMUNICATION or COPY."""
    time_ns: Numbers
    """The time within the windows that is attributed to each event."""
    inside: NDArray[np.bool_]
    """Whether each event begins within the windows; only these events are counted."""
    idle_ns: dict[str, int]
    """Idle time by cause, only for causes that occur."""


def attribute(trace: Trace, windows: Windows) -> Attribution:
    """Attribute every moment of the windows to a device event or to a cause of idle time."""
    events, work = trace.events, device_work(trace)
    rows = work.rows
    kind = work.kind[rows]
    time = np.zeros(len(rows), dtype=np.int64)
    free = Cover(windows.begin_ns, windows.end_ns)
    for each in (COMPUTE, COMMUNICATION, COPY):
        of_kind = np.flatnonzero(kind == each)
        if len(of_kind) == 0:
            continue
        of_kind = of_kind[np.argsort(events.begin_ns[rows[of_kind]], kind="stable")]
        begin, end = events.begin_ns[rows[of_kind]], events.end_ns[rows[of_kind]]
        reach = np.concatenate((begin[:1], np.maximum.accumulate(end)[:-1]))
        time[of_kind] = free.length(np.maximum(begin, reach), end)
        taken = Cover(begin, end)
        free = Cover(*minus((free.begin, free.end), (taken.begin, taken.end)))
    inside = Cover(windows.begin_ns, windows.end_ns).length(
        events.begin_ns[rows], events.begin_ns[rows] + 1
    )
    return Attribution(
        rows, launch_of(trace, rows), kind, time, inside > 0, _idle(trace, windows, free)
    )


def _idle(trace: Trace, windows: Windows, free: Cover) -> dict[str, int]:
    """Return the windows' time without device work, by cause."""
    gaps_ = _with_the_first(trace, gaps(trace), windows)
    parts = split_idle(trace, gaps_, step_begins(trace)).parts
    inside = free.length(gaps_.begin_ns, gaps_.end_ns)
    whole = inside == gaps_.dur_ns
    totals = parts[whole].sum(axis=0)
    for at in np.flatnonzero(~whole & (inside > 0)).tolist():
        totals = totals + apportioned(parts[at], int(inside[at]), int(gaps_.dur_ns[at]))
    idle = {name: int(time) for name, time in zip(NAMES, totals, strict=True) if time}
    rest = int((free.end - free.begin).sum()) - sum(idle.values())
    if rest:
        idle[DONE] = rest
    return idle


def _with_the_first(trace: Trace, gaps_: Gaps, windows: Windows) -> Gaps:
    """Return the gaps, preceded by the time from the first window's start to the first work."""
    events = trace.events
    if len(gaps_.rows) == 0:
        return gaps_
    first = int(events.begin_ns[gaps_.rows[0]])
    begin = int(windows.begin_ns[0])
    if first <= begin:
        return gaps_
    call = int(gaps_.calls[0])
    issued = UNKNOWN
    if call >= 0:
        issued = DURING
        if events.begin_ns[call] >= begin:
            issued = AFTER
        elif events.end_ns[call] <= begin:
            issued = BEFORE

    ahead = {
        "begin_ns": begin,
        "end_ns": first,
        "last": 0,
        "first": 0,
        "first_call": call,
        "first_origin": int(gaps_.origins[0]),
        "in_graph": 0,
        "issued": issued,
    }
    columns = {name: np.insert(getattr(gaps_, name), 0, value) for name, value in ahead.items()}
    return structs.replace(gaps_, **columns)


def apportioned(parts: Numbers, numerator: int, denominator: int) -> Numbers:
    """Return integers in the proportion of `parts`, times numerator / denominator.

    They sum to the sum of `parts` times the fraction, rounded half up. Each part is rounded down,
    and the rest is added to the parts with the largest remainders.
    """
    # Products can exceed 64 bits; Python's integers do not.
    exact = [int(part) * numerator for part in parts]
    whole = [each // denominator for each in exact]
    total = (2 * sum(exact) + denominator) // (2 * denominator)
    remainders = [each - w * denominator for each, w in zip(exact, whole, strict=True)]
    order = sorted(range(len(exact)), key=lambda at: (-remainders[at], at))
    for at in order[: total - sum(whole)]:
        whole[at] += 1
    return np.array(whole, dtype=np.int64)


# --- The structure of the program ---


_BETWEEN = " / "
# `hcom_allReduce__586_0_1` is number 0 of group 586. The group's number differs in each run.
_ASCEND_COLLECTIVE = re.compile(r"^(hcom_[A-Za-z]+)__\d+_\d+_\d+$")


class Surroundings:
    """The program's structure in its trace: annotations, modules and operators around a call.

    In its columns, events without a text have the text "".
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        operators = trace.rows_of(["cpu_op"])
        marks = trace.rows_of(["user_annotation"])
        if not marks.any():
            marks = operators & named(trace, MARKS)
        operators = operators & ~marks
        steps = step_ranges(trace)
        self.steps = np.empty(0, dtype=np.intp) if steps is None else steps.marks
        operators[self.steps] = False
        self.operators = np.flatnonzero(operators)

    def stages(self, calls: Rows, written: list[str]) -> Column:
        """The stages around host events (-1 for none); `written` are the names, by code.

        Marks of steps are not stages.
        """
        marks = stage_calls(self.trace)
        codes = np.zeros(len(calls), dtype=np.int64)
        if marks is None:
            return Column(codes, [""])
        chosen = ~np.isin(marks.rows, self.steps)
        around = first_around(marks.tree.parent, chosen)
        kept = np.flatnonzero(chosen)
        number = np.cumsum(chosen) - 1
        parent = values_at(number, values_at(around, marks.tree.parent[kept]))
        texts, node = self._spelled(marks.rows[kept], parent, written)
        found = values_at(around, marks.index(stages_around(self.trace, calls)))
        return Column(values_at(node, values_at(number, found)) + 1, texts)

    def layers(self, calls: Rows) -> Column:
        """The modules around each call, if the trace has Python stacks."""
        modules = module_calls(self.trace)
        if modules is None:
            return Column(np.zeros(len(calls), dtype=np.int64), [""])
        names = [name.removeprefix(MODULE) for name in self.trace.names]
        texts, node = self._spelled(modules.rows, modules.tree.parent, names)
        return Column(values_at(node, modules.around(calls)) + 1, texts)

    def shapes(self, operators: Rows) -> Column:
        """The shapes of the inputs of operators (-1 for none), as in the trace."""
        codes, texts = argument_of(self.trace, operators, "Input Dims")
        codes = np.where(operators >= 0, codes, -1)
        return Column(np.where(codes >= 0, codes, len(texts)), [*texts, ""])

    def names_of(self, rows: Rows) -> Column:
        """The names of events (-1 for none); those of Ascend's collectives without numbers."""
        names = [_ASCEND_COLLECTIVE.sub(r"\1", name) for name in self.trace.names]
        codes = np.where(rows >= 0, self.trace.events.name[rows], len(names))
        return Column(codes.astype(np.int64), [*names, ""])

    def _spelled(self, rows: Rows, parent: Rows, names: list[str]) -> tuple[list[str], Rows]:
        """The paths of names in a tree of `rows`, preceded by "", and the path of each row."""
        used, which = numbered(self.trace.events.name[rows])
        number: dict[str, int] = {}
        words = [number.setdefault(names[code], len(number)) for code in used.tolist()]
        paths = Paths(parent, np.array(words, dtype=np.int64)[which])
        spelled = list(number)
        texts = [""]
        for above, word in zip(paths.parent.tolist(), paths.word.tolist(), strict=True):
            text = spelled[word]
            texts.append(f"{texts[above + 1]}{_BETWEEN}{text}" if above >= 0 else text)
        return texts, paths.node


# --- Cells ---


COMPUTING, COMMUNICATING, COPYING, IDLE, HOST = "compute", "communication", "copy", "idle", "host"
OUTSIDE = "outside of operators"


class CostCell(msgspec.Struct, frozen=True):
    """A part of the time that is in no other cell; texts are "" if unknown."""

    group: str
    """COMPUTING, COMMUNICATING or COPYING, IDLE, or HOST in a trace without a device."""
    part: str
    """The kind of the kernel, or the cause of the idle time."""
    stage: str = ""
    layer: str = ""
    operator: str = ""
    kernel: str = ""
    shape: str = ""
    """The shapes of the operator's inputs, as in the trace."""


class Cells(msgspec.Struct, frozen=True):
    """The cells of a trace; the times sum to the time of one step, or of the whole trace."""

    time_ns: dict[CostCell, int]
    count: dict[CostCell, int]
    """The number of events in all steps, only for cells of events."""
    per: int
    """The number of steps by which the times were divided."""

    @property
    def total_ns(self) -> int:
        """The time of a step."""
        return sum(self.time_ns.values())


def device_cells(
    trace: Trace, windows: Windows, written: list[str], with_shapes: bool = True
) -> Cells:
    """The cells of a trace with a device; `written` are the names of annotations, by code.

    Without shapes, calls of an operator with different inputs are in one cell.
    """
    work = attribute(trace, windows)
    structure = Surroundings(trace)
    sources = launch_sources(trace, work.rows)
    operators = np.full(len(work.rows), -1) if sources is None else sources.operator
    columns = [
        Column(work.kind.astype(np.int64)),
        structure.stages(work.calls if sources is None else sources.origin, written),
        structure.layers(work.calls),
        structure.names_of(operators),
        structure.names_of(work.rows),
        structure.shapes(operators if with_shapes else np.full(len(operators), -1)),
    ]
    kept = (work.time_ns > 0) | work.inside
    times, counts = _grouped(columns, np.flatnonzero(kept), work.time_ns, work.inside, _device_cell)
    times |= {CostCell(IDLE, cause): time for cause, time in work.idle_ns.items()}
    return _per_step(times, counts, windows)


def _device_cell(kind: int, texts: list[str]) -> CostCell:
    name = texts[3]
    if kind == COMMUNICATION:
        return CostCell(COMMUNICATING, kinds.COMMUNICATION, *texts)
    if kind == COPY:
        return CostCell(COPYING, kinds.COPY, *texts)
    return CostCell(COMPUTING, kinds.kind_of(name), *texts)


def host_cells(
    trace: Trace, windows: Windows, written: list[str], with_shapes: bool = True
) -> Cells:
    """The cells of a trace without a device: operators' own times on the busiest thread."""
    structure = Surroundings(trace)
    events, rows = trace.events, structure.operators
    if len(rows):
        _, thread = threads(trace, rows)
        rows = rows[thread == np.bincount(thread, weights=events.dur_ns[rows]).argmax()]
    window = np.searchsorted(windows.begin_ns, events.begin_ns[rows], side="right") - 1
    inside = (window >= 0) & (events.begin_ns[rows] < windows.end_ns[np.maximum(window, 0)])
    rows, window = rows[inside], window[inside]
    begin = np.concatenate((windows.begin_ns, events.begin_ns[rows]))
    end = np.minimum(events.end_ns[rows], windows.end_ns[window])
    end = np.concatenate((windows.end_ns, end))
    own_ns = exclusive(begin, end, np.zeros(len(begin), dtype=np.int64))
    outside, own_ns = own_ns[: len(windows.begin_ns)], own_ns[len(windows.begin_ns) :]
    columns = [
        Column(np.zeros(len(rows), dtype=np.int64)),
        structure.stages(rows, written),
        structure.layers(rows),
        structure.names_of(rows),
        structure.shapes(rows if with_shapes else np.full(len(rows), -1)),
    ]
    every = np.ones(len(rows), dtype=np.bool_)
    times, counts = _grouped(columns, np.arange(len(rows)), own_ns, every, _host_cell)
    times[CostCell(HOST, OUTSIDE)] = int(outside.sum())
    return _per_step(times, counts, windows)


def _host_cell(_: int, texts: list[str]) -> CostCell:
    stage, layer, operator, shape = texts
    return CostCell(HOST, kinds.kind_of(operator), stage, layer, operator, shape=shape)


def _grouped(
    columns: list[Column],
    rows: Rows,
    time_ns: Numbers,
    counted: NDArray[np.bool_],
    cell_of: Callable[[int, list[str]], CostCell],
) -> tuple[dict[CostCell, int], dict[CostCell, int]]:
    """Times and counts of `rows` by cell; the first column's codes are kinds."""
    keys, group = distinct(*(column.codes[rows] for column in columns))
    sums_ns = sums(group, time_ns[rows], len(keys)).tolist()
    counts = sums(group, counted[rows].astype(np.int64), len(keys)).tolist()
    times: dict[CostCell, int] = {}
    numbers: dict[CostCell, int] = {}
    values = [column.values(key) for column, key in zip(columns, keys.T, strict=True)]
    for kind, *texts, time, number in zip(*values, sums_ns, counts, strict=True):
        cell = cell_of(kind, texts)
        times[cell] = times.get(cell, 0) + time
        numbers[cell] = numbers.get(cell, 0) + number
    return times, numbers


def _per_step(times: dict[CostCell, int], counts: dict[CostCell, int], windows: Windows) -> Cells:
    per = max(windows.steps, 1)
    shares = apportioned(np.array(list(times.values()), dtype=np.int64), 1, per)
    divided = {cell: int(time) for cell, time in zip(times, shares, strict=True)}
    return Cells(divided, counts, per)
