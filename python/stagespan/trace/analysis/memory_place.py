"""What the program was doing at a time: its operator, stage and step."""

from __future__ import annotations

import re

import numpy as np

from stagespan.trace.analysis.call_tree import Rows, Tree
from stagespan.trace.analysis.causes import MARKS
from stagespan.trace.analysis.host_time import named, processes
from stagespan.trace.analysis.launchers import stage_marks
from stagespan.trace.analysis.nesting import Lanes, Nesting
from stagespan.trace.model import Trace

# Operators that only allocate, which others call for their results.
_ALLOCATORS = re.compile(r"^aten::(?:empty|empty_strided|empty_like|new_empty\w*|resize_)$")


class Place:
    """Looks up what was innermost on a thread of `trace.instants` at their time."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        operators = trace.rows_of(["cpu_op"]) & ~named(trace, MARKS)
        self._operators = _Forest(trace, np.flatnonzero(operators))
        self._marks = np.flatnonzero(stage_marks(trace))
        _, self._mark_lane = np.unique(trace.events.tid[self._marks], return_inverse=True)
        self._mark_lane = self._mark_lane.reshape(-1).astype(np.int64)

    def operators(self, instants: Rows) -> Rows:
        """Of each instant the row of the innermost operator around it, or -1.

        Where an operator that only allocates is called by another one, that other one.
        """
        return self._operators.around(instants)

    def stages(self, instants: Rows) -> Rows:
        """Of each the row of the innermost annotation: of its own thread, else of the only one
        that was in any at that time; or -1.
        """
        trace, rows = self._trace, self._marks
        found = np.full(len(instants), -1, dtype=np.intp)
        if len(rows) == 0:
            return found
        events = trace.events
        begin, end = events.begin_ns[rows], events.end_ns[rows]
        times = trace.instants.begin_ns[instants]
        # An instant names its thread, but not the process that the annotations name.
        _, of = np.unique(
            np.concatenate((events.tid[rows], trace.instants.tid[instants])), return_inverse=True
        )
        of = of.reshape(-1)
        own = Tree(begin, end, of[: len(rows)]).at(of[len(rows) :], times)
        lanes = np.unique(self._mark_lane)
        only = Tree(begin, end, self._mark_lane).in_one_lane(lanes, times)
        chosen = np.where(own >= 0, own, only)
        return np.where(chosen >= 0, rows[chosen], -1)


class _Forest:
    """Events of threads that instants can be placed in."""

    def __init__(self, trace: Trace, rows: Rows) -> None:
        self._trace = trace
        self._lanes = Lanes(trace, rows, process=processes(trace))
        self._known = len(rows) > 0 and self._lanes.fits
        if self._known:
            self._forest = Nesting.of(trace, self._lanes.axis, rows, self._lanes.of[0])
            other = ~named(trace, _ALLOCATORS)[self._forest.rows]
            caller = self._forest.first_around(other)
            self._shown = np.where(caller >= 0, caller, np.arange(len(self._forest)))

    def around(self, instants: Rows) -> Rows:
        found: Rows = np.full(len(instants), -1, dtype=np.intp)
        if not self._known:
            return found
        table = self._trace.instants
        pid, tid, time = table.pid[instants], table.tid[instants], table.begin_ns[instants]
        place = self._lanes.places(pid, tid, time)
        here = np.flatnonzero(place >= 0)
        inner = self._forest.at(place[here])
        inside = inner >= 0
        found[here[inside]] = self._forest.rows[self._shown[inner[inside]]]
        return found
