"""Repetition in a sequence: the block that follows itself several times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int64]
# Lengths of blocks that are tried, the most frequent distances first.
_CANDIDATES = 96


@dataclass(frozen=True, slots=True)
class Repeat:
    """A block of `length` elements that occurs `times` times in a row, the first at `begin`."""

    begin: int
    length: int
    times: int

    @property
    def end(self) -> int:
        """Behind the last of the whole blocks."""
        return self.begin + self.length * self.times


def longest_repeat(codes: Codes, least_times: int = 3, least_length: int = 1) -> Repeat | None:
    """The repetition that covers the most of a sequence; of equal ones that of the shortest block.

    None where no block of at least `least_length` follows itself `least_times` times.
    """
    best: Repeat | None = None
    for length in _lengths(codes, least_times, least_length):
        same = codes[:-length] == codes[length:]
        begin, run = _longest_run(same)
        times = (run + length) // length
        if times < least_times:
            continue
        if best is None or length * times > best.length * best.times:
            best = Repeat(begin, length, times)
    return best


def all_repeats(
    codes: Codes, least_times: int, least_length: int, most: int
) -> list[tuple[Repeat, int]]:
    """The largest repetitions that do not overlap, each with how much it covers, largest first."""
    found: list[tuple[Repeat, int]] = []
    pieces = [(0, len(codes))]
    while pieces and len(found) < most:
        begin, end = pieces.pop(int(np.argmax([stop - start for start, stop in pieces])))
        repeat = longest_repeat(codes[begin:end], least_times, least_length)
        if repeat is None:
            continue
        repeat = Repeat(begin + repeat.begin, repeat.length, repeat.times)
        found.append((repeat, repeat.end - repeat.begin))
        pieces += [(begin, repeat.begin), (repeat.end, end)]
    return sorted(found, key=lambda pair: -pair[1])


def _lengths(codes: Codes, least_times: int, least_length: int) -> list[int]:
    """Distances between an element and its next occurrence, which a block's length must be."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    distance = np.diff(order)[ordered[1:] == ordered[:-1]]
    distance = distance[(distance >= least_length) & (distance * least_times <= len(codes))]
    lengths, counts = np.unique(distance, return_counts=True)
    # A block that is longer occurs less often.
    weight = counts * lengths
    chosen = lengths[np.argsort(-weight, kind="stable")[:_CANDIDATES]]
    return sorted(int(length) for length in chosen)


def _longest_run(same: NDArray[np.bool_]) -> tuple[int, int]:
    """Where the longest run of True begins, and its length."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
    begins, ends = edges[::2], edges[1::2]
    if len(begins) == 0:
        return 0, 0
    at = int(np.argmax(ends - begins))
    return int(begins[at]), int(ends[at] - begins[at])
