"""Requests: the spans of one unit of work, whichever threads and tasks it runs in."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import itertools
import os
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypedDict, TypeVar, cast

from stagespan import _core
from stagespan.dynamo import compiling

_F = TypeVar("_F", bound=Callable[..., Any])


class FinishedRequest(TypedDict):
    """What is kept of a request: figures from the rings, complete unless one has wrapped since."""

    id: str
    metadata: dict[str, Any]
    begin_ns: int
    end_ns: int
    stages: list[tuple[str, int, int, int, bool]]
    complete: bool
    error: bool


MOST_FINISHED_REQUESTS = 1024
finished_requests: deque[FinishedRequest] = deque(maxlen=MOST_FINISHED_REQUESTS)
"""The latest requests that have ended, oldest first."""

_numbers = itertools.count(1)
_current: contextvars.ContextVar[request | None] = contextvars.ContextVar(
    "stagespan_request", default=None
)


class request:
    """Group the spans of one unit of work: `with request("req-1", user="a"):`, also `async with`.

    Spans that open inside carry its number: in this thread, in tasks that are created inside, and
    in threads that run in a copied context (`asyncio.to_thread`). Its figures are taken from the
    rings when it ends. Without an id it gets one made of its number. In a graph that torch.compile
    captures it does nothing.

    As a decorator, `@request("nightly")` or `@request()`, it makes each call of a function or a
    coroutine function a request of its own, with the same id and metadata.

    Raises TypeError if ``request_id`` is a function, as in a decorator without parentheses.
    """

    def __init__(self, request_id: str = "", **metadata: Any) -> None:
        if callable(request_id):
            raise TypeError('request was given a function: write @request() or @request("id").')
        # A number taken while compiling would be part of the graph, and of its guards.
        self.number = 0 if compiling() else next(_numbers)
        self._given_id = str(request_id) if request_id else ""
        self.id = self._given_id or f"req_{self.number}"
        self.metadata: dict[str, Any] = metadata
        self._before: int | None = None
        self._begin_ns = 0
        self._token: contextvars.Token[request | None] | None = None

    def __enter__(self) -> request:
        if compiling():
            return self
        if self._before is not None:
            raise RuntimeError(
                f"the request {self.id!r} is already open: make a new one for each unit of work."
            )
        self._begin_ns = _core.now_ns() if _core.is_enabled() else 0
        self._before = _core.request_enter(self.number)
        self._token = _current.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        if self._before is None:
            return
        _core.request_exit(self.number, self._before)
        self._before = None
        if self._token is not None:
            # Ended in another context than it began in, as an async generator may: nothing to undo.
            with contextlib.suppress(ValueError):
                _current.reset(self._token)
            self._token = None
        if self._begin_ns == 0:
            return
        stages, complete = _core.request_figures(self.number, self._begin_ns)
        finished_requests.append(
            {
                "id": self.id,
                "metadata": self.metadata,
                "begin_ns": self._begin_ns,
                "end_ns": _core.now_ns(),
                "stages": stages,
                "complete": complete,
                "error": error is not None or kind is not None,
            }
        )

    async def __aenter__(self) -> request:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    def __call__(self, function: _F) -> _F:
        """Decorate a function: each call is a request of its own."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{function.__qualname__} is a generator, whose caller runs in between: put "
                f"`with request():` inside it, or around the loop that consumes it."
            )
        if isinstance(function, type) or not callable(function):
            raise TypeError(f"request decorates {function!r}, but only a function can be decorated")
        given_id, metadata = self._given_id, self.metadata

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with request(given_id, **metadata):
                return function(*args, **kwargs)

        @functools.wraps(function)
        async def wait_for(*args: Any, **kwargs: Any) -> Any:
            async with request(given_id, **metadata):
                return await function(*args, **kwargs)

        return cast(_F, wait_for if inspect.iscoroutinefunction(function) else call)

    def __repr__(self) -> str:
        state = "not open" if self._before is None else "open"
        return f"<request {self.id!r}, number {self.number}, {state}>"


def current_request() -> request | None:
    """Return the request that the calling code belongs to, or None."""
    return _current.get()


if hasattr(os, "register_at_fork"):
    # What the parent's requests came to is the parent's to report.
    os.register_at_fork(after_in_child=finished_requests.clear)
