"""Shows how much of the work of device graphs got its operators from the graphs' capture."""

from __future__ import annotations

from typing import Annotated

from stagespan.pages.amounts import counted, in_percent
from stagespan.pages.figures import Count, Figures, Ns, first
from stagespan.pages.result import StructResult, Table, Unavailable, share
from stagespan.trace.derived.captures import LEAST_PERCENT, captured_work
from stagespan.trace.derived.device import device_work
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import operators_of

_WRITTEN = 50
_SHOWN = 15


def analyze(trace: Trace) -> Captures | Unavailable:
    """Match device graphs with their captures; Unavailable if no graph was launched."""
    captured = captured_work(trace)
    if captured is None:
        return Unavailable("The trace launches no device graphs.", "no_graphs")
    names = trace.names
    graphs = [
        GraphCapture(
            call=names[trace.events.name[graph.calls[0]]],
            launches=len(graph.calls),
            device_events=graph.events,
            time_ns=graph.time_ns,
            matched_percent=100.0 * graph.matched / graph.events,
            with_shapes=graph.shapes,
            source=graph.source,
            captures=graph.candidates,
            closest_percent=graph.closest,
        )
        for graph in captured.graphs
    ]
    durations = trace.events.dur_ns[device_work(trace).rows]
    return Captures(
        launches=sum(each.launches for each in graphs),
        device_events=int(captured.of_graph.sum()),
        time_ns=int(durations[captured.of_graph].sum()),
        matched=int(captured.has_operator.sum()),
        matched_ns=int(durations[captured.has_operator].sum()),
        with_shapes=int(captured.with_shapes.sum()),
        is_given=operators_of(trace) is not trace,
        graphs=sorted(graphs, key=lambda each: -each.time_ns),
    )


class GraphCapture(Figures, frozen=True):
    """Launches of graphs with the same work; times in ns."""

    call: str
    launches: Count
    device_events: Count
    """In each launch."""
    time_ns: Ns
    """The durations of all device events."""
    matched_percent: float
    """The part of the device events whose operators are known."""
    with_shapes: bool
    """Whether the shapes of these operators are those of all launches."""
    source: str | None
    """The annotation around the capture, or "work outside of graphs"; None without a match."""
    captures: Count
    """The number of captures that fit equally well."""
    closest_percent: float
    """The part of the work that the most similar capture has."""


class Captures(StructResult, frozen=True):
    """The launches of device graphs, and what is known of their operators; times in ns."""

    launches: Count
    device_events: Count
    time_ns: Ns
    matched: Count
    """Device events whose operators are known."""
    matched_ns: Ns
    with_shapes: Count
    """Device events whose operators' shapes are known."""
    is_given: bool
    """Whether other files were given for the captures."""
    graphs: Annotated[list[GraphCapture], first(_WRITTEN)]
    """The different graphs, the one with the most time first."""

    def line(self) -> str:
        """How much of the graphs' work has operators, and why not more."""
        launched = counted(self.launches, "graph launch", "graph launches")
        work = f"{counted(self.device_events, 'device event')} of {launched}"
        if self.matched == 0:
            return f"the operators of {work} are unknown: {self._why()}"
        percent = share(self.matched, self.device_events)
        known = in_percent(percent)
        shapes_known = f"the operators of {known} of {work} are those of their capture"
        if self.with_shapes < self.matched:
            missing = self.matched - self.with_shapes
            shapes_known += (
                f". The shapes of {missing:,} are unknown, because captures of several sizes fit"
                " equally well"
            )
        return shapes_known

    def _why(self) -> str:
        if not self.is_given:
            return "--capture reads a trace that was made while the graphs were captured"
        closest = max(each.closest_percent for each in self.graphs)
        return (
            f"the launches in the capture trace are at most {closest:.0f} % the same (at least"
            f" {LEAST_PERCENT:.0f} % are necessary), so it is of another model, size or version"
        )

    def tables(self) -> list[Table]:
        """The different graphs."""
        return [
            Table.of(
                "Captures of device graphs",
                self.graphs[:_SHOWN],
                ("launches", "launches", ""),
                ("device_events", "device events", ""),
                ("time_ns", "time", "ns"),
                ("matched_percent", "with operators", "%"),
                (lambda row: row.source or "none", "captured in", ""),
                note=f"A capture fits if at least {LEAST_PERCENT:.0f} % of its launches are those"
                " of the graph, in the same order.",
            )
        ]
