"""Traces whose texts all have the same position in a hash table."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from running import ran

Words = NDArray[np.uint64]

COUNT = 100_000
BAD = np.zeros(256, dtype=np.bool_)  # bytes that would have to be escaped
BAD[[*range(32), 0x22, 0x5C, 0x7F]] = True


def inverse_shift(value: Words, shift: int) -> Words:
    """Return the numbers for which `x ^ (x >> shift)` is these."""
    result = value
    for _ in range(64 // shift + 1):
        result = value ^ (result >> np.uint64(shift))
    return result


def inverse(factor: int) -> np.uint64:
    """Return the number whose product with the factor is 1; products of Words are modulo 2**64."""
    return np.uint64(pow(factor, -1, 1 << 64))


def printable_words(seed: int) -> Words:
    """Return many words of 8 random printable characters."""
    # One text in 13 of such a word and two calculated ones contains no bad character.
    letters = np.random.default_rng(seed).integers(32, 127, (16 * COUNT, 8), dtype=np.uint8)
    return letters.view("<u8").reshape(-1)


def texts_of_words(*words: Words) -> list[bytes]:
    """Return COUNT different texts of words that contain only characters as they are in JSON."""
    each = np.stack(words, axis=1)
    letters = each.view(np.uint8)
    found = np.unique(each[~BAD[letters].any(axis=1)], axis=0)[:COUNT]
    assert len(found) == COUNT
    return [text.tobytes() for text in found]


def same_with_two_chains() -> list[bytes]:
    """Texts of 24 bytes with the same hash in two chains of multiplications by a known number."""
    undo = inverse(0x9E3779B97F4A7C15)
    begin_a = np.uint64(24 * 0xD6E8FEB86659FD93 % (1 << 64))
    begin_b = np.uint64(0xA0761D6478BD642F)
    target_a, target_b = np.uint64(0x0123456789ABCDEF), np.uint64(0x1122334455667788)

    def unmix(value: Words) -> Words:
        return inverse_shift(value, 29) * undo

    last = printable_words(1)
    return texts_of_words(begin_a ^ unmix(target_a ^ last), begin_b ^ unmix(target_b ^ last), last)


def same_in_murmur() -> list[bytes]:
    """Texts of 16 bytes with one hash under the 64-bit Murmur of std::hash in libstdc++."""
    number, seed = 0xC6A4A7935BD1E995, 0xC70F6907
    factor, undo = np.uint64(number), inverse(number)
    middle = np.uint64(0x0123456789ABCDEF * int(undo) % (1 << 64))  # the state after both words

    def scrambled(word: Words) -> Words:
        word = word * factor
        return (word ^ (word >> np.uint64(47))) * factor

    def unscrambled(word: Words) -> Words:
        return inverse_shift(word * undo, 47) * undo

    first = printable_words(2)
    begin = np.uint64(seed ^ (16 * number % (1 << 64)))
    state = (begin ^ scrambled(first)) * factor
    return texts_of_words(first, unscrambled(middle ^ state))


def written(folder: Path, entries: Iterator[bytes]) -> Path:
    path = folder / "trace.json"
    path.write_bytes(b'{"traceEvents":[' + b",".join(entries) + b"]}")
    return path


def names(folder: Path) -> Path:
    texts = same_with_two_chains()
    return written(folder, (b'{"ph":"X","ts":1,"dur":1,"name":"%s"}' % text for text in texts))


def process_ids(folder: Path) -> Path:
    texts = same_in_murmur()
    return written(
        folder, (b'{"ph":"X","ts":1,"dur":1,"name":"a","pid":"%s"}' % text for text in texts)
    )


def argument_keys(folder: Path) -> Path:
    """Pairs of keys with the same position in a table that uses numbers as their hash."""
    places = 172_933  # of a table of the standard library with some 160,000 entries
    count = 104_000
    entries = [
        json.dumps({"ph": "X", "ts": 1, "dur": 1, "name": "a", "args": {f"k{i}": 1}}).encode()
        for i in range(count)
    ]
    for node in range(1, count + 1):  # below the key whose number is one less
        second = -(node << 32) % places
        if second < count and second != node - 1:
            arguments = f'"k{node - 1}":1,"k{second}":1'.encode()
            entries.append(b'{"ph":"X","ts":1,"dur":1,"name":"a","args":{%s}}' % arguments)
    return written(folder, iter(entries))


PROGRAM = """
import resource, sys
# The limit is there for a reader that takes the square of the file's length.
resource.setrlimit(resource.RLIMIT_CPU, (6, 6))
from stagespan.trace import read_trace
trace = read_trace(sys.argv[1])
print(sum(trace.left_out.values()) + len(trace.events))
"""


@pytest.mark.parametrize("make", [names, process_ids, argument_keys])
def test_texts_chosen_for_their_hashes_are_read_like_others(make: object, tmp_path: Path) -> None:
    # GIVEN a trace of tens of thousands of texts with the same hash for a known function
    path = make(tmp_path)  # type: ignore[operator]
    done = ran([sys.executable, "-c", PROGRAM, str(path)])
    # THEN that takes a negligible time
    assert done.returncode == 0, done.stderr or f"ended by signal {-done.returncode}"
    assert int(done.stdout) >= 60_000
