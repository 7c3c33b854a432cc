"""Snapshots of the last minutes, dense for the last seconds and sparse for older times."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

_SECOND = 10**9

SPACING_S = 2.5
"""Seconds between the newest snapshots."""

# (age up to which it applies, distance between snapshots), both in seconds. The usual windows of
# 10 s and 1, 5 and 15 minutes begin in a row that is fine enough for them.
_LEVELS = ((15.0, SPACING_S), (80.0, 10.0), (400.0, 60.0), (1100.0, 180.0))

MOST_BYTES = 16 * 1024 * 1024
"""Memory for all snapshots. Beyond it, the distances between them are doubled, once or more."""

_MOST_DOUBLINGS = 4


class Kept(Protocol):
    """An object that was made at a certain time and uses memory, such as `_core.PackedSnapshot`."""

    @property
    def time_ns(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...


_Snapshot = TypeVar("_Snapshot", bound=Kept)


class History(Generic[_Snapshot]):
    """The snapshots, oldest first: a few dozen, and at most ``most_bytes``, or the newest one."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: list[_Snapshot] = []

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, snapshot: _Snapshot) -> None:
        """Add a snapshot that was taken after all others, and thin out old ones.

        If the system's clock was set back, snapshots with later times are dropped.
        """
        kept = [*(old for old in self._kept if old.time_ns <= snapshot.time_ns), snapshot]
        for doublings in range(_MOST_DOUBLINGS + 1):
            kept = _thinned(kept, 2.0**doublings)
            if _size_bytes(kept) <= self._most_bytes:
                break
        while len(kept) > 1 and _size_bytes(kept) > self._most_bytes:
            del kept[0]
        self._kept = kept

    def view(self) -> History[_Snapshot]:
        """Return the current snapshots, without those that are added later."""
        view: History[_Snapshot] = History()
        view._kept = self._kept  # add() replaces the list
        return view

    def nearest(self, time_ns: int) -> _Snapshot | None:
        """Return the snapshot closest to a time, or None if there are no snapshots."""
        kept = self._kept
        after = bisect.bisect_left(kept, time_ns, key=lambda snapshot: snapshot.time_ns)
        around = kept[max(after - 1, 0) : after + 1]
        return min(around, key=lambda snapshot: abs(snapshot.time_ns - time_ns), default=None)


def _size_bytes(snapshots: Iterable[Kept]) -> int:
    return sum(snapshot.size_bytes for snapshot in snapshots)


def _thinned(snapshots: list[_Snapshot], factor: float) -> list[_Snapshot]:
    """Return the last snapshot, and those before it at the distances for their age, multiplied."""
    newest = snapshots[-1]
    kept: list[_Snapshot] = []
    last_bucket: tuple[float, int] | None = None
    for old in snapshots:
        age_s = (newest.time_ns - old.time_ns) / _SECOND
        spacing_s = next((spacing for up_to, spacing in _LEVELS if age_s <= up_to), None)
        if spacing_s is None:  # it is too old to keep
            continue
        # Buckets are fixed in time, so that later calls keep the same snapshots.
        bucket = (spacing_s, int(old.time_ns // (spacing_s * factor * _SECOND)))
        if bucket != last_bucket:
            kept.append(old)
            last_bucket = bucket
    if kept[-1] is not newest:
        kept.append(newest)
    return kept
