"""Finds the call, operator, stage and forward operator that launched the device's work."""

from __future__ import annotations

import re

import msgspec
import numpy as np
from numpy.typing import NDArray

from stagespan.trace.derived.device import (
    STARTS_WORK,
    device_work,
    is_ascend,
    launch_of,
    launches,
)
from stagespan.trace.derived.flows import joined_flows, started_by
from stagespan.trace.derived.gaps import graph_calls
from stagespan.trace.derived.idle_causes import MARKS
from stagespan.trace.derived.kernel_kinds import COLLECTIVE
from stagespan.trace.derived.threads import (
    ThreadIndex,
    named,
    names_with,
    processes,
    threads,
    threads_of,
)
from stagespan.trace.derived.trees import Nesting, Tree, forest_of, forest_of_operators
from stagespan.trace.read.groups import numbered, pairs, values_of
from stagespan.trace.read.intervals import ROW, Mask, Numbers, Rows
from stagespan.trace.read.model import MISSING, Trace
from stagespan.trace.read.view import once

EVALUATES = "autograd::engine::evaluate_function: "
"""The beginning of the names of operators that run one node of the backward pass."""
_NODE = re.compile(r"Backward\d*$")


def forward_operators(trace: Trace, index: ThreadIndex, forest: Nesting) -> Rows:
    """Return the row of each operator's forward operator, or -1.

    Uses the profiler's flows from forward to backward or, in a trace without them, the sequence
    numbers of autograd.
    """
    shared = forest_of_operators(trace)
    is_shared = shared is not None and shared[1] is forest
    return _forward_of_operators(trace) if is_shared else _forward_of(trace, index, forest)


@once
def _forward_of_operators(trace: Trace) -> Rows:
    nested = forest_of_operators(trace)
    assert nested is not None
    return _forward_of(trace, *nested)


def _forward_of(trace: Trace, index: ThreadIndex, forest: Nesting) -> Rows:
    result = np.full(len(forest), -1, dtype=ROW)
    if len(forest) == 0:
        return result
    linked = _forward_by_flows(trace, index, forest)
    if linked is None:
        linked = _forward_by_sequence(trace, forest)
    if linked is None:
        return result
    target, source = linked
    is_linked = np.zeros(len(forest), dtype=np.bool_)
    is_linked[target] = True
    result[target] = forest.rows[source]
    around = forest.first_around(is_linked)
    return np.where(around >= 0, result[around], -1)


def _forward_by_flows(
    trace: Trace, index: ThreadIndex, forest: Nesting
) -> tuple[Rows, Rows] | None:
    starts, ends = joined_flows(trace, "fwdbwd")
    if len(ends) == 0:
        return None
    source = forest.at(index.places_of_flows(trace, starts))
    target = forest.at(index.places_of_flows(trace, ends))
    both = (source >= 0) & (target >= 0)
    source, target = source[both], target[both]
    # If several operators begin at one time, the flow belongs to the outermost.
    while True:
        outer = forest.parent[target]
        same = (outer >= 0) & (forest.begin[outer] == forest.begin[target])
        if not same.any():
            return target, source
        target = np.where(same, outer, target)


def _forward_by_sequence(trace: Trace, forest: Nesting) -> tuple[Rows, Rows] | None:
    codes = [code for code, name in enumerate(trace.names) if name.startswith(EVALUATES)]
    backward = np.isin(trace.events.name[forest.rows], codes)
    if not backward.any():
        return None
    argument = trace.argument("Sequence number")
    if argument is None or argument.numbers is None:
        return None
    number = np.full(len(trace.events), -1, dtype=np.int64)
    number[argument.rows] = argument.numbers.astype(np.int64)
    sequence = number[forest.rows]
    # With times in whole microseconds, a node can seem to be around the call that evaluates it.
    outside = (forest.first_around(backward) < 0) & ~named(trace, _NODE, forest.rows)
    # Several forward operators can have one number. The last of them created the node.
    forward = np.flatnonzero(outside & (sequence >= 0))
    ends = np.flatnonzero(backward & (sequence >= 0))
    if len(forward) == 0 or len(ends) == 0:
        return None
    thread = forest.begin[forward] // forest.axis.stride
    if len(values_of(thread)) > 1:
        # Each thread has its own numbers, so a number is not unique.
        return None
    forward = forward[np.lexsort((forest.begin[forward], sequence[forward]))]
    at = np.searchsorted(sequence[forward], sequence[ends], side="right") - 1
    hit = (at >= 0) & (sequence[forward[np.maximum(at, 0)]] == sequence[ends])
    hit[hit] = forest.begin[forward[at[hit]]] % forest.axis.stride <= (
        forest.begin[ends[hit]] % forest.axis.stride
    )
    return ends[hit], forward[at[hit]]


# --- Call, operator and stage of a launch ---


SPANS = "stagespan"
"""The process of stagespan's spans in a trace."""
# Annotations of the framework, and those that count steps.
_NO_STAGE = re.compile(
    rf"^{COLLECTIVE}|^## Call Compiled|compile_id="
    r"|\(dynamo_timed\)$|^PyTorch Profiler|^ProfilerStep[#*]|^Iteration#\d|^\[memory\]$"
)
NO_OPERATOR = re.compile(
    r"^ProfilerStep[#*]|\[memory\]$| \(dynamo_timed\)$|_data: .*compile_id=|^Torch-Compiled Region"
    r"|^## Call CompiledFxGraph|^TorchDynamo Cache Lookup$|^Pregraph bytecode$"
    r"|^AOTDispatcher Runtime Wrapper Prologue$|^autograd::engine::evaluate_function: "
)
"""Events of category cpu_op that surround operators and do not launch kernels themselves."""
# The compiler marks what it times. Current versions of torch also write an event without the
# suffix.
_TIMED = re.compile(r"^(?P<name>.+?)(?: \(dynamo_timed\)|_data: .*compile_id=.*)$")


class LaunchSources(msgspec.Struct, frozen=True):
    """What launched each device event: rows of `Trace.events`, or -1 if unknown."""

    rows: Rows
    calls: Rows
    """The launching call."""
    of_graph: Mask
    """Whether it was launched as part of a device graph. Call and operator are those of the
    graph."""
    operator: Rows
    """The innermost operator around the call."""
    origin: Rows
    """The call or, because Ascend's queue launches on its own thread, the operator that enqueued
    the work."""
    stage: Rows
    """The innermost call of a stage around the origin."""
    forward: Rows
    """The forward operator, for work of a backward pass."""

    def of(self, chosen: Mask) -> LaunchSources:
        """Return the sources of some of the device events."""
        columns = ("rows", "calls", "of_graph", "operator", "origin", "stage", "forward")
        return LaunchSources(*(getattr(self, each)[chosen] for each in columns))


@once
def launch_sources(trace: Trace, rows: Rows) -> LaunchSources | None:
    """Find the sources of device events; None if timestamps span several years."""
    events = trace.events
    calls = launch_of(trace, rows)
    launched = np.flatnonzero(calls >= 0)
    called, which = numbered(calls[launched])
    nested = forest_of_operators(trace)
    if nested is None:
        return None
    index, forest = nested
    inside = np.full(len(rows), -1, dtype=ROW)
    time_ns = events.begin_ns[called]
    place = index.places(processes(trace)[called], events.tid[called], time_ns)
    # The axis begins with the first operator.
    inside[launched] = forest.at(np.where(time_ns >= index.axis.begin_ns, place, -1))[which]
    _by_flows(trace, rows, inside, index, forest)
    _by_external_id(trace, rows, inside, forest)
    work = ~no_operators(trace)[forest.rows]
    operator = values_at(forest.rows, values_at(forest.first_around(work), inside))
    origin = np.where(operator >= 0, operator, calls) if is_ascend(trace) else calls
    return LaunchSources(
        rows=rows,
        calls=calls,
        of_graph=graph_calls(trace, calls),
        operator=operator,
        origin=origin,
        stage=stages_around(trace, origin),
        forward=values_at(forward_operators(trace, index, forest), inside),
    )


@once
def compiler_parts(trace: Trace) -> set[str]:
    """Return the names of events in which torch.compile was compiling, such as `compile_file`."""
    found = map(_TIMED.match, trace.names)
    return {each["name"] for each in found if each is not None}


@once
def stage_marks(trace: Trace) -> Mask:
    """Return the rows of spans and of the user's annotations, which are operators in old traces."""
    marks = trace.rows_of(["user_annotation"]) | (trace.rows_of(["cpu_op"]) & named(trace, MARKS))
    return marks & ~named(trace, _NO_STAGE)


@once
def no_operators(trace: Trace) -> Mask:
    """Return the rows of events that surround operators, and of compilation."""
    parts = compiler_parts(trace)
    chosen = np.array(
        [name in parts or NO_OPERATOR.search(name) is not None for name in trace.names] + [False]
    )
    rows: Mask = chosen[trace.events.name]
    return rows


def values_at(values: Rows, index: Rows) -> Rows:
    """Return values[index], and -1 where the index is -1."""
    return np.append(values, values.dtype.type(-1))[index]


def _by_flows(trace: Trace, rows: Rows, inside: Rows, index: ThreadIndex, forest: Nesting) -> None:
    """Find operators by flows, because Ascend's queue launches from its own thread."""
    missing = np.flatnonzero(inside < 0)
    if len(missing) == 0 or len(forest) == 0:
        return
    starts = started_by(trace, "async_npu", rows[missing])
    missing, starts = missing[starts >= 0], starts[starts >= 0]
    inside[missing] = forest.at(index.places_of_flows(trace, starts))


def _by_external_id(trace: Trace, rows: Rows, inside: Rows, forest: Nesting) -> None:
    """Find operators by external id, if the trace has no calls that launch work.

    Such traces were filtered, or recorded without the runtime. An operator's id is then the one of
    the device's work that was launched in it.
    """
    events = trace.events
    starts = launches(trace) & names_with(trace, STARTS_WORK)[events.name]
    missing = np.flatnonzero((inside < 0) & (events.external_id[rows] != MISSING))
    operators = events.external_id[forest.rows]
    if len(missing) == 0 or len(forest) == 0 or starts.any():
        return
    order = np.argsort(operators, kind="stable")
    wanted = events.external_id[rows[missing]]
    at = np.searchsorted(operators[order], wanted)
    last = np.searchsorted(operators[order], wanted, side="right") - 1
    latest = order[np.minimum(at, len(order) - 1)]
    # One operator has the id, and began before the work.
    fits = (at == last) & (events.begin_ns[forest.rows[latest]] <= events.begin_ns[rows[missing]])
    inside[missing[fits]] = latest[fits]


# --- Stages ---


class StageCalls(msgspec.Struct, frozen=True):
    """All calls of stages. `rows`, `thread` and `tree` have one element for each call."""

    rows: Rows
    """The annotations and spans, ascending rows of `Trace.events`."""
    threads: NDArray[np.int64]
    """Process and thread of each number. Spans are on the threads of the program."""
    thread: Numbers
    tree: Tree
    unknown: Rows
    """The threads of spans that are on no known thread of the program."""

    def index(self, rows: Rows) -> Rows:
        """Return the index of each of some calls, which are given by their rows; -1 for -1."""
        return np.where(rows >= 0, np.searchsorted(self.rows, rows), -1)


@once
def stage_calls(trace: Trace) -> StageCalls | None:
    """Find the calls of stages, and the thread of each; None if there are none.

    Spans are in a process of their own, but their threads have the numbers of the program's. If
    none of these is in the trace, as with the numbers of another container, the only thread of
    spans is the one that launches; the threads of several remain unknown.
    """
    events = trace.events
    rows = np.flatnonzero(stage_marks(trace))
    if len(rows) == 0:
        return None
    process = processes(trace)[rows]
    tid, unknown = events.tid[rows], np.zeros(len(rows), dtype=np.bool_)
    spans = np.flatnonzero(np.isin(events.pid[rows], sorted(_span_processes(trace))))
    launching = _launching_threads(trace) if len(spans) else None
    if launching is not None:
        found, main = launching
        same = np.isin(tid[spans], found[found[:, 0] == main[0], 1])
        tid, process = tid.copy(), process.copy()
        process[spans[same]] = main[0]
        if not same.any() and len(values_of(tid[spans])) == 1:
            process[spans], tid[spans] = main
        elif not same.any():
            unknown[spans] = True
    owners, thread = pairs(process, tid)
    tree = Tree(events.begin_ns[rows], events.end_ns[rows], thread)
    return StageCalls(rows, owners, thread, tree, values_of(thread[unknown]))


@once
def stages_around(trace: Trace, rows: Rows) -> Rows:
    """Return the row of the innermost call of a stage around each host event, or -1.

    The row is one of those of `stage_calls`, and -1 for a row of -1. The backward pass runs on its
    own thread while the calling thread waits in its stage, so it belongs to the stage that was open
    at that time. The same applies to all events if the threads of the spans are unknown. If several
    threads have a stage at that time, it remains unknown.
    """
    calls = stage_calls(trace)
    stages = np.full(len(rows), -1, dtype=ROW)
    with_row = np.flatnonzero(rows >= 0)
    if calls is None or len(with_row) == 0:
        return stages
    asked, time_ns = rows[with_row], trace.events.begin_ns[rows[with_row]]
    stage = calls.tree.at(threads_of(calls.threads, trace, asked), time_ns)
    outside = np.flatnonzero(stage < 0)
    launching, of = threads(trace, asked[outside])
    of_backward = backward_threads(trace, launching)[of]
    for which, owners in ((of_backward, values_of(calls.thread)), (~of_backward, calls.unknown)):
        without = outside[which]
        if len(without) and len(owners):
            stage[without] = calls.tree.in_one_thread(owners, time_ns[without])
    stages[with_row] = values_at(calls.rows, stage)
    return stages


def _launching_threads(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return the threads with calls or operators, and the one with the most launches.

    Without launches, it is the one with the most calls and operators. Threads of the backward
    pass are excluded, because these launch for another thread.
    """
    rows = np.flatnonzero(launches(trace) | trace.rows_of(["cpu_op"]))
    if len(rows) == 0:
        return None
    launching, of = threads(trace, rows)
    calls = launch_of(trace, device_work(trace).rows)
    calls = calls[calls >= 0]
    counted = threads_of(launching, trace, calls) if len(calls) else of
    count = np.bincount(counted[counted >= 0], minlength=len(launching))
    count[backward_threads(trace, launching)] = 0
    return launching, launching[np.argmax(count)]


def _span_processes(trace: Trace) -> set[int]:
    """Return the processes that contain stagespan's spans, by their name or their id."""
    names = trace.process_names | trace.named_ids
    return {pid for pid, name in names.items() if name == SPANS}


# Threads on which torch runs work for another thread.
_BACKWARD = re.compile(r"^autograd::engine::|Backward\d*$")


def backward_threads(trace: Trace, owners: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which threads (process, thread) run autograd's backward passes."""
    rows = np.flatnonzero(trace.rows_of(["cpu_op"]) & named(trace, _BACKWARD))
    if len(rows) == 0:
        return np.zeros(len(owners), dtype=np.bool_)
    found, _ = threads(trace, rows)
    known = {(int(pid), int(tid)) for pid, tid in found}
    return np.array([(int(pid), int(tid)) in known for pid, tid in owners], dtype=np.bool_)


# --- Self time of operators ---


_TIMED_SUFFIX = " (dynamo_timed)"
# Code that Inductor compiled for the host has no other event. Some builds write an annotation.
_COMPILED = re.compile(r"^## Call CompiledFxGraph")


class HostOperators(msgspec.Struct, frozen=True):
    """All calls of operators. The sum of `own_ns` is the time that threads spent in operators."""

    rows: Rows
    own_ns: Numbers
    forward: Rows
    """The row of the forward operator, for operators of a backward pass; otherwise -1."""


@once
def host_operators(trace: Trace) -> HostOperators | None:
    """Return the operators of a trace; None if timestamps span several years.

    Operators that torch.compile runs on tensors without data while it compiles are left out.
    """
    parts = compiler_parts(trace)
    compiles = np.array(
        [name in parts or name.endswith(_TIMED_SUFFIX) for name in trace.names] + [False],
        dtype=np.bool_,
    )[trace.events.name] & trace.rows_of(["cpu_op"])
    compiled = named(trace, _COMPILED) & trace.rows_of(["cpu_op", "user_annotation"])
    work = trace.rows_of(["cpu_op"]) & ~no_operators(trace)
    rows = np.flatnonzero(work | compiled | compiles).astype(ROW)
    nested = forest_of(trace, rows)
    if nested is None:
        return None
    index, forest = nested
    counts = forest.first_around(compiles[forest.rows]) < 0
    own_ns = np.zeros(len(trace.events), dtype=np.int64)
    own_ns[forest.rows] = forest.own_ns()
    # Events without a duration are not in the forest, but they are calls.
    compiles[forest.rows[~counts]] = True
    rows = rows[~compiles[rows]]
    forward = np.full(len(trace.events), -1, dtype=ROW)
    forward[forest.rows] = forward_operators(trace, index, forest)
    return HostOperators(rows, own_ns[rows], forward[rows])
