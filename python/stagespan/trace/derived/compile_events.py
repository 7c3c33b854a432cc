"""The events of torch.compile in a trace: regions, frames, graph breaks, work.

The names are those of torch 2.0 to 2.13: `Torch-Compiled Region: F/V` is compilation V of frame F
(torch 2.2 to 2.4 write no numbers, earlier versions no regions), `CompiledFunction` is a graph that
autograd sees, and `## Call CompiledFxGraph` is one that Inductor made.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Collection
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from stagespan.pages.figures import Count, CountedTime, Figures, Internal, Ns, one_of
from stagespan.trace.derived import trees
from stagespan.trace.derived.device import device_work, launch_of
from stagespan.trace.derived.kernel_kinds import (
    ATTENTION,
    COMMUNICATION,
    CONVOLUTION,
    MATMUL,
    inductor_kind,
    kind_of,
)
from stagespan.trace.derived.launch_sources import (
    NO_OPERATOR,
    compiler_parts,
    forward_operators,
    values_at,
)
from stagespan.trace.derived.threads import ThreadIndex, named, names_with, processes
from stagespan.trace.derived.trees import Nesting
from stagespan.trace.read.groups import firsts_of, grouped, numbered, values_of
from stagespan.trace.read.intervals import ROW, Cover, Mask, Numbers, Rows
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once

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
"""A trace without any of these names does not use torch.compile."""
_RUNS = re.compile(
    r"^(?:Torch-Compiled Region|CompiledFunction|## Call CompiledFxGraph|CompiledFxGraph)"
)
MOST_IN_JSON = 50
_RESUMES = re.compile(r"^(.+\.py\(\d+\)): (?:torch_dynamo_)?resume_in_(.+)_at_\d+$")
_OF_TORCH = re.compile(r"(?:^|/)torch/|^<built-in")


def runs_compiled(trace: Trace) -> bool:
    """Return whether code that torch.compile made ran."""
    return bool(names_with(trace, _RUNS).any())


class Forest(msgspec.Struct, frozen=True, dict=True):
    """The nested operators, regions and graphs of all threads."""

    trace: Trace
    index: ThreadIndex
    nodes: Nesting
    role: NDArray[np.int8]
    """The role of each node: OPERATOR, REGION, GRAPH, BACKWARD, LOOKUP, COMPILING or MARK."""

    @functools.cached_property
    def name(self) -> NDArray[np.int32]:
        """The code of each node's name."""
        return self.trace.events.name[self.nodes.rows]

    def names(self, index: Rows) -> list[str]:
        """Return the names of some nodes."""
        return [self.trace.names[code] for code in self.name[index]]

    def having(self, *roles: int) -> Mask:
        """Return which nodes have one of the roles."""
        return np.isin(self.role, roles)

    def around(self, chosen: Mask) -> Rows:
        """Return the innermost chosen node around each node, or -1."""
        if not chosen.any():
            return np.full(len(chosen), -1, dtype=np.intp)
        return self._above(self.nodes.first_around(chosen))

    def outermost(self, chosen: Mask) -> Rows:
        """Return the chosen nodes that are not inside another chosen node."""
        return np.flatnonzero(chosen & (self.around(chosen) < 0))

    def own_ns(self, chosen: Mask, without: Mask) -> Numbers:
        """Return the time of each chosen node without chosen nodes, and `without`, inside it."""
        both = np.flatnonzero(chosen | without)
        inner = Nesting(
            self.index.axis, np.arange(len(both)), self.nodes.begin[both], self.nodes.end[both]
        )
        own = np.zeros(len(self.nodes), dtype=np.int64)
        own[both[inner.rows]] = inner.own_ns()
        return own[chosen]

    def dur_ns(self, index: Rows) -> Numbers:
        """Return the durations of some nodes."""
        result: Numbers = self.nodes.end[index] - self.nodes.begin[index]
        return result

    def places(self, rows: Rows) -> Numbers:
        """Return the places of other events on the axis; -1 on threads without a node."""
        events, process = self.trace.events, processes(self.trace)
        return self.index.places(process[rows], events.tid[rows], events.begin_ns[rows])

    def functions(self, index: Rows) -> list[str | None]:
        """Return the Python function of each region; None without Python stacks.

        It is the first function that is called in the region. If a frame resumes after a graph
        break, the line is that of the break: `model.py(5): forward` for `resume_in_forward_at_5`.
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

    def _above(self, nodes: Rows) -> Rows:
        return np.append(nodes, nodes.dtype.type(-1))[self.nodes.parent]


@once
def forest_of(trace: Trace) -> Forest | None:
    """Build the forest; None if timestamps span several years."""
    annotations = trace.rows_of(["user_annotation"]) & named(trace, _ROLES[2][1])
    rows = np.flatnonzero(trace.rows_of(["cpu_op"]) | annotations)
    nested = trees.forest_of(trace, rows)
    if nested is None:
        return None
    index, nodes = nested
    parts = compiler_parts(trace)
    table = np.zeros(len(trace.names) + 1, dtype=np.int8)
    for code in values_of(trace.events.name[nodes.rows]).tolist():
        name = trace.names[code]
        role = next((role for role, rule in _ROLES if rule.search(name)), OPERATOR)
        table[code] = COMPILING if role == OPERATOR and name in parts else role
    return Forest(trace, index, nodes, table[trace.events.name[nodes.rows]])


def _function(name: str) -> str | None:
    """Return a frame's name for the user; None for frames of the framework."""
    if _OF_TORCH.search(name) is not None:
        return None
    return _RESUMES.sub(r"\1: \2", name)


def frame_of(name: str) -> tuple[str | None, int | None]:
    """Return frame and variant in a region's name; None if it has no numbers."""
    match = REGIONS.match(name)
    if match is None or match["frame"] is None:
        return None, None
    return match["frame"], int(match["variant"])


# --- Frames and regions ---


# Not frozen, because `frames_of` sums into it.
class Frame(Figures, frozen=False):  # type: ignore[misc]
    """All calls of one frame; times in ns, without compilation."""

    frame: str | None
    """torch's number of the frame; None for regions without numbers, and graphs outside regions."""
    function: str | None = None
    """File, line and function if the trace has Python stacks; after a break, the line of the
    break."""
    variants: dict[str, Count] = msgspec.field(default_factory=dict)
    """Calls by variant: variant 1 is the frame's second compilation."""
    calls: Count = 0
    time_ns: Ns = 0
    """The time without the frames that it calls."""
    graph_ns: Ns = 0
    """Within graphs."""
    backward_calls: Count = 0
    backward_ns: Ns = 0
    """Host time of the backward passes of this frame."""


class Frames(msgspec.Struct, frozen=True):
    """The frames that ran compiled."""

    frames: list[Frame]
    regions: int
    calls: int
    """The number of regions that no other region has called."""
    call_ns: int
    """The time of these calls, without compilation."""
    forward_graphs: int
    backward_graphs: int
    linked: int
    """The number of backward graphs with a known forward graph."""

    @property
    def functions(self) -> dict[str, str]:
        """The function of each frame, if known."""
        return {f.frame: f.function for f in self.frames if f.frame is not None and f.function}

    @property
    def ran(self) -> set[str]:
        """The frames and variants that ran within the window, as torch writes them."""
        return {f"{f.frame}/{variant}" for f in self.frames for variant in f.variants}


def frames_of(forest: Forest) -> Frames:
    """Group regions by frame, and graphs by the region around them."""
    nodes = forest.nodes
    is_region, is_graph = forest.having(REGION), forest.having(GRAPH, BACKWARD)
    compiling = forest.having(COMPILING)
    labels = [frame_of(name) for name in forest.trace.names]
    regions, graphs = np.flatnonzero(is_region), np.flatnonzero(is_graph)
    frames: dict[str | None, Frame] = {}

    def frame(region: int) -> Frame:
        label = labels[forest.name[region]][0] if region >= 0 else None
        return frames.setdefault(label, Frame(label))

    own = forest.own_ns(is_region, compiling)
    for region, time in zip(regions.tolist(), own.tolist(), strict=True):
        entry = frame(region)
        entry.calls += 1
        entry.time_ns += time
        variant = labels[forest.name[region]][1]
        if variant is not None:
            entry.variants[str(variant)] = entry.variants.get(str(variant), 0) + 1
    _, firsts = firsts_of(forest.name[regions])
    for region, function in zip(
        regions[firsts].tolist(), forest.functions(regions[firsts]), strict=True
    ):
        if labels[forest.name[region]][0] is not None:
            frame(region).function = frame(region).function or function
    around = forest.around(is_region)
    above = forest.around(is_graph)
    forward = _forward_nodes(forest)
    graph_own = forest.own_ns(is_graph, compiling)
    within_backward = forest.around(forest.role == BACKWARD)
    linked = 0
    for graph, time in zip(graphs.tolist(), graph_own.tolist(), strict=True):
        backward = graph if forest.role[graph] == BACKWARD else within_backward[graph]
        if backward >= 0:
            source = forward[backward]
            entry = frame(around[source] if source >= 0 else -1)
            entry.backward_ns += time
            if backward == graph:
                entry.backward_calls += 1
                linked += source >= 0
        else:
            entry = frame(around[graph])
            entry.graph_ns += time
            if around[graph] < 0 and above[graph] < 0:
                entry.calls += 1
                entry.time_ns += int(nodes.end[graph] - nodes.begin[graph])
    for entry in frames.values():
        entry.variants = dict(sorted(entry.variants.items(), key=lambda item: int(item[0])))
    outermost = regions[around[regions] < 0]
    backward_count = int((forest.role == BACKWARD).sum())
    top = np.flatnonzero((forest.role == GRAPH) & (above < 0))
    return Frames(
        frames=sorted(frames.values(), key=lambda each: -each.time_ns),
        regions=len(regions),
        calls=len(outermost),
        call_ns=_without_compiling(forest, outermost),
        forward_graphs=len(top),
        backward_graphs=backward_count,
        linked=int(linked),
    )


def _without_compiling(forest: Forest, index: np.ndarray) -> int:
    chosen = np.zeros(len(forest.nodes), dtype=np.bool_)
    chosen[index] = True
    return int(forest.own_ns(chosen, forest.having(COMPILING)).sum())


def _forward_nodes(forest: Forest) -> np.ndarray:
    """Return the node of each node's forward operator, or -1."""
    rows = forward_operators(forest.trace, forest.index, forest.nodes)
    node = np.full(len(forest.trace.events) + 1, -1, dtype=ROW)
    node[forest.nodes.rows] = np.arange(len(forest.nodes), dtype=ROW)
    return node[rows]


# --- Graph breaks ---


# Operators that only restore the shapes of outputs or allocate.
NO_WORK = re.compile(
    r"^aten::(?:empty\w*|as_strided\w*|_?reinterpret_tensor|view\w*|_?unsafe_view|t|transpose|permute|expand"
    r"|slice|select|squeeze|unsqueeze|detach\w*|alias|resize_|resolve_\w+|_reshape_alias|reshape"
    r"|new_empty\w*|lift_fresh|set_)$|^detach$"
)


class Break(Figures, frozen=True):
    """All graph breaks between two frames; times in ns."""

    before: str
    """The frame before the break; `?` if regions have no numbers."""
    after: str
    """The frame that continues."""
    line: str | None
    """The line of the break, if the trace has Python stacks."""
    count: Count
    time_ns: Ns | None
    """From the end of a graph or region to the start of the next one, without compilation. None if
    the trace shows no graphs, as with backends that create none, because graphs and the time
    between them cannot be distinguished then."""
    operators: dict[str, Count] | None
    """The operators outside of graphs between them, with counts; None like `time_ns`."""
    called: dict[str, Count]
    """The frames that were called between them, with counts. They are compiled separately."""
    nodes: Internal[Rows]
    """The regions that continued, in the order of time."""


def breaks_of(forest: Forest, functions: dict[str, str]) -> list[Break]:
    """Find graph breaks: regions inside regions, the most frequent pair of frames first.

    A region inside a graph is not a break: there, an operator calls another compiled function.
    """
    nodes = forest.nodes
    parts = forest.having(REGION, GRAPH, BACKWARD)
    around = forest.around(parts)
    in_region = np.append(forest.role, -1)[around] == REGION
    inside = np.flatnonzero(parts & in_region & (around >= 0))
    if not (forest.role[inside] == REGION).any():
        return []
    # The parts of one region follow each other: each gap begins at the end of the previous part.
    inside = inside[np.lexsort((nodes.begin[inside], around[inside]))]
    follows = np.concatenate(([False], around[inside][1:] == around[inside][:-1]))
    gap_begin = np.where(follows, np.roll(nodes.end[inside], 1), nodes.begin[around[inside]])
    is_break = forest.role[inside] == REGION
    after, gap_begin = inside[is_break], gap_begin[is_break]
    gap_end = nodes.begin[after]
    compiling = np.flatnonzero(forest.having(COMPILING))
    compiled = Cover(nodes.begin[compiling], nodes.end[compiling])
    time = gap_end - gap_begin - compiled.length(gap_begin, gap_end)
    # A region with operators but without a graph belongs to a backend that creates no graphs.
    unclear = np.zeros(len(nodes), dtype=np.bool_)
    unclear[around[_working(forest, around)]] = True
    unclear[around[inside[~is_break]]] = False
    seen = ~unclear[around[after]]
    between = _operators_between(forest, gap_begin, gap_end, around)
    # A frame breaks once: the last part follows the break, and frames before it were called inside.
    broken, number = numbered(around[after])
    last = np.searchsorted(number, np.arange(len(broken)), side="right") - 1
    time = np.bincount(number, weights=time).astype(np.int64)
    groups: dict[tuple[str, str], list[int]] = {}
    frames = [frame_of(name)[0] or "?" for name in forest.trace.names]
    for at, (left, resumed) in enumerate(
        zip(forest.name[broken].tolist(), forest.name[after[last]].tolist(), strict=True)
    ):
        groups.setdefault((frames[left], frames[resumed]), []).append(at)
    breaks = []
    for (before, following), members in groups.items():
        index = np.array(members)
        is_seen = bool(seen[last[index]].all())
        parts_of = np.flatnonzero(np.isin(number, index))
        operators = Counter(name for part in parts_of.tolist() for name in between.get(part, ()))
        calls = parts_of[~np.isin(parts_of, last)]
        called = Counter(frames[code] for code in forest.name[after[calls]].tolist())
        breaks.append(
            Break(
                before,
                following,
                functions.get(following),
                len(members),
                int(time[index].sum()) if is_seen else None,
                dict(operators.most_common()) if is_seen else None,
                dict(called.most_common()),
                after[last[index]],
            )
        )
    return sorted(breaks, key=lambda each: (-each.count, each.before, each.after))


def _operators_between(
    forest: Forest, gap_begin: Rows, gap_end: Rows, around: Rows
) -> dict[int, list[str]]:
    """Return the outermost operators outside of graphs, by gap."""
    nodes = forest.nodes
    held = _working(forest, around)
    above = forest.around(forest.having(OPERATOR, COMPILING))[held]
    # An operator is outermost if its parent, if any, is outside the region.
    held = held[(above < 0) | (above < around[held])]
    order = np.argsort(gap_begin, kind="stable")
    at = np.searchsorted(gap_begin[order], nodes.begin[held], side="right") - 1
    hit = at >= 0
    gap = order[at[hit]]
    held = held[hit]
    inside = nodes.end[held] <= gap_end[gap]
    operators: dict[int, list[str]] = {}
    for which, name in zip(gap[inside].tolist(), forest.names(held[inside]), strict=True):
        operators.setdefault(which, []).append(name)
    return operators


def _working(forest: Forest, around: Rows) -> Rows:
    """Return operators that are in a region but not in a graph, and do some work."""
    works = np.array([NO_WORK.match(name) is None for name in forest.trace.names] + [False])
    held = np.flatnonzero((forest.role == OPERATOR) & (around >= 0) & works[forest.name])
    found: Rows = held[forest.role[around[held]] == REGION]
    return found


# --- Work in compiled graphs ---


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
"""The classes of work in compiled graphs, with their names on pages."""
_COPIES = re.compile(
    r"^aten::(?:copy_|clone|contiguous|fill_|zero_|zeros\w*|ones\w*|full\w*|_to_copy|to)$"
    r"|^(?:Memcpy|Memset)"
)
_LIBRARIES = (MATMUL, CONVOLUTION, ATTENTION)
_CPP = re.compile(r"^(?:graph_\d+_)?cpp_fused_|^## Call CompiledFxGraph|^CompiledFunction")
# Triton launches through the driver, the framework's own kernels through the runtime.
_DRIVER = re.compile(r"^(?:cu|hipModule|hipDrv)Launch(?:Cooperative)?Kernel")
_PLAIN = re.compile(r"^_?[a-zA-Z]\w*$")
_LIBRARY_KERNEL = re.compile(
    r"^(?:nvjet|sm\d+_|ampere_|volta_|turing_|hopper_|maxwell_|cutlass|cudnn|Cijk_|igemm_|nccl|rccl"
    r"|batched_transpose|bmm_|fmha|miopen|gfx\d|naive_conv|_Z|gemm|xmma|triton_|Subtensor|Conv)",
    re.IGNORECASE,
)


class Work(Figures, frozen=True):
    """One operator or kernel in compiled graphs (or a user's Triton kernel anywhere); in ns."""

    of: Annotated[str, one_of(CLASSES)]
    name: str
    calls: Count
    """Calls of the operator, or launches of the kernel if no operator is around it."""
    host_ns: Ns | None
    """Host time; for Inductor's C++, the graph's own time. None for kernels without an operator."""
    device_ns: Ns | None
    """Total time of the kernels that it launched; None without a device."""


def work_in_graphs(forest: Forest) -> list[Work]:
    """Return the work directly inside compiled graphs, the longest first."""
    trace = forest.trace
    graphs, direct = _direct(forest)
    top = np.flatnonzero(direct & (forest.role == OPERATOR))
    host = forest.dur_ns(top)
    sums: dict[tuple[str, str], list[int]] = {}
    codes = forest.name[top].astype(np.int64)
    for group in grouped(codes, host):
        name = trace.names[group.code]
        sums[_class_of(name), name] = [group.count, group.time_ns, 0]
    device = device_work(trace)
    has_device = bool(device.kind.any())
    if not has_device:
        own = forest.own_ns(graphs, direct)
        cpp = int(own.sum())
        if graphs.any():
            name = "the graphs' own time"
            sums[CPP, name] = [len(forest.outermost(graphs)), cpp, 0]
    else:
        _add_kernels(forest, device.rows, graphs, direct, sums)
    rows = [
        Work(
            # A change of shape that launched a kernel was a copy.
            of or COPIES,
            name,
            calls,
            None if host_ns < 0 else host_ns,
            device_ns if has_device else None,
        )
        for (of, name), (calls, host_ns, device_ns) in sums.items()
        if of or device_ns
    ]
    return sorted(rows, key=lambda w: (-(w.device_ns or 0), -(w.host_ns or 0), w.name))


def _add_kernels(
    forest: Forest,
    rows: Rows,
    graphs: NDArray[np.bool_],
    direct: NDArray[np.bool_],
    sums: dict[tuple[str, str], list[int]],
) -> None:
    """Add device time to the operator in the graph that launched it, or else to the kernel."""
    trace, events, nodes = forest.trace, forest.trace.events, forest.nodes
    calls = launch_of(trace, rows)
    inside = _inside(forest, calls)
    in_graph = values_at(nodes.first_around(graphs), inside) >= 0
    under = _operator_around(forest, graphs, direct, inside)
    by_operator = under >= 0
    time: Numbers = events.dur_ns[rows]
    if by_operator.any():
        code = forest.name[under[by_operator]].astype(np.int64)
        for group in grouped(code, time[by_operator]):
            name = trace.names[group.code]
            sums.setdefault((_class_of(name), name), [0, 0, 0])[2] += group.time_ns
    elsewhere = ~by_operator
    operator = values_at(nodes.first_around(forest.role == OPERATOR), inside)
    aten = np.array([name.startswith("aten::") for name in trace.names] + [False])
    by_aten = aten[np.append(forest.name, -1)[operator]] & (operator >= 0)
    driver = np.array([_DRIVER.match(name) is not None for name in trace.names] + [False])
    by_driver = driver[events.name[calls]] & (calls >= 0) & ~by_aten
    code = events.name[rows].astype(np.int64)
    # One group for each name and the two facts on which its class depends.
    key = (code * 2 + by_driver) * 2 + in_graph
    for group in grouped(key[elsewhere], time[elsewhere]):
        name = trace.names[group.code >> 2]
        of = _class_of_kernel(name, bool(group.code & 2), bool(group.code & 1))
        if of:
            entry = sums.setdefault((of, name), [0, -1, 0])
            entry[0] += group.count
            entry[2] += group.time_ns


def _operator_around(
    forest: Forest, graphs: NDArray[np.bool_], direct: NDArray[np.bool_], inside: Rows
) -> Rows:
    """Return the operator directly inside a graph around each of some nodes, or -1."""
    nodes = forest.nodes
    in_graph = values_at(nodes.first_around(graphs), inside) >= 0
    under = values_at(nodes.first_around(direct & (forest.role == OPERATOR)), inside)
    found: Rows = np.where(in_graph, under, -1)
    return found


def launched_in_graphs(forest: Forest, operators: Collection[str]) -> Rows:
    """Return the device events that operators of some names in compiled graphs launched."""
    trace = forest.trace
    rows = device_work(trace).rows
    graphs, direct = _direct(forest)
    calls = launch_of(trace, rows)
    under = _operator_around(forest, graphs, direct, _inside(forest, calls))
    chosen = np.array([name in operators for name in trace.names] + [False])
    found: Rows = rows[chosen[np.append(forest.name, -1)[under]] & (under >= 0)]
    return found


def _direct(forest: Forest) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which nodes are graphs, and which are directly inside one."""
    nodes = forest.nodes
    graphs = forest.having(GRAPH, BACKWARD)
    parent_is_graph = (nodes.parent >= 0) & np.append(graphs, False)[nodes.parent]
    return graphs, parent_is_graph & ~graphs


def _class_of(operator: str) -> str:
    """Return the class of an operator in a graph; "" if it only allocates or changes a view."""
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
    """Return the class of a kernel without an operator in a graph; "" outside of graphs."""
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
    """Return the innermost node around each launching call, or -1."""
    launched = np.flatnonzero(calls >= 0)
    nodes = np.full(len(calls), -1, dtype=np.intp)
    places = forest.places(calls[launched])
    there = places >= 0
    nodes[launched[there]] = forest.nodes.at(places[there])
    return nodes


def triton_by_kind(forest: Forest) -> dict[str, CountedTime]:
    """Return count and time of Inductor's Triton kernels, by kind (poi, red, ...)."""
    trace = forest.trace
    rows = device_work(trace).kernels
    by_kind: dict[str, CountedTime] = {}
    names = trace.events.name[rows].astype(np.int64)
    for group in grouped(names, trace.events.dur_ns[rows]):
        kind = inductor_kind(trace.names[group.code])
        if kind is not None:
            so_far = by_kind.get(kind, CountedTime(0, 0))
            count, time = so_far.count + group.count, so_far.time_ns + group.time_ns
            by_kind[kind] = CountedTime(count, time)
    return by_kind


def eager_calls(forest: Forest) -> Rows:
    """Return the look-ups that found no compiled code, and after which nothing was compiled.

    Dynamo runs such calls eagerly, because the frame has reached the limit of recompilations, or
    because the program requested it.
    """
    nodes = forest.nodes
    # A successful look-up is followed by a region; before torch 2.2, there were none.
    if not forest.having(REGION).any():
        return np.empty(0, dtype=np.intp)
    index = np.flatnonzero(forest.having(LOOKUP))
    others = np.flatnonzero(~forest.having(MARK))
    stride = forest.index.axis.stride
    at = np.searchsorted(nodes.begin[others], nodes.end[index])
    known = at < len(others)
    index, after = index[known], others[at[known]]
    same = nodes.begin[index] // stride == nodes.begin[after] // stride
    eager = np.isin(forest.role[after], (OPERATOR, LOOKUP))
    # Events outside of the region around the look-up do not belong to it.
    around = np.append(nodes.end, np.iinfo(np.int64).max)[nodes.parent[index]]
    found: Rows = index[same & eager & (nodes.begin[after] < around)]
    return found


def lookups(forest: Forest) -> CountedTime:
    """Return the number and the time of dynamo's look-ups of compiled code."""
    index = np.flatnonzero(forest.having(LOOKUP))
    return CountedTime(len(index), int(forest.dur_ns(index).sum()))
