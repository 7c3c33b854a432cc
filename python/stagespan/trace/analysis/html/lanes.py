"""The timeline of a trace: few enough bars to draw, however many events there are."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.analysis.causes import CAUSES, MARKS
from stagespan.trace.analysis.host_time import named, pairs
from stagespan.trace.analysis.idle import split_gaps
from stagespan.trace.analysis.result import in_words, shortened, window_of
from stagespan.trace.analysis.split_idle import NAMES
from stagespan.trace.arrays import Numbers
from stagespan.trace.device import COMMUNICATION, COMPUTE, COPY, device_work, launches, streams
from stagespan.trace.model import Trace

MOST_BARS = 600
"""Bars of a lane; what is more is summed up in them, and the lane says so."""
MOST_STREAMS = 8
MOST_THREADS = 3
MOST_DEPTHS = 4
LONGEST_NAME = 160
KINDS = {COMPUTE: "computing", COMMUNICATION: "communicating", COPY: "copying"}
_STEP = re.compile(r"ProfilerStep[#*]")
_DIGITS = re.compile(r"\d+")

Rows = NDArray[np.intp]
Steps = Sequence[tuple[str, int, int]]


@dataclass(frozen=True, slots=True)
class Lane:
    """A line of the timeline; times in ns from the begin of the trace's window."""

    name: str
    bars: list[tuple[int, int, str, str]]
    """Begin, length, what it is, and the key of its colour."""
    note: str = ""
    """What the bars leave out or sum up."""

    def to_dict(self) -> dict[str, Any]:
        """For the page."""
        return {"name": shortened(self.name, 40), "bars": self.bars, "note": self.note}


@dataclass(frozen=True, slots=True)
class _Bars:
    """Stretches that stand for one event or several of a lane."""

    begin: Numbers
    end: Numbers
    busy: Numbers
    count: Numbers
    longest: Rows
    """Index of the longest event of each."""
    of: Rows = field(repr=False)
    """The stretch of each event."""


def timeline(trace: Trace, steps: Steps = ()) -> list[Lane]:
    """Lanes for steps, stages, each stream of the device, its idle time, and the host's threads.

    `steps` are those that were found where the profiler did not mark them: name, begin, length.
    """
    if window_of(trace) is None:
        return []
    found: list[Lane] = []
    for lanes in (_annotations, _streams, _idle, _threads):
        found += lanes(trace)
    if steps and all(lane.name != "steps" for lane in found):
        bars = [(begin, time, shortened(name, LONGEST_NAME), "step") for name, begin, time in steps]
        left = len(bars) - MOST_BARS
        note = f"steps: {left:,} more are not drawn." if left > 0 else ""
        found.insert(0, Lane("steps", bars[:MOST_BARS], note))
    return found


def summed_up(begin: Numbers, end: Numbers, most: int = MOST_BARS) -> _Bars:
    """Events in order of begin as at most `most` stretches, parted where the gaps are largest."""
    count = len(begin)
    reach = np.maximum.accumulate(end)
    gap = begin[1:] - reach[:-1]
    starts = np.arange(count)
    if count > most:
        starts = np.sort(np.argpartition(-gap, most - 2)[: most - 1]) + 1
        starts = np.concatenate(([0], starts))
    of = np.searchsorted(starts, np.arange(count), side="right") - 1
    first, last = starts, np.append(starts[1:], count) - 1
    # A stretch of several ends where the last of its events does; one that is alone, where it does.
    ends = end if count <= most else np.maximum.reduceat(end, starts)
    inner = np.concatenate(([0], np.cumsum(np.maximum(gap, 0))))
    by_length = np.lexsort((begin - end, of))
    longest = by_length[np.searchsorted(of[by_length], np.arange(len(starts)))]
    return _Bars(
        begin=begin[first],
        end=ends,
        busy=ends - begin[first] - (inner[last] - inner[first]),
        count=last - first + 1,
        longest=longest,
        of=of,
    )


def _lane(
    trace: Trace,
    name: str,
    rows: Rows,
    colour: Callable[[_Bars, Rows], Iterable[str]],
    what: str,
) -> Lane:
    """A lane of events, each by its name, or summed up."""
    events = trace.events
    rows = rows[np.argsort(events.begin_ns[rows], kind="stable")]
    bars = summed_up(events.begin_ns[rows], events.end_ns[rows])
    window, _ = window_of(trace) or (0, 0)
    shown = []
    for at, key in enumerate(colour(bars, rows)):
        label = shortened(trace.names[int(events.name[rows[bars.longest[at]]])], LONGEST_NAME)
        begin, length = int(bars.begin[at]), int(bars.end[at] - bars.begin[at])
        if bars.count[at] > 1:
            busy = in_words(int(bars.busy[at]), "ns")
            label = f"{int(bars.count[at]):,} {what}, {busy} busy; the longest: {label}"
        shown.append((begin - window, length, label, key))
    note = ""
    if len(rows) > len(shown):
        note = f"{name}: {len(rows):,} {what} summed up in {len(shown):,} bars."
    return Lane(name, shown, note)


def _streams(trace: Trace) -> list[Lane]:
    work = device_work(trace)
    rows = work.rows
    if len(rows) == 0:
        return []
    device, stream = streams(trace, rows)
    found, lane = pairs(device, stream)
    time = np.bincount(lane, weights=trace.events.dur_ns[rows])
    order = np.argsort(-time, kind="stable")

    def colour(bars: _Bars, of: Rows) -> Iterable[str]:
        """Of each bar the kind that takes the most of it."""
        weights = trace.events.dur_ns[of]
        times = [
            np.bincount(bars.of, np.where(work.kind[of] == k, weights, 0), len(bars.begin))
            for k in KINDS
        ]
        kinds = list(KINDS.values())
        return [kinds[at] for at in np.argmax(times, axis=0)]

    several = len({int(number) for number, _ in found}) > 1
    lanes = []
    for number in order[:MOST_STREAMS]:
        name = f"stream {_id(trace, int(found[number][1]))}"
        if several:
            name = f"device {_id(trace, int(found[number][0]))}, {name}"
        lanes.append(_lane(trace, name, rows[lane == number], colour, "events"))
    if len(order) > MOST_STREAMS:
        rest = order[MOST_STREAMS:]
        note = (
            f"{len(rest)} more streams are not drawn; their events take"
            f" {in_words(float(time[rest].sum()), 'ns')}."
        )
        last = lanes[-1]
        lanes[-1] = Lane(last.name, last.bars, f"{last.note} {note}".strip())
    return lanes


def _id(trace: Trace, number: int) -> str:
    return trace.named_ids.get(number, str(number))


def _idle(trace: Trace) -> list[Lane]:
    gaps, parts = split_gaps(trace)
    if len(gaps.begin_ns) == 0:
        return []
    window, _ = window_of(trace) or (0, 0)
    order = np.argsort(-gaps.dur_ns, kind="stable")
    shown = np.sort(order[:MOST_BARS])
    bars = [
        (
            int(gaps.begin_ns[at]) - window,
            int(gaps.dur_ns[at]),
            f"idle: {CAUSES[NAMES[cause]]}",
            NAMES[cause],
        )
        for at, cause in zip(shown, parts.cause[shown], strict=True)
    ]
    rest = order[MOST_BARS:]
    note = ""
    if len(rest):
        note = (
            f"idle: the {len(bars):,} longest gaps are drawn; the {len(rest):,} others, of at most"
            f" {in_words(int(gaps.dur_ns[rest[0]]), 'ns')}, sum to"
            f" {in_words(int(gaps.dur_ns[rest].sum()), 'ns')}."
        )
    return [Lane("idle", bars, note)]


def _annotations(trace: Trace) -> list[Lane]:
    """Steps, and below them what the program itself named, nested."""
    events = trace.events
    marks = np.flatnonzero(trace.rows_of(["user_annotation"]))
    is_step = np.array([_STEP.match(name) is not None for name in trace.names] + [False])
    steps = np.flatnonzero(trace.rows_of(["user_annotation", "cpu_op"]) & is_step[events.name])
    lanes = []
    if len(steps):
        lanes.append(
            _lane(trace, "steps", steps, lambda bars, _: ["step"] * len(bars.begin), "steps")
        )
    marks = marks[~is_step[events.name[marks]]]
    if len(marks) == 0:
        return lanes
    kept = marks[np.argsort(-events.dur_ns[marks], kind="stable")[: MOST_BARS * MOST_DEPTHS]]
    window, _ = window_of(trace) or (0, 0)
    by_depth: dict[int, list[tuple[int, int, str, str]]] = {}
    for row, depth in zip(*_depths(trace, kept), strict=True):
        name = trace.names[int(events.name[row])]
        by_depth.setdefault(depth, []).append(
            (
                int(events.begin_ns[row]) - window,
                int(events.dur_ns[row]),
                shortened(name, LONGEST_NAME),
                f"stage {shortened(_DIGITS.sub('#', name), 40)}",
            )
        )
    for depth, bars in sorted(by_depth.items())[:MOST_DEPTHS]:
        bars.sort(key=lambda bar: -bar[1])
        note = "" if len(bars) <= MOST_BARS else f"the {MOST_BARS} longest of {len(bars):,}"
        name = "stages" if depth == 0 else f"stages, line {depth + 1}"
        drawn = sorted(bars[:MOST_BARS])
        lanes.append(Lane(name, drawn, f"{name}: {note} are drawn." if note else ""))
    left = len(marks) - len(kept)
    if left:
        last = lanes[-1]
        more = f"{left:,} shorter annotations are not drawn."
        lanes[-1] = Lane(last.name, last.bars, f"{last.note} {more}".strip())
    return lanes


def _depths(trace: Trace, rows: Rows) -> tuple[list[int], list[int]]:
    """Rows by begin, and how many of them are open around each; threads share the lanes."""
    events = trace.events
    rows = rows[np.lexsort((-events.dur_ns[rows], events.begin_ns[rows]))]
    free: list[int] = []  # until when the lane of each depth is taken
    depths = []
    for begin, end in zip(
        events.begin_ns[rows].tolist(), events.end_ns[rows].tolist(), strict=True
    ):
        depth = next((at for at, until in enumerate(free) if until <= begin), len(free))
        free[depth : depth + 1] = [end]
        depths.append(depth)
    return rows.tolist(), depths


def _threads(trace: Trace) -> list[Lane]:
    """The threads of the host that were busiest with operators and calls."""
    events = trace.events
    work = (trace.rows_of(["cpu_op"]) & ~named(trace, MARKS)) | launches(trace)
    work &= device_work(trace).kind == 0
    rows = np.flatnonzero(work)
    if len(rows) == 0:
        return []
    found, lane = pairs(events.pid[rows], events.tid[rows])
    order = np.lexsort((-events.dur_ns[rows], events.begin_ns[rows], lane))
    rows, lane = rows[order], lane[order]
    edges = np.searchsorted(lane, np.arange(len(found) + 1))
    lanes, times = [], []
    for first, end in itertools.pairwise(edges):
        mine = rows[first:end]
        reach = np.maximum.accumulate(events.end_ns[mine])
        outer = np.concatenate(([True], events.begin_ns[mine][1:] >= reach[:-1]))
        lanes.append(mine[outer])
        times.append(int(events.dur_ns[lanes[-1]].sum()))
    calls = launches(trace)

    def colour(bars: _Bars, of: Rows) -> Iterable[str]:
        return ["calls" if call else "operators" for call in calls[of[bars.longest]]]

    drawn = []
    for number in np.argsort([-time for time in times], kind="stable")[:MOST_THREADS]:
        name = f"thread {_id(trace, int(found[number][1]))}"
        drawn.append(_lane(trace, name, lanes[number], colour, "operators and calls"))
    if len(found) > MOST_THREADS:
        last = drawn[-1]
        more = f"{len(found) - MOST_THREADS} threads that did less are not drawn."
        drawn[-1] = Lane(last.name, last.bars, f"{last.note} {more}".strip())
    return drawn
