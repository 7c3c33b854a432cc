"""What a rank's time went to: computing, communicating, copying, or none of these."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stagespan.trace.analysis.ascend_steps import Steps
from stagespan.trace.analysis.axis import Cover
from stagespan.trace.comparison.windows import steps_of
from stagespan.trace.device import COPY, device_work
from stagespan.trace.model import Trace
from stagespan.trace.ranks.collectives import work_of

# Steps that hold less of the rank's work do not stand for the rank.
_LEAST_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Usage:
    """Times in ns; the four parts sum to `time_ns` exactly."""

    time_ns: int
    """From the begin of the first step to the end of the last, or all of the trace."""
    steps: int
    """How many steps that is; 0 if it is all of the trace."""
    computing_ns: int
    communicating_ns: int
    """Communication beside which nothing computed."""
    copying_ns: int
    """Copies beside which nothing computed or communicated."""
    stage_ns: int | None = None
    """On Ascend the stages of the steps, as step_trace_time.csv has them."""
    stage_communicating_ns: int | None = None
    """Communication in the stages beside which nothing computed."""

    @property
    def idle_ns(self) -> int:
        """None of these."""
        return self.time_ns - self.computing_ns - self.communicating_ns - self.copying_ns

    @property
    def exposed(self) -> tuple[int, int]:
        """Exposed communication, and the time that it is a share of: the stages if known."""
        if self.stage_ns and self.stage_communicating_ns is not None:
            return self.stage_communicating_ns, self.stage_ns
        return self.communicating_ns, self.time_ns


def usage_of(trace: Trace, window: tuple[int, int], stages: Steps | None = None) -> Usage:
    """Split the time of the steps, or else of `window`, which is that of the trace."""
    events = trace.events
    communicates, computes = work_of(trace)
    kind = device_work(trace).kind
    copies = np.flatnonzero(kind == COPY)
    computing = Cover(events.begin_ns[computes], events.end_ns[computes])
    talking = computing | Cover(events.begin_ns[communicates], events.end_ns[communicates])
    busy = talking | Cover(events.begin_ns[copies], events.end_ns[copies])
    steps, (begin, end) = 0, window
    found = steps_of(trace)
    if found is not None and found.steps:
        first, last = int(found.begin_ns[0]), int(found.end_ns[-1])
        if _covered(busy, first, last) >= _LEAST_SHARE * _covered(busy, begin, end):
            steps, begin, end = found.steps, first, last
    compute, talk, all_ = (_covered(each, begin, end) for each in (computing, talking, busy))
    staged = stages is not None and stages.stage_ns > 0
    return Usage(
        time_ns=end - begin,
        steps=steps,
        computing_ns=compute,
        communicating_ns=talk - compute,
        copying_ns=all_ - talk,
        stage_ns=stages.stage_ns if stages is not None and staged else None,
        stage_communicating_ns=stages.exposed_ns if stages is not None and staged else None,
    )


def usage_of_stages(stages: Steps) -> Usage | None:
    """The same from the steps of a folder that has no trace; None if no step is whole."""
    known = [
        (step.computing_ns, step.exposed_ns, step.free_ns)
        for step in stages.steps
        if None not in (step.computing_ns, step.exposed_ns, step.free_ns)
    ]
    computing, exposed, free = (sum(each[at] or 0 for each in known) for at in range(3))
    if computing + exposed + free <= 0:
        return None
    staged = stages.stage_ns > 0
    return Usage(
        time_ns=computing + exposed + free,
        steps=len(known),
        computing_ns=computing,
        communicating_ns=exposed,
        copying_ns=0,
        stage_ns=stages.stage_ns if staged else None,
        stage_communicating_ns=stages.exposed_ns if staged else None,
    )


def _covered(cover: Cover, begin_ns: int, end_ns: int) -> int:
    return int(cover.within(np.array([begin_ns]), np.array([end_ns]))[0])
