"""What on the host launched the device's work: call, operator, stage and forward operator."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from stagespan.trace.derived.device import launch_of
from stagespan.trace.derived.gaps import graph_calls
from stagespan.trace.derived.idle_causes import MARKS
from stagespan.trace.derived.threads import Nesting, ThreadIndex, joined, named, processes
from stagespan.trace.read.intervals import Mask, Numbers, Rows, pairs
from stagespan.trace.read.model import Trace
from stagespan.trace.view import once

EVALUATES = "autograd::engine::evaluate_function: "
"""How the operators begin that run one node of the backward pass."""
_NODE = re.compile(r"Backward\d*$")


def forward_operators(trace: Trace, lanes: ThreadIndex, forest: Nesting) -> Rows:
    """Of each operator of the forest the row of its forward operator, or -1.

    By the profiler's flows from forward to backward; in a trace without them by the sequence
    number that autograd gave both.
    """
    result = np.full(len(forest), -1, dtype=np.intp)
    if len(forest) == 0:
        return result
    linked = _forward_by_flows(trace, lanes, forest)
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
    trace: Trace, lanes: ThreadIndex, forest: Nesting
) -> tuple[Rows, Rows] | None:
    flows = trace.flows
    starts, ends = joined(flows, np.isin(flows.category, trace.category_codes(["fwdbwd"])))
    if len(ends) == 0:
        return None
    source = forest.at(lanes.places_of_flows(trace, starts))
    target = forest.at(lanes.places_of_flows(trace, ends))
    both = (source >= 0) & (target >= 0)
    source, target = source[both], target[both]
    # Of operators that begin at one time the flow means the outermost.
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
    found = trace.argument("Sequence number")
    if found is None or found.numbers is None:
        return None
    number = np.full(len(trace.events), -1, dtype=np.int64)
    number[found.rows] = found.numbers.astype(np.int64)
    sequence = number[forest.rows]
    # Times in whole microseconds can show a node around the call that evaluates it.
    outside = (forest.first_around(backward) < 0) & ~named(trace, _NODE)[forest.rows]
    # Several operators of the forward pass can have one number: the last has made the node.
    forward = np.flatnonzero(outside & (sequence >= 0))
    ends = np.flatnonzero(backward & (sequence >= 0))
    if len(forward) == 0 or len(ends) == 0:
        return None
    lane = forest.begin[forward] // forest.axis.stride
    if len(np.unique(lane)) > 1:
        # Each thread counts for itself, so that a number alone says too little.
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
"""The process that the spans of stagespan have in a trace; their threads are the program's."""
# Annotations that the framework makes by itself, and those that count steps.
_NO_STAGE = re.compile(
    r"^(?:nccl|gloo|rccl|hccl|xccl|mpi|ucc|c10d)\w*:|^## Call Compiled|compile_id="
    r"|\(dynamo_timed\)$|^PyTorch Profiler|^ProfilerStep[#*]|^Iteration#\d|^\[memory\]$"
)
NO_OPERATOR = re.compile(
    r"^ProfilerStep[#*]|\[memory\]$| \(dynamo_timed\)$|_data: .*compile_id=|^Torch-Compiled Region"
    r"|^## Call CompiledFxGraph|^TorchDynamo Cache Lookup$|^Pregraph bytecode$"
    r"|^AOTDispatcher Runtime Wrapper Prologue$|^autograd::engine::evaluate_function: "
)
"""Events of category cpu_op that surround operators: no kernel is launched by these themselves."""
# What the compiler times has a mark, and under today's torch an event without the ending, too.
_TIMED = re.compile(r"^(?P<name>.+?)(?: \(dynamo_timed\)|_data: .*compile_id=.*)$")


@dataclass(frozen=True, slots=True)
class LaunchSources:
    """Return what launched each device event: rows of `Trace.events`, or -1 if unknown."""

    rows: Rows
    calls: Rows
    """The launching call."""
    of_graph: Mask
    """Launched as part of a device graph: then call and operator are the graph's."""
    operator: Rows
    """The innermost operator around the call."""
    stage: Rows
    """The innermost annotation of the user, or span of a stage, around the call."""
    forward: Rows
    """Of work of a backward pass the forward operator that it belongs to."""


@once
def launch_sources(trace: Trace, rows: Rows) -> LaunchSources | None:
    """Find what launched each of some device events; None if times are years apart."""
    events = trace.events
    calls = launch_of(trace, rows)
    known = np.flatnonzero(calls >= 0)
    called, which = np.unique(calls[known], return_inverse=True)
    operators = np.flatnonzero(trace.rows_of(["cpu_op"]))
    lanes = ThreadIndex(trace, operators, called)
    if not lanes.fits:
        return None
    forest = Nesting.of(trace, lanes.axis, operators, lanes.of[0])
    inside = np.full(len(rows), -1, dtype=np.intp)
    inside[known] = forest.at(lanes.axis.place(lanes.of[1], events.begin_ns[called]))[
        which.reshape(-1)
    ]
    _by_flows(trace, rows, inside, lanes, forest)
    work = ~no_operators(trace)[forest.rows]
    stage = np.full(len(rows), -1, dtype=np.intp)
    stage[known] = stages(trace, called)[which.reshape(-1)]
    return LaunchSources(
        rows=rows,
        calls=calls,
        of_graph=graph_calls(trace, calls),
        operator=_at(forest.rows, _at(forest.first_around(work), inside)),
        stage=stage,
        forward=_at(forward_operators(trace, lanes, forest), inside),
    )


@once
def compiler_parts(trace: Trace) -> set[str]:
    """Names of the events in which torch.compile was at work, such as `compile_file`."""
    found = map(_TIMED.match, trace.names)
    return {each["name"] for each in found if each is not None}


@once
def stage_marks(trace: Trace) -> Mask:
    """Rows of the user's annotations, which old traces hold as operators, and spans of stages."""
    marks = trace.rows_of(["user_annotation"]) | (trace.rows_of(["cpu_op"]) & named(trace, MARKS))
    return marks & ~named(trace, _NO_STAGE)


@once
def no_operators(trace: Trace) -> Mask:
    """Rows of events that surround operators, and those of the compiler at work."""
    parts = compiler_parts(trace)
    chosen = np.array(
        [name in parts or NO_OPERATOR.search(name) is not None for name in trace.names] + [False]
    )
    rows: Mask = chosen[trace.events.name]
    return rows


def _at(values: Rows, index: Rows) -> Rows:
    """values[index], -1 where the index is."""
    return np.where(index >= 0, np.append(values, -1)[index], -1)


def _by_flows(trace: Trace, rows: Rows, inside: Rows, lanes: ThreadIndex, forest: Nesting) -> None:
    """Ascend's queue launches from a thread of its own: its flows lead from the operators."""
    flows, events = trace.flows, trace.events
    starts, ends = joined(flows, np.isin(flows.category, trace.category_codes(["async_npu"])))
    missing = np.flatnonzero(inside < 0)
    if len(ends) == 0 or len(missing) == 0 or len(forest) == 0:
        return
    here = rows[missing]
    # Ends of flows and begins of events as numbers of the same places.
    _, lane = pairs(
        np.concatenate((flows.pid[ends], events.pid[here])),
        np.concatenate((flows.tid[ends], events.tid[here])),
    )
    times = np.concatenate((flows.begin_ns[ends], events.begin_ns[here]))
    _, place = pairs(lane, times)
    offered, wanted = place[: len(ends)], place[len(ends) :]
    order = np.argsort(offered, kind="stable")
    at = np.searchsorted(offered[order], wanted)
    hit = np.flatnonzero(at < len(order))
    hit = hit[offered[order[at[hit]]] == wanted[hit]]
    places = lanes.places_of_flows(trace, starts[order[at[hit]]])
    inside[missing[hit]] = forest.at(places)


def stages(trace: Trace, calls: Rows) -> Rows:
    """Of each call the innermost stage around it on its thread.

    Threads without any stage, such as autograd's, work for the one thread that has stages.
    """
    events = trace.events
    marks = np.flatnonzero(stage_marks(trace))
    if len(marks) == 0 or len(calls) == 0:
        return np.full(len(calls), -1, dtype=np.intp)
    process = processes(trace)
    spans = [pid for pid, name in trace.process_names.items() if name == SPANS]
    if spans:
        program, count = np.unique(process[calls], return_counts=True)
        process = np.where(np.isin(process, spans), program[count.argmax()], process)
    lanes = ThreadIndex(trace, marks, calls, process=process)
    if not lanes.fits:
        return np.full(len(calls), -1, dtype=np.intp)
    of_marks, lane = lanes.of
    forest = Nesting.of(trace, lanes.axis, marks, of_marks)
    with_stages = np.unique(of_marks)
    if len(with_stages) == 1:
        same = lanes.threads[lane][:, 0] == lanes.threads[with_stages[0]][0]
        lane = np.where(same, with_stages[0], lane)
    return _at(forest.rows, forest.at(lanes.axis.place(lane, events.begin_ns[calls])))


# --- Self time of operators ---


_TIMED_SUFFIX = " (dynamo_timed)"
# What Inductor compiled for the host leaves no other event; some builds call it an annotation.
_COMPILED = re.compile(r"^## Call CompiledFxGraph")


@dataclass(frozen=True, slots=True)
class HostOperators:
    """All calls of operators; `own_ns` sums to the time that threads spent in any."""

    rows: Rows
    own_ns: Numbers
    forward: Rows
    """Of operators of a backward pass the row of the forward operator, else -1."""


@once
def host_operators(trace: Trace) -> HostOperators | None:
    """The operators of a trace; None if their times are years apart.

    What torch.compile runs while it compiles, on tensors without data, is left out.
    """
    parts = compiler_parts(trace)
    compiles = np.array(
        [name in parts or name.endswith(_TIMED_SUFFIX) for name in trace.names] + [False],
        dtype=np.bool_,
    )[trace.events.name] & trace.rows_of(["cpu_op"])
    compiled = named(trace, _COMPILED) & trace.rows_of(["cpu_op", "user_annotation"])
    work = trace.rows_of(["cpu_op"]) & ~no_operators(trace)
    rows = np.flatnonzero(work | compiled | compiles)
    lanes = ThreadIndex(trace, rows)
    if not lanes.fits:
        return None
    forest = Nesting.of(trace, lanes.axis, rows, lanes.of[0])
    shown = forest.first_around(compiles[forest.rows]) < 0
    own = np.zeros(len(trace.events), dtype=np.int64)
    own[forest.rows] = forest.own_ns()
    # Events without a duration are in no forest, but they are calls.
    compiles[forest.rows[~shown]] = True
    rows = rows[~compiles[rows]]
    forward = np.full(len(trace.events), -1, dtype=np.intp)
    forward[forest.rows] = forward_operators(trace, lanes, forest)
    return HostOperators(rows, own[rows], forward[rows])
