"""Estimates how much of the host's time the profiler took to record Python's stacks."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from stagespan import _core
from stagespan.pages.amounts import in_words
from stagespan.pages.result import share
from stagespan.trace.derived.device import device_work, launch_of
from stagespan.trace.read.groups import counts_of, interpolated_quantile, median, values_of
from stagespan.trace.read.intervals import Mask, Numbers, Rows
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once

# Percent: less of a time is not mentioned.
_LEAST = 1.0
# Recording the start or the end of a call takes less. If few calls are recorded, the time between
# them is that of the program.
_MOST_EDGE_NS = 1_000.0
# The profiler looks up the line of each call. In a function of very many lines, such as code that
# torch.compile generated, this takes longer the later the line is.
_BUILT_IN = "<built-in "
_FEWEST_CALLS, _PARTS_OF_FUNCTION = 100, 5
# How many times as long it takes in the last part of a function as in the first, at least.
_LEAST_GROWTH = 4.0
# The share of calls that is taken as the cost of all, so that the program's own time is not.
_QUANTILE = 0.1


class StackCost(msgspec.Struct, frozen=True):
    """What the recorded calls of Python cost; times in ns."""

    edges_ns: Numbers
    """The begins and ends of the recorded calls on the main thread, in ascending order."""
    edge_ns: float
    """What recording most edges takes."""
    slow_edges: Rows
    """-1, and, ascending, the edges that took longer, because their lines were looked up."""
    slow_ns: NDArray[np.float64]
    """What recording all edges up to each of these takes."""
    calls_per_ms: float

    def recorded_ns(self, begin_ns: Numbers, end_ns: Numbers) -> Numbers:
        """Return the estimated time of recording in each interval, at most its length."""
        time = np.minimum(self._until(end_ns) - self._until(begin_ns), end_ns - begin_ns)
        result: Numbers = np.maximum(time, 0)
        return result

    def _until(self, time_ns: Numbers) -> Numbers:
        """Return what recording all edges before some times takes."""
        edges = np.searchsorted(self.edges_ns, time_ns, side="left")
        slow = np.searchsorted(self.slow_edges, edges, side="left") - 1
        since_slow = (edges - 1 - self.slow_edges[slow]) * self.edge_ns
        until: Numbers = (self.slow_ns[slow] + since_slow).astype(np.int64)
        return until

    def caveat(self, took_ns: int, of_ns: int) -> tuple[str, dict[str, float]]:
        """Return a sentence about a time, of which recording took an estimated part.

        Also returns the figure in it, for `Finding.numbers`.
        """
        text = (
            f"Python stacks were recorded ({self.calls_per_ms:,.0f} calls per ms), which slows the"
            " host down"
        )
        if share(took_ns, of_ns) < _LEAST:
            return f"{text}.", {}
        took = in_words(took_ns, "ns")
        text += f": by estimate, at least {took} of this is the profiler's own time."
        return text, {"recording_ns": took_ns}


@once
def stack_cost(trace: Trace) -> StackCost | None:
    """Estimate what recording Python's stacks cost; None if they were not recorded.

    The main thread is the one that launches the most work or, without a device, that records the
    most calls.
    """
    events = trace.events
    rows = np.flatnonzero(trace.rows_of(["python_function"]))
    if len(rows) == 0:
        return None
    calls = launch_of(trace, device_work(trace).rows)
    tid = events.tid[rows]
    tids = events.tid[calls[calls >= 0]]
    tids = tids[np.isin(tids, values_of(tid))]
    found, counts = counts_of(tids if len(tids) else tid)
    rows = rows[tid == found[np.argmax(counts)]]
    del tid
    at = np.concatenate((events.begin_ns[rows], events.end_ns[rows]))
    order = np.argsort(at, kind="stable")
    edges = at[order]
    del at
    is_begin = order < len(rows)
    begins_built_in = _begins_built_in(trace, rows, order)
    del order
    length = max(int(edges[-1] - edges[0]), 1)
    times = np.diff(edges)
    # What recording one of them takes is about the median time between two of them.
    edge_ns = min(median(times), _MOST_EDGE_NS)
    looked_up, cost_ns = _look_ups(is_begin, begins_built_in, times)
    del times, is_begin, begins_built_in
    is_slow = cost_ns > edge_ns
    looked_up, cost_ns = looked_up[is_slow], cost_ns[is_slow]
    costs = np.full(len(edges), edge_ns)
    costs[looked_up] = cost_ns
    slow = np.sort(looked_up)
    until_ns = np.cumsum(costs, out=costs)[slow]
    per_ms = len(rows) / (length / 1e6)
    return StackCost(edges, edge_ns, np.append(-1, slow), np.append(0.0, until_ns), per_ms)


def _begins_built_in(trace: Trace, rows: Rows, order: NDArray[np.intp]) -> Mask:
    """Return which edges begin a call of a built-in function. `order` has ends after all begins."""
    is_built_in = np.array([name.startswith(_BUILT_IN) for name in trace.names])
    built_in = np.zeros(2 * len(rows), dtype=np.bool_)
    built_in[: len(rows)] = is_built_in[trace.events.name[rows]]
    begins: Mask = built_in[order]
    return begins


def _look_ups(
    is_begin: Mask, begins_built_in: Mask, times: Numbers
) -> tuple[Rows, NDArray[np.float64]]:
    """Return the edges of which it is known what looking up the line took, and that time in ns.

    It is known for calls of built-in functions that follow one another in one call of a function,
    if the time between them grows: little of it is the program's, because built-in functions do
    the work there. `times` are those between two edges.
    """
    edges, costs = [np.empty(0, dtype=np.intp)], [np.empty(0)]
    # From the end of a call to the start of the next one in the same function.
    follows = np.flatnonzero(begins_built_in[1:] & ~is_begin[:-1])
    function = np.empty(len(follows), dtype=np.int64)
    _core.trace_begun_around(is_begin, follows + 1, function)
    calls = np.bincount(function + 1, minlength=1)
    ends = np.cumsum(calls)
    in_functions = follows[np.argsort(function, kind="stable")]
    calls[0] = 0  # that are in no function: left out
    for one in np.flatnonzero(calls >= _FEWEST_CALLS):
        parts = np.array_split(in_functions[ends[one - 1] : ends[one]], _PARTS_OF_FUNCTION)
        first_ns, last_ns = (interpolated_quantile(times[parts[at]], _QUANTILE) for at in (0, -1))
        if last_ns < _LEAST_GROWTH * max(first_ns, 1.0):
            continue
        least = np.array([interpolated_quantile(times[part], _QUANTILE) for part in parts])
        if (np.diff(least) > 0).all():
            edges += [part + 1 for part in parts]
            costs.append(np.repeat(least, [len(part) for part in parts]))
    return np.concatenate(edges), np.concatenate(costs)
