"""Shows the delays of launches, how far ahead the host ran, and launches of graphs."""

from __future__ import annotations

import msgspec
import numpy as np

from stagespan.pages.amounts import in_percent, three_digits
from stagespan.pages.figures import Count, Figures, Ns
from stagespan.pages.result import StructResult, Table, Unavailable, share
from stagespan.trace.derived.device import device_work, launch_of, shared_correlations
from stagespan.trace.derived.gaps import graph_calls
from stagespan.trace.derived.threads import name_codes
from stagespan.trace.derived.work_table import Column, WorkTable
from stagespan.trace.read.groups import interpolated_quantile, median
from stagespan.trace.read.intervals import Numbers
from stagespan.trace.read.model import Trace


def analyze(trace: Trace) -> Launches | Unavailable:
    """Join device events with their launches; Unavailable if the trace lacks either."""
    events = trace.events
    rows = device_work(trace).rows
    if len(rows) == 0:
        return Unavailable(
            "The trace has no device events, so the launches are unknown.", "no_device"
        )
    calls = launch_of(trace, rows)
    if not (calls >= 0).any():
        if shared_correlations(trace):
            return Unavailable(
                "Calls of several processes have the same correlations, so it is unknown which of"
                " them launched the device's work: analyse the trace of each rank on its own.",
                "shared_correlations",
            )
        return Unavailable(
            "The trace contains none of the calls that launched the device's work: also record the"
            " host's activity.",
            "no_launch_calls",
            needs=("launches of device work", "record the CPU's and the device's activity"),
        )
    of_graph = graph_calls(trace, calls)
    single = (calls >= 0) & ~of_graph
    launched, call = rows[single], calls[single]
    begin, issued = events.begin_ns[launched], events.end_ns[call]
    depth, found_empty = _queue(trace, launched, call)
    graphs = {"call": Column(name_codes(trace, calls[of_graph]), trace.names)}
    return Launches(
        launched=len(launched),
        without_launch=int((calls < 0).sum()),
        delay_ns=_percentiles(np.maximum(begin - issued, 0)),
        call_ns=_percentiles(events.dur_ns[call]),
        depth=depth,
        found_empty=found_empty,
        graphs=WorkTable(events.dur_ns[rows[of_graph]], calls[of_graph], graphs).by(Graph, "call"),
    )


class Launches(StructResult, frozen=True):
    """Launches of single kernels, copies and memsets, and separately of graphs. Times in ns."""

    launched: Count
    """Device events whose own launch is in the trace."""
    without_launch: Count
    delay_ns: Percentiles | None = msgspec.field(name="launch_delay_us")
    """From the end of the launch to the start on the device, at least 0."""
    call_ns: Percentiles | None = msgspec.field(name="launch_call_us")
    """Duration of the launching calls."""
    depth: QueueDepth | None = msgspec.field(name="queue_depth")
    found_empty: Count = msgspec.field(name="launches_to_empty_device")
    """The number of launches at which no work was running or queued."""
    graphs: list[Graph]

    def tables(self) -> list[Table]:
        """Delays, and graphs if there are any."""
        delays = [
            (what, figures.median, figures.p90, figures.max)
            for what, figures in (
                ("from launch to start", self.delay_ns),
                ("the launching call", self.call_ns),
            )
            if figures is not None
        ]
        note = ""
        if self.depth is not None:
            note = (
                f"{in_percent(share(self.found_empty, self.launched))} of {self.launched:,}"
                f" launches found the device empty; on average {three_digits(self.depth.mean)} were"
                f" queued (at most {self.depth.max:,})."
            )
        tables = [
            Table(
                "Launches",
                (("", ""), ("median", "ns"), ("90th percentile", "ns"), ("maximum", "ns")),
                delays,
                note,
            ),
            Table.of(
                "Graphs",
                self.graphs,
                ("call", "call", ""),
                ("calls", "launches", ""),
                ("count", "device events", ""),
                ("time_ns", "device", "ns"),
            ),
        ]
        return [table for table in tables if table.rows]


class Graph(Figures, frozen=True):
    """All launches of graphs by one kind of call; times in ns."""

    call: str
    calls: Count = msgspec.field(name="launches")
    count: Count = msgspec.field(name="device_events")
    time_ns: Ns = msgspec.field(name="device_us")
    """Sum of the events' durations."""


class Percentiles(Figures, frozen=True):
    """Percentiles of times in ns."""

    median: Ns
    p90: Ns
    max: Ns


class QueueDepth(Figures, frozen=True):
    """The number of launches that the device had not begun, at each launch."""

    mean: float
    max: Count


def _queue(trace: Trace, rows: Numbers, calls: Numbers) -> tuple[QueueDepth | None, int]:
    """The queue's length at each launch, and the number of launches with an empty device."""
    if len(rows) == 0:
        return None, 0
    events = trace.events
    # Stable sorts are fast for times that are almost in order.
    issued = np.sort(events.begin_ns[calls], kind="stable")
    begun = np.sort(np.maximum(events.begin_ns[rows], events.begin_ns[calls]), kind="stable")
    order = np.arange(len(issued))
    waiting = np.maximum(order - np.searchsorted(begun, issued, side="right"), 0)
    every = device_work(trace).rows
    times = (events.begin_ns[every], events.end_ns[every])
    begins, ends = (np.sort(each, kind="stable") for each in times)
    running = np.searchsorted(begins, issued, "right") > np.searchsorted(ends, issued, "right")
    depth = QueueDepth(float(waiting.mean()), int(waiting.max()))
    return depth, int(((waiting == 0) & ~running).sum())


def _percentiles(times: Numbers) -> Percentiles | None:
    if len(times) == 0:
        return None
    return Percentiles(int(median(times)), int(interpolated_quantile(times, 0.9)), int(times.max()))
