"""Signals that end the process: the recording names them, and reports are written at SIGTERM."""

from __future__ import annotations

import atexit
import functools
import logging
import signal
import sys
from collections.abc import Callable
from typing import Any

from stagespan import _core
from stagespan.process import forks

WRITING_S = 3.0
"""How long a writer should wait for other threads and devices. The process ends after 8 s."""

_log = logging.getLogger("stagespan")
_writers: list[Callable[[], None]] = []


def watch(writer: Callable[[], None]) -> None:
    """Call ``writer`` when SIGTERM is received and the program does not handle it.

    It runs in a separate thread while the program continues. When all writers have returned,
    SIGTERM ends the process. If the program sets a handler, that handler is called instead.
    If the program restores the default action, the writers are called again.
    """
    if writer not in _writers:
        _writers.append(writer)
    watch_signal_calls()
    _core.termination_watch(_write)


def _write() -> None:
    for writer in tuple(_writers):
        try:
            writer()
        except Exception:
            _core.lost_add("hook_errors")
            _log.debug("[Profiler] while SIGTERM ends the process", exc_info=True)


def watch_signal_calls() -> None:
    """Watch the program's calls of `signal.signal`.

    Servers set a handler while they run, then restore the default action and raise the signal
    again. There is no other way to notice this before the signal ends the process. What
    `signal.getsignal` returns does not change.
    """
    set_handler: Any = signal.signal
    if getattr(set_handler, "_is_watched_by_stagespan", False):
        return

    @functools.wraps(set_handler)
    def watched(signalnum: Any, handler: Any) -> Any:
        before = set_handler(signalnum, handler)
        _core.termination_watch_stops(signalnum)
        if signalnum == signal.SIGTERM and handler == signal.SIG_DFL and _writers:
            _core.termination_watch(_write)
        return before

    watched._is_watched_by_stagespan = True  # type: ignore[attr-defined]
    signal.signal = watched


def _after_fork_in_child() -> None:
    _core.termination_after_fork(True)
    if _writers:
        _core.termination_watch(_write)


def _at_exit() -> None:
    # The interpreter ends by SIGINT after it has reported an interrupt that nobody has caught.
    reported = getattr(sys, "last_type", None)
    is_interrupt = isinstance(reported, type) and issubclass(reported, KeyboardInterrupt)
    if is_interrupt and not hasattr(sys, "ps1"):  # an interactive session goes on after it
        _core.termination_mark_stop(signal.SIGINT)
    # The exit handlers of the writers have run: the process has nothing left to write.
    _core.termination_unwatch()
    _core.termination_await()
    _writers.clear()


forks.around(
    _core.termination_before_fork, lambda: _core.termination_after_fork(False), _after_fork_in_child
)
# Registered before the exit handlers of modules that import this one, so it runs after them.
atexit.register(_at_exit)
