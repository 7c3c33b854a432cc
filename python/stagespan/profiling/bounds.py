"""The bounds of a window: checks and watches them, and ends it in the thread that opened it."""

from __future__ import annotations

import numbers
import threading
import time
from collections.abc import Callable

from stagespan.contexts.requests import UnboundThread
from stagespan.errors import SettingsError
from stagespan.profiling.interrupt import Interrupt

THREAD_NAME = "stagespan-window"
_INTERVAL_S = 0.01
"""How often the number of events is read. An eager program records about 1,000 in this time."""
_SHORTEST_WAIT_S = 0.001
_LONGEST_PAUSE_S = 5.0


def check_bounds(function: str, **bounds: object) -> None:
    """Raise SettingsError if an argument of `function` is neither None nor a number above 0."""
    for what, bound in bounds.items():
        is_number = isinstance(bound, numbers.Real) and not isinstance(bound, bool)
        if bound is not None and not (is_number and bound > 0):  # type: ignore[operator]
            raise SettingsError(f"{function}({what}={bound!r}) must be a number above 0.")


class Watch:
    """Pauses and closes a window as soon as it has reached a bound. The window's thread makes it.

    Args:
        seconds: The time after which the window ends, or infinity.
        is_counted: Whether `is_due` must be asked all the time, because events are counted.
        is_due: Returns whether the window has reached a bound.
        pause: Stops the recording of events, in any thread.
        close: Closes the window. It is called in the window's thread, see `Interrupt`.
    """

    def __init__(
        self,
        seconds: float,
        is_counted: bool,
        is_due: Callable[[], bool],
        pause: Callable[[], None],
        close: Callable[[], None],
    ) -> None:
        self._until_s = time.monotonic() + seconds
        self._longest_wait_s = _INTERVAL_S if is_counted else threading.TIMEOUT_MAX
        self._is_due = is_due
        self._close = close
        self._interrupt = Interrupt(self._run_close)
        # Either the watch or `cancel` takes it from here.
        self._pauses = [pause]
        # Plain locks, because a forked child may cancel, and releasing one never waits.
        self._cancelled, self._paused = threading.Lock(), threading.Lock()
        self._cancelled.acquire()
        self._paused.acquire()

    def start(self) -> None:
        """Start the thread that watches."""
        UnboundThread(target=self._watch, name=THREAD_NAME, daemon=True).start()

    def cancel(self) -> None:
        """End the watch. After this call, it neither pauses nor closes anything."""
        if self._close is _nothing:
            return
        self._close = _nothing
        self._cancelled.release()
        try:
            self._pauses.pop()
        except IndexError:
            # The recording is being paused, or was. The next profiler must not be paused instead.
            self._paused.acquire(timeout=_LONGEST_PAUSE_S)

    def _watch(self) -> None:
        while not self._cancelled.acquire(timeout=self._interval_s()):
            if self._is_due():
                self.end()
                return

    def _interval_s(self) -> float:
        # Not 0, because the clock of `is_due` may be slightly behind.
        left_s = max(_SHORTEST_WAIT_S, self._until_s - time.monotonic())
        return min(left_s, self._longest_wait_s)

    def end(self) -> None:
        """Pause the recording, and make the window's thread close it soon, in any thread."""
        try:
            pause = self._pauses.pop()
        except IndexError:
            return
        try:
            pause()
            self._interrupt.send()
        finally:
            self._paused.release()

    def _run_close(self) -> None:
        self._close()  # `cancel` replaces it


def _nothing() -> None:
    pass
