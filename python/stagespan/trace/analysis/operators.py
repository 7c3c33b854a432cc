"""Operators on the host: how often each ran, and its own time, without that of those in it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.analysis.host_time import named
from stagespan.trace.analysis.launchers import NO_OPERATOR
from stagespan.trace.analysis.nesting import Lanes, Nesting
from stagespan.trace.model import Numbers, Trace

Rows = NDArray[np.intp]
# What Inductor compiled for the host leaves no other event; some builds call it an annotation.
_COMPILED = re.compile(r"^## Call CompiledFxGraph")


@dataclass(frozen=True, slots=True)
class HostOperators:
    """All calls of operators; `own_ns` sums to the time that threads spent in any."""

    rows: Rows
    own_ns: Numbers


def host_operators(trace: Trace) -> HostOperators | None:
    """The operators of a trace; None where their times lie years apart."""
    compiled = named(trace, _COMPILED)
    work = trace.rows_of(["cpu_op"]) & ~named(trace, NO_OPERATOR)
    rows = np.flatnonzero(work | (compiled & trace.rows_of(["cpu_op", "user_annotation"])))
    lanes = Lanes(trace, rows)
    if not lanes.fits:
        return None
    forest = Nesting.of(trace, lanes.axis, rows, lanes.of[0])
    own = np.zeros(len(trace.events), dtype=np.int64)
    own[forest.rows] = forest.own_ns()
    return HostOperators(rows, own[rows])
