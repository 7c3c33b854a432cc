"""The times when no stream of any device ran anything, and the launch that ended each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.analysis.causes import GRAPH_LAUNCHES, SINGLE_LAUNCHES
from stagespan.trace.analysis.host_time import named
from stagespan.trace.arrays import Mask, Numbers
from stagespan.trace.device import device_work, is_ascend, launch_of
from stagespan.trace.model import Trace

Rows = NDArray[np.intp]
BEFORE, DURING, AFTER, UNKNOWN = 0, 1, 2, 3
ISSUED = ("before", "during", "after", None)
"""Was the launch that ended a gap issued before the gap, was the call under way, or after it?"""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Gaps in the order of time; all arrays have one element a gap, but `rows` and `calls`."""

    rows: Rows
    """All device events, by begin and launch."""
    calls: Rows
    """Of each of `rows` the call that launched it, or -1."""
    begin_ns: Numbers
    end_ns: Numbers
    last: NDArray[np.intp]
    """Index in `rows` of the event that ended where the gap begins."""
    first: NDArray[np.intp]
    """Index in `rows` of the event that begins where the gap ends."""
    in_graph: Mask
    """Whether the event that ends the gap is a later part of a graph already launched."""
    issued: NDArray[np.int8]
    """Index into ISSUED."""

    @property
    def dur_ns(self) -> Numbers:
        """Length of each; their sum is the device's idle time."""
        return self.end_ns - self.begin_ns

    @property
    def last_call(self) -> Rows:
        """The call that launched the event before the gap, or -1."""
        return self.calls[self.last]

    @property
    def first_call(self) -> Rows:
        """The call that launched the event behind the gap, or -1."""
        return self.calls[self.first]


def gaps(trace: Trace) -> Gaps:
    """Find the gaps of the union of all device events; none where there are fewer than two."""
    events = trace.events
    rows = device_work(trace).rows
    calls = launch_of(trace, rows)
    launched = np.where(calls >= 0, events.begin_ns[calls], events.begin_ns[rows])
    order = np.lexsort((launched, events.begin_ns[rows]))
    rows, calls = rows[order], calls[order]
    begin, end = events.begin_ns[rows], events.end_ns[rows]
    reach = np.maximum.accumulate(end)
    opens = np.flatnonzero(begin[1:] > reach[:-1]) + 1
    index = np.arange(len(rows))
    latest = np.maximum.accumulate(np.where(end == reach, index, 0))
    gap_begin, gap_end = reach[opens - 1], begin[opens]
    call = calls[opens]
    known = call >= 0
    call_begin, call_end = events.begin_ns[call], events.end_ns[call]
    issued = np.full(len(opens), UNKNOWN, dtype=np.int8)
    issued[known] = DURING
    issued[known & (call_begin >= gap_begin)] = AFTER
    issued[known & (call_end <= gap_begin)] = BEFORE
    return Gaps(
        rows=rows,
        calls=calls,
        begin_ns=gap_begin,
        end_ns=gap_end,
        last=latest[opens - 1],
        first=opens,
        in_graph=_later_in_graph(trace, calls)[opens],
        issued=issued,
    )


def graph_calls(trace: Trace, calls: Rows) -> Mask:
    """Which of `calls` (-1 for none) launch graphs.

    By name, or as they launched several events. But a copy may be done in parts, and on Ascend one
    call launches several kernels of an operator.
    """
    of_graph: Mask = (calls >= 0) & named(trace, GRAPH_LAUNCHES)[calls]
    if is_ascend(trace):
        return of_graph
    _, of, counts = np.unique(calls, return_inverse=True, return_counts=True)
    several = (counts > 1)[of.reshape(-1)] & ~named(trace, SINGLE_LAUNCHES)[calls]
    return of_graph | (several & (calls >= 0))


def _later_in_graph(trace: Trace, calls: Rows) -> Mask:
    """Which device events, in the order of time, are not the first of their graph's launch."""
    later = graph_calls(trace, calls)
    _, firsts = np.unique(calls, return_index=True)
    later[firsts] = False
    return later
