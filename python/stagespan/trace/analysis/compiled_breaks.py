"""Graph breaks: which frame follows which within one call, and what ran between them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from stagespan.trace.analysis.axis import Cover
from stagespan.trace.analysis.compiled_forest import (
    BACKWARD,
    COMPILING,
    GRAPH,
    OPERATOR,
    REGION,
    Forest,
    frame_of,
)
from stagespan.trace.analysis.nesting import Rows

# What gives outputs their shape again, and allocates: no work of the program's.
NO_WORK = re.compile(
    r"^aten::(?:empty\w*|as_strided\w*|_?reinterpret_tensor|view\w*|_?unsafe_view|t|transpose|permute|expand"
    r"|slice|select|squeeze|unsqueeze|detach\w*|alias|resize_|resolve_\w+|_reshape_alias|reshape"
    r"|new_empty\w*|lift_fresh|set_)$|^detach$"
)


@dataclass(frozen=True, slots=True)
class Break:
    """All graph breaks between two frames; times in ns."""

    before: str
    """The frame that was left, `?` where regions have no numbers."""
    after: str
    """The frame that went on."""
    count: int
    time_ns: int | None
    """From the end of a graph or region to the begin of the next one, compiling left out.

    None where the trace does not show graphs, as with backends that make none: then what is
    between them cannot be told from what is in them.
    """
    operators: dict[str, int] | None
    """What ran outside of graphs between them, by how often; None as `time_ns`."""
    called: dict[str, int]
    """Frames that were called between them, by how often: they are compiled by themselves."""
    nodes: Rows
    """The regions that went on, in the order of time."""


def breaks_of(forest: Forest) -> list[Break]:
    """Regions that hold regions, the most frequent pair of frames first.

    A region within a graph is none: there an operator calls a compiled function of its own.
    """
    nodes = forest.nodes
    parts = forest.having(REGION, GRAPH, BACKWARD)
    around = forest.around(parts)
    holds = np.append(forest.role, -1)[around] == REGION
    inside = np.flatnonzero(parts & holds & (around >= 0))
    if not (forest.role[inside] == REGION).any():
        return []
    # Parts of one region lie behind each other: each gap begins where the part before ended.
    inside = inside[np.lexsort((nodes.begin[inside], around[inside]))]
    follows = np.concatenate(([False], around[inside][1:] == around[inside][:-1]))
    gap_begin = np.where(follows, np.roll(nodes.end[inside], 1), nodes.begin[around[inside]])
    is_break = forest.role[inside] == REGION
    after, gap_begin = inside[is_break], gap_begin[is_break]
    gap_end = nodes.begin[after]
    compiling = np.flatnonzero(forest.having(COMPILING))
    compiled = Cover(nodes.begin[compiling], nodes.end[compiling])
    time = gap_end - gap_begin - compiled.within(gap_begin, gap_end)
    # A region without a graph, but with operators, is of a backend that makes no graphs.
    unclear = np.zeros(len(nodes), dtype=np.bool_)
    unclear[around[_working(forest, around)]] = True
    unclear[around[inside[~is_break]]] = False
    seen = ~unclear[around[after]]
    between = _operators_between(forest, gap_begin, gap_end, around, parts)
    # A frame breaks once: what follows is its last part, what ran before that was called meanwhile.
    broken, number = np.unique(around[after], return_inverse=True)
    number = number.reshape(-1)
    last = np.searchsorted(number, np.arange(len(broken)), side="right") - 1
    time = np.bincount(number, weights=time).astype(np.int64)
    groups: dict[tuple[str, str], list[int]] = {}
    frames = [frame_of(name)[0] or "?" for name in forest.trace.names]
    for at, (left, went_on) in enumerate(
        zip(forest.name[broken].tolist(), forest.name[after[last]].tolist(), strict=True)
    ):
        groups.setdefault((frames[left], frames[went_on]), []).append(at)
    found = []
    for (before, following), members in groups.items():
        index = np.array(members)
        shown = bool(seen[last[index]].all())
        parts_of = np.flatnonzero(np.isin(number, index))
        operators = Counter(name for part in parts_of.tolist() for name in between.get(part, ()))
        calls = parts_of[~np.isin(parts_of, last)]
        called = Counter(frames[code] for code in forest.name[after[calls]].tolist())
        found.append(
            Break(
                before,
                following,
                len(members),
                int(time[index].sum()) if shown else None,
                dict(operators.most_common()) if shown else None,
                dict(called.most_common()),
                after[last[index]],
            )
        )
    return sorted(found, key=lambda each: (-each.count, each.before, each.after))


def _operators_between(
    forest: Forest, gap_begin: Rows, gap_end: Rows, around: Rows, parts: np.ndarray
) -> dict[int, list[str]]:
    """By gap the outermost operators in it that do not stand in a graph."""
    nodes = forest.nodes
    held = _working(forest, around)
    above = forest.around(forest.having(OPERATOR, COMPILING))[held]
    # Outermost: what is above it, if anything, lies outside the region.
    held = held[(above < 0) | (above < around[held])]
    order = np.argsort(gap_begin, kind="stable")
    at = np.searchsorted(gap_begin[order], nodes.begin[held], side="right") - 1
    hit = at >= 0
    gap = order[at[hit]]
    held = held[hit]
    inside = nodes.end[held] <= gap_end[gap]
    found: dict[int, list[str]] = {}
    for which, name in zip(gap[inside].tolist(), forest.names(held[inside]), strict=True):
        found.setdefault(which, []).append(name)
    return found


def _working(forest: Forest, around: Rows) -> Rows:
    """Operators that stand in a region, but in no graph, and do some work."""
    works = np.array([NO_WORK.match(name) is None for name in forest.trace.names] + [False])
    held = np.flatnonzero((forest.role == OPERATOR) & (around >= 0) & works[forest.name])
    found: Rows = held[forest.role[around[held]] == REGION]
    return found
