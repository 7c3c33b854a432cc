"""Which stretch of a device's time belongs to which step, as torch_npu.profiler tells it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from stagespan.trace.arrays import Numbers
from stagespan.trace.ascend.arrows import LAUNCHES, OPERATORS, arrows
from stagespan.trace.model import Trace

_STEP = re.compile(r"^ProfilerStep#(\d+)$")


@dataclass(frozen=True, slots=True)
class StepRange:
    """A step; what begins on the device from `begin_ns` until before `end_ns` is its own."""

    step: str
    """Its number; "" for a trace without steps, all of which is one."""
    begin_ns: int
    end_ns: int
    host_begin_ns: int | None
    """Where it begins on the host; None when the trace shows no operator."""


def step_ranges(trace: Trace) -> list[StepRange]:
    """The steps in order, from the first work that each launched to its end on host and device.

    Without the arrows from host to device a step is its time on the host.
    """
    events = trace.events
    named = {code: _STEP.match(name) for code, name in enumerate(trace.names)}
    steps = {code: match[1] for code, match in named.items() if match}
    rows = np.flatnonzero(np.isin(events.name, list(steps)))
    rows = rows[np.argsort(events.begin_ns[rows], kind="stable")]
    launched, begin, end = _launched(trace)
    found = []
    for row in rows.tolist():
        first, last = int(events.begin_ns[row]), int(events.end_ns[row])
        mine = (launched >= first) & (launched < last)
        work = begin[mine], end[mine]
        found.append(
            StepRange(
                steps[int(events.name[row])],
                int(work[0].min()) if mine.any() else first,
                max(int(work[1].max()), last) if mine.any() else last,
                first,
            )
        )
    return found


def whole_range(trace: Trace) -> StepRange:
    """All of a trace as one step; on the host it begins with the first operator."""
    events = trace.events
    operators = events.begin_ns[trace.rows_of(["cpu_op"])]
    begin = int(operators.min()) if len(operators) else None
    limits = np.iinfo(np.int64)
    return StepRange("", int(limits.min), int(limits.max), begin)


def step_of(ranges: list[StepRange], begin_ns: Numbers) -> Numbers:
    """For each time on the device the number of its step in `ranges`, or -1."""
    found = np.full(len(begin_ns), -1, dtype=np.int64)
    for number, each in enumerate(ranges):
        free = found < 0
        found[free & (begin_ns >= each.begin_ns) & (begin_ns < each.end_ns)] = number
    return found


def _launched(trace: Trace) -> tuple[Numbers, Numbers, Numbers]:
    """When the host launched work that an arrow joins to it, and where that begins and ends."""
    flows = trace.flows
    starts, ends = arrows(trace, OPERATORS)
    if len(starts) == 0:
        starts, ends = arrows(trace, LAUNCHES)
    begin = flows.begin_ns[ends]
    return flows.begin_ns[starts], begin, _ends_of(trace, begin, flows.pid[ends])


def _ends_of(trace: Trace, begin: Numbers, pid: Numbers) -> Numbers:
    """Where what begins at these times ends; of several the last."""
    events = trace.events
    rows = np.flatnonzero(np.isin(events.pid, np.unique(pid)))
    rows = rows[np.lexsort((events.end_ns[rows], events.begin_ns[rows]))]
    if len(rows) == 0:
        return begin
    at = np.searchsorted(events.begin_ns[rows], begin, side="right") - 1
    row = rows[np.maximum(at, 0)]
    exact = (at >= 0) & (events.begin_ns[row] == begin)
    result: Numbers = np.where(exact, events.end_ns[row], begin)
    return result
