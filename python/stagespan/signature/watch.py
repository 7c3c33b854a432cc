"""Watches this process for what makes requests slow: collections of garbage, and arguments.

Only while a program or an exporter asks for it.
"""

from __future__ import annotations

import gc
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from stagespan import _core
from stagespan.errors import StagespanError
from stagespan.process import forks
from stagespan.process.commands import Answer, Work
from stagespan.signature import described

_LONGEST_WATCH_S = 3600.0
_KEPT_COLLECTIONS = 4096
_LEAST_COLLECTION_NS = 50_000
_MOST_ANSWERED = 20
"""Collections in an answer."""


class _Collection(NamedTuple):
    begin_ns: int
    end_ns: int
    thread: int


class _Watch:
    """What was noted since the watch began."""

    def __init__(self) -> None:
        self.since_ns = _core.now_ns()
        self.until_s = 0.0
        self.collections: deque[_Collection] = deque(maxlen=_KEPT_COLLECTIONS)
        self._begun: dict[int, int] = {}

    def note_collection(self, phase: str) -> None:
        """Note that the garbage collector begins or ends in this thread."""
        now_ns, thread = _core.now_ns(), threading.get_native_id()
        if phase == "start":
            self._begun[thread] = now_ns
            return
        begin_ns = self._begun.pop(thread, None)
        if begin_ns is not None and now_ns - begin_ns >= _LEAST_COLLECTION_NS:
            self.collections.append(_Collection(begin_ns, now_ns, thread))


_watch: _Watch | None = None


def start(seconds: float) -> None:
    """Watch for that long from now on.

    Raises StagespanError if the time is not a possible one.
    """
    global _watch
    if not 0 < seconds <= _LONGEST_WATCH_S:
        raise StagespanError(
            f"A process is watched for at most {_LONGEST_WATCH_S:g} s, not {seconds:g} s."
        )
    watch = _watch or _Watch()
    watch.until_s = time.monotonic() + seconds
    _watch = watch
    described.start(seconds)
    if _note_collection not in gc.callbacks:
        gc.callbacks.append(_note_collection)


def stop() -> None:
    """Watch no longer, and forget what was noted."""
    global _watch
    _watch = None
    described.stop()
    while _note_collection in gc.callbacks:
        gc.callbacks.remove(_note_collection)


def _note_collection(phase: str, info: dict[str, int]) -> None:
    global _watch
    watch = _watch
    if watch is not None and time.monotonic() > watch.until_s:
        watch = _watch = None
    if watch is not None:
        watch.note_collection(phase)
    # Python calls the functions by their index: if this one went, the next would be left out once.
    elif gc.callbacks[-1:] == [_note_collection]:
        gc.callbacks.pop()


def noted(begin_ns: int, end_ns: int, spans: Sequence[int] = ()) -> Answer:
    """Return what was noted between two Unix times.

    It has the signature of the first of these spans that has one.

    Raises StagespanError if the process is not watched.
    """
    watch = _watch
    if watch is None or time.monotonic() > watch.until_s:
        raise StagespanError("The process is not watched.")
    during = [
        one for one in watch.collections.copy() if one.begin_ns < end_ns and one.end_ns > begin_ns
    ]
    longest = sorted(during, key=lambda one: one.begin_ns - one.end_ns)[:_MOST_ANSWERED]
    sums_ns = (min(one.end_ns, end_ns) - max(one.begin_ns, begin_ns) for one in during)
    return {
        "since_ns": watch.since_ns,
        "collections": [one._asdict() for one in sorted(longest)],
        "collected_ns": sum(sums_ns),
        "described": described.noted(list(spans), begin_ns) if spans else None,
    }


def watched(seconds: float, begin_ns: int = 0, end_ns: int = 0, spans: Sequence[int] = ()) -> Work:
    """Watch for some seconds more, and return what was noted before (see `noted`)."""
    start(seconds)
    yield from ()  # it is done in one turn
    return noted(begin_ns, end_ns, spans)


forks.after_in_child(stop)
