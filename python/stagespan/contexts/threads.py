"""Run functions in other threads with the request and the span of the code that starts them.

Threads of the standard library start without context variables. A function that a pool runs
therefore does not know the request and the span of the code that submitted it.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar, cast

from stagespan.contexts.requests import Carried, UnboundThread

P = ParamSpec("P")
R = TypeVar("R")


def bind(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that runs with the request and the innermost span of the code calling this.

    While the returned function runs, in any thread, its spans are children of the span that is
    innermost now, and belong to the request that is current now, or to no request. You can call it
    any number of times, at the same time, and after that span and that request have ended. For a
    coroutine function, `bind` returns a coroutine function. Raises TypeError for generator
    functions, because their body does not run during the call.
    """
    if not callable(function):
        raise TypeError(f"bind() takes a function, not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"bind() cannot take the generator function {function!r}: bind a function that iterates"
        )
    return _bound(function, Carried(_queue_of(function)))


def _queue_of(function: Any) -> str:
    """Return what the wait from submit to start is called."""
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) and name else type(function).__qualname__


def _bound(function: Callable[P, R], carried: Carried) -> Callable[P, R]:
    if inspect.iscoroutinefunction(function):

        async def wait_for(*args: P.args, **kwargs: P.kwargs) -> Any:
            return await carried.wait_for(function, *args, **kwargs)

        bound = cast(Callable[P, R], wait_for)
    else:

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return carried.call(function, *args, **kwargs)

        bound = call
    return functools.update_wrapper(bound, function, updated=())


class BoundExecutor(Executor):
    """An executor that binds every function to the code that submits it.

    Use ``BoundExecutor(ThreadPoolExecutor(8))`` instead of the pool, for ``submit``, ``map`` and
    ``loop.run_in_executor``. ``shutdown`` shuts down the pool. Raises TypeError for pools of
    processes, because another process records its own spans.
    """

    def __init__(self, executor: Executor) -> None:
        if not isinstance(executor, Executor):
            raise TypeError(f"BoundExecutor() takes an executor of threads, not {executor!r}")
        if _runs_elsewhere(executor):
            raise TypeError(
                f"BoundExecutor() takes an executor of threads, but {executor!r} runs functions in "
                "other processes or interpreters, which record their own spans: use it without "
                "BoundExecutor"
            )
        self.executor = executor
        """The executor that runs the functions."""

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Submit ``fn`` with the caller's request and innermost span; see Executor.submit."""
        return self.executor.submit(_bound(fn, Carried(_queue_of(fn))), *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut down the pool; see Executor.shutdown."""
        self.executor.shutdown(wait, cancel_futures=cancel_futures)


def _runs_elsewhere(executor: Executor) -> bool:
    """Whether functions must be pickled to run there."""
    for module, name in (("process", "ProcessPool"), ("interpreter", "InterpreterPool")):
        loaded: Any = sys.modules.get(f"concurrent.futures.{module}")
        kind = getattr(loaded, f"{name}Executor", None)
        if kind is not None and isinstance(executor, kind):
            return True
    return False


# --- the rule for all threads -----------------------------------------------------------------

_is_on = False


class _Making(threading.local):
    """How many nested calls of a thread may be starting the workers of a pool."""

    pools = 0


_making = _Making()


def propagate_to_threads(enabled: bool = True) -> None:
    """Bind all functions that threads and thread pools run from now on, or stop doing so.

    This covers ``threading.Thread``, ``concurrent.futures.ThreadPoolExecutor`` and
    ``multiprocessing.pool.ThreadPool`` with their subclasses, even if a library uses them. A
    thread is bound to the code that starts it, for as long as it runs. A task of a pool is bound to
    the code that submits it. The threads of the pool are not bound.
    """
    global _is_on
    if enabled:
        from concurrent.futures import ThreadPoolExecutor
        from multiprocessing.pool import ThreadPool

        _replace(threading.Thread, "start", _bound_start)
        _replace(ThreadPoolExecutor, "submit", _bound_submit)
        _replace(ThreadPool, "__init__", _making_workers)
        for name in _POOL_METHODS:
            _replace(ThreadPool, name, _bound_method)
    else:
        _put_back()
    _is_on = enabled


_POOL_METHODS = (
    *("apply_async", "map", "map_async", "starmap", "starmap_async", "imap", "imap_unordered"),
)
_replaced: dict[tuple[type, str], tuple[Any, Any, bool]] = {}
"""By class and name: the replacement, the original, and whether the class itself had it."""


def _replace(owner: type, name: str, call: Callable[..., Any]) -> None:
    """Make calls of a method those of ``call``, which gets the method before the arguments."""
    if (owner, name) in _replaced:
        return
    original = getattr(owner, name)

    @functools.wraps(original)
    def replacement(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return call(original, self, *args, **kwargs)

    _replaced[owner, name] = (replacement, original, name in vars(owner))
    setattr(owner, name, replacement)


def _put_back() -> None:
    for (owner, name), (replacement, original, was_own_attribute) in tuple(_replaced.items()):
        # If another library has wrapped the replacement since, it stays and passes calls on.
        if vars(owner).get(name) is not replacement:
            continue
        if was_own_attribute:
            setattr(owner, name, original)
        else:
            delattr(owner, name)
        _replaced.pop((owner, name), None)


def _bound_start(start: Callable[[threading.Thread], None], thread: threading.Thread) -> None:
    if not _is_on or isinstance(thread, UnboundThread) or _making.pools:
        return start(thread)
    carried = Carried()
    if carried.is_empty():
        return start(thread)
    # Set on the object, because subclasses define their own `run`.
    run, before = thread.run, vars(thread).get("run")

    def put_back() -> None:
        if vars(thread).get("run") is run_bound:
            del thread.run
            if before is not None:
                thread.run = before  # type: ignore[method-assign]

    def run_bound() -> None:
        put_back()
        carried.call(run)

    thread.run = run_bound  # type: ignore[method-assign]
    try:
        return start(thread)
    except BaseException:
        put_back()
        raise


def _bound_submit(submit: Callable[..., Any], pool: Executor, /, *args: Any, **kwargs: Any) -> Any:
    if not _is_on:
        return submit(pool, *args, **kwargs)
    if not _runs_elsewhere(pool):
        args, kwargs = _with_first_bound(args, kwargs, "fn")
    return _making_workers(submit, pool, *args, **kwargs)


def _bound_method(method: Callable[..., Any], pool: Any, /, *args: Any, **kwargs: Any) -> Any:
    if _is_on:
        args, kwargs = _with_first_bound(args, kwargs, "func")
    return method(pool, *args, **kwargs)


def _making_workers(call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Make a call that may start threads of a pool, which outlive the code that starts them."""
    _making.pools += 1
    try:
        return call(*args, **kwargs)
    finally:
        _making.pools -= 1


def _with_first_bound(
    args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    carried = Carried(_queue_of(args[0] if args else kwargs.get(name)))
    if carried.is_empty():
        return args, kwargs
    if args:
        return (_bound(args[0], carried), *args[1:]), kwargs
    if name in kwargs:
        return args, {**kwargs, name: _bound(kwargs[name], carried)}
    return args, kwargs
