"""Which forward operator the work of a backward pass belongs to."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.analysis.host_time import named
from stagespan.trace.analysis.nesting import Lanes, Nesting, joined
from stagespan.trace.model import Trace

Rows = NDArray[np.intp]
EVALUATES = "autograd::engine::evaluate_function: "
"""How the operators begin that run one node of the backward pass."""
_NODE = re.compile(r"Backward\d*$")


def forward_operators(trace: Trace, lanes: Lanes, forest: Nesting) -> Rows:
    """Of each operator of the forest the row of its forward operator, or -1.

    By the profiler's arrows from forward to backward; in a trace without them by the sequence
    number that autograd gave both.
    """
    result = np.full(len(forest), -1, dtype=np.intp)
    if len(forest) == 0:
        return result
    linked = _by_arrows(trace, lanes, forest)
    if linked is None:
        linked = _by_sequence(trace, forest)
    if linked is None:
        return result
    target, source = linked
    is_linked = np.zeros(len(forest), dtype=np.bool_)
    is_linked[target] = True
    result[target] = forest.rows[source]
    around = forest.first_around(is_linked)
    return np.where(around >= 0, result[around], -1)


def _by_arrows(trace: Trace, lanes: Lanes, forest: Nesting) -> tuple[Rows, Rows] | None:
    flows = trace.flows
    starts, ends = joined(flows, np.isin(flows.category, trace.category_codes(["fwdbwd"])))
    if len(ends) == 0:
        return None
    source = forest.at(lanes.places_of_flows(trace, starts))
    target = forest.at(lanes.places_of_flows(trace, ends))
    both = (source >= 0) & (target >= 0)
    source, target = source[both], target[both]
    # Of operators that begin at one time the arrow means the outermost.
    while True:
        outer = forest.parent[target]
        same = (outer >= 0) & (forest.begin[outer] == forest.begin[target])
        if not same.any():
            return target, source
        target = np.where(same, outer, target)


def _by_sequence(trace: Trace, forest: Nesting) -> tuple[Rows, Rows] | None:
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
