"""The rows of a timeline, in a limited number of bars.

The bars of a row do not overlap, so that the page can draw any part of it by its busy share. If a
row has more events than its part of `MOST_BARS`, those closest together become one bar, with the
time of each kind in it, so idle time is never drawn as busy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stagespan.pages.kernel_names import labels
from stagespan.pages.result import shortened

Times = NDArray[np.int64]

MOST_BARS = 40_000
"""Of all rows."""
MOST_NAMES = 4_000
LONGEST_EVENT = 120
"""The most letters of an event's name on the page."""


class TimelineRow(msgspec.Struct, frozen=True):
    """A row of the timeline: events in order of start, which do not overlap; in ns."""

    name: str
    begin: Times
    end: Times
    key: NDArray[np.intp]
    """The kind of each event, as an index into `keys`."""
    keys: list[tuple[str, str]]
    """Keys of colours, and their names on the page."""
    label: NDArray[np.intp]
    """The name of each event, as an index into `names`."""
    names: list[str]
    what: str = "events"
    note: str = ""
    """A note about events that are not drawn."""

    def busy_ns(self) -> int:
        """The busy time of the row."""
        return int((self.end - self.begin).sum())


class Bars(msgspec.Struct, frozen=True):
    """Bars of a row, each for one event or for several events that are close together."""

    begin: Times
    end: Times
    count: Times
    longest: Times
    """The index of the longest event of each bar."""
    of: Times
    """The bar of each event."""


def timeline_row(
    name: str,
    begin: Times,
    end: Times,
    key: NDArray[np.intp],
    keys: list[tuple[str, str]],
    label: NDArray[np.intp],
    names: list[str],
    what: str = "events",
    note: str = "",
) -> TimelineRow:
    """Return a row of events in any order. If events overlap, the first one has the time."""
    order = np.lexsort((-end, begin))
    begin, end = begin[order], end[order]
    reach = np.concatenate((begin[:1], np.maximum.accumulate(end)[:-1]))
    begin = np.maximum(begin, reach)
    kept = np.flatnonzero(end > begin)
    order = order[kept]
    return TimelineRow(
        name, begin[kept], end[kept], key[order], keys, label[order], names, what, note
    )


def drawn(rows: Sequence[TimelineRow]) -> dict[str, Any]:
    """Return the rows for the page. Times are in ns, each start relative to the previous end."""
    limits = _bars_per_row([len(row.begin) for row in rows])
    keys: dict[tuple[str, str], int] = {}
    names: dict[str, int] = {}
    for row in rows:
        for key in row.keys:
            keys.setdefault(key, len(keys))
    parts = [_part(row, most, keys, names) for row, most in zip(rows, limits, strict=True)]
    kept = list(names)[:MOST_NAMES]
    shown = labels(kept, LONGEST_EVENT)
    return {"keys": list(keys), "names": [shown[name] for name in kept], "rows": parts}


def summed_up(begin: Times, end: Times, most: int) -> Bars:
    """Combine events, in order of start, to at most `most` bars, split at the largest gaps."""
    count = len(begin)
    starts = np.arange(count)
    if count > most:
        gap = begin[1:] - end[:-1]
        starts = np.sort(np.argpartition(-gap, most - 2)[: most - 1]) + 1
        starts = np.concatenate(([0], starts))
    of = np.searchsorted(starts, np.arange(count), side="right") - 1
    first, last = starts, np.append(starts[1:], count) - 1
    by_length = np.lexsort((begin - end, of))
    longest = by_length[np.searchsorted(of[by_length], np.arange(len(starts)))]
    return Bars(begin[first], end[last], last - first + 1, longest, of)


def _bars_per_row(requested: list[int]) -> list[int]:
    """Return the number of bars of each row. Rows that need few leave the rest to others."""
    given = [0] * len(requested)
    left = MOST_BARS
    order = sorted(range(len(requested)), key=lambda at: requested[at])
    for number, at in enumerate(order):
        given[at] = min(requested[at], left // (len(order) - number))
        left -= given[at]
    return given


def _part(
    row: TimelineRow, most: int, keys: dict[tuple[str, str], int], names: dict[str, int]
) -> dict[str, Any]:
    bars = summed_up(row.begin, row.end, max(most, 2))
    several = np.flatnonzero(bars.count > 1)
    key = np.array([keys[each] for each in row.keys], dtype=np.intp)[row.key]
    note = row.note
    if len(several):
        count = f"{len(row.begin):,} {row.what}"
        note = f"{row.name}: {count} in {len(bars.begin):,} bars. {note}".strip()
    return {
        "name": shortened(row.name, 40),
        "what": row.what,
        "busy": row.busy_ns(),
        "events": len(row.begin),
        "note": note,
        "gaps": (bars.begin - np.concatenate(([0], bars.end[:-1]))).tolist(),
        "lengths": (bars.end - bars.begin).tolist(),
        "keys": key[bars.longest].tolist(),
        "names": [
            names.setdefault(row.names[label], len(names))
            for label in row.label[bars.longest].tolist()
        ],
        "several": dict(_several(row, bars, several, key)),
    }


def _several(
    row: TimelineRow, bars: Bars, several: Times, key: NDArray[np.intp]
) -> Iterator[tuple[int, list[int]]]:
    """Return the number of events and the time of each kind, for bars of several events."""
    if len(several) == 0:
        return
    kinds = int(key.max()) + 1
    cells, which = np.unique(bars.of * kinds + key, return_inverse=True)
    busy = np.bincount(which.reshape(-1), weights=row.end - row.begin).astype(np.int64)
    of, kind = cells // kinds, cells % kinds
    for at in several.tolist():
        low, high = np.searchsorted(of, [at, at + 1])
        pairs_of = zip(kind[low:high].tolist(), busy[low:high].tolist(), strict=True)
        yield at, [int(bars.count[at]), *itertools.chain.from_iterable(pairs_of)]
