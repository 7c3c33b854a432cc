"""The modules around calls, which the profiler records with Python stacks."""

from __future__ import annotations

import re

import msgspec
import numpy as np
from numpy.typing import NDArray

from stagespan.trace.derived.threads import named, threads_of
from stagespan.trace.derived.trees import Tree, tree_of
from stagespan.trace.read.intervals import Numbers, Rows
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once

MODULE = "nn.Module: "
"""The beginning of the names of modules' calls."""
_CLASS = re.compile(rf"^{re.escape(MODULE)}(.+?)(?:_\d+)?$")


def class_of_module(name: str) -> str | None:
    """Return the class of a module's call, such as "Linear" of "nn.Module: Linear_3"; or None."""
    match = _CLASS.match(name)
    return match[1] if match else None


class ModuleCalls(msgspec.Struct, frozen=True):
    """All calls of modules that have a duration."""

    trace: Trace
    rows: Rows
    """Ascending rows of `trace.events`; `thread` and `tree` have one element for each."""
    threads: NDArray[np.int64]
    """Process and thread of each number."""
    thread: Numbers
    tree: Tree

    def around(self, rows: Rows) -> Rows:
        """Return the innermost call in which each event begins, or -1, also for an event of -1.

        It is an index into `rows` of this class.
        """
        result = np.full(len(rows), -1, dtype=np.intp)
        with_row = rows >= 0
        if with_row.any():
            begin_ns = self.trace.events.begin_ns[rows[with_row]]
            thread = threads_of(self.threads, self.trace, rows[with_row])
            result[with_row] = self.tree.at(thread, begin_ns)
        return result


@once
def module_calls(trace: Trace) -> ModuleCalls | None:
    """Find the calls of modules; None if there are none."""
    is_module = trace.rows_of(["python_function"]) & named(trace, _CLASS)
    rows = np.flatnonzero(is_module & (trace.events.dur_ns > 0))
    if len(rows) == 0:
        return None
    tree, threads, thread = tree_of(trace, rows)
    return ModuleCalls(trace, rows, threads, thread, tree)
