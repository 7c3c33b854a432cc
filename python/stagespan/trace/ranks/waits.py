"""Who came last to each collective, and how long the others waited for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.ranks.clocks import UNKNOWN_CLOCK, Clocks
from stagespan.trace.ranks.match import UNKNOWN, Block, Matched

NOBODY = -1
# Below the clocks' errors times this nobody is said to be last.
_ERRORS = 3
_LEAST_NS = 1_000


@dataclass(frozen=True, slots=True)
class Instance:
    """One collective on its ranks; times in ns, on the common clock."""

    op: str
    group: str
    index: int
    """Its number among the matched ones of its group, from 0."""
    bus_bytes: float | None
    """What each link has to carry at least, in the usual algorithms; None where unknown."""
    begin_ns: int
    """When the last rank came."""
    ranks: int
    """On how many ranks it is known."""
    last: int
    """The rank (index of its summary) that came last, or NOBODY when they came together."""
    late_ns: int
    """How much later than the one before it the last came."""
    waited_ns: int
    """Waiting of all ranks together."""
    lost_ns: int
    """The part of it in which they computed nothing meanwhile."""
    pure_ns: int
    """The shortest duration on any rank: what is left when nobody waits."""


@dataclass(frozen=True, slots=True)
class Waits:
    """All collectives, and sums by rank; times in ns."""

    instances: list[Instance]
    waited_ns: NDArray[np.int64]
    """By rank: its time in collectives before the last rank had come."""
    lost_ns: NDArray[np.int64]
    """By rank: the part of it in which it computed nothing, at least: what it computed while a
    collective ran is taken to have been during the wait."""
    caused_ns: NDArray[np.int64]
    """By rank: how much later than the next to last it came, summed over its last places; no more
    than the most that another rank lost there."""
    last: NDArray[np.int64]
    """By rank: how often it came last."""
    took_part: NDArray[np.int64]
    """By rank: in how many matched collectives."""
    compared: NDArray[np.int64]
    """By rank: in how many of them its clock and that of another rank could be compared; the
    figures above are of these."""
    common_ns: NDArray[np.int64]
    """By rank: from the begin of its first matched collective to the end of its last."""
    computed_ns: NDArray[np.int64]
    """By rank: computing between the begins of its first and last matched collectives."""


def waits(count: int, matched: Matched, clocks: Clocks) -> Waits:
    """Work out the waiting of `count` ranks from their collectives and clocks.

    What ranks computed between collectives needs no clock of others; who came last does.
    """
    waited, lost, caused, last, took_part, compared, common, computed = (
        np.zeros(count, dtype=np.int64) for _ in range(8)
    )
    instances: list[Instance] = []
    edges = np.full((count, 2), UNKNOWN, dtype=np.int64)
    for whole in matched.blocks:
        np.add.at(took_part, whole.ranks, whole.known.sum(axis=1))
        _widen(edges, common, computed, whole)
        block = _on_one_clock(whole, clocks)
        if not block.ops:
            continue
        known = block.known
        begin = block.begin_ns - clocks.offset_ns[block.ranks][:, None]
        end = block.end_ns - clocks.offset_ns[block.ranks][:, None]
        come = np.where(known, begin, UNKNOWN)
        order = np.sort(come, axis=0)
        latest, before = order[-1], order[-2]
        who = np.argmax(come, axis=0)
        late = latest - before
        wait = np.where(known, np.clip(latest - begin, 0, end - begin), 0)
        idle = np.where(known, np.maximum(wait - block.computed_in_ns, 0), 0)
        tolerance = _tolerance(block, clocks)
        alone = late > tolerance
        np.add.at(waited, block.ranks, wait.sum(axis=1))
        np.add.at(lost, block.ranks, idle.sum(axis=1))
        np.add.at(compared, block.ranks, known.sum(axis=1))
        np.add.at(last, block.ranks[who[alone]], 1)
        np.add.at(caused, block.ranks[who[alone]], np.minimum(late, idle.max(axis=0))[alone])
        pure = np.where(known, end - begin, np.iinfo(np.int64).max).min(axis=0)
        totals, lost_in = wait.sum(axis=0), idle.sum(axis=0)
        known_on = known.sum(axis=0)
        instances += [
            Instance(
                op=block.ops[at],
                group=block.group,
                index=at,
                bus_bytes=bus_bytes(block.ops[at], int(block.bytes_in[at]), int(block.members[at])),
                begin_ns=int(latest[at]),
                ranks=int(known_on[at]),
                last=int(block.ranks[who[at]]) if alone[at] else NOBODY,
                late_ns=int(late[at]),
                waited_ns=int(totals[at]),
                lost_ns=int(lost_in[at]),
                pure_ns=int(pure[at]),
            )
            for at in range(len(block.ops))
        ]
    return Waits(instances, waited, lost, caused, last, took_part, compared, common, computed)


def _on_one_clock(block: Block, clocks: Clocks) -> Block:
    """What of a block is on ranks whose clocks are known, and on at least two of them."""
    rows = np.array(
        [row for row, rank in enumerate(block.ranks) if clocks.how[rank] != UNKNOWN_CLOCK],
        dtype=np.intp,
    )
    if len(rows) == len(block.ranks):
        return block
    columns = np.flatnonzero(block.known[rows].sum(axis=0) >= 2)
    here = np.ix_(rows, columns)
    return Block(
        block.group,
        block.ranks[rows],
        [block.ops[at] for at in columns],
        block.bytes_in[columns],
        block.members[columns],
        block.begin_ns[here],
        block.end_ns[here],
        block.computed_ns[here],
        block.computed_in_ns[here],
    )


def _tolerance(block: Block, clocks: Clocks) -> int:
    errors = clocks.error_ns[block.ranks]
    return max(_LEAST_NS, _ERRORS * int(errors.max(initial=0)))


def _widen(
    edges: NDArray[np.int64],
    common: NDArray[np.int64],
    computed: NDArray[np.int64],
    block: Block,
) -> None:
    """Take the block with the most collectives of each rank as what its ranks have in common."""
    for row, rank in enumerate(block.ranks.tolist()):
        at = np.flatnonzero(block.known[row])
        if len(at) <= edges[rank, 0]:
            continue
        edges[rank, 0] = len(at)
        common[rank] = block.end_ns[row, at[-1]] - block.begin_ns[row, at[0]]
        computed[rank] = block.computed_ns[row, at[-1]] - block.computed_ns[row, at[0]]


def by_op(instances: Sequence[Instance]) -> dict[tuple[str, str], list[Instance]]:
    """Collectives by operation and group, those that cost most waiting first."""
    found: dict[tuple[str, str], list[Instance]] = {}
    for each in instances:
        found.setdefault((each.op, each.group), []).append(each)
    return dict(sorted(found.items(), key=lambda item: -sum(each.lost_ns for each in item[1])))


def bus_bytes(op: str, bytes_in: int, members: int) -> float | None:
    """Bytes that go over each rank's link, as NCCL's tests count them; None where unknown."""
    if bytes_in < 0 or members < 2:
        return None
    factor = {
        "all_reduce": 2 * (members - 1) / members,
        "reduce_scatter": (members - 1) / members,
        "all_to_all": (members - 1) / members,
        "all_gather": float(members - 1),
        "broadcast": 1.0,
        "reduce": 1.0,
    }.get(op)
    return None if factor is None else factor * bytes_in


def bus_speed(instances: Sequence[Instance]) -> float | None:
    """Bytes per ns (GB/s) over each rank's link while nobody waits; None where unknown."""
    known = [each for each in instances if each.bus_bytes is not None and each.pure_ns > 0]
    if not known:
        return None
    return sum(each.bus_bytes or 0.0 for each in known) / sum(each.pure_ns for each in known)
