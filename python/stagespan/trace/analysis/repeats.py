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
        for begin, run in _runs(same, (least_times - 1) * length):
            times = (run + length) // length
            if best is not None and length * times <= best.length * best.times:
                break
            if not _is_shorter(codes[begin : begin + length], least_length):
                best = Repeat(begin, length, times)
                break
    return best


def all_repeats(codes: Codes, least_times: int, least_length: int, most: int) -> list[Repeat]:
    """Repetitions that do not overlap, in order: of each longest piece the one that covers most."""
    found: list[Repeat] = []
    pieces = [(0, len(codes))]
    while pieces and len(found) < most:
        begin, end = pieces.pop(int(np.argmax([stop - start for start, stop in pieces])))
        repeat = longest_repeat(codes[begin:end], least_times, least_length)
        if repeat is None:
            continue
        repeat = Repeat(begin + repeat.begin, repeat.length, repeat.times)
        found.append(repeat)
        pieces += [(begin, repeat.begin), (repeat.end, end)]
    return sorted(found, key=lambda repeat: repeat.begin)


def _lengths(codes: Codes, least_times: int, least_length: int) -> list[int]:
    """All that are possible where they are few; else distances between an element and its next
    occurrence, which the length of a block is that holds some element only once.
    """
    most = len(codes) // least_times
    if most - least_length < _CANDIDATES:
        return list(range(least_length, most + 1))
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    distance = np.diff(order)[ordered[1:] == ordered[:-1]]
    distance = distance[(distance >= least_length) & (distance * least_times <= len(codes))]
    lengths, counts = np.unique(distance, return_counts=True)
    # A block that is longer occurs less often.
    weight = counts * lengths
    chosen = lengths[np.argsort(-weight, kind="stable")[:_CANDIDATES]]
    return sorted(int(length) for length in chosen)


def _is_shorter(block: Codes, least_length: int) -> bool:
    """Whether a block is itself a repetition of a block that is too short."""
    lengths = (length for length in range(1, least_length) if len(block) % length == 0)
    return any(bool(np.all(block[:-length] == block[length:])) for length in lengths)


def same_block(first: Codes, second: Codes) -> bool:
    """Whether one block is the other, begun at another of its elements."""
    if len(first) != len(second):
        return False
    turns = np.flatnonzero(second == first[0])
    return any(bool(np.all(np.roll(second, -int(turn)) == first)) for turn in turns)


def _runs(same: NDArray[np.bool_], least: int) -> list[tuple[int, int]]:
    """Where runs of at least so many True begin, and their lengths, the longest first."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
    begins, lengths = edges[::2], edges[1::2] - edges[::2]
    long = np.flatnonzero(lengths >= max(least, 1))
    long = long[np.argsort(-lengths[long], kind="stable")]
    return list(zip(begins[long].tolist(), lengths[long].tolist(), strict=True))
