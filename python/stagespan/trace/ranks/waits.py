"""Which rank came last to each collective, why, and how long the others waited."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from stagespan.pages.figures import Count, Figures, Internal, Ns
from stagespan.trace.ranks.match import (
    AT_ONCE,
    NO_VALUE,
    UNKNOWN_CLOCK,
    Clocks,
    Matched,
    MatchedCalls,
    window_begin_ns,
)
from stagespan.trace.ranks.summary import RankSummary
from stagespan.trace.rates.collectives import bus_bytes

BEFORE, COMPUTING, OTHER_COLLECTIVES, HOST, NOT_KNOWN = (
    "before_the_traces",
    "computing",
    "other_collectives",
    "host",
    "unknown",
)
REASONS = {
    BEFORE: "its step began later, and the traces do not show why",
    COMPUTING: "it computed longer than the others before it arrived",
    OTHER_COLLECTIVES: "it spent longer in other collectives",
    HOST: "it neither computed nor communicated for longer than the others, so check its host",
    NOT_KNOWN: "unknown",
}
ROW = {reason: row for row, reason in enumerate(REASONS)}
"""The row of each reason in an array by reason."""


def reasons(
    block: MatchedCalls,
    columns: NDArray[np.intp],
    last: NDArray[np.intp],
    lost_ns: NDArray[np.int64],
    start_ns: NDArray[np.int64],
    computing_known: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """The time that all ranks lost in each of `columns`, by reason, in the order of REASONS.

    `last` has the row of the rank that came last to each of them. `lost_ns` has the time that each
    rank lost, by row and column of the block. `start_ns` has, by row, the start of the rank's first
    step, or of its trace, or NO_VALUE. `computing_known` says, by row, whether the trace shows what
    the rank computed. All times of the block are on one clock.

    In the first step, a rank that took no longer since the step's start than another rank only
    began later. In later steps, the ranks are compared from the end of the collective before, which
    is the same on all ranks: the last rank took longer since then because it computed or
    communicated for longer, or did neither for longer.
    """
    before = np.maximum(columns - 1, 0)
    begin = block.begin_ns[:, columns]
    of_last = (last, np.arange(len(columns)))

    def longer(times: NDArray[np.int64]) -> NDArray[np.float64]:
        """By how much the last rank's time exceeds the time of each rank."""
        difference: NDArray[np.float64] = (times[of_last] - times).astype(np.float64)
        return difference

    late = np.maximum(longer(begin), 1.0)
    # Since the collective before.
    follows = (columns > 0) & (block.begin_ns[:, before] != NO_VALUE)
    comparable = follows & follows[of_last]
    since = block.end_ns[:, before]
    ran = block.end_ns[:, before] - block.begin_ns[:, before]
    computed = block.computed_ns[:, columns] - block.computed_ns[:, before]
    computed = computed - block.computed_in_ns[:, before]
    busy = block.busy_ns[:, columns] - block.busy_ns[:, before] - ran
    # Since the first step began.
    initial = _in_first_step(block, columns, last) & bool((start_ns != NO_VALUE).all())
    fresh = initial & (columns == 0)
    since = np.where(fresh, start_ns[:, np.newaxis], since)
    computed = np.where(fresh, block.computed_ns[:, columns], computed)
    busy = np.where(fresh, block.busy_ns[:, columns], busy)
    comparable = comparable | fresh
    # The part of the delay that arose since then.
    took = np.clip(longer(begin - since), 0, late)
    of_step = np.clip(longer(begin - start_ns[:, np.newaxis]), 0, late)
    own_part = np.where(initial, of_step, np.where(comparable, took, 0.0)) / late
    # It is divided like the time by which the last rank did each of these for longer.
    computing = np.maximum(longer(computed), 0.0)
    communicating = np.maximum(longer(busy - computed), 0.0)
    neither = np.maximum(longer(begin - since - busy), 0.0)
    whole = computing + communicating + neither
    divided = comparable & (whole > 0)

    def part(time: NDArray[np.float64]) -> NDArray[np.float64]:
        share: NDArray[np.float64] = np.where(divided, time / np.where(whole > 0, whole, 1), 0)
        return own_part * share

    both_known = computing_known[:, np.newaxis] & computing_known[last]
    # If only the time since the step's start was longer, the rank did nothing for longer.
    host = np.where(divided, part(neither), np.where(initial, own_part, 0.0))
    shares = {
        COMPUTING: np.where(both_known, part(computing), 0.0),
        OTHER_COLLECTIVES: part(communicating),
        HOST: np.where(both_known, host, 0.0),
    }
    weighed = np.where(begin == NO_VALUE, 0, lost_ns[:, columns]).astype(np.float64)
    times = np.zeros((len(REASONS), len(columns)), dtype=np.int64)
    for reason, each in shares.items():
        times[ROW[reason]] = np.floor((each * weighed).sum(axis=0)).astype(np.int64)
    rest = weighed.sum(axis=0).astype(np.int64) - times.sum(axis=0)
    times[ROW[BEFORE]] = np.where(initial, rest, 0)
    times[ROW[NOT_KNOWN]] = np.where(initial, 0, rest)
    return times


def _in_first_step(
    block: MatchedCalls, columns: NDArray[np.intp], last: NDArray[np.intp]
) -> NDArray[np.bool_]:
    """Whether the last rank was in its first step; without steps, whether it is column 0."""
    step = block.step[last, columns]
    first: NDArray[np.bool_] = np.where(step >= 0, step <= 1, columns == 0)
    return first


# --- Which rank came last, and how long the others waited ---


NOBODY = -1
# No rank counts as last if it is late by less than this times the clocks' errors.
_ERRORS = 3
_LEAST_NS = 1_000


class CollectiveInstance(Figures, frozen=True):
    """One collective on its ranks."""

    op: str
    group: str | None
    index: Count
    """Its number among the matched collectives of its group, from 0."""
    step: Count | None
    """The number of its step in one of the traces, from 0; None without steps."""
    position: Count | None
    """Its number among the step's collectives of its group, from 0."""
    time_ns: Ns
    """When the last rank arrived, from the start of the first trace, on the common clock."""
    ranks: Count
    """The number of ranks whose traces contain it."""
    last: Count | None
    """The rank that came last; None if several came together."""
    late_ns: Ns
    """How long after the next slowest rank the last arrived."""
    waited_ns: Ns
    """The time that all ranks waited, summed."""
    lost_ns: Ns
    """The part of `waited_ns` in which they did not compute."""
    pure_ns: Ns
    """The shortest duration on any rank, which is the duration without waiting."""
    still_ns: Ns | None
    """How long no data moved after the last rank had arrived, on the rank where that is shortest;
    None if unknown."""
    last_at: Internal[int]
    """The index of the summary of `last`, or NOBODY."""
    bus_bytes: Internal[float | None]
    """The bytes that each link carries at least with the usual algorithms; None if unknown."""

    @property
    def name(self) -> str:
        """The operation and its group."""
        return name_of_collective(self.op, self.group)


def name_of_collective(op: str, group: str | None) -> str:
    """Return an operation and its group in words: "all_reduce of group 586"."""
    return f"{op} of group {group}" if group else op


class CollectiveWaits(msgspec.Struct, frozen=True):
    """All collectives, and sums by rank; times in ns."""

    instances: list[CollectiveInstance]
    waited_ns: NDArray[np.int64]
    """By rank: its time in collectives before the last rank had arrived."""
    lost_ns: NDArray[np.int64]
    """By rank: the least part of it without computing. All computing while a collective ran is
    assumed to have been during the wait."""
    caused_ns: NDArray[np.int64]
    """By rank: how long after the next slowest rank it arrived, summed over the collectives to
    which it came last; each limited to the largest time that another rank lost there."""
    waited_for_ns: NDArray[np.int64]
    """By rank: the time that all ranks lost in the collectives to which it came last."""
    reasons_ns: NDArray[np.int64]
    """`waited_for_ns` by rank and by reason in the order of `REASONS`."""
    last: NDArray[np.int64]
    """By rank: how often it came last."""
    took_part: NDArray[np.int64]
    """By rank: the number of its matched collectives."""
    compared: NDArray[np.int64]
    """By rank: in how many of them its clock could be compared with that of another rank; the
    figures above refer to these."""
    common_ns: NDArray[np.int64]
    """By rank: the time from the start of its first matched collective to the end of its last."""
    computed_ns: NDArray[np.int64]
    """By rank: computing time between the begins of its first and last collectives of the group
    with its most collectives."""


def waits(summaries: Sequence[RankSummary], matched: Matched, clocks: Clocks) -> CollectiveWaits:
    """Work out the waiting of the ranks from their collectives and clocks.

    The computing time between collectives is known without the clocks of other ranks. The rank that
    came last is not.
    """
    count = len(summaries)
    begins = [NO_VALUE if each.start_ns is None else each.start_ns for each in summaries]
    start_ns = np.array(begins, dtype=np.int64)
    start_ns = np.where(start_ns == NO_VALUE, NO_VALUE, start_ns - clocks.offset_ns)
    computing_known = np.array([each.collectives.computing_known for each in summaries])
    waited, lost, caused, waited_for, last, took_part, compared, held, computed = (
        np.zeros(count, dtype=np.int64) for _ in range(9)
    )
    reasons_ns = np.zeros((count, len(REASONS)), dtype=np.int64)
    instances: list[CollectiveInstance] = []
    edges = np.zeros((count, 2), dtype=np.int64)
    window_begin = window_begin_ns(summaries, clocks)
    for whole in matched.blocks:
        np.add.at(took_part, whole.ranks, whole.is_recorded.sum(axis=1))
        _widen(edges, held, computed, whole)
        block = _on_one_clock(whole, clocks)
        if not block.ops:
            continue
        steps, positions = _positions(block)
        tolerance = _tolerance(block, clocks)
        at_once = max(1, AT_ONCE // len(block.ranks))
        for first in range(0, len(block.ops), at_once):
            # With the collective before, from which delays are counted.
            before = min(first, 1)
            part = block.columns(slice(first - before, first + at_once))
            inside = slice(before, None)
            is_known = part.is_recorded
            begin = part.begin_ns - clocks.offset_ns[part.ranks][:, None]
            end = part.end_ns - clocks.offset_ns[part.ranks][:, None]
            arrival = np.where(is_known, begin, NO_VALUE)
            ascending = np.sort(arrival, axis=0)
            latest, next_latest = ascending[-1], ascending[-2]
            last_row = np.argmax(arrival, axis=0)
            last_rank = part.ranks[last_row]
            late = latest - next_latest
            has_last = late > tolerance
            has_last[:before] = False
            wait = np.where(is_known, np.clip(latest - begin, 0, end - begin), 0)
            idle = np.where(is_known, np.maximum(wait - part.computed_in_ns, 0), 0)
            waited_in, lost_in = wait.sum(axis=0), idle.sum(axis=0)
            pure = np.where(is_known, end - begin, np.iinfo(np.int64).max).min(axis=0)
            np.add.at(waited, part.ranks, wait[:, inside].sum(axis=1))
            np.add.at(lost, part.ranks, idle[:, inside].sum(axis=1))
            np.add.at(compared, part.ranks, is_known[:, inside].sum(axis=1))
            np.add.at(last, last_rank[has_last], 1)
            np.add.at(caused, last_rank[has_last], np.minimum(late, idle.max(axis=0))[has_last])
            np.add.at(waited_for, last_rank[has_last], lost_in[has_last])
            columns = np.flatnonzero(has_last)
            why = reasons(
                structs.replace(part, begin_ns=arrival, end_ns=np.where(is_known, end, NO_VALUE)),
                columns,
                last_row[columns],
                idle,
                start_ns[part.ranks],
                computing_known[part.ranks],
            )
            np.add.at(reasons_ns, last_rank[columns], why.T)
            still = _still(part, begin, end, latest)
            known_on = is_known.sum(axis=0)
            instances += [
                CollectiveInstance(
                    op=part.ops[at],
                    group=part.group or None,
                    index=first - before + at,
                    step=steps[first - before + at],
                    position=positions[first - before + at],
                    time_ns=int(latest[at]) - window_begin,
                    ranks=int(known_on[at]),
                    last=summaries[last_rank[at]].rank if has_last[at] else None,
                    late_ns=int(late[at]),
                    waited_ns=int(waited_in[at]),
                    lost_ns=int(lost_in[at]),
                    pure_ns=int(pure[at]),
                    still_ns=still[at],
                    last_at=int(last_rank[at]) if has_last[at] else NOBODY,
                    bus_bytes=bus_bytes(
                        part.ops[at], int(part.bytes_in[at]), int(part.members[at])
                    ),
                )
                for at in range(before, len(part.ops))
            ]
    return CollectiveWaits(
        instances=instances,
        waited_ns=waited,
        lost_ns=lost,
        caused_ns=caused,
        waited_for_ns=waited_for,
        reasons_ns=reasons_ns,
        last=last,
        took_part=took_part,
        compared=compared,
        common_ns=edges[:, 1] - edges[:, 0],
        computed_ns=computed,
    )


def _on_one_clock(block: MatchedCalls, clocks: Clocks) -> MatchedCalls:
    """The collectives of a block on at least two ranks with known clocks, and these ranks."""
    rows = np.array(
        [row for row, rank in enumerate(block.ranks) if clocks.how[rank] != UNKNOWN_CLOCK],
        dtype=np.intp,
    )
    if len(rows) == len(block.ranks):
        return block
    columns = np.flatnonzero(block.is_recorded[rows].sum(axis=0) >= 2)
    return block.part(rows, columns)


def _still(
    block: MatchedCalls,
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    latest: NDArray[np.int64],
) -> list[int | None]:
    """How long no data moved after the last rank had arrived; None if unknown."""
    has_transit = block.is_recorded & (block.transit_ns >= 0)
    after = np.maximum(end - np.maximum(begin, latest) - block.transit_ns, 0)
    most = np.iinfo(np.int64).max
    least = np.where(has_transit, after, most).min(axis=0)
    return [None if time == most else int(time) for time in least.tolist()]


def _positions(block: MatchedCalls) -> tuple[list[int | None], list[int | None]]:
    """Each collective's step and its number in the step, by the trace that has most of them."""
    with_step = block.is_recorded & (block.step >= 0)
    row = int(with_step.sum(axis=1).argmax())
    steps: list[int | None] = []
    positions: list[int | None] = []
    last, number = -1, 0
    for there, step in zip(with_step[row].tolist(), block.step[row].tolist(), strict=True):
        if not there:
            steps.append(None)
            positions.append(None)
            continue
        number = number + 1 if step == last else 0
        last = step
        steps.append(step)
        positions.append(number)
    return steps, positions


def _tolerance(block: MatchedCalls, clocks: Clocks) -> int:
    errors = clocks.error_ns[block.ranks]
    return max(_LEAST_NS, _ERRORS * int(errors.max(initial=0)))


def _widen(
    edges: NDArray[np.int64],
    held: NDArray[np.int64],
    computed: NDArray[np.int64],
    block: MatchedCalls,
) -> None:
    """Extend the time that each rank's collectives span by those of a block.

    A rank's computing time is measured between its collectives in the block that has most of them,
    so that the ranks of that block can be compared.
    """
    for row, rank in enumerate(block.ranks.tolist()):
        at = np.flatnonzero(block.is_recorded[row])
        if len(at) == 0:
            continue
        begin, end = block.begin_ns[row, at[0]], block.end_ns[row, at].max()
        if held[rank]:
            begin, end = min(begin, edges[rank, 0]), max(end, edges[rank, 1])
        edges[rank] = begin, end
        if len(at) > held[rank]:
            held[rank] = len(at)
            computed[rank] = block.computed_ns[row, at[-1]] - block.computed_ns[row, at[0]]


def by_op(
    instances: Sequence[CollectiveInstance],
) -> dict[tuple[str, str | None], list[CollectiveInstance]]:
    """Collectives by operation and group; those with the longest waits come first."""
    by_op: dict[tuple[str, str | None], list[CollectiveInstance]] = {}
    for each in instances:
        by_op.setdefault((each.op, each.group), []).append(each)
    return dict(sorted(by_op.items(), key=lambda item: -sum(each.lost_ns for each in item[1])))


def bus_speed(instances: Sequence[CollectiveInstance]) -> float | None:
    """Bytes per ns (GB/s) over each rank's link while no rank waits; None if unknown."""
    timed = [each for each in instances if each.bus_bytes is not None and each.pure_ns > 0]
    if not timed:
        return None
    return sum(each.bus_bytes or 0.0 for each in timed) / sum(each.pure_ns for each in timed)
