"""What this package does when the process forks, and when a worker of a pool ends.

A forked child has only the thread that called fork. The state of other threads stays as it was at
the fork: their locks are never released, and their imports never end.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple


class _Handlers(NamedTuple):
    before: Callable[[], object]
    after_in_parent: Callable[[], object]
    after_in_child: Callable[[], object]


_around: list[_Handlers] = []
_in_child: list[Callable[[], object]] = []
_ready_in_child: list[Callable[[], object]] = []
_forking: list[int] = []
"""Threads that are forking now. One that forks inside its own fork handlers is listed twice."""


class _Entered(threading.local):
    def __init__(self) -> None:
        self.handlers: list[list[_Handlers]] = []


_entered = _Entered()


def after_in_child(reset: Callable[[], object]) -> None:
    """Call `reset` in each forked child, before its own code continues."""
    _in_child.append(reset)


def once_ready_in_child(start: Callable[[], object]) -> None:
    """Call `start` in each forked child when all else of this package is ready there."""
    _ready_in_child.append(start)


def around(
    before: Callable[[], object],
    after_in_parent: Callable[[], object],
    after_in_child: Callable[[], object],
) -> None:
    """Call `before` in the thread that forks, and then one of the others in each process.

    `before` must return within a few milliseconds. The others are called only if `before` was.
    """
    _around.append(_Handlers(before, after_in_parent, after_in_child))


def at_worker_exit(callback: Callable[[], object], priority: int) -> None:
    """Call `callback` when a worker of multiprocessing ends: this process, or a forked child.

    Such workers end without atexit, and those of billiard's pools, as of Celery, also without the
    finalizers of multiprocessing. Callbacks with a higher `priority` are called first.
    """
    exit_ = _WorkerExit(callback, priority)
    _worker_exits.append(exit_)
    after_in_child(exit_.after_fork)
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return
    if process.parent_process() is not None:
        exit_.register()
    elif getattr(process.current_process(), "_inheriting", False):
        exit_.register_once_started()


class _WorkerExit:
    def __init__(self, callback: Callable[[], object], priority: int) -> None:
        self.callback = callback
        self.priority = priority
        self._process = _Process()

    def register(self, _: object = None) -> None:
        from multiprocessing import util

        util.Finalize(None, self.callback, exitpriority=self.priority)

    def register_once_started(self) -> None:
        """Do this later: multiprocessing clears the finalizers before a worker starts its work."""
        from multiprocessing import util

        util.register_after_fork(self._process, self.register)

    def after_fork(self) -> None:
        # multiprocessing forgets what was registered for the parent's, which goes away here.
        self._process = _Process()
        if "multiprocessing.util" in sys.modules:
            self.register_once_started()


class _Process:
    """Stands for the process in what multiprocessing calls back after a fork."""


_worker_exits: list[_WorkerExit] = []


def _watch_billiard() -> None:
    """Run the callbacks before a worker of billiard's pools ends, which calls `os._exit`."""
    worker: Any = getattr(sys.modules.get("billiard.pool"), "Worker", None)
    end = getattr(worker, "_do_exit", None)
    if end is None or getattr(end, "_is_watched_by_stagespan", False):
        return

    @functools.wraps(end)
    def watched(*args: Any, **kwargs: Any) -> Any:
        for exit_ in sorted(_worker_exits, key=lambda one: -one.priority):
            _tried(exit_.callback)
        return end(*args, **kwargs)

    watched._is_watched_by_stagespan = True  # type: ignore[attr-defined]
    worker._do_exit = watched


after_in_child(_watch_billiard)


def is_forking_elsewhere() -> bool:
    """Whether another thread is about to fork. Do not begin work that a fork must not interrupt."""
    me = threading.get_ident()
    return any(thread != me for thread in _forking.copy())


def is_forking_here() -> bool:
    """Whether this thread is forking, or is in a child that is not ready yet.

    A garbage collection can run finalizers there before this package and Python's threading module
    have handled the fork.
    """
    return threading.get_ident() in _forking


def _before() -> None:
    # From here on, no thread begins work that a fork must not interrupt. The handlers wait only
    # for the work that has already begun.
    _forking.append(threading.get_ident())
    entered: list[_Handlers] = []
    _entered.handlers.append(entered)
    for handlers in _around.copy():
        entered.append(handlers)
        _tried(handlers.before)


def _after_in_parent() -> None:
    for handlers in _left():
        _tried(handlers.after_in_parent)
    with contextlib.suppress(ValueError):
        _forking.remove(threading.get_ident())


def _after_in_child() -> None:
    for handlers in _left():
        _tried(handlers.after_in_child)
    for reset in _in_child.copy():
        _tried(reset)
    _forking.clear()
    for start in _ready_in_child.copy():
        _tried(start)


def _left() -> list[_Handlers]:
    # Empty if this module was imported between the two calls.
    return _entered.handlers.pop()[::-1] if _entered.handlers else []


def _tried(handler: Callable[[], object]) -> None:
    try:
        handler()
    except Exception:
        # Like the interpreter, print the exception of a fork handler and continue.
        sys.excepthook(*sys.exc_info())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )
