"""The timeline of a trace: the activity of its steps, stages, streams and threads."""

from __future__ import annotations

import itertools
import re

import numpy as np
from numpy.typing import NDArray

from stagespan.pages.amounts import in_words
from stagespan.pages.result import shortened
from stagespan.pages.timeline import TimelineRow, timeline_row
from stagespan.trace.analyses import critical_path
from stagespan.trace.analyses.idle_time import split_gaps
from stagespan.trace.derived.dependencies import KINDS as KINDS_OF_PATH
from stagespan.trace.derived.device import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    device_work,
    launches,
    work_by_stream,
)
from stagespan.trace.derived.gaps import NAMES
from stagespan.trace.derived.idle_causes import CAUSES, MARKS, ROWS
from stagespan.trace.derived.launch_sources import backward_threads
from stagespan.trace.derived.step_ranges import step_ranges
from stagespan.trace.derived.step_times import step_times
from stagespan.trace.derived.threads import Axis, named
from stagespan.trace.evidence import window_of
from stagespan.trace.read.groups import numbered, parts
from stagespan.trace.read.intervals import ROW, Cover, Mask, Numbers, Rows, union_of
from stagespan.trace.read.model import Trace, id_pairs

MOST_STREAMS = 8
MOST_THREADS = 3
MOST_DEPTHS = 4
MOST_STAGES = 100_000
KINDS = {COMPUTE: "computing", COMMUNICATION: "communicating", COPY: "copying"}
_STEP = re.compile(r"ProfilerStep[#*]")
_DIGITS = re.compile(r"\d+")


def timeline(trace: Trace) -> list[TimelineRow]:
    """Return rows for steps, stages, the critical path, streams, idle time, and threads."""
    if window_of(trace) is None:
        return []
    timeline_rows: list[TimelineRow] = []
    for rows_of in (_annotations, _path, _streams, _idle, _threads):
        timeline_rows += rows_of(trace)
    if all(row.name != "steps" for row in timeline_rows):
        timeline_rows[:0] = _inferred_steps(trace)
    return [row for row in timeline_rows if len(row.begin)]


def _of_events(
    trace: Trace,
    name: str,
    rows: Rows,
    key: NDArray[np.intp],
    keys: list[tuple[str, str]],
    what: str = "events",
    note: str = "",
) -> TimelineRow:
    """Return a row of events with their names."""
    events = trace.events
    window, _ = window_of(trace) or (0, 0)
    begin = events.begin_ns[rows] - window
    end = begin + events.dur_ns[rows]
    label = events.name[rows].astype(np.intp)
    return timeline_row(name, begin, end, key, keys, label, trace.names, what, note)


def _streams(trace: Trace) -> list[TimelineRow]:
    work = device_work(trace)
    rows = work.rows
    if len(rows) == 0:
        return []
    by_stream, of_stream = work_by_stream(trace)
    of_streams, of_stream_rows = list(by_stream), list(by_stream.values())
    time = np.bincount(of_stream, weights=trace.events.dur_ns[rows])
    order = np.argsort(-time, kind="stable")
    several = len({number for number, _ in of_streams}) > 1
    keys = [(word, word) for word in KINDS.values()]
    number_of = np.zeros(max(KINDS) + 1, dtype=np.intp)
    number_of[list(KINDS)] = np.arange(len(KINDS))
    left = order[MOST_STREAMS:]
    note = ""
    if len(left):
        note = (
            f"{len(left):,} more streams are not drawn; their events take"
            f" {in_words(float(time[left].sum()), 'ns')}."
        )
    drawn_streams = []
    for number in order[:MOST_STREAMS].tolist():
        name = f"stream {_id(trace, of_streams[number][1])}"
        if several:
            name = f"device {_id(trace, of_streams[number][0])}, {name}"
        here = rows[of_stream_rows[number]]
        last = number == order[:MOST_STREAMS][-1]
        key = number_of[work.kind[here]]
        drawn_streams.append(_of_events(trace, name, here, key, keys, note=note if last else ""))
    return drawn_streams


def _id(trace: Trace, number: int) -> str:
    return trace.named_ids.get(number, str(number))


def _idle(trace: Trace) -> list[TimelineRow]:
    gaps, parts = split_gaps(trace)
    if len(gaps.begin_ns) == 0:
        return []
    window, _ = window_of(trace) or (0, 0)
    keys = [(ROWS[name].colour, f"idle: {CAUSES[name]}") for name in NAMES]
    cause = parts.cause.astype(np.intp)
    names = [f"idle: {CAUSES[name]}" for name in NAMES]
    begin = gaps.begin_ns - window
    return [timeline_row("idle", begin, begin + gaps.dur_ns, cause, keys, cause, names, "gaps")]


def _path(trace: Trace) -> list[TimelineRow]:
    """Return the row of the critical path, as far as it was computed."""
    path = critical_path.analyze(trace)
    if not isinstance(path, critical_path.CriticalPath):
        return []
    window, _ = window_of(trace) or (0, 0)
    names = list(dict.fromkeys(segment.name for segment in path.segments))
    number = {name: at for at, name in enumerate(names)}
    kinds = list(KINDS_OF_PATH)
    return [
        timeline_row(
            "critical path",
            np.array([segment.begin_ns - window for segment in path.segments]),
            np.array([segment.end_ns - window for segment in path.segments]),
            np.array([kinds.index(segment.kind) for segment in path.segments]),
            [(f"path_{kind}", words) for kind, words in KINDS_OF_PATH.items()],
            np.array([number[segment.name] for segment in path.segments]),
            names,
            "parts",
        )
    ]


def _annotations(trace: Trace) -> list[TimelineRow]:
    """Return the rows of steps and, below them, the nested annotations of the program."""
    events = trace.events
    marks = np.flatnonzero(trace.rows_of(["user_annotation"]))
    is_step = np.array([_STEP.match(name) is not None for name in trace.names] + [False])
    steps = np.flatnonzero(trace.rows_of(["user_annotation", "cpu_op"]) & is_step[events.name])
    lines = []
    if len(steps):
        key = np.zeros(len(steps), dtype=np.intp)
        lines.append(_of_events(trace, "steps", steps, key, [("step", "step")], "steps"))
    marks = marks[~is_step[events.name[marks]]]
    if len(marks) == 0:
        return lines
    kept = marks[np.argsort(-events.dur_ns[marks], kind="stable")[:MOST_STAGES]]
    rows, depths = _depths(trace, kept)
    # Each of the longest stages has its own colour, regardless of numbers in its name.
    codes, which = numbered(events.name[rows])
    words = [shortened(_DIGITS.sub("#", trace.names[code]), 40) for code in codes.tolist()]
    distinct = {word: at for at, word in enumerate(dict.fromkeys(words))}
    key = np.array([distinct[word] for word in words], dtype=np.intp)[which]
    time = np.bincount(key, weights=events.dur_ns[rows], minlength=len(distinct))
    rank = np.empty(len(distinct), dtype=np.intp)
    rank[np.argsort(-time, kind="stable")] = np.arange(len(distinct))
    by_rank = sorted(distinct, key=lambda word: int(rank[distinct[word]]))
    keys = [(f"stage {word}", word) for word in by_rank]
    deeper = int((depths < 0).sum()) + len(marks) - len(kept)
    note = f"{deeper:,} shorter or deeper annotations are not drawn." if deeper else ""
    drawn_at = [each for each in range(MOST_DEPTHS) if (depths == each).any()]
    for depth in drawn_at:
        here = np.flatnonzero(depths == depth)
        name = "stages" if depth == 0 else f"stages, line {depth + 1}"
        own = note if depth == drawn_at[-1] else ""
        lines.append(_of_events(trace, name, rows[here], rank[key[here]], keys, "annotations", own))
    return lines


def _inferred_steps(trace: Trace) -> list[TimelineRow]:
    """Return the row of steps that the profiler did not mark."""
    ranges = step_ranges(trace)
    if ranges is None:
        return []
    window, _ = window_of(trace) or (0, 0)
    times = step_times(trace, ranges)
    key = np.zeros(len(ranges), dtype=np.intp)
    names = np.arange(len(ranges))
    begin, end = times.begin_ns - window, times.end_ns - window
    return [timeline_row("steps", begin, end, key, [("step", "step")], names, ranges.names)]


def _depths(trace: Trace, rows: Rows) -> tuple[Rows, NDArray[np.int64]]:
    """Return rows by begin, and the first free line for each, or -1. Threads share lines."""
    events = trace.events
    rows = rows[np.lexsort((-events.dur_ns[rows], events.begin_ns[rows]))]
    free = [np.iinfo(np.int64).min] * MOST_DEPTHS  # the end of the last event in each line
    depths = []
    begins, lengths = events.begin_ns[rows].tolist(), events.dur_ns[rows].tolist()
    for begin, length in zip(begins, lengths, strict=True):
        depth = next((at for at, until in enumerate(free) if until <= begin), -1)
        if depth >= 0:
            free[depth] = begin + length
        depths.append(depth)
    return rows, np.array(depths, dtype=np.int64)


def _threads(trace: Trace) -> list[TimelineRow]:
    """Return the rows of the host threads that were busiest with operators and calls."""
    events = trace.events
    calls = launches(trace)
    work = (trace.rows_of(["cpu_op"]) & ~named(trace, MARKS)) | calls
    work &= device_work(trace).kind == 0
    rows = np.flatnonzero(work).astype(ROW)
    if len(rows) == 0:
        return []
    threads_seen, of_thread = id_pairs(events.pid, events.tid, rows)
    outer = _in_no_other(trace, rows, of_thread, len(threads_seen))
    rows, of_thread = rows[outer], of_thread[outer]
    order = np.lexsort((-events.dur_ns[rows], events.begin_ns[rows], of_thread))
    rows, of_thread = rows[order], of_thread[order]
    end = events.begin_ns[rows] + events.dur_ns[rows]
    edges = np.searchsorted(of_thread, np.arange(len(threads_seen) + 1))
    outermost, times = [], []
    for first, last in itertools.pairwise(edges.tolist()):
        reach = np.maximum.accumulate(end[first:last])
        thread_rows = rows[first:last]
        outer = np.concatenate(([True], events.begin_ns[thread_rows][1:] >= reach[:-1]))
        outermost.append(thread_rows[outer])
        times.append(int(events.dur_ns[thread_rows[outer]].sum()))
    keys = [("operators", "in an operator"), ("calls", "in a call of the runtime")]
    busiest = np.argsort([-time for time in times], kind="stable")[:MOST_THREADS].tolist()
    left = len(threads_seen) - len(busiest)
    more = f"{left:,} threads that did less are not drawn." if left else ""
    backward = backward_threads(trace, threads_seen)
    drawn_threads = []
    for number in busiest:
        here = outermost[number]
        pid, tid = (int(each) for each in threads_seen[number])
        name = _thread_name(trace, pid, tid, bool(backward[number]))
        note = more if number == busiest[-1] else ""
        key = calls[here].astype(np.intp)
        drawn_threads.append(_of_events(trace, name, here, key, keys, "operators and calls", note))
    return drawn_threads


def _in_no_other(trace: Trace, rows: Rows, thread: Rows, threads: int) -> Mask:
    """Return which events begin at no time inside of another one of their thread."""
    window = window_of(trace)
    assert window is not None
    axis = Axis(*window, threads)
    outer = np.ones(len(rows), dtype=np.bool_)
    if not axis.fits:
        return outer

    def begins(some: slice) -> Numbers:
        return axis.place(thread[some], trace.events.begin_ns[rows[some]])

    unions = []
    for some in parts(len(rows)):
        # Another event can begin at the same time.
        cover = Cover(begins(some) + 1, begins(some) + trace.events.dur_ns[rows[some]])
        unions.append((cover.begin, cover.end))
    inside = Cover(*union_of(unions))
    for some in parts(len(rows)):
        outer[some] = inside.length(begins(some), begins(some) + 1) == 0
    return outer


def _thread_name(trace: Trace, pid: int, tid: int, backward: bool) -> str:
    """Return `main thread 4242`, `backward thread 4243`, or the name in the trace."""
    number = _id(trace, tid)
    if pid == tid:
        return f"main thread {number}"
    if backward:
        return f"backward thread {number}"
    name = trace.thread_names.get((pid, tid), "").strip()
    if not name or name == number:
        return f"thread {number}"
    return name if number in name or not number.lstrip("-").isdigit() else f"{name} {number}"
