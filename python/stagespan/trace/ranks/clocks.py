"""Align the clocks of the ranks: a collective ends at about the same time on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.ranks.collectives import TOGETHER
from stagespan.trace.ranks.match import UNKNOWN, Matched
from stagespan.trace.ranks.summary import RankSummary

HOST, COLLECTIVES, UNKNOWN_CLOCK = "host", "collectives", "unknown"
"""One clock for all ranks; aligned by collectives; unknown."""
_ROUNDS = 50
# Converts a median absolute deviation to a standard deviation for normal errors.
_TO_SIGMA = 1.4826


@dataclass(frozen=True, slots=True)
class Clocks:
    """How far each rank's clock is ahead, in ns."""

    offset_ns: NDArray[np.int64]
    """The offset to subtract from a rank's times; 0 if unknown."""
    error_ns: NDArray[np.int64]
    """The scatter of the ends of collectives about the common time; -1 if unknown."""
    how: tuple[str, ...]
    """HOST, COLLECTIVES or UNKNOWN_CLOCK for each rank."""


def align(summaries: Sequence[RankSummary], matched: Matched) -> Clocks:
    """Estimate each rank's offset from the matched collectives that end on all ranks together.

    Ranks on one host (`host_name`) have one clock and get the same offset, which is 0 if all ranks
    are on that host. The median of all offsets is taken as 0, so that times stay near those of the
    traces. Medians are used because a few collectives that end late on one rank do not move them.
    """
    count = len(summaries)
    residuals, offset = _relaxed(count, matched)
    known = np.array([len(each) > 0 for each in residuals], dtype=np.bool_)
    error = np.full(count, -1, dtype=np.int64)
    for at in np.flatnonzero(known).tolist():
        each = residuals[at]
        error[at] = round(_TO_SIGMA * float(np.median(np.abs(each - np.median(each)))))
    hosts: dict[str, list[int]] = {}
    for at, summary in enumerate(summaries):
        if summary.host is not None and summary.unix_clock:
            hosts.setdefault(summary.host, []).append(at)
    if len(hosts) == 1 and sum(map(len, hosts.values())) == count > 1:
        zeros = np.zeros(count, dtype=np.int64)
        return Clocks(zeros, zeros.copy(), (HOST,) * count)
    for members in hosts.values():
        aligned = [at for at in members if known[at]]
        if aligned:
            offset[members] = np.median(offset[aligned])
            known[members] = True
    offset[known] -= np.median(offset[known]) if known.any() else 0.0
    offset[~known] = 0.0
    how = tuple(COLLECTIVES if each else UNKNOWN_CLOCK for each in known)
    return Clocks(np.rint(offset).astype(np.int64), error, how)


def _relaxed(count: int, matched: Matched) -> tuple[list[NDArray[np.float64]], NDArray[np.float64]]:
    """Return the offsets with the best agreement of the ends, and each rank's deviations."""
    ends = []
    for block in matched.blocks:
        together = np.array([op in TOGETHER for op in block.ops], dtype=np.bool_)
        if not together.any():
            continue
        raw = block.end_ns[:, together]
        base = int(raw[raw != UNKNOWN].min())
        # Relative to the first end, the times are exact as doubles.
        near = np.where(raw == UNKNOWN, base, raw) - base
        ends.append((block.ranks, np.where(raw == UNKNOWN, np.nan, near)))
    offset = np.zeros(count)
    for _ in range(_ROUNDS):
        residuals = _residuals(count, ends, offset)
        step = np.array([np.median(each) if len(each) else 0.0 for each in residuals])
        offset += step
        if np.abs(step).max(initial=0.0) < 1.0:
            break
    return _residuals(count, ends, offset), offset


def _residuals(
    count: int,
    ends: list[tuple[NDArray[np.intp], NDArray[np.float64]]],
    offset: NDArray[np.float64],
) -> list[NDArray[np.float64]]:
    found: list[list[NDArray[np.float64]]] = [[] for _ in range(count)]
    for ranks, end in ends:
        aligned = end - offset[ranks][:, None]
        away = aligned - np.nanmedian(aligned, axis=0)
        for row, rank in enumerate(ranks.tolist()):
            here = away[row]
            found[rank].append(here[~np.isnan(here)])
    return [np.concatenate(each) if each else np.empty(0) for each in found]
