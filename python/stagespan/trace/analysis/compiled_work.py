"""What ran in compiled graphs: Inductor's kernels, and what was left to libraries and to aten."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.analysis.compiled_breaks import NO_WORK
from stagespan.trace.analysis.compiled_forest import (
    BACKWARD,
    GRAPH,
    LOOKUP,
    MARK,
    OPERATOR,
    REGION,
    Forest,
)
from stagespan.trace.analysis.grouping import grouped
from stagespan.trace.analysis.kinds import (
    ATTENTION,
    COMMUNICATION,
    CONVOLUTION,
    MATMUL,
    inductor_kind,
    kind_of,
)
from stagespan.trace.analysis.nesting import Rows
from stagespan.trace.arrays import Numbers
from stagespan.trace.device import device_work, launch_of

TRITON, CPP, EXTERN, COPIES = "inductor_triton", "inductor_cpp", "extern", "copies"
FALLBACK, CUSTOM, USER_TRITON, OTHER = "fallback", "custom", "user_triton", "other"
CLASSES: dict[str, str] = {
    TRITON: "Triton kernels of Inductor",
    CPP: "C++ of Inductor, and what calls it",
    EXTERN: "libraries: matrix products, convolutions, attention",
    COPIES: "copies and fills by aten",
    FALLBACK: "operators left to aten",
    CUSTOM: "custom operators",
    COMMUNICATION: "communication",
    USER_TRITON: "Triton kernels of the user or a library",
    OTHER: "other kernels",
}
"""What can run in a compiled graph, with its name for a reader."""
_COPIES = re.compile(
    r"^aten::(?:copy_|clone|contiguous|fill_|zero_|zeros\w*|ones\w*|full\w*|_to_copy|to)$"
    r"|^(?:Memcpy|Memset)"
)
_LIBRARIES = (MATMUL, CONVOLUTION, ATTENTION)
_CPP = re.compile(r"^(?:graph_\d+_)?cpp_fused_|^## Call CompiledFxGraph|^CompiledFunction")
# How Triton launches: by the driver, where the framework's own kernels go through the runtime.
_DRIVER = re.compile(r"^(?:cu|hipModule|hipDrv)Launch(?:Cooperative)?Kernel")
_PLAIN = re.compile(r"^_?[a-zA-Z]\w*$")
_LIBRARY_KERNEL = re.compile(
    r"^(?:nvjet|sm\d+_|ampere_|volta_|turing_|hopper_|maxwell_|cutlass|cudnn|Cijk_|igemm_|nccl|rccl"
    r"|batched_transpose|bmm_|fmha|miopen|gfx\d|naive_conv|_Z|gemm|xmma|triton_|Subtensor|Conv)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Work:
    """One operator or kernel in compiled graphs (or a user's Triton kernel anywhere); in ns."""

    of: str
    """One of CLASSES."""
    name: str
    calls: int
    """Calls of the operator; launches of the kernel where no operator is around it."""
    host_ns: int | None
    """Duration on the host; of Inductor's C++ the graph's own time. None for kernels alone."""
    device_ns: int | None
    """Sum of the kernels that it launched; None without a device."""


def work_in_graphs(forest: Forest) -> list[Work]:
    """All that ran directly in compiled graphs, the longest first."""
    nodes, trace = forest.nodes, forest.trace
    graphs = forest.having(GRAPH, BACKWARD)
    parent_is_graph = (nodes.parent >= 0) & np.append(graphs, False)[nodes.parent]
    direct = parent_is_graph & ~graphs
    top = np.flatnonzero(direct & (forest.role == OPERATOR))
    host = forest.dur_ns(top)
    found: dict[tuple[str, str], list[int]] = {}
    codes = forest.name[top].astype(np.int64)
    for group in grouped(codes, host):
        name = trace.names[group.code]
        found[_class_of(name), name] = [group.count, group.time_ns, 0]
    device = device_work(trace)
    has_device = bool(device.kind.any())
    if not has_device:
        own = forest.own_ns(graphs, direct)
        cpp = int(own.sum())
        if graphs.any():
            name = "the graphs' own time"
            found[CPP, name] = [len(forest.outermost(graphs)), cpp, 0]
    else:
        _add_kernels(forest, device.rows, graphs, direct, found)
    rows = [
        Work(
            # A change of shape that launched something was a copy after all.
            of or COPIES,
            name,
            calls,
            None if host_ns < 0 else host_ns,
            device_ns if has_device else None,
        )
        for (of, name), (calls, host_ns, device_ns) in found.items()
        if of or device_ns
    ]
    return sorted(rows, key=lambda w: (-(w.device_ns or 0), -(w.host_ns or 0), w.name))


def _add_kernels(
    forest: Forest,
    rows: Rows,
    graphs: NDArray[np.bool_],
    direct: NDArray[np.bool_],
    found: dict[tuple[str, str], list[int]],
) -> None:
    """Device time by the operator in the graph that launched it; else the kernel by its name."""
    trace, events, nodes = forest.trace, forest.trace.events, forest.nodes
    calls = launch_of(trace, rows)
    inside = _inside(forest, calls)
    in_graph = _at(nodes.first_around(graphs), inside) >= 0
    under = _at(nodes.first_around(direct & (forest.role == OPERATOR)), inside)
    by_operator = in_graph & (under >= 0)
    time: Numbers = events.dur_ns[rows]
    if by_operator.any():
        code = forest.name[under[by_operator]].astype(np.int64)
        for group in grouped(code, time[by_operator]):
            name = trace.names[group.code]
            found.setdefault((_class_of(name), name), [0, 0, 0])[2] += group.time_ns
    rest = ~by_operator
    operator = _at(nodes.first_around(forest.role == OPERATOR), inside)
    aten = np.array([name.startswith("aten::") for name in trace.names] + [False])
    by_aten = aten[np.append(forest.name, -1)[operator]] & (operator >= 0)
    driver = np.array([_DRIVER.match(name) is not None for name in trace.names] + [False])
    by_driver = driver[events.name[calls]] & (calls >= 0) & ~by_aten
    code = events.name[rows].astype(np.int64)
    # One group a name and the two things that its class depends on.
    key = (code * 2 + by_driver) * 2 + in_graph
    for group in grouped(key[rest], time[rest]):
        name = trace.names[group.code >> 2]
        of = _class_of_kernel(name, bool(group.code & 2), bool(group.code & 1))
        if of:
            entry = found.setdefault((of, name), [0, -1, 0])
            entry[0] += group.count
            entry[2] += group.time_ns


def _class_of(operator: str) -> str:
    """Class of an operator in a graph; empty for what only allocates or changes a view."""
    if inductor_kind(operator) is not None or operator.startswith("triton_"):
        return TRITON
    if _CPP.match(operator):
        return CPP
    if NO_WORK.match(operator):
        return ""
    if _COPIES.match(operator):
        return COPIES
    kind = kind_of(operator)
    if kind in _LIBRARIES or kind == COMMUNICATION:
        return COMMUNICATION if kind == COMMUNICATION else EXTERN
    return FALLBACK if operator.startswith(("aten::", "prims::")) else CUSTOM


def _class_of_kernel(kernel: str, by_driver: bool, in_graph: bool) -> str:
    """Class of a kernel without an operator in a graph; empty for those outside of all graphs."""
    if inductor_kind(kernel) is not None:
        return TRITON
    if by_driver and _PLAIN.match(kernel) and not _LIBRARY_KERNEL.match(kernel):
        return USER_TRITON
    if not in_graph:
        return ""
    if _COPIES.match(kernel):
        return COPIES
    kind = kind_of(kernel)
    if kind == COMMUNICATION:
        return COMMUNICATION
    return EXTERN if kind in _LIBRARIES else OTHER


def _inside(forest: Forest, calls: Rows) -> Rows:
    """The innermost node around each launching call, or -1."""
    known = np.flatnonzero(calls >= 0)
    found = np.full(len(calls), -1, dtype=np.intp)
    places = forest.places(calls[known])
    there = places >= 0
    found[known[there]] = forest.nodes.at(places[there])
    return found


def _at(values: Rows, index: Rows) -> Rows:
    return np.where(index >= 0, np.append(values, -1)[index], -1)


def triton_by_kind(forest: Forest) -> dict[str, tuple[int, int]]:
    """Inductor's Triton kernels on the device: by kind (poi, red, ...) how many, and their time."""
    trace = forest.trace
    rows = device_work(trace).kernels
    found: dict[str, tuple[int, int]] = {}
    names = trace.events.name[rows].astype(np.int64)
    for group in grouped(names, trace.events.dur_ns[rows]):
        kind = inductor_kind(trace.names[group.code])
        if kind is not None:
            count, time = found.get(kind, (0, 0))
            found[kind] = (count + group.count, time + group.time_ns)
    return found


def eager_calls(forest: Forest) -> Rows:
    """Look-ups of compiled code that found none that fits, and after which nothing was compiled.

    Dynamo runs such calls eagerly: once a frame has reached the limit of recompilations, or because
    the program asked for it.
    """
    nodes = forest.nodes
    # Regions are what a look-up leads to: before torch 2.2 there were none.
    if not forest.having(REGION).any():
        return np.empty(0, dtype=np.intp)
    index = np.flatnonzero(forest.having(LOOKUP))
    others = np.flatnonzero(~forest.having(MARK))
    stride = forest.lanes.axis.stride
    at = np.searchsorted(nodes.begin[others], nodes.end[index])
    known = at < len(others)
    index, after = index[known], others[at[known]]
    same = nodes.begin[index] // stride == nodes.begin[after] // stride
    eager = np.isin(forest.role[after], (OPERATOR, LOOKUP))
    # What lies outside of the region around the look-up is not what it led to.
    around = np.append(nodes.end, np.iinfo(np.int64).max)[nodes.parent[index]]
    found: Rows = index[same & eager & (nodes.begin[after] < around)]
    return found


def lookups(forest: Forest) -> tuple[int, int]:
    """How often dynamo looked for a compiled version of a frame, and the time it took."""
    index = np.flatnonzero(forest.having(LOOKUP))
    return len(index), int(forest.dur_ns(index).sum())
