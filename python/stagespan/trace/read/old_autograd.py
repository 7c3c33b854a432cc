"""Gives the events of the old autograd profiler the categories that today's profilers write.

Before torch 1.8, and in builds without Kineto, its traces have no categories, but two processes:
operators are in "CPU functions", and their times on the device are in "CUDA functions".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from stagespan.trace.read.groups import pairs
from stagespan.trace.read.intervals import Codes, Mask, Rows, outermost_first
from stagespan.trace.read.model import Events, IdColumn

_HOST, _DEVICE = "CPU functions", "CUDA functions"
OPERATOR = "event of the old autograd profiler, taken as an operator"
KERNEL = "operator on the device of the old autograd profiler, taken as a kernel"
OUTER = "operator on the device of the old autograd profiler that contains others, not used"


def has_old_processes(named_ids: dict[int, str]) -> bool:
    """Whether a process has a name that the old profiler writes."""
    return not {_HOST, _DEVICE}.isdisjoint(named_ids.values())


def with_categories(
    events: Events,
    named_ids: dict[int, str],
    code: Callable[[str], int],
    adjusted: Counter[str],
) -> Events:
    """Return the events with categories, and with the devices of those in "CUDA functions".

    `code` returns the code of a category. Changes are counted in `adjusted`. Operators on the
    device nest, so only the innermost ones become kernels: these are disjoint.
    """
    pid_of = {name: number for number, name in named_ids.items()}
    plain = events.category == code("")

    def rows_in(process: str) -> Rows:
        in_process: Mask = plain & events.pid.having([pid_of.get(process, 0)])
        return np.flatnonzero(in_process) if process in pid_of else np.empty(0, dtype=np.intp)

    category: Codes = events.category.astype(np.int32)
    host, on_device = rows_in(_HOST), rows_in(_DEVICE)
    category[host] = code("cpu_op")
    inner = on_device[_contains_no_other(events, on_device)]
    category[inner] = code("kernel")
    device = events.device.all().copy()
    device[on_device] = events.tid[on_device]
    for cause, count in (
        (OPERATOR, len(host)),
        (KERNEL, len(inner)),
        (OUTER, len(on_device) - len(inner)),
    ):
        if count:
            adjusted[cause] += count
    return replace(events, category=category, device=IdColumn(device))


def _contains_no_other(events: Events, rows: Rows) -> Mask:
    _, thread = pairs(events.pid[rows], events.tid[rows])
    begin, end = events.begin_ns[rows], events.end_ns[rows]
    order = outermost_first(begin, end)
    order = order[np.argsort(thread[order], kind="stable")]
    thread, begin, end = thread[order], begin[order], end[order]
    inner = np.ones(len(rows), dtype=np.bool_)
    inner[order[:-1]] = (thread[1:] != thread[:-1]) | (begin[1:] >= end[:-1]) | (end[1:] > end[:-1])
    return inner
