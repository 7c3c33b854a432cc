"""Operators on the host: how often each ran, and its own time, without that of those in it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.analysis.forward import forward_operators
from stagespan.trace.analysis.host_time import named
from stagespan.trace.analysis.launchers import compiler_parts, no_operators
from stagespan.trace.analysis.nesting import Lanes, Nesting
from stagespan.trace.arrays import Numbers
from stagespan.trace.model import Trace

Rows = NDArray[np.intp]
_TIMED = " (dynamo_timed)"
# What Inductor compiled for the host leaves no other event; some builds call it an annotation.
_COMPILED = re.compile(r"^## Call CompiledFxGraph")


@dataclass(frozen=True, slots=True)
class HostOperators:
    """All calls of operators; `own_ns` sums to the time that threads spent in any."""

    rows: Rows
    own_ns: Numbers
    forward: Rows
    """Of operators of a backward pass the row of the forward operator, else -1."""


def host_operators(trace: Trace) -> HostOperators | None:
    """The operators of a trace; None where their times lie years apart.

    What torch.compile runs while it compiles, on tensors without data, is left out.
    """
    parts = compiler_parts(trace)
    compiles = np.array(
        [name in parts or name.endswith(_TIMED) for name in trace.names] + [False], dtype=np.bool_
    )[trace.events.name] & trace.rows_of(["cpu_op"])
    compiled = named(trace, _COMPILED) & trace.rows_of(["cpu_op", "user_annotation"])
    work = trace.rows_of(["cpu_op"]) & ~no_operators(trace)
    rows = np.flatnonzero(work | compiled | compiles)
    lanes = Lanes(trace, rows)
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
