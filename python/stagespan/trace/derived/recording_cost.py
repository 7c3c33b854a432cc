"""Estimates how much of the host's time the profiler took to record Python's stacks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stagespan.text.amounts import in_words
from stagespan.trace.derived.device import device_work, launch_of
from stagespan.trace.read.intervals import Numbers
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once
from stagespan.trace.result import share

# Percent: less of a time is not mentioned.
_LEAST = 1.0
# Recording the begin or the end of a call takes less. If few calls are recorded, the time between
# them is that of the program.
_MOST_EDGE_NS = 1_000.0


@dataclass(frozen=True, slots=True)
class StackCost:
    """What the recorded calls of Python cost; times in ns."""

    edges_ns: Numbers
    """The begins and ends of the recorded calls on the main thread, in ascending order."""
    edge_ns: float
    """What recording one of them takes: about the median time between two of them."""
    calls_per_ms: float

    def within(self, begin_ns: Numbers, end_ns: Numbers) -> Numbers:
        """Return the estimated time of recording in each interval, at most its length."""
        first = np.searchsorted(self.edges_ns, begin_ns, side="left")
        count = np.searchsorted(self.edges_ns, end_ns, side="left") - first
        time = np.minimum(count * self.edge_ns, end_ns - begin_ns)
        result: Numbers = np.maximum(time, 0).astype(np.int64)
        return result

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
    tids = events.tid[calls[calls >= 0]]
    tids = tids[np.isin(tids, events.tid[rows])]
    found, counts = np.unique(tids if len(tids) else events.tid[rows], return_counts=True)
    rows = rows[events.tid[rows] == found[np.argmax(counts)]]
    edges = np.sort(np.concatenate((events.begin_ns[rows], events.end_ns[rows])))
    length = max(int(edges[-1] - edges[0]), 1)
    edge_ns = min(float(np.median(np.diff(edges))), _MOST_EDGE_NS)
    return StackCost(edges, edge_ns, len(rows) / (length / 1e6))
