"""The stretches of a trace that are compared: its steps, or else all of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stagespan.trace.analysis.result import window_of
from stagespan.trace.analysis.step_ranges import step_ranges
from stagespan.trace.analysis.step_time import step_extents
from stagespan.trace.arrays import Numbers
from stagespan.trace.device import device_work
from stagespan.trace.model import Trace


@dataclass(frozen=True, slots=True)
class Windows:
    """Disjoint stretches in the order of time; in ns."""

    begin_ns: Numbers
    end_ns: Numbers
    names: list[str]
    """Of the steps; empty when the trace has none and the one stretch is all of it."""
    source: str = ""
    """By what the steps were told: see `step_ranges`."""
    how: str = ""
    """The same as a sentence."""

    @property
    def dur_ns(self) -> Numbers:
        """Length of each."""
        return self.end_ns - self.begin_ns

    @property
    def total_ns(self) -> int:
        """Length of all."""
        return int(self.dur_ns.sum())

    @property
    def steps(self) -> int:
        """How many steps; 0 when the trace has none."""
        return len(self.names)


def steps_of(trace: Trace) -> Windows | None:
    """The trace's steps, from where to where `step_extents` says; None when it has none."""
    steps = step_ranges(trace)
    if steps is None:
        return None
    found = step_extents(trace, steps)
    return Windows(found.begin_ns, found.end_ns, steps.names, steps.source, steps.how)


def whole(trace: Trace) -> Windows | None:
    """All of the trace as one stretch: of its device's work if it has any; None if it is empty."""
    events, rows = trace.events, device_work(trace).rows
    if len(rows):
        window = int(events.begin_ns[rows].min()), int(events.end_ns[rows].max())
    else:
        found = window_of(trace)
        if found is None:
            return None
        window = found
    return Windows(np.array(window[:1]), np.array(window[1:]), [])
