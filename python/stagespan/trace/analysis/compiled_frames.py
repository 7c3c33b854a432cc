"""Frames that torch.compile made regions of: calls, time, graphs, and their backward passes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stagespan.trace.analysis.compiled_forest import (
    BACKWARD,
    COMPILING,
    GRAPH,
    REGION,
    Forest,
    frame_of,
)
from stagespan.trace.analysis.forward import forward_operators


@dataclass
class Frame:
    """All calls of one frame; times in ns, compiling left out."""

    frame: str | None
    """As torch numbers it; None for regions without a number, and graphs outside of regions."""
    variants: dict[int, int]
    """Calls by variant: variant 1 is the frame's second compilation."""
    calls: int = 0
    time_ns: int = 0
    """Without frames that it calls."""
    graph_ns: int = 0
    """Within graphs."""
    backward_calls: int = 0
    backward_ns: int = 0
    """On the host, of the backward passes that lead back to this frame."""
    function: str | None = None
    """File, line and function, where the trace has Python stacks; behind a break its line."""


@dataclass(frozen=True, slots=True)
class Frames:
    """What ran compiled."""

    frames: list[Frame]
    regions: int
    calls: int
    """Regions that no other region has called."""
    call_ns: int
    """Time of those calls, compiling left out."""
    forward_graphs: int
    backward_graphs: int
    linked: int
    """Backward graphs whose forward graph is known."""


def frames_of(forest: Forest) -> Frames:
    """Group regions by frame, and graphs by the region around them."""
    nodes = forest.nodes
    is_region, is_graph = forest.having(REGION), forest.having(GRAPH, BACKWARD)
    compiling = forest.having(COMPILING)
    labels = [frame_of(name) for name in forest.trace.names]
    regions, graphs = np.flatnonzero(is_region), np.flatnonzero(is_graph)
    found: dict[str | None, Frame] = {}

    def frame(region: int) -> Frame:
        label = labels[forest.name[region]][0] if region >= 0 else None
        return found.setdefault(label, Frame(label, {}))

    own = forest.own_ns(is_region, compiling)
    for region, time in zip(regions.tolist(), own.tolist(), strict=True):
        entry = frame(region)
        entry.calls += 1
        entry.time_ns += time
        variant = labels[forest.name[region]][1]
        if variant is not None:
            entry.variants[variant] = entry.variants.get(variant, 0) + 1
    _, firsts = np.unique(forest.name[regions], return_index=True)
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
    outermost = regions[around[regions] < 0]
    backward_count = int((forest.role == BACKWARD).sum())
    top = np.flatnonzero((forest.role == GRAPH) & (above < 0))
    return Frames(
        frames=sorted(found.values(), key=lambda each: -each.time_ns),
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
    """Of each node the node of the forward operator that it belongs to, or -1."""
    rows = forward_operators(forest.trace, forest.lanes, forest.nodes)
    node = np.full(len(forest.trace.events) + 1, -1, dtype=np.intp)
    node[forest.nodes.rows] = np.arange(len(forest.nodes))
    return node[rows]
