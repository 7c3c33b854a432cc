"""Ends the exporter in a limited time after a signal, with its state written."""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable

from stagespan import _core

_LONGEST_S = 1.2
"""From the time at which the state is written after the signal to the end of the process, also if a
collector never answers. On a busy machine, the system needs some tenths of a second more."""
_LONGEST_UNSAVED_S = 5.0
"""From the signal to the end if the state is not written. It waits for the reading of a process,
which can take longer on a machine without a free core."""
_LAST_S = 0.3
"""The part of this time that is reserved for writing the state once more."""
_WORK_S = 0.5
"""How long new steps, such as reading and handing over, are begun after the state was written."""


class Ending:
    """The time that is left to the exporter.

    When SIGTERM or SIGINT comes, work that is in progress stops at the next of its steps
    (`is_over`). Then the state is written, and what is new is read and handed over as far as the
    time allows. The process ends after a fixed time, even if this was not finished, but not before
    its state is written, unless that takes far too long.
    """

    def __init__(self) -> None:
        """Handle the signals from now on."""
        # A handler that takes a lock could run while its thread has it. `signal.sigtimedwait`
        # returns a signal that has not come if it was interrupted for longer than its timeout, as
        # by SIGSTOP.
        self.reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)  # readable after a signal
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        self._stop_at = self._end_at = math.inf
        self._is_saved = threading.Event()

    def wait(self, seconds: float) -> bool:
        """Wait, and return whether a signal has come."""
        return bool(select.select([self.reader], [], [], seconds)[0])

    def is_over(self) -> bool:
        """Whether nothing more should be begun."""
        return time.monotonic() >= self._stop_at

    def left_s(self) -> float:
        """Return the time until the state must be written for the last time."""
        return max(self._end_at - _LAST_S - time.monotonic(), 0.0)

    def limit(self, save: Callable[[float], object]) -> None:
        """Start the threads that save the state after a signal, and then end the process in time.

        ``save`` writes the state. Its argument is the longest time in s that it may wait.
        """
        saved, self._saving = os.pipe2(os.O_CLOEXEC)
        _core.termination_end_after(saved, int(1000 * _LONGEST_S))
        _core.termination_end_after(self.reader, int(1000 * _LONGEST_UNSAVED_S))
        threading.Thread(target=self._save, args=(save,), daemon=True).start()

    def _save(self, save: Callable[[float], object]) -> None:
        while not self.wait(3600):
            pass
        self._stop_at = time.monotonic()
        self._end_at = self._stop_at + _LONGEST_S
        try:
            save(_LONGEST_UNSAVED_S)
        finally:
            self._is_saved.set()
            os.close(self._saving)  # a descriptor whose writer is closed can be read

    def allow_work(self) -> None:
        """Wait until the state is written, and let work go on for a part of the time that is left.

        To be called after a signal has come.
        """
        self._is_saved.wait()
        self._stop_at = time.monotonic() + min(_WORK_S, self.left_s())

    def end(self) -> None:
        """End the process, without waiting for threads of the exporters' libraries."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
