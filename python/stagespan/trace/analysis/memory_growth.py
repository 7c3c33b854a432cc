"""What steps leave allocated, and whether that grows step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stagespan.trace.analysis.call_tree import Rows
from stagespan.trace.analysis.memory_events import MemoryEvents
from stagespan.trace.analysis.result import (
    Evidence,
    Finding,
    Severity,
    Table,
    in_words,
    share,
    shortened,
)
from stagespan.trace.analysis.step_ranges import StepRanges
from stagespan.trace.model import Trace

# So many steps in a row must leave more than the one before; the first ones warm up.
_LEAST_STEPS = 4
# Of the peak, and bytes: a step that leaves less behind, such as a list of losses, is no worry.
_LEAST_PERCENT = 0.1
_LEAST_BYTES = 1 << 16
_SHARES: tuple[tuple[float, Severity], ...] = ((20.0, "high"), (5.0, "medium"), (0.0, "low"))
_SHOWN = 20
_MOST_IN_JSON = 2_000


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory by step, in bytes."""

    steps: list[tuple[str, int, int]]
    """Name, highest within it, and allocated as it ended."""
    growing: int
    """How many of the last steps each left more allocated than the one before."""
    left: int
    """What these left in all."""
    by: str | None
    """The operator that allocated the most of what is left of these steps; None if unknown."""
    by_bytes: int
    since_ns: int | None
    """When the first of these began, from the begin of the trace's window."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "steps": [
                {"name": name, "peak_bytes": peak, "end_bytes": end}
                for name, peak, end in self.steps[:_MOST_IN_JSON]
            ],
            "growing_steps": self.growing,
            "left_bytes": self.left,
            "left_by": self.by,
        }

    def finding(self, device: str, peak: int) -> Finding | None:
        """A sentence where several steps in a row leave memory behind."""
        if self.growing < _LEAST_STEPS or peak <= 0:
            return None
        each = self.left / self.growing
        if each < _LEAST_BYTES or share(each, peak) < _LEAST_PERCENT:
            return None
        severity = next(s for least, s in _SHARES if share(self.left, peak) >= least)
        sentence = (
            f"Each of the last {self.growing:,} steps left more memory allocated on {device} than"
            f" the one before, {in_words(self.left, 'bytes')} in all"
            f" ({in_words(self.left // self.growing, 'bytes')} a step)"
        )
        if self.by is not None:
            sentence += (
                f"; {in_words(self.by_bytes, 'bytes')} of what they left was allocated in"
                f" {shortened(self.by)}"
            )
        sentence += ". If the steps are alike, the program keeps tensors that it no longer needs."
        name, _, end = self.steps[-1]
        shown = (
            Evidence(f"allocated at the end of {name}", None, end, "bytes"),
            Evidence("first of these steps", self.since_ns, self.left, "bytes"),
        )
        return Finding(severity, sentence, shown, "memory.growth")

    def table(self, device: str) -> Table:
        """The first steps."""
        count = len(self.steps)
        return Table(
            f"Memory by step on {device}",
            (("step", ""), ("peak", "bytes"), ("at the end", "bytes")),
            self.steps[:_SHOWN],
            f"The first {_SHOWN} of {count:,}." if count > _SHOWN else "",
        )


def growth_of(
    trace: Trace,
    events: MemoryEvents,
    ranges: StepRanges | None,
    operators: Rows,
    begin_ns: int,
) -> Growth | None:
    """Look at the memory at the end of each step; None without steps on the host."""
    if ranges is None or not ranges.on_host:
        return None
    firsts = np.searchsorted(events.time_ns, ranges.begin_ns, side="left")
    ends = np.searchsorted(events.time_ns, ranges.end_ns, side="left")
    # Behind the last event before a time; before the first one what came then.
    start = int(events.allocated[0] - events.bytes[0])
    levels = np.concatenate(([start], events.allocated))
    at_end = levels[ends]
    steps = []
    for at, name in enumerate(ranges.names):
        within = levels[firsts[at] : ends[at] + 1]
        steps.append((name, int(within.max()), int(at_end[at])))
    more = np.diff(at_end) > 0
    growing = len(more) if more.all() else int(np.argmin(more[::-1]))
    left = int(at_end[-1] - at_end[-1 - growing])
    by, by_bytes = _allocated_in(trace, events, operators, firsts, ends, growing)
    since = int(ranges.begin_ns[len(ranges) - growing]) - begin_ns if growing else None
    return Growth(steps, growing, left, by, by_bytes, since)


def _allocated_in(
    trace: Trace, events: MemoryEvents, operators: Rows, firsts: Rows, ends: Rows, growing: int
) -> tuple[str | None, int]:
    """The operator with the most of what the last steps allocated and nobody freed."""
    if not growing or events.freed_at is None:
        return None, 0
    first, last = int(firsts[-growing]), int(ends[-1])
    live = events.live_at(last - 1) if last else np.empty(0, dtype=np.intp)
    live = live[(live >= first) & (operators[live] >= 0)]
    if len(live) == 0:
        return None, 0
    names = trace.events.name[operators[live]]
    sizes = np.bincount(names, weights=events.bytes[live])
    code = int(np.argmax(sizes))
    return trace.names[code], int(sizes[code])
