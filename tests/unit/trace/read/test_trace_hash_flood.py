"""Traces whose texts all have the same position in a hash table."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

MASK = (1 << 64) - 1
BAD = frozenset(range(32)) | {0x22, 0x5C, 0x7F}  # characters that would have to be escaped


def inverse_shift(value: int, shift: int) -> int:
    """Return the number for which `x ^ (x >> shift)` is this one."""
    result = value
    for _ in range(64 // shift + 1):
        result = value ^ (result >> shift)
    return result


def texts_of_words(words: Iterator[tuple[int, ...]], count: int) -> list[bytes]:
    found: set[bytes] = set()
    for each in words:
        text = struct.pack(f"<{len(each)}Q", *each)
        if not BAD & set(text):
            found.add(text)
        if len(found) == count:
            break
    return sorted(found)


def same_with_two_chains(count: int) -> list[bytes]:
    """Texts of 24 bytes with the same hash in two chains of multiplications by a known number."""
    factor = 0x9E3779B97F4A7C15
    undo = pow(factor, -1, 1 << 64)
    begin_a, begin_b = (24 * 0xD6E8FEB86659FD93) & MASK, 0xA0761D6478BD642F
    target_a, target_b = 0x0123456789ABCDEF, 0x1122334455667788

    def unmix(value: int) -> int:
        return (inverse_shift(value, 29) * undo) & MASK

    def words() -> Iterator[tuple[int, ...]]:
        chance = random.Random(1)
        while True:
            last = int.from_bytes(bytes(chance.randrange(32, 127) for _ in range(8)), "little")
            yield begin_a ^ unmix(target_a ^ last), begin_b ^ unmix(target_b ^ last), last

    return texts_of_words(words(), count)


def same_in_murmur(count: int) -> list[bytes]:
    """Texts of 16 bytes with one hash under the 64-bit Murmur of std::hash in libstdc++."""
    factor, seed = 0xC6A4A7935BD1E995, 0xC70F6907
    undo = pow(factor, -1, 1 << 64)
    middle = 0x0123456789ABCDEF  # the state after both words

    def scrambled(word: int) -> int:
        word = (word * factor) & MASK
        return ((word ^ (word >> 47)) * factor) & MASK

    def unscrambled(word: int) -> int:
        return (inverse_shift((word * undo) & MASK, 47) * undo) & MASK

    def words() -> Iterator[tuple[int, ...]]:
        chance = random.Random(2)
        while True:
            first = int.from_bytes(bytes(chance.randrange(32, 127) for _ in range(8)), "little")
            state = ((seed ^ (16 * factor & MASK)) ^ scrambled(first)) * factor & MASK
            yield first, unscrambled(((middle * undo) & MASK) ^ state)

    return texts_of_words(words(), count)


def written(folder: Path, entries: Iterator[bytes]) -> Path:
    path = folder / "trace.json"
    path.write_bytes(b'{"traceEvents":[' + b",".join(entries) + b"]}")
    return path


def names(folder: Path) -> Path:
    texts = same_with_two_chains(100_000)
    return written(folder, (b'{"ph":"X","ts":1,"dur":1,"name":"%s"}' % text for text in texts))


def process_ids(folder: Path) -> Path:
    texts = same_in_murmur(100_000)
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
    # WHEN it is read
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True
    )
    # THEN that takes a negligible time
    assert done.returncode == 0, done.stderr or f"ended by signal {-done.returncode}"
    assert int(done.stdout) >= 60_000
