"""The time ranges that shares and comparisons refer to: the trace's steps, or all of it."""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np

from stagespan.pages.amounts import in_percent, in_words
from stagespan.pages.figures import Count, Figures, Internal, Ns, one_of
from stagespan.pages.result import share
from stagespan.trace.derived.device import device_work
from stagespan.trace.derived.step_ranges import step_ranges
from stagespan.trace.derived.step_times import Earlier, earlier_work, step_extents
from stagespan.trace.evidence import window_of
from stagespan.trace.read.intervals import Mask, Numbers, Rows, covered
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once

# Steps with less of the device's busy time are not representative of the program.
_LEAST_SHARE = 0.5
# Percent of the time from the first step to the last: less time between steps is not told.
_LEAST_BETWEEN = 1.0


class BaseWindow(Figures, frozen=True):
    """The time range that shares refer to; times in ns."""

    of: Annotated[str, one_of(("steps", "trace"))]
    steps: Count
    """The number of steps in it; the time between them is included. 0 for the whole trace."""
    time_ns: Ns
    """When it begins, from the start of the trace's window."""
    whole_ns: Ns
    """Its length."""
    between_ns: Ns = msgspec.field(name="between_steps_us")
    """The part of it that is between steps; 0 for the whole trace."""
    unrecorded_ns: Ns = msgspec.field(name="unrecorded_work_us")
    """How long before it begins, since the first step or the trace began, the device was busy
    with work that was launched before the trace began and that is not in the trace."""
    begin_ns: Internal[int]
    """When it begins, as in the trace."""
    end_ns: Internal[int]

    @classmethod
    def between(
        cls,
        begin_ns: int,
        end_ns: int,
        origin_ns: int,
        steps: int = 0,
        unrecorded_ns: int = 0,
        inside_ns: int | None = None,
    ) -> BaseWindow:
        """Return the range between two times of a trace whose window begins at `origin_ns`.

        `inside_ns` is the part of it that is inside steps; None for all of it.
        """
        return cls(
            of="steps" if steps else "trace",
            steps=steps,
            time_ns=begin_ns - origin_ns,
            whole_ns=end_ns - begin_ns,
            between_ns=0 if inside_ns is None else end_ns - begin_ns - inside_ns,
            unrecorded_ns=unrecorded_ns,
            begin_ns=begin_ns,
            end_ns=end_ns,
        )

    @property
    def label(self) -> str:
        """Its name for headings and after "of": "the step", "the 5 steps", "the trace"."""
        if self.steps == 0:
            return "the trace"
        return "the step" if self.steps == 1 else f"the {self.steps:,} steps"

    def contains(self, trace: Trace, rows: Rows) -> Mask:
        """Return which of some events begin in the range."""
        begin = trace.events.begin_ns[rows]
        inside: Mask = (begin >= self.begin_ns) & (begin < self.end_ns)
        return inside

    def overlaps(self, trace: Trace, rows: Rows) -> Mask:
        """Return which of some events have a part in the range."""
        events = trace.events
        inside: Mask = events.begin_ns[rows] < self.end_ns
        inside &= events.end_ns[rows] > self.begin_ns
        return inside

    @property
    def whose(self) -> str:
        """Its name with its length: "the step's 382.536 ms"."""
        ending = "'" if self.steps > 1 else "'s"
        return f"{self.label}{ending} {in_words(self.whole_ns, 'ns')}"

    def part(self, time_ns: int) -> str:
        """Return a time in words, as a part of it: "3.5 ms of the trace's 10 ms (35 %)"."""
        percent = in_percent(share(time_ns, self.whole_ns))
        return f"{in_words(time_ns, 'ns')} of {self.whose} ({percent})"

    def figures_of(self, time_ns: int) -> dict[str, float]:
        """Return the figures of `part`, for a finding about this time."""
        percent = share(time_ns, self.whole_ns)
        return {"time_ns": time_ns, "percent": percent, "whole_ns": self.whole_ns}

    @property
    def split(self) -> str:
        """A sentence about its parts inside steps and between them; "" if nearly all is inside."""
        if 100 * self.between_ns < _LEAST_BETWEEN * self.whole_ns:
            return ""
        inside, between = self.whole_ns - self.between_ns, self.between_ns
        return (
            f"Of {self.whose}, {in_words(inside, 'ns')} are inside the steps and"
            f" {in_words(between, 'ns')} between them."
        )


@once
def base_window(trace: Trace) -> BaseWindow | None:
    """Return the range from the first step to the last, or else the whole trace.

    Like the first step, it begins later if the device was busy with unrecorded work. None for an
    empty trace.
    """
    window = window_of(trace)
    if window is None:
        return None
    ranges = step_ranges(trace)
    if ranges is not None and len(ranges):
        extents = step_extents(trace, ranges)
        begin, end = int(extents.begin_ns[0]), int(extents.end_ns[-1])
        if begin < end and _holds_the_work(trace, begin, end, extents.earlier):
            unrecorded = _unrecorded(extents.earlier, int(ranges.begin_ns[0]), begin)
            inside = int((extents.end_ns - extents.begin_ns).sum())
            return BaseWindow.between(begin, end, window[0], len(ranges), unrecorded, inside)
    earlier = earlier_work(trace)
    begin = window[0]
    if not earlier.recorded and earlier.end_ns is not None:
        events, rows = trace.events, device_work(trace).rows
        begins = np.maximum(events.begin_ns[rows], earlier.end_ns)
        if covered(begins, np.maximum(events.end_ns[rows], begins)) > 0:
            begin = earlier.end_ns  # if not, all work in the trace is earlier work
    return BaseWindow.between(
        begin, window[1], window[0], 0, _unrecorded(earlier, window[0], begin)
    )


def _unrecorded(earlier: Earlier, since_ns: int, begin_ns: int) -> int:
    return 0 if earlier.recorded else max(begin_ns - since_ns, 0)


def _holds_the_work(trace: Trace, begin_ns: int, end_ns: int, earlier: Earlier) -> bool:
    """Whether most of the device's work, without earlier work, is within an interval.

    Without a device, operators are the work.
    """
    events, rows = trace.events, device_work(trace).rows
    if len(rows) == 0:
        rows = np.flatnonzero(trace.rows_of(["cpu_op"]))
    begin, end = events.begin_ns[rows], events.end_ns[rows]
    if earlier.end_ns is not None:
        begin, end = np.maximum(begin, earlier.end_ns), np.maximum(end, earlier.end_ns)
    inside = covered(np.clip(begin, begin_ns, end_ns), np.clip(end, begin_ns, end_ns))
    return inside > 0 and inside >= _LEAST_SHARE * covered(begin, end)


# --- Windows of steps, as comparisons use them ---


class Windows(msgspec.Struct, frozen=True):
    """Disjoint intervals in the order of time, in ns."""

    begin_ns: Numbers
    end_ns: Numbers
    names: list[str]
    """The names of the steps; empty if the trace has no steps and is one interval."""
    source: str = ""
    """How the steps were found: see `step_ranges`."""
    how: str = ""
    """A sentence about how the steps were found."""

    @property
    def dur_ns(self) -> Numbers:
        """The length of each interval."""
        return self.end_ns - self.begin_ns

    @property
    def total_ns(self) -> int:
        """The total length."""
        return int(self.dur_ns.sum())

    @property
    def steps(self) -> int:
        """The number of steps; 0 if the trace has none."""
        return len(self.names)


@once
def steps_of(trace: Trace) -> Windows | None:
    """Return the trace's steps with the limits of `step_extents`; None if it has none."""
    steps = step_ranges(trace)
    if steps is None:
        return None
    found = step_extents(trace, steps)
    return Windows(found.begin_ns, found.end_ns, steps.names, steps.source, steps.how)


def whole(trace: Trace) -> Windows | None:
    """Return the whole trace as one interval, limited to device work if there is any."""
    events, rows = trace.events, device_work(trace).rows
    if len(rows):
        window = int(events.begin_ns[rows].min()), int(events.end_ns[rows].max())
    else:
        recorded = window_of(trace)
        if recorded is None:
            return None
        window = recorded
    return Windows(np.array(window[:1]), np.array(window[1:]), [])
