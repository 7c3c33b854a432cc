"""Writing what is due before SIGTERM ends a process that does not handle SIGTERM itself."""

from __future__ import annotations

import atexit
import functools
import logging
import signal
from collections.abc import Callable
from typing import Any

from stagespan import _core, forks

WRITING_S = 3.0
"""How long a writer should wait for other threads and devices. The process ends after 8 s."""

_log = logging.getLogger("stagespan")
_writers: list[Callable[[], None]] = []


def watch(writer: Callable[[], None]) -> None:
    """Have ``writer`` called when SIGTERM is received while its action is the default one.

    It runs in a thread of its own, while the program goes on. The process ends as SIGTERM ends it
    once all writers have returned. A handler that the program sets, before or later, is called
    instead of the writers. If the program restores the default action, they are called again.
    """
    if writer not in _writers:
        _writers.append(writer)
    _watch_signal_calls()
    _core.watch_termination(_write)


def _write() -> None:
    for writer in tuple(_writers):
        try:
            writer()
        except Exception:
            _core.count_lost("hook_errors")
            _log.debug("[Profiler] while SIGTERM ends the process", exc_info=True)


def _watch_signal_calls() -> None:
    """Learn of the program's calls of `signal.signal`, which replaces whatever handler there is.

    Servers set a handler for the time they run, then restore the default and raise the signal
    again: nothing else tells that the default action is back before it ends the process.
    """
    set_handler: Any = signal.signal
    if getattr(set_handler, "_is_watched_by_stagespan", False):
        return

    @functools.wraps(set_handler)
    def watched(signalnum: Any, handler: Any) -> Any:
        before = set_handler(signalnum, handler)
        if signalnum == signal.SIGTERM and handler == signal.SIG_DFL and _writers:
            _core.watch_termination(_write)
        return before

    watched._is_watched_by_stagespan = True  # type: ignore[attr-defined]
    signal.signal = watched


def _after_fork_in_child() -> None:
    if _writers:
        _core.watch_termination(_write)


def _at_exit() -> None:
    # The writers' own handlers have run by now: the process has nothing left to write.
    _core.unwatch_termination()
    _core.await_termination()
    _writers.clear()


forks.after_in_child(_after_fork_in_child)
# Registered before the handlers of those that import this module, so it runs after them.
atexit.register(_at_exit)
