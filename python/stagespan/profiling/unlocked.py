"""Ends torch's profiler without the interpreter's lock, so that other Python threads go on.

torch holds the lock while it makes a trace of the recorded events, and while it writes this trace.
It needs the lock for stacks of Python only (https://github.com/pytorch/pytorch/pull/191699 releases
it for the second).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from stagespan import _core
from stagespan.process import forks

_ENDS = "_disable_profiler"
_BEGINS = ("_prepare_profiler", "_enable_profiler")
"""The names by which torch.autograd.profiler calls the functions of libtorch."""

_turn = threading.RLock()  # a signal handler may begin a profiler


def is_possible(autograd: Any) -> bool:
    """Whether `ending` can be used with the module torch.autograd.profiler."""
    return _core.can_end_torch_profile() and all(
        callable(getattr(autograd, name, None)) for name in (_ENDS, *_BEGINS)
    )


@contextlib.contextmanager
def ending(autograd: Any) -> Iterator[None]:
    """Let the profiler that this thread ends meanwhile leave the interpreter's lock to others.

    A profiler that another thread begins or ends, and a fork, wait for it, as they did for the
    lock: they would disturb the session that ends, or copy a part of it.
    """
    names: dict[str, Any] = vars(autograd)
    thread = threading.get_ident()
    with _turn:
        functions = {name: names[name] for name in (_ENDS, *_BEGINS)}
        for name, function in functions.items():
            names[name] = _in_turn(function, thread if name == _ENDS else None)
        try:
            yield
        finally:
            names.update(functions)


def _in_turn(function: Callable[..., object], ender: int | None) -> Callable[..., object]:
    """Return a function that waits for the thread `ender`, and in this thread ends its profiler."""

    def call(*args: object, **kwargs: object) -> object:
        if threading.get_ident() == ender:
            return _core.TorchProfile()
        with _turn:
            return function(*args, **kwargs)

    return call


# A fork waits no longer than it would have waited for the lock.
forks.around(_turn.acquire, _turn.release, _turn.release)
