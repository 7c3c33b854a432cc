"""The task queue of torch_npu, whose thread launches the work that the program requests.

The program puts a task into the queue (`Enqueue`). The queue's thread takes it out (`Dequeue`),
prepares it and launches it. On other devices, the thread that requests work also launches it.
"""

from __future__ import annotations

import numpy as np

from stagespan.trace.derived.flows import flows_at, joined_flows, started_by
from stagespan.trace.read.groups import values_of
from stagespan.trace.read.intervals import Numbers, Rows
from stagespan.trace.read.model import Trace

_FLOWS = "async_task_queue"


def tasks_at(trace: Trace, tid: Numbers, time_ns: Numbers) -> tuple[Rows, Rows]:
    """Return the task that a queue's thread was launching at each time.

    Returns the row of its `Dequeue`, and the row of `trace.flows` where the program put it into the
    queue. Both are -1 for threads and times without a task.
    """
    events = trace.events
    dequeue = np.flatnonzero(trace.rows_of(["dequeue"]))
    put = started_by(trace, _FLOWS, dequeue)
    dequeue, put = dequeue[put >= 0], put[put >= 0]
    task_of = np.full(len(time_ns), -1, dtype=np.intp)
    for thread in values_of(events.tid[dequeue]):
        of_thread = np.flatnonzero(events.tid[dequeue] == thread)
        of_thread = of_thread[np.argsort(events.begin_ns[dequeue[of_thread]], kind="stable")]
        asked = np.flatnonzero(tid == thread)
        at = np.searchsorted(events.begin_ns[dequeue[of_thread]], time_ns[asked], side="right") - 1
        row = dequeue[of_thread[np.maximum(at, 0)]]
        contains = (at >= 0) & (events.end_ns[row] >= time_ns[asked])
        task_of[asked[contains]] = of_thread[at[contains]]
    # An index of -1 is that of the appended element.
    return np.append(dequeue, -1)[task_of], np.append(put, -1)[task_of]


def origins(trace: Trace, calls: Rows) -> Rows:
    """Return the event with which the program requested each launch; -1 for -1.

    `calls` are the launching calls. The origin is the `Enqueue` if the thread of a task queue made
    the call, and otherwise the call itself.
    """
    enqueue = np.flatnonzero(trace.rows_of(["enqueue"]))
    if len(enqueue) == 0:
        return calls
    events = trace.events
    starts, _ = joined_flows(trace, _FLOWS)
    at = flows_at(trace, starts, enqueue)
    put_by = np.full(len(trace.flows) + 1, -1, dtype=np.intp)
    put_by[starts[at[at >= 0]]] = enqueue[at >= 0]
    with_call = np.flatnonzero(calls >= 0)
    _, put = tasks_at(trace, events.tid[calls[with_call]], events.begin_ns[calls[with_call]])
    origin, origins_of_calls = put_by[put], calls.copy()
    earlier = (origin >= 0) & (events.begin_ns[origin] <= events.begin_ns[calls[with_call]])
    origins_of_calls[with_call[earlier]] = origin[earlier]
    return origins_of_calls
