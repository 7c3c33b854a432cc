"""What this package does when the process forks, in one place; nothing on systems without fork.

A forked child has only the thread that called fork. What another thread held or had half done stays
so in the child for good: its locks are never released, its imports never end.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import NamedTuple


class _Handlers(NamedTuple):
    before: Callable[[], object]
    after_in_parent: Callable[[], object]
    after_in_child: Callable[[], object]


_around: list[_Handlers] = []
_in_child: list[Callable[[], object]] = []
_forking: list[int] = []
"""Threads that are forking now; one that forks inside of its own fork handlers is in it twice."""


class _Entered(threading.local):
    def __init__(self) -> None:
        self.handlers: list[list[_Handlers]] = []


_entered = _Entered()


def after_in_child(reset: Callable[[], object]) -> None:
    """Have `reset` called in each forked child, before its own code goes on."""
    _in_child.append(reset)


def around(
    before: Callable[[], object],
    after_in_parent: Callable[[], object],
    after_in_child: Callable[[], object],
) -> None:
    """Have `before` called in the thread that forks, and then one of the others in each process.

    `before` must return within a few milliseconds. The others are called only if `before` was.
    """
    _around.append(_Handlers(before, after_in_parent, after_in_child))


def is_forking_elsewhere() -> bool:
    """Whether another thread is about to fork: do not begin now what a fork must not interrupt."""
    me = threading.get_ident()
    return any(thread != me for thread in _forking.copy())


def is_forking_here() -> bool:
    """Whether this thread is forking, or is in a child that is not ready yet.

    A collection may come there, and finalizers with it, before this package and Python's threading
    know of the fork.
    """
    return threading.get_ident() in _forking


def _before() -> None:
    # From here on nobody begins what a fork must not interrupt: the handlers wait for what has
    # begun already, and for nothing else.
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


def _left() -> list[_Handlers]:
    # Empty when this module was imported between the two.
    return _entered.handlers.pop()[::-1] if _entered.handlers else []


def _tried(handler: Callable[[], object]) -> None:
    try:
        handler()
    except Exception:
        # The interpreter, too, prints what a fork handler raises and goes on.
        sys.excepthook(*sys.exc_info())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )
