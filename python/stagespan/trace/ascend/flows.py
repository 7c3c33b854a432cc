"""Flows of Ascend's traces, from calls on the host to the work that they launched.

At level 0, the profiler leaves out CANN's calls, but keeps the flows that begin in them.
"""

from __future__ import annotations

import numpy as np

from stagespan.trace.derived.device import launch_of
from stagespan.trace.read.intervals import Numbers
from stagespan.trace.read.model import MISSING, Trace

LAUNCHES, OPERATORS, QUEUE = "hosttodevice", "async_npu", "async_task_queue"


def flows_of(trace: Trace, category: str) -> tuple[Numbers, Numbers]:
    """Return the rows of `trace.flows` where each flow of a category starts and ends.

    A flow that starts once and ends several times counts as several flows.
    """
    flows = trace.flows
    mine = np.isin(flows.category, trace.category_codes([category]))
    starts, ends = np.flatnonzero(mine & flows.starts), np.flatnonzero(mine & ~flows.starts)
    starts = starts[np.argsort(flows.id[starts], kind="stable")]
    if len(starts) == 0 or len(ends) == 0:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    at = np.searchsorted(flows.id[starts], flows.id[ends], side="right") - 1
    hit = (at >= 0) & (flows.id[starts[np.maximum(at, 0)]] == flows.id[ends])
    return starts[at[hit]], ends[hit]


def started_by(trace: Trace, category: str, rows: Numbers) -> Numbers:
    """Return, for each event, the row of `trace.flows` where a flow to this event starts, or -1."""
    events, flows = trace.events, trace.flows
    found = np.full(len(rows), -1, dtype=np.int64)
    starts, ends = flows_of(trace, category)
    if len(ends) == 0 or len(rows) == 0:
        return found
    # A flow ends where its event begins, in its lane.
    time = np.concatenate((flows.begin_ns[ends], events.begin_ns[rows]))
    pid = np.concatenate((flows.pid[ends], events.pid[rows]))
    tid = np.concatenate((flows.tid[ends], events.tid[rows]))
    code = np.zeros(len(time), dtype=np.int64)
    for column in (pid, tid, time):
        values, place = np.unique(column, return_inverse=True)
        code = code * len(values) + place.reshape(-1)
        _, code = np.unique(code, return_inverse=True)
        code = code.reshape(-1).astype(np.int64)
    known, targets = code[: len(ends)], code[len(ends) :]
    order = np.argsort(known, kind="stable")
    at = np.searchsorted(known[order], targets)
    at = np.minimum(at, len(known) - 1)
    hit = known[order[at]] == targets
    found[hit] = starts[order[at[hit]]]
    return found


def launched(trace: Trace, rows: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return begin and end in ns of each device operator's launch, and the thread.

    All are `MISSING` if the trace shows no launch. If it shows when the launch began, but not the
    call, the end equals the begin.
    """
    events, flows = trace.events, trace.flows
    call = launch_of(trace, rows)
    seen = call >= 0
    begin = np.where(seen, events.begin_ns[call], MISSING)
    end = np.where(seen, events.end_ns[call], MISSING)
    thread = np.where(seen, events.tid[call], MISSING)
    if seen.all():
        return begin, end, thread
    rest = np.flatnonzero(~seen)
    start = started_by(trace, LAUNCHES, rows[rest])
    rest, start = rest[start >= 0], start[start >= 0]
    begin[rest] = end[rest] = flows.begin_ns[start]
    thread[rest] = flows.tid[start]
    return begin, end, thread
