"""Keeps the slow requests of this process, from a thread of its own."""

from __future__ import annotations

import atexit
import logging
import os
import threading

from stagespan.contexts.requests import UnboundThread
from stagespan.errors import SettingsError
from stagespan.export.kept import Keeper
from stagespan.export.this_process import ThisProcess
from stagespan.export.traces import Over, Rules
from stagespan.export.watching import WATCH_S, Watcher, ask_here
from stagespan.process import forks, termination
from stagespan.signature import watch

_LOGGER = logging.getLogger("stagespan")
_INTERVAL_S = 1.0
_LONGEST_END_S = 1.0


class Keeping:
    """Keeps slow requests of this process until it is closed; what `start` returns."""

    def __init__(self, place: str | os.PathLike[str], over: Over, most_bytes: int) -> None:
        self._process = ThisProcess(Rules(one_in=0, failed=False, over=over))
        self._keeper = Keeper(place, most_bytes)
        self._watcher = Watcher(self._process, ask_here)
        watch.start(WATCH_S)  # a short program ends before the first step
        self._stop = threading.Event()
        self._stepping = threading.Lock()
        self._is_told = False
        self._thread = UnboundThread(target=self._run, name="stagespan-keep", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(min(_INTERVAL_S, self._process.longest_pause_s())):
            try:
                self._step()
            except Exception as error:  # the next reading may succeed
                if not self._is_told:
                    self._is_told = True
                    _LOGGER.warning("Slow requests could not be kept: %r.", error)

    def _step(self, *, at_end: bool = False) -> None:
        # At the end, the thread may still be in a step.
        with self._stepping:
            self._process.read(at_end=at_end)
            if not at_end:
                self._watcher.watch()
            requests = self._process.complete(at_end=at_end)
            self._watcher.note(requests)
            self._keeper.put(requests)

    def lost(self) -> dict[str, int]:
        """Return how many requests could not be written."""
        return self._keeper.lost()

    def close(self) -> None:
        """Write what was kept, and stop."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._thread.join(_LONGEST_END_S)
        self._step(at_end=True)
        self._keeper.close()


_running: list[Keeping] = []


def start(
    place: str | os.PathLike[str], over: str = "2.0xp99", *, most_bytes: int = 256 << 20
) -> Keeping:
    """Keep requests of this process that are too slow, and why they were.

    They are compared with the latest 1,000 of their pipeline; none is kept before there were 100.
    `stagespan requests PLACE` shows them. A forked child keeps none; for services of several
    processes, use ``stagespan export --keep``.

    Args:
        place: A folder, which is made, or a URL.
        over: A factor and a percentile.
        most_bytes: The oldest files are removed if all of them are larger.

    Returns:
        An object whose ``close()`` writes what is left and stops; it is called at exit, and when
        SIGTERM ends the process.

    Raises:
        StagespanError: If this process has no recording, or files cannot be written there.
        SettingsError: If ``over`` is not a factor and a percentile.

    Example:
        ```python
        from stagespan.export import keeping

        running = keeping.start("kept", "3.0xp95")
        ```
    """
    limit = Over.parsed(over)
    if limit is None:
        raise SettingsError(f"over={over!r} must be a factor and a percentile, such as 2.0xp99.")
    started = Keeping(place, limit, most_bytes)
    _running.append(started)
    termination.watch(_close_all)
    return started


def _close_all() -> None:
    while _running:
        _running.pop().close()


# Before the exit handlers of the service and of the recording, which are registered earlier.
atexit.register(_close_all)
forks.at_worker_exit(_close_all, priority=2)
forks.after_in_child(_running.clear)
