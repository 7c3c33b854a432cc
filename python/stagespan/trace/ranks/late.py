"""Why the rank that came last to a collective was late: parts that sum to what others lost."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.ranks.match import UNKNOWN, Block

BEFORE, COMPUTING, COMMUNICATION, HOST, NOT_KNOWN = (
    "before_the_traces",
    "computing",
    "other_collectives",
    "host",
    "unknown",
)
REASONS = {
    BEFORE: "its step began later, and the traces do not show why",
    COMPUTING: "it computed longer than the others before it arrived",
    COMMUNICATION: "other collectives took it longer",
    HOST: "it neither computed nor communicated for longer than the others, so look at its host",
    NOT_KNOWN: "nothing tells why",
}
# Elements of the arrays that are worked on at once.
_AT_ONCE = 1 << 20


def reasons(
    block: Block,
    columns: NDArray[np.intp],
    last: NDArray[np.intp],
    lost_ns: NDArray[np.int64],
    start_ns: NDArray[np.int64],
    computing_known: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """Of each of `columns` the time that all ranks lost there, by reason, in the order of REASONS.

    `last` has of each of them the row of the rank that came last, `lost_ns` by row and column of
    the block what each rank lost, `start_ns` by row where the rank's first step, or its trace,
    begins, or UNKNOWN; `computing_known` by row whether its trace shows what it computed. All times
    of the block are on one clock.

    In its first step a rank that took no longer since the step's begin than another rank did has
    only begun later. Afterwards it is compared from the collective before, which all ended
    together: the longer it took since then, the more it computed, communicated, or did neither.
    """
    found = np.zeros((len(REASONS), len(columns)), dtype=np.int64)
    size = max(1, _AT_ONCE // max(1, len(block.ranks)))
    for first in range(0, len(columns), size):
        part = slice(first, first + size)
        found[:, part] = _of_columns(
            block, columns[part], last[part], lost_ns, start_ns, computing_known
        )
    return found


def _of_columns(
    block: Block,
    columns: NDArray[np.intp],
    last: NDArray[np.intp],
    lost_ns: NDArray[np.int64],
    start_ns: NDArray[np.int64],
    computing_known: NDArray[np.bool_],
) -> NDArray[np.int64]:
    at, before = columns, np.maximum(columns - 1, 0)
    begin, lost = block.begin_ns[:, at], lost_ns[:, at]
    one = (last, np.arange(len(columns)))

    def longer(times: NDArray[np.int64]) -> NDArray[np.float64]:
        """By how much the last rank's time exceeds that of each."""
        difference: NDArray[np.float64] = (times[one] - times).astype(np.float64)
        return difference

    late = np.maximum(longer(begin), 1.0)
    # Since the collective before.
    follows = (columns > 0) & (block.begin_ns[:, before] != UNKNOWN)
    comparable = follows & follows[one]
    since = block.end_ns[:, before]
    ran = block.end_ns[:, before] - block.begin_ns[:, before]
    computed = block.computed_ns[:, at] - block.computed_ns[:, before]
    computed = computed - block.computed_in_ns[:, before]
    busy = block.busy_ns[:, at] - block.busy_ns[:, before] - ran
    # Since the first step began.
    initial = _in_first_step(block, columns, last) & bool((start_ns != UNKNOWN).all())
    fresh = initial & (columns == 0)
    since = np.where(fresh, start_ns[:, np.newaxis], since)
    computed = np.where(fresh, block.computed_ns[:, at], computed)
    busy = np.where(fresh, block.busy_ns[:, at], busy)
    comparable = comparable | fresh
    took = np.clip(longer(begin - since), 0, late)
    of_step = np.clip(longer(begin - start_ns[:, np.newaxis]), 0, late)
    own = np.where(initial, of_step, np.where(comparable, took, 0.0))
    own = own / late
    kinds = [np.maximum(longer(each), 0.0) for each in (computed, busy - computed)]
    kinds.append(np.maximum(longer(begin - since - busy), 0.0))
    whole = sum(kinds)
    shares = [own * np.where(whole > 0, each / np.where(whole > 0, whole, 1), 0) for each in kinds]
    # Longer since the step's begin, and not since the collective before.
    shares[2] = np.where(comparable & (whole > 0), shares[2], np.where(initial, own, 0.0))
    for number in (0, 1):
        shares[number] = np.where(comparable, shares[number], 0.0)
    for number in (0, 2):
        shown = computing_known[:, np.newaxis] & computing_known[last]
        shares[number] = np.where(shown, shares[number], 0.0)
    weighed = np.where(begin == UNKNOWN, 0, lost).astype(np.float64)
    times = np.zeros((len(REASONS), len(columns)), dtype=np.int64)
    for row, each in zip((1, 2, 3), shares, strict=True):
        times[row] = np.floor((each * weighed).sum(axis=0)).astype(np.int64)
    rest = weighed.sum(axis=0).astype(np.int64) - times.sum(axis=0)
    times[0] = np.where(initial, rest, 0)
    times[4] = np.where(initial, 0, rest)
    return times


def _in_first_step(
    block: Block, columns: NDArray[np.intp], last: NDArray[np.intp]
) -> NDArray[np.bool_]:
    """Whether the last rank came in the first step of its trace; without steps, to its first."""
    step = block.step[last, columns]
    known: NDArray[np.bool_] = np.where(step >= 0, (step >= 0) & (step <= 1), columns == 0)
    return known
