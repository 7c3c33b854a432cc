"""Find the same collective on every rank by group, operation and order, without the clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.ranks.collectives import ALONE, Collectives
from stagespan.trace.ranks.summary import RankSummary
from stagespan.trace.read.intervals import Numbers

UNKNOWN = np.iinfo(np.int64).min
"""In a block: the rank's trace does not contain this collective."""
# How far two ranks' windows may be shifted, in collectives, in addition to the clocks' difference.
_SHIFTS = 8
# The part of the matched collectives of two ranks that must be the same operation.
_LEAST_SAME = 0.95
# Clocks of hosts differ by at most this.
_SAME_TIME_NS = 1_000_000_000
# And usually by at most this.
_CLOCKS_NS = 10_000_000
# Traces of different times must agree in at least this number of collectives, and the distances
# of their ends may vary by this part of the usual time between collectives.
_LEAST_COUNT, _SPREAD = 4, 0.05
# Spreads of the ends differ if one is this many times the other, and above the noise.
_SIMILAR_FACTOR, _NOISE_NS = 4.0, 20_000


@dataclass(frozen=True, slots=True)
class MatchedCalls:
    """The collectives of one group: a row for each rank, a column for each collective; in ns."""

    group: str
    ranks: NDArray[np.intp]
    """The rank of each row, as an index into the list of summaries."""
    ops: list[str]
    """The operation of each column."""
    bytes_in: Numbers
    """The input bytes of a rank, by column, the largest of all ranks; -1 if unknown."""
    members: Numbers
    """The number of ranks in the group, by column; -1 if unknown."""
    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    computed_ns: NDArray[np.int64]
    computed_in_ns: NDArray[np.int64]
    busy_ns: NDArray[np.int64]
    transit_ns: NDArray[np.int64]
    step: NDArray[np.int64]
    """From `begin_ns` to here as in `Collectives`."""

    @property
    def known(self) -> NDArray[np.bool_]:
        """Whether each rank's trace contains each collective."""
        known: NDArray[np.bool_] = self.begin_ns != UNKNOWN
        return known

    def part(self, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> MatchedCalls:
        """The part with these ranks and collectives."""
        here = np.ix_(rows, columns)
        return MatchedCalls(
            self.group,
            self.ranks[rows],
            [self.ops[at] for at in columns],
            self.bytes_in[columns],
            self.members[columns],
            **{name: getattr(self, name)[here] for name in _BY_RANK},
        )


_BY_RANK = (
    "begin_ns",
    "end_ns",
    "computed_ns",
    "computed_in_ns",
    "busy_ns",
    "transit_ns",
    "step",
)
"""Columns of `Collectives` that a block has for each rank."""


@dataclass(frozen=True, slots=True)
class Matched:
    """The collectives that could be matched, and what could not."""

    blocks: list[MatchedCalls]
    unmatched: list[int]
    """Ranks (indices of summaries) that have collectives, but no matched ones."""
    alone: int
    """The number of sends and receives between two ranks, which are skipped."""

    @property
    def count(self) -> int:
        """The number of collectives that are in the traces of at least two ranks."""
        return sum(len(block.ops) for block in self.blocks)


@dataclass(frozen=True, slots=True)
class _Lane:
    """A group's collectives in one rank's trace."""

    rank: int
    ops: NDArray[np.object_]
    rows: NDArray[np.intp]
    of: Collectives

    @property
    def end_ns(self) -> Numbers:
        return self.of.end_ns[self.rows]


def match(summaries: Sequence[RankSummary]) -> Matched:
    """Match the collectives of all ranks.

    Within a group, the k-th collective of one rank is the k-th of another, unless the windows
    began at different collectives. Then the one is shifted against the other: among the shifts at
    which the operations agree, the one with the most constant distance between the ends of the
    collectives is taken; among equal ones, the one with the smallest distance. Ranks whose
    operations agree at no shift are not matched.
    """
    lanes: dict[str, list[_Lane]] = {}
    alone = 0
    for number, summary in enumerate(summaries):
        found = summary.collectives
        names = np.array(found.ops, dtype=object)[found.op]
        private = np.isin(found.op, [at for at, op in enumerate(found.ops) if op in ALONE])
        alone += int(private.sum())
        for group, name in enumerate(found.groups):
            rows = np.flatnonzero((found.group == group) & ~private)
            if len(rows):
                lanes.setdefault(name, []).append(_Lane(number, names[rows], rows, found))
    blocks, matched = [], set()
    for name, members in lanes.items():
        block = _block(name, members)
        if block is not None:
            blocks.append(block)
            matched.update(block.ranks.tolist())
    with_some = {lane.rank for members in lanes.values() for lane in members}
    return Matched(blocks, sorted(with_some - matched), alone)


def _block(group: str, members: list[_Lane]) -> MatchedCalls | None:
    if len(members) < 2:
        return None
    base = max(members, key=lambda lane: len(lane.rows))
    placed = [(lane, 0 if lane is base else _shift(base, lane)) for lane in members]
    kept = [(lane, shift) for lane, shift in placed if shift is not None]
    if len(kept) < 2:
        return None
    first = min(shift for _, shift in kept)
    last = max(shift + len(lane.rows) for lane, shift in kept)
    size = (len(kept), last - first)
    of = {name: np.full(size, UNKNOWN, dtype=np.int64) for name in _BY_RANK}
    ops = np.full(size[1], "", dtype=object)
    bytes_in, members_of = (np.full(size[1], -1, dtype=np.int64) for _ in range(2))
    for row, (lane, shift) in enumerate(kept):
        here = slice(shift - first, shift - first + len(lane.rows))
        for name, values in of.items():
            values[row, here] = getattr(lane.of, name)[lane.rows]
        ops[here] = np.where(ops[here] == "", lane.ops, ops[here])
        bytes_in[here] = np.maximum(bytes_in[here], lane.of.bytes_in[lane.rows])
        members_of[here] = np.maximum(members_of[here], lane.of.members[lane.rows])
    shared = np.flatnonzero((of["begin_ns"] != UNKNOWN).sum(axis=0) >= 2)
    if len(shared) == 0:
        return None
    return MatchedCalls(
        group,
        np.array([lane.rank for lane, _ in kept], dtype=np.intp),
        ops[shared].tolist(),
        bytes_in[shared],
        members_of[shared],
        **{name: values[:, shared] for name, values in of.items()},
    )


def _shift(base: _Lane, lane: _Lane) -> int | None:
    """The index in `base` of the first collective of `lane`; None if the operations disagree."""
    end, base_end = lane.end_ns, base.end_ns
    middle = len(end) // 2
    nearest = int(np.searchsorted(base_end, end[middle])) - middle
    tried = {about + by for about in (0, nearest) for by in range(-_SHIFTS, _SHIFTS + 1)}
    found: list[tuple[float, float, int]] = []
    # Most ranks began together, so that no other shift can be better.
    for shift in sorted(tried, key=abs):
        low, high = max(0, shift), min(len(base_end), shift + len(end))
        # A shorter overlap could agree by chance.
        if high - low < min(2, len(end), len(base_end)) or high - low < len(end) / 2:
            continue
        mine = slice(low - shift, high - shift)
        if np.mean(base.ops[low:high] == lane.ops[mine]) < _LEAST_SAME:
            continue
        differences = end[mine] - base_end[low:high]
        median_difference = float(np.median(differences))
        spread = float(np.median(np.abs(differences - median_difference)))
        if _at_one_time(differences, spread, base_end[low:high]):
            found.append((spread, abs(median_difference), shift))
            together = len(end) == len(base_end) and shift == 0
            if together and spread <= _NOISE_NS and abs(median_difference) <= _CLOCKS_NS:
                return 0
    if not found:
        return None
    # Equal steps have the same distances at several shifts. Then the clocks decide, except for
    # traces of equal length, which most likely began together.
    least = max(_SIMILAR_FACTOR * min(found)[0], _NOISE_NS)
    similar = [each for each in found if each[0] <= least]

    def quality(each: tuple[float, float, int]) -> tuple[bool, float, int]:
        _, differences, shift = each
        began_together = len(end) == len(base_end) and shift == 0 and differences <= _CLOCKS_NS
        return not began_together, min(differences, float(_SAME_TIME_NS)), abs(shift)

    return min(similar, key=quality)[2]


def _at_one_time(differences: Numbers, spread: float, base_end: Numbers) -> bool:
    """Whether two ranks' collectives can be the same, by their times or by their distances."""
    if abs(float(np.median(differences))) <= _SAME_TIME_NS:
        return True
    if len(differences) < _LEAST_COUNT:
        return False
    return spread <= _SPREAD * float(np.median(np.diff(base_end)))
