"""Creates a trace of any size by repeating a real one with later times and new ids."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

from stagespan import _core

# The values that must differ between copies: integers after these keys, and numbers of steps.
_SHIFTED = re.compile(
    rb'("(?:ts|id|correlation|External id|external id|Ev Idx|Sequence number|Python id'
    rb'|Python parent id)": ?"?|ProfilerStep#)(\d+)'
)
_EVENTS = re.compile(rb'"traceEvents":\s*\[')


def enlarge(source: Path, target: Path, size_bytes: int) -> int:
    """Write a trace of at least `size_bytes` to `target`. Returns the number of copies of `source`.

    Raises ValueError if the source has no list of events under `traceEvents`.
    """
    data = gzip.decompress(source.read_bytes())
    opening = _EVENTS.search(data)
    if opening is None:
        raise ValueError(f"{source} has no list of events that could be repeated.")
    behind, state = _core.TraceScanner().scan(data, opening.end())
    end = data.rfind(b"}", opening.end(), behind) + 1
    if state != _core.SCAN_CLOSED or not end:
        raise ValueError(f"{source} has no list of events that could be repeated.")
    copies = -(-size_bytes // (end - opening.end()))
    with target.open("wb") as file:
        file.write(data[: opening.end()])
        for number, copy in enumerate(_copies(data[opening.end() : end], copies)):
            file.write(b",\n" * (number > 0))
            file.writelines(copy)
        file.write(data[end:])
    return copies


def _copies(events: bytes, count: int) -> Iterator[list[bytes]]:
    parts = _SHIFTED.split(events)
    keys = parts[1::3]
    numbers = [int(digits) for digits in parts[2::3]]
    spans: dict[bytes, tuple[int, int]] = {}
    for key, number in zip(keys, numbers, strict=True):
        low, high = spans.get(key, (number, number))
        spans[key] = min(low, number), max(high, number)
    for copy in range(count):
        # A copy begins at the end of the previous one, with larger ids.
        shifts = {key: copy * (high - low + 1) for key, (low, high) in spans.items()}
        parts[2::3] = [
            b"%d" % (number + shifts[key]) for key, number in zip(keys, numbers, strict=True)
        ]
        yield parts
