"""Where steps begin, as far as the causes of idle time need it."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.arrays import Numbers
from stagespan.trace.model import Trace

_PROFILER_STEP = re.compile(r"^ProfilerStep[#*]")
# Annotations of the framework, which are parts of steps.
_FRAMEWORK = re.compile(
    r"^(?:nccl|gloo|rccl|hccl|mpi|ucc|c10d)\w*:|^## Call Compiled|^Optimizer\.|compile_id="
    r"|^enumerate\(DataLoader\)|\(dynamo_timed\)$|^DistributedDataParallel|^PyTorch Profiler"
)
_DIGITS = re.compile(r"\d+")


def step_begins(trace: Trace) -> Numbers:
    """Begins of the steps in ns, ascending: the profiler's own, or of a repeated annotation."""
    return np.unique(trace.events.begin_ns[step_rows(trace)])


def step_rows(trace: Trace) -> NDArray[np.intp]:
    """The events that mark steps: the profiler's own, or a repeated annotation.

    Of several repeated annotations the one that takes the most time, numbers in its name left out.
    """
    events = trace.events
    marks = np.flatnonzero(trace.rows_of(["user_annotation", "cpu_op"]))
    codes = np.unique(events.name[marks])
    own = [int(c) for c in codes if _PROFILER_STEP.match(trace.names[c])]
    if own:
        return marks[np.isin(events.name[marks], own)]
    marks = np.flatnonzero(trace.rows_of(["user_annotation"]))
    groups: dict[str, list[int]] = {}
    for code in np.unique(events.name[marks]):
        name = trace.names[code]
        if _FRAMEWORK.search(name) is None:
            groups.setdefault(_DIGITS.sub("#", name), []).append(int(code))
    best, best_time = np.empty(0, dtype=np.intp), 0
    for group in groups.values():
        rows = marks[np.isin(events.name[marks], group)]
        time = int(events.dur_ns[rows].sum())
        if len(rows) > 1 and time > best_time and not _overlap(trace, rows):
            best, best_time = rows, time
    return best


def _overlap(trace: Trace, rows: NDArray[np.intp]) -> bool:
    events = trace.events
    rows = rows[np.argsort(events.begin_ns[rows], kind="stable")]
    return bool(np.any(events.begin_ns[rows][1:] < events.end_ns[rows][:-1]))
