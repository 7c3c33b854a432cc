"""The events of torch.compile in a trace: regions, graphs, look-ups, compiling, and what is within.

Names are those of torch 2.0 to 2.13: `Torch-Compiled Region: F/V` is the V-th compilation of frame
F (before torch 2.5 without numbers, before 2.2 without regions), `CompiledFunction` a graph that
autograd sees, `## Call CompiledFxGraph` one that Inductor made.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.analysis.host_time import named, processes
from stagespan.trace.analysis.launchers import NO_OPERATOR, compiler_parts
from stagespan.trace.analysis.nesting import Lanes, Nesting, Rows
from stagespan.trace.arrays import Mask, Numbers
from stagespan.trace.model import Trace

OPERATOR, REGION, GRAPH, BACKWARD, LOOKUP, COMPILING, MARK = range(7)
REGIONS = re.compile(r"^Torch-Compiled Region(?:: (?P<frame>.+)/(?P<variant>\d{1,9})(?!\d))?")
_ROLES: tuple[tuple[int, re.Pattern[str]], ...] = (
    (REGION, REGIONS),
    (BACKWARD, re.compile(r"^CompiledFunctionBackward$")),
    (GRAPH, re.compile(r"^CompiledFunction$|^## Call CompiledFxGraph")),
    (LOOKUP, re.compile(r"^TorchDynamo Cache Lookup$")),
    (COMPILING, re.compile(r" \(dynamo_timed\)$")),
    (MARK, NO_OPERATOR),
)
SIGNS = re.compile(
    r"^Torch-Compiled Region|^CompiledFunction|^## Call CompiledFxGraph| \(dynamo_timed\)$|^triton_"
)
"""Without any of these names a trace shows nothing of torch.compile."""
_RESUMES = re.compile(r"^(.+\.py\(\d+\)): (?:torch_dynamo_)?resume_in_(.+)_at_\d+$")
_OF_TORCH = re.compile(r"(?:^|/)torch/|^<built-in")


@dataclass(frozen=True)
class Forest:
    """Operators, regions and graphs of all threads, each within what is around it."""

    trace: Trace
    lanes: Lanes
    nodes: Nesting
    role: NDArray[np.int8]
    """Of each node OPERATOR, REGION, GRAPH, BACKWARD, LOOKUP, COMPILING or MARK."""

    @functools.cached_property
    def name(self) -> NDArray[np.int32]:
        """Of each node the code of its name."""
        return self.trace.events.name[self.nodes.rows]

    def names(self, index: Rows) -> list[str]:
        """Names of some nodes."""
        return [self.trace.names[code] for code in self.name[index]]

    def having(self, *roles: int) -> Mask:
        """Which nodes have one of the roles."""
        return np.isin(self.role, roles)

    def around(self, chosen: Mask) -> Rows:
        """Of each node the innermost chosen one around it, itself left out, or -1."""
        return self._above(self.nodes.first_around(chosen))

    def outermost(self, chosen: Mask) -> Rows:
        """Those of the chosen nodes that are within no other of them."""
        return np.flatnonzero(chosen & (self.around(chosen) < 0))

    def own_ns(self, chosen: Mask, without: Mask) -> Numbers:
        """Of each chosen node its time less that of other chosen ones, and of `without`, in it."""
        both = np.flatnonzero(chosen | without)
        inner = Nesting(
            self.lanes.axis, np.arange(len(both)), self.nodes.begin[both], self.nodes.end[both]
        )
        own = np.zeros(len(self.nodes), dtype=np.int64)
        own[both[inner.rows]] = inner.own_ns()
        return own[chosen]

    def dur_ns(self, index: Rows) -> Numbers:
        """Durations of some nodes."""
        result: Numbers = self.nodes.end[index] - self.nodes.begin[index]
        return result

    def places(self, rows: Rows) -> Numbers:
        """Where other events begin on the axis; -1 for those of threads without a node."""
        events, process = self.trace.events, processes(self.trace)
        place: Numbers = np.full(len(rows), -1, dtype=np.int64)
        for lane, (pid, tid) in enumerate(self.lanes.threads):
            here = np.flatnonzero((process[rows] == pid) & (events.tid[rows] == tid))
            begin = events.begin_ns[rows[here]]
            place[here] = self.lanes.axis.place(np.full(len(here), lane), begin)
        return place

    def functions(self, index: Rows) -> list[str | None]:
        """The Python function that each of some regions runs; None without Python stacks.

        It is the first that is called in the region. Of a frame that goes on behind a graph break
        the line is that of the break: `model.py(5): forward` for `resume_in_forward_at_5`.
        """
        trace = self.trace
        rows = np.flatnonzero(trace.rows_of(["python_function"]))
        if len(rows) == 0 or len(index) == 0:
            return [None] * len(index)
        places = self.places(rows)
        order = np.argsort(places, kind="stable")
        rows, places = rows[order], places[order]
        at = np.searchsorted(places, self.nodes.begin[index], side="left")
        inside = at < len(places)
        inside[inside] = places[at[inside]] < self.nodes.end[index[inside]]
        names = trace.events.name[rows[np.minimum(at, len(rows) - 1)]].tolist()
        return [
            _function(trace.names[name]) if known else None
            for name, known in zip(names, inside.tolist(), strict=True)
        ]

    def _above(self, found: Rows) -> Rows:
        parent = self.nodes.parent
        return np.where(parent >= 0, np.append(found, -1)[parent], -1)


def forest_of(trace: Trace) -> Forest | None:
    """Build it; None where times lie years apart."""
    annotations = trace.rows_of(["user_annotation"]) & named(trace, _ROLES[2][1])
    rows = np.flatnonzero(trace.rows_of(["cpu_op"]) | annotations)
    lanes = Lanes(trace, rows)
    if not lanes.fits:
        return None
    nodes = Nesting.of(trace, lanes.axis, rows, lanes.of[0])
    parts = compiler_parts(trace)
    table = np.zeros(len(trace.names) + 1, dtype=np.int8)
    for code, name in enumerate(trace.names):
        role = next((role for role, rule in _ROLES if rule.search(name)), OPERATOR)
        table[code] = COMPILING if role == OPERATOR and name in parts else role
    return Forest(trace, lanes, nodes, table[trace.events.name[nodes.rows]])


def _function(name: str) -> str | None:
    """A frame's name as the user knows it; None for one of the framework."""
    if _OF_TORCH.search(name) is not None:
        return None
    return _RESUMES.sub(r"\1: \2", name)


def frame_of(name: str) -> tuple[str | None, int | None]:
    """Frame and variant of a region's name; None where it has no numbers."""
    found = REGIONS.match(name)
    if found is None or found["frame"] is None:
        return None, None
    return found["frame"], int(found["variant"])
