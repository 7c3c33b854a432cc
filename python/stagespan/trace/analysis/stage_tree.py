"""The tree of a program's stages: annotations and stagespan's spans, and what each launched."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.analysis.axis import Cover
from stagespan.trace.analysis.call_tree import (
    Paths,
    Rows,
    Tree,
    lanes_of,
    sums,
    with_those_below,
)
from stagespan.trace.analysis.host_time import named, threads
from stagespan.trace.analysis.launchers import SPANS, launchers, stage_marks
from stagespan.trace.arrays import Numbers
from stagespan.trace.device import device_work, is_ascend, launch_of
from stagespan.trace.intervals import exclusive
from stagespan.trace.model import Trace

# Threads on which torch runs what another thread called.
_BACKWARD = re.compile(r"^autograd::engine::|Backward\d*$")
_DIGITS = re.compile(r"\d+")
# More different names than these hold numbers of requests or steps.
_MOST_NAMES = 300


@dataclass(frozen=True, slots=True)
class StageTree:
    """Stages by their path; times in ns. `rows`, `node` and `folded` have one element a call."""

    rows: Rows
    """The annotations, rows of `trace.events`."""
    node: Rows
    """Of each the stage."""
    folded: NDArray[np.bool_]
    """Calls that lie too deep to be stages of their own: they are a part of the one around them."""
    names: list[str]
    """Of each stage; a stage stands behind the one around it."""
    parent: Rows
    """Of each stage the one around it, or -1."""
    calls: Numbers
    host_ns: Numbers
    host_self_ns: Numbers
    """Less the stages within it."""
    launches: Rows
    """All device events."""
    stage_of: Rows
    """Of each of `launches` the innermost call (an index into `rows`) that launched it, or -1."""
    by_time: int
    """How many were given to the stage that another thread was in at the time of the launch."""
    calls_made: Numbers
    """Of each stage the calls that launched work, those of the stages within left out."""
    idle_ns: Numbers | None
    """Of each stage how long all devices were idle during its calls, outside of the stages within;
    None without a device."""

    def of_node(self, figure: Numbers) -> Numbers:
        """A figure of each of `launches`, summed by stage, that of the stages within left out."""
        node = np.where(self.stage_of >= 0, self.node[self.stage_of], -1)
        return sums(node, figure, len(self.names))

    def inclusive(self, own: Numbers) -> Numbers:
        """Of each stage its own figure and those of the stages within."""
        return with_those_below(self.parent, own)


def stage_tree(trace: Trace) -> StageTree | None:
    """Find the stages, and of each device event the one that launched it; None without any."""
    events = trace.events
    rows = np.flatnonzero(stage_marks(trace))
    if len(rows) == 0:
        return None
    device = device_work(trace).rows
    calls = launch_of(trace, device)
    askers = _askers(trace, device, calls)
    lanes, lane = _lanes(trace, rows, askers)
    tree = Tree(events.begin_ns[rows], events.end_ns[rows], lane)
    names, word = _words(trace, rows)
    paths = Paths(tree.parent, word)
    stage_of, by_time = _stages_of(trace, tree, lanes, lane, askers)
    known = stage_of >= 0
    launch, first = np.unique(calls[known], return_index=True)
    launched_in = paths.node[stage_of[known][first]]
    return StageTree(
        rows=rows,
        node=paths.node,
        names=[names[code] for code in paths.word],
        parent=paths.parent,
        folded=paths.folded,
        calls=np.bincount(paths.node[~paths.folded], minlength=len(paths)),
        host_ns=paths.sums(np.where(paths.folded, 0, events.dur_ns[rows])),
        host_self_ns=paths.sums(exclusive(events.begin_ns[rows], events.end_ns[rows], lane)),
        launches=device,
        stage_of=stage_of,
        by_time=by_time,
        calls_made=sums(launched_in, np.ones_like(launch), len(paths)),
        idle_ns=paths.sums(_idle(trace, tree, device, len(rows))) if len(device) else None,
    )


def _askers(trace: Trace, device: Rows, calls: Rows) -> Rows:
    """What tells the stage of device events: their launches, or where a queue launches from a
    thread of its own, the operators that asked for them.
    """
    found = launchers(trace, device) if is_ascend(trace) else None
    return calls if found is None else np.where(found.operator >= 0, found.operator, calls)


def _idle(trace: Trace, tree: Tree, device: Rows, count: int) -> Numbers:
    """How long the device was idle while each of `count` events was the innermost."""
    events = trace.events
    origin = int(events.begin_ns.min())
    busy = Cover(events.begin_ns[device] - origin, events.end_ns[device] - origin)
    owner, begin, end = tree.stretches()
    idle = end - begin - busy.within(begin - origin, end - origin)
    return sums(owner, idle, count)


def _lanes(trace: Trace, rows: Rows, calls: Rows) -> tuple[NDArray[np.int64], Numbers]:
    """Threads of the annotations; the one thread of stagespan's spans is that which launches."""
    lanes, lane = threads(trace, rows)
    spans = [at for at, (pid, _) in enumerate(lanes) if _process_name(trace, int(pid)) == SPANS]
    if len(spans) != 1:
        return lanes, lane
    others = calls[calls >= 0] if (calls >= 0).any() else _operators(trace)
    if len(others) == 0:
        return lanes, lane
    found, of = threads(trace, others)
    counts = np.bincount(of)
    back = _backward_threads(trace, found)
    counts[back] = 0
    main = found[int(np.argmax(counts))]
    same = np.flatnonzero((lanes == main).all(axis=1))
    if len(same):
        lane = np.where(lane == spans[0], same[0], lane)
    else:
        lanes = lanes.copy()
        lanes[spans[0]] = main
    return lanes, lane


def _stages_of(
    trace: Trace, tree: Tree, lanes: NDArray[np.int64], lane: Numbers, calls: Rows
) -> tuple[Rows, int]:
    """Of each device event the call of a stage that launched it, and how many were told by time."""
    events = trace.events
    known = np.flatnonzero(calls >= 0)
    found = np.full(len(calls), -1, dtype=np.intp)
    if len(known) == 0:
        return found, 0
    launch = calls[known]
    at = lanes_of(lanes, trace, launch)
    stage = tree.at(at, events.begin_ns[launch])
    # Backward runs on a thread of its own, while the one that called it waits; and the threads of
    # stagespan's spans are not numbered as the profiler's are.
    launching, of = threads(trace, launch)
    free = np.flatnonzero((stage < 0) & _backward_threads(trace, launching)[of])
    loose = np.flatnonzero(stage < 0)
    spans = [n for n, (pid, _) in enumerate(lanes) if _process_name(trace, int(pid)) == SPANS]
    for asked, among in ((free, np.arange(len(lanes))), (loose, np.array(spans, dtype=np.intp))):
        asked = asked[stage[asked] < 0]
        stage[asked] = tree.in_one_lane(among, events.begin_ns[launch[asked]])
    by_time = int(((stage >= 0) & (lane[stage] != at)).sum())
    found[known] = stage
    return found, by_time


def _backward_threads(trace: Trace, lanes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which threads run what autograd calls."""
    rows = np.flatnonzero(trace.rows_of(["cpu_op"]) & named(trace, _BACKWARD))
    if len(rows) == 0:
        return np.zeros(len(lanes), dtype=np.bool_)
    found, _ = threads(trace, rows)
    known = {(int(pid), int(tid)) for pid, tid in found}
    return np.array([(int(pid), int(tid)) in known for pid, tid in lanes], dtype=np.bool_)


def _operators(trace: Trace) -> Rows:
    return np.flatnonzero(trace.rows_of(["cpu_op"]))


def _process_name(trace: Trace, pid: int) -> str | None:
    return trace.named_ids.get(pid) or trace.process_names.get(pid)


def _words(trace: Trace, rows: Rows) -> tuple[list[str], NDArray[np.int64]]:
    """The stages' names, and each call's; numbers left out where there are too many of them."""
    codes, word = np.unique(trace.events.name[rows], return_inverse=True)
    names = [trace.names[code] for code in codes]
    if len(names) <= _MOST_NAMES:
        return names, word.reshape(-1).astype(np.int64)
    plain = [_DIGITS.sub("#", name) for name in names]
    number = {name: at for at, name in enumerate(dict.fromkeys(plain))}
    of = np.array([number[name] for name in plain], dtype=np.int64)
    return list(number), of[word.reshape(-1)]
