"""Calls a function in another thread, between two instructions of its Python code."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from typing import Any

_PENDING = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_PROFILE = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
)
_TOOLS = (4, 3)
"""Numbers of tools of `sys.monitoring` that are not reserved for a purpose."""


class Interrupt:
    """Lets any thread call `action` in the thread that creates this object.

    The main thread calls it like a signal handler. Another thread calls it at its next call of a
    function, unless it has a profile function of its own, such as that of cProfile.
    """

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action
        self._thread = threading.get_ident()
        self._on_main = threading.current_thread() is threading.main_thread()
        self._is_free = sys.getprofile() is None
        # The interpreter keeps a bare pointer, so this object must live until the call.
        self._pending = _PENDING(lambda _argument: self._run())
        if not self._on_main and sys.version_info < (3, 12):
            self._profile = _PROFILE(self._run_profile)
            get = ctypes.pythonapi.PyThreadState_Get
            get.restype = ctypes.c_void_p
            self._state = ctypes.c_void_p(get())

    def send(self) -> None:
        """Make the thread call `action` soon. The thread must not have ended."""
        _kept.add(self)
        if self._on_main:
            ctypes.pythonapi.Py_AddPendingCall(self._pending, None)
        elif not self._is_free:
            _kept.discard(self)
        elif sys.version_info >= (3, 12):
            self._monitor(sys.monitoring)
        else:
            # Its caller needs the GIL, and may be another thread than that of the state.
            ctypes.pythonapi._PyEval_SetProfile(self._state, self._profile, None)

    def _run(self) -> int:
        _kept.discard(self)
        self._action()
        return 0

    def _run_profile(self, _object: object, _frame: object, _what: int, _argument: object) -> int:
        sys.setprofile(None)
        return self._run()

    def _monitor(self, monitoring: Any) -> None:
        tool = next((tool for tool in _TOOLS if monitoring.get_tool(tool) is None), None)
        if tool is None:
            _kept.discard(self)
            return
        events = monitoring.events
        waited_for = (events.PY_START, events.CALL, events.JUMP)

        def run(*_event: object) -> None:
            if threading.get_ident() == self._thread and monitoring.get_tool(tool) == _TOOL:
                monitoring.set_events(tool, 0)
                for event in waited_for:
                    monitoring.register_callback(tool, event, None)
                monitoring.free_tool_id(tool)
                self._run()

        monitoring.use_tool_id(tool, _TOOL)
        for event in waited_for:
            monitoring.register_callback(tool, event, run)
        monitoring.set_events(tool, sum(waited_for))


_TOOL = "stagespan"
_kept: set[Interrupt] = set()
