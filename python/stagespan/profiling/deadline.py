"""A delayed call on the main thread, between two bytecodes, like a signal handler."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

_CALLBACK = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Deadline:
    """Calls `action` on the main thread after `seconds`, unless it is cancelled.

    Only the main thread can be interrupted in this way. In other threads a deadline does nothing.
    """

    def __init__(self, seconds: float, action: Callable[[], None]) -> None:
        self._seconds = seconds
        self._action = action
        self._timer: threading.Timer | None = None
        # The interpreter keeps a bare pointer, so this object must live until the call.
        self._callback = _CALLBACK(self._run)
        self._pending = False

    def start(self) -> None:
        """Start the timer, if this is the main thread and the time is not too long for one."""
        if threading.current_thread() is not threading.main_thread():
            return
        if self._seconds > threading.TIMEOUT_MAX:  # such as infinity, for which a timer fails
            return
        self._timer = threading.Timer(self._seconds, self._schedule)
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        """Cancel the call. A call that is already scheduled does nothing."""
        self._action = _nothing
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        _kept.add(self)
        ctypes.pythonapi.Py_AddPendingCall(self._callback, None)

    def _run(self, _argument: object) -> int:
        _kept.discard(self)
        self._action()
        return 0


_kept: set[Deadline] = set()


def _nothing() -> None:
    pass
