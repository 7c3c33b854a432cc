"""Match the collectives of all ranks, and align the ranks' clocks by them.

Collectives are matched by group, operation and order, without the clocks. A matched collective ends
at about the same time on all ranks, which shows how far each clock is ahead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from stagespan.trace.ranks.collectives import BETWEEN_TWO, TOGETHER, Collectives
from stagespan.trace.ranks.summary import RankSummary
from stagespan.trace.read.intervals import Numbers

NO_VALUE = np.iinfo(np.int64).min
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
AT_ONCE = 1 << 15
"""The number of elements of ranks and collectives that are processed at a time."""


class MatchedCalls(msgspec.Struct, frozen=True):
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
    def is_recorded(self) -> NDArray[np.bool_]:
        """Whether each rank's trace contains each collective."""
        is_recorded: NDArray[np.bool_] = self.begin_ns != NO_VALUE
        return is_recorded

    def columns(self, some: slice) -> MatchedCalls:
        """The part with these collectives; its arrays are views."""
        return MatchedCalls(
            self.group,
            self.ranks,
            self.ops[some],
            self.bytes_in[some],
            self.members[some],
            **{name: getattr(self, name)[:, some] for name in _BY_RANK},
        )

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


_BY_RANK = {
    "begin_ns": NO_VALUE,
    "end_ns": NO_VALUE,
    "computed_ns": 0,
    "computed_in_ns": 0,
    "busy_ns": 0,
    "transit_ns": -1,
    "step": -1,
}
"""Columns of `Collectives` that a block has for each rank, in their types, and the value if the
rank's trace does not contain the collective."""


class Matched(msgspec.Struct, frozen=True):
    """The collectives that could be matched, and what could not."""

    blocks: list[MatchedCalls]
    unmatched: list[int]
    """Ranks (indices of summaries) that have collectives, but no matched ones."""
    alone: int
    """The number of sends and receives between two ranks, which are skipped."""
    count: int
    """The number of collectives that are in the traces of at least two ranks."""


class _GroupCalls(msgspec.Struct, frozen=True):
    """A group's collectives in one rank's trace."""

    rank: int
    ops: NDArray[np.int16]
    """Codes of operations, the same for all ranks."""
    rows: NDArray[np.int32]
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
    by_group: dict[str, list[_GroupCalls]] = {}
    codes: dict[str, int] = {}
    alone = 0
    for number, summary in enumerate(summaries):
        collectives = summary.collectives
        ops = np.array([codes.setdefault(op, len(codes)) for op in collectives.ops], dtype=np.int16)
        private = np.isin(
            collectives.op, [at for at, op in enumerate(collectives.ops) if op in BETWEEN_TWO]
        )
        alone += int(private.sum())
        for group, name in enumerate(collectives.groups):
            rows = np.flatnonzero((collectives.group == group) & ~private).astype(np.int32)
            if len(rows):
                calls = _GroupCalls(number, ops[collectives.op[rows]], rows, collectives)
                by_group.setdefault(name, []).append(calls)
    blocks, matched = [], set()
    for name, members in by_group.items():
        block = _block(name, members, list(codes))
        if block is not None:
            blocks.append(block)
            matched.update(block.ranks.tolist())
    with_some = {calls.rank for members in by_group.values() for calls in members}
    count = sum(len(block.ops) for block in blocks)
    return Matched(blocks, sorted(with_some - matched), alone, count)


def _block(group: str, members: list[_GroupCalls], names: list[str]) -> MatchedCalls | None:
    if len(members) < 2:
        return None
    base = max(members, key=lambda calls: len(calls.rows))
    placed = [(calls, 0 if calls is base else _shift(base, calls)) for calls in members]
    kept = [(calls, shift) for calls, shift in placed if shift is not None]
    if len(kept) < 2:
        return None
    first = min(shift for _, shift in kept)
    last = max(shift + len(calls.rows) for calls, shift in kept)
    size = (len(kept), last - first)
    of = {
        name: np.full(
            size, absent, np.result_type(*(getattr(calls.of, name).dtype for calls, _ in kept))
        )
        for name, absent in _BY_RANK.items()
    }
    ops = np.full(size[1], -1, dtype=np.int16)
    bytes_in, members_of = (np.full(size[1], -1, dtype=np.int64) for _ in range(2))
    for row, (calls, shift) in enumerate(kept):
        here = slice(shift - first, shift - first + len(calls.rows))
        for name, values in of.items():
            values[row, here] = getattr(calls.of, name)[calls.rows]
        ops[here] = np.where(ops[here] < 0, calls.ops, ops[here])
        bytes_in[here] = np.maximum(bytes_in[here], calls.of.bytes_in[calls.rows])
        members_of[here] = np.maximum(members_of[here], calls.of.members[calls.rows])
    shared = np.flatnonzero((of["begin_ns"] != NO_VALUE).sum(axis=0) >= 2)
    if len(shared) == 0:
        return None
    return MatchedCalls(
        group,
        np.array([calls.rank for calls, _ in kept], dtype=np.intp),
        [names[code] for code in ops[shared].tolist()],
        bytes_in[shared],
        members_of[shared],
        # One after another, so that only one array exists twice.
        **{name: of.pop(name)[:, shared] for name in _BY_RANK},
    )


def _shift(base: _GroupCalls, calls: _GroupCalls) -> int | None:
    """The index in `base` of the first collective of `calls`; None if the operations disagree."""
    end, base_end = calls.end_ns, base.end_ns
    middle = len(end) // 2
    nearest = int(np.searchsorted(base_end, end[middle])) - middle
    tried = {about + by for about in (0, nearest) for by in range(-_SHIFTS, _SHIFTS + 1)}
    shifts: list[tuple[float, float, int]] = []
    # Most ranks began together, so that no other shift can be better.
    for shift in sorted(tried, key=abs):
        low, high = max(0, shift), min(len(base_end), shift + len(end))
        # A shorter overlap could agree by chance.
        if high - low < min(2, len(end), len(base_end)) or high - low < len(end) / 2:
            continue
        shifted = slice(low - shift, high - shift)
        if np.mean(base.ops[low:high] == calls.ops[shifted]) < _LEAST_SAME:
            continue
        differences = end[shifted] - base_end[low:high]
        median_difference = float(np.median(differences))
        spread = float(np.median(np.abs(differences - median_difference)))
        if _at_one_time(differences, spread, base_end[low:high]):
            shifts.append((spread, abs(median_difference), shift))
            together = len(end) == len(base_end) and shift == 0
            if together and spread <= _NOISE_NS and abs(median_difference) <= _CLOCKS_NS:
                return 0
    if not shifts:
        return None
    # Equal steps have the same distances at several shifts. Then the clocks decide, except for
    # traces of equal length, which most likely began together.
    least = max(_SIMILAR_FACTOR * min(shifts)[0], _NOISE_NS)
    similar = [each for each in shifts if each[0] <= least]

    def quality(candidate: tuple[float, float, int]) -> tuple[bool, float, int]:
        _, differences, shift = candidate
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


# --- Clocks ---


ONE_HOST, BY_COLLECTIVES, UNKNOWN_CLOCK = "host", "collectives", "unknown"
"""One clock for all ranks; aligned by collectives; unknown."""
_ROUNDS = 50
# Converts a median absolute deviation to a standard deviation for normal errors.
_TO_SIGMA = 1.4826


class Clocks(msgspec.Struct, frozen=True):
    """How far each rank's clock is ahead, in ns."""

    offset_ns: NDArray[np.int64]
    """The offset to subtract from a rank's times; 0 if unknown."""
    error_ns: NDArray[np.int64]
    """The scatter of the ends of collectives about the common time; -1 if unknown."""
    how: tuple[str, ...]
    """ONE_HOST, BY_COLLECTIVES or UNKNOWN_CLOCK for each rank."""


def window_begin_ns(summaries: Sequence[RankSummary], clocks: Clocks) -> int:
    """The time at which the first trace begins, on the common clock."""
    offsets = zip(summaries, clocks.offset_ns, strict=True)
    return min(each.begin_ns - int(offset) for each, offset in offsets)


def align(summaries: Sequence[RankSummary], matched: Matched) -> Clocks:
    """Estimate each rank's offset from the matched collectives that end on all ranks together.

    Ranks on one host (`host_name`) have one clock and get the same offset, which is 0 if all ranks
    are on that host. The median of all offsets is taken as 0, so that times stay near those of the
    traces. Medians are used because a few collectives that end late on one rank do not move them.
    """
    count = len(summaries)
    spread, offset = _relaxed(count, matched)
    is_aligned = np.array([each is not None for each in spread], dtype=np.bool_)
    error = np.array(
        [-1 if each is None else round(_TO_SIGMA * each) for each in spread], dtype=np.int64
    )
    hosts: dict[str, list[int]] = {}
    for at, summary in enumerate(summaries):
        if summary.host is not None and summary.unix_clock:
            hosts.setdefault(summary.host, []).append(at)
    if len(hosts) == 1 and sum(map(len, hosts.values())) == count > 1:
        zeros = np.zeros(count, dtype=np.int64)
        return Clocks(zeros, zeros.copy(), (ONE_HOST,) * count)
    for members in hosts.values():
        aligned = [at for at in members if is_aligned[at]]
        if aligned:
            offset[members] = np.median(offset[aligned])
            is_aligned[members] = True
    offset[is_aligned] -= np.median(offset[is_aligned]) if is_aligned.any() else 0.0
    offset[~is_aligned] = 0.0
    how = tuple(BY_COLLECTIVES if each else UNKNOWN_CLOCK for each in is_aligned)
    return Clocks(np.rint(offset).astype(np.int64), error, how)


def _relaxed(count: int, matched: Matched) -> tuple[list[float | None], NDArray[np.float64]]:
    """Return the offsets with the best agreement of the ends, and each rank's median deviation.

    The deviation is None for a rank without any end.
    """
    ends = []
    for block in matched.blocks:
        together = np.array([op in TOGETHER for op in block.ops], dtype=np.bool_)
        if not together.any():
            continue
        raw = block.end_ns if together.all() else block.end_ns[:, together]
        base = int(raw[raw != NO_VALUE].min())
        # Relative to the first end, the times are exact as doubles.
        near = np.full(raw.shape, np.nan)
        known = raw != NO_VALUE
        near[known] = raw[known] - base
        ends.append((block.ranks, near))
    offset = np.zeros(count)
    for _ in range(_ROUNDS):
        residuals = _residuals(count, ends, offset)
        step = np.array([np.median(each) if len(each) else 0.0 for each in residuals])
        offset += step
        if np.abs(step).max(initial=0.0) < 1.0:
            break
    spread = [
        float(np.median(np.abs(each - np.median(each)))) if len(each) else None
        for each in _residuals(count, ends, offset)
    ]
    return spread, offset


def _residuals(
    count: int,
    ends: list[tuple[NDArray[np.intp], NDArray[np.float64]]],
    offset: NDArray[np.float64],
) -> Iterator[NDArray[np.float64]]:
    """Yield the deviations of each rank's ends from those of all ranks."""
    middles = []
    rows: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for number, (ranks, end) in enumerate(ends):
        middle = np.empty(end.shape[1])
        for first in range(0, len(middle), _columns_at_once(len(ranks))):
            some = slice(first, first + _columns_at_once(len(ranks)))
            middle[some] = np.nanmedian(end[:, some] - offset[ranks][:, None], axis=0)
        middles.append(middle)
        for row, rank in enumerate(ranks.tolist()):
            rows[rank].append((number, row))
    for rank, mine in enumerate(rows):
        found = [ends[number][1][row] - offset[rank] - middles[number] for number, row in mine]
        away = np.concatenate(found) if found else np.empty(0)
        yield away[~np.isnan(away)]


def _columns_at_once(ranks: int) -> int:
    return max(1, AT_ONCE // max(1, ranks))
