"""The window of a trace, and evidence about one of its events."""

from __future__ import annotations

from stagespan.pages.result import Evidence
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once


@once
def window_of(trace: Trace) -> tuple[int, int] | None:
    """Return the first start and the last end, in ns, of all events; None without events."""
    events = trace.events
    if len(events) == 0:
        return None
    return int(events.begin_ns.min()), int(events.end_ns.all().max())


def evidence(trace: Trace, row: int, figure: float | None = None, unit: str = "ns") -> Evidence:
    """Return evidence about the event in `row` of `trace.events`.

    The figure is in `unit`. Without a figure, and if `unit` is "ns", it is the event's duration.
    """
    events = trace.events
    begin, _ = window_of(trace) or (0, 0)
    return Evidence(
        trace.names[int(events.name[row])],
        int(events.begin_ns[row]) - begin,
        int(events.dur_ns[row]) if figure is None and unit == "ns" else figure,
        unit,
    )
