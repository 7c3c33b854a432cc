"""Requests: the spans of one unit of work, in all threads and tasks that it runs in."""

from __future__ import annotations

import contextvars
import functools
import itertools
import re
import sys
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, ParamSpec, TypedDict, TypeVar, cast

from stagespan import _core
from stagespan.contexts.dynamo import compiling
from stagespan.process import forks
from stagespan.process.imports import importing

P = ParamSpec("P")
R = TypeVar("R")
_F = TypeVar("_F", bound=Callable[..., Any])


class FinishedRequest(TypedDict):
    """A request that has ended, with figures from the rings. Complete unless a ring has wrapped."""

    id: str
    number: int
    metadata: dict[str, Any]
    begin_ns: int
    end_ns: int
    stages: list[tuple[str, int, int, int, bool]]
    complete: bool
    error: bool


MOST_FINISHED_REQUESTS = 1024
finished_requests: deque[FinishedRequest] = deque(maxlen=MOST_FINISHED_REQUESTS)
"""The latest requests that have ended, oldest first."""

MOST_REQUEST_IDS = 16_384
_HALF = (1 << 64) - 1
# Later versions of the header may have more fields.
_TRACEPARENT = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)
_numbers = itertools.count(1)
# Numbers and ids. Each dict is used as a ring, and copied in one call without a lock.
_begun_ids: dict[int, tuple[int, str]] = {}
_ended_ids: dict[int, tuple[int, str]] = {}
_ends = itertools.count()
_alive: weakref.WeakValueDictionary[int, request] = weakref.WeakValueDictionary()
_current: contextvars.ContextVar[request | None] = _core.request_variable()


class request:
    """Group the spans of one unit of work: `with request("req-1", user="a"):`, also `async with`.

    Spans that open inside belong to it: in this thread, in tasks that are created inside, in
    threads that run in a copied context (`asyncio.to_thread`), and in functions that `bind`
    returned. Its figures are taken from the rings when it ends. The default id contains its number.
    It does nothing in a graph that torch.compile captures.

    ``trace_id`` is the id of the distributed trace that it belongs to, or None: that of
    ``traceparent``, the header of W3C Trace Context, else that of the OpenTelemetry span that is
    current when it begins. A malformed header is ignored, because a client may have sent it.

    As a decorator, `@request("nightly")` or `@request()`, it makes each call of a function or a
    coroutine function a separate request, with the same id and metadata.

    Raises TypeError if ``request_id`` is a function, as in a decorator without parentheses, and
    RuntimeError if the object is entered while it is open.
    """

    def __init__(
        self, request_id: str = "", *, traceparent: str | None = None, **metadata: Any
    ) -> None:
        if callable(request_id):
            raise TypeError('request was given a function: write @request() or @request("id").')
        # A number taken during compilation would become part of the graph and its guards.
        self.number = 0 if compiling() else next(_numbers)
        self._given_id = str(request_id) if request_id else ""
        self.id = self._given_id or f"req_{self.number}"
        self.metadata: dict[str, Any] = metadata
        self._traceparent = traceparent
        self.trace_id = _trace_id_of(traceparent)
        """Id of the trace: 32 hexadecimal digits, or None."""
        self._entered: object = None
        self._shown = 0
        self._begin_ns = 0

    def __enter__(self) -> request:
        if compiling():
            return self
        if self._entered is not None:
            raise RuntimeError(
                f"the request {self.id!r} is already open: create a new one for each unit of work."
            )
        _alive[self.number] = self
        _begun_ids[self.number % MOST_REQUEST_IDS] = (self.number, self.id)
        if _core.is_enabled():
            self._begin_ns = _core.now_ns()
            if self.trace_id is None:
                self.trace_id = _current_trace_id()
            trace = int(self.trace_id or "0", 16)
            self._shown = _core.request_begin(self.number, self.id, trace >> 64, trace & _HALF)
        else:
            self._begin_ns = 0
        self._entered = _core.request_enter(self.number, self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        if self._entered is None:
            return
        entered, self._entered = self._entered, None
        _core.request_leave(entered, self)
        _ended_ids[next(_ends) % MOST_FINISHED_REQUESTS] = (self.number, self.id)
        if self._begin_ns == 0:
            return
        _core.request_end(self.number, self._shown)
        stages, complete = _core.request_figures(self.number, self._begin_ns)
        finished_requests.append(
            {
                "id": self.id,
                "number": self.number,
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
        """Decorate a function: each call is a separate request."""
        with importing():
            import inspect  # its import takes long, and few programs need it

        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{function.__qualname__} is a generator function, which request cannot decorate: "
                f"put `with request():` inside it, or around the loop that consumes it."
            )
        if isinstance(function, type) or not callable(function):
            raise TypeError(f"request decorates {function!r}, but only a function can be decorated")
        given_id, traceparent, metadata = self._given_id, self._traceparent, self.metadata

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with request(given_id, traceparent=traceparent, **metadata):
                return function(*args, **kwargs)

        @functools.wraps(function)
        async def wait_for(*args: Any, **kwargs: Any) -> Any:
            async with request(given_id, traceparent=traceparent, **metadata):
                return await function(*args, **kwargs)

        return cast(_F, wait_for if inspect.iscoroutinefunction(function) else call)

    def __repr__(self) -> str:
        state = "not open" if self._entered is None else "open"
        return f"<request {self.id!r}, number {self.number}, {state}>"


def _trace_id_of(traceparent: object) -> str | None:
    """The trace id in a header; None if the header is missing or malformed."""
    if not isinstance(traceparent, str):
        return None
    found = _TRACEPARENT.fullmatch(traceparent.strip())
    if found is None or found["version"] == "ff" or set(found["trace"]) == {"0"}:
        return None
    return found["trace"]


def _current_trace_id() -> str | None:
    """The trace of OpenTelemetry's current span, if the program uses OpenTelemetry."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    try:
        context = trace.get_current_span().get_span_context()
        return f"{context.trace_id:032x}" if context.is_valid else None
    except Exception:  # a provider of the program's own, or an import that is not complete
        _core.lost_add("hook_errors")
        return None


def current_request() -> request | None:
    """Return the request that the calling code belongs to, or None."""
    found = _current.get()
    if found is None:
        # A greenlet belongs to its creator's request, but does not have its context variables.
        number = _core.request_number()
        if number:
            found = _alive.get(number)
    return found


def request_ids() -> dict[int, str]:
    """Return the ids of requests by number, as in `spans()["request"]`.

    The result contains all open requests, the latest 16,384 that have begun, and the latest 1,024
    that have ended. Spans outside of requests have the number 0, which has no id.
    """
    alive = (reference() for reference in _alive.valuerefs())
    found = {one.number: one.id for one in alive if one is not None}
    found.update(_ended_ids.copy().values())
    found.update(_begun_ids.copy().values())
    return dict(sorted(found.items()))


def id_of(number: int) -> str | None:
    """Return the id of the request with this number; None for 0 and for unknown numbers."""
    if number == 0:
        return None
    begun = _begun_ids.get(number % MOST_REQUEST_IDS)
    if begun is not None and begun[0] == number:
        return begun[1]
    alive = _alive.get(number)
    if alive is not None:
        return alive.id
    return next((name for ended, name in _ended_ids.copy().values() if ended == number), None)


def trace_id_of(number: int) -> str | None:
    """Return the trace id of the request with this number while the request is open, else None."""
    alive = _alive.get(number)
    return None if alive is None else alive.trace_id


class UnboundThread(threading.Thread):
    """A thread that `propagate_to_threads` does not bind."""


class Carried:
    """The request and the innermost span of the code that creates it, for another thread.

    Several threads can use the same object at the same time.
    """

    __slots__ = ("_inheritance", "_request")

    def __init__(self) -> None:
        self._inheritance = _core.request_inheritance()
        self._request = current_request()

    def is_empty(self) -> bool:
        """Return whether there was neither an open span nor a request."""
        return self._inheritance is None and self._request is None

    def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function with this request and this span."""
        adopted = self.enter()
        try:
            return function(*args, **kwargs)
        finally:
            self.leave(adopted)

    async def wait_for(
        self, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Await a coroutine function with this request and this span."""
        adopted = self.enter()
        try:
            return await function(*args, **kwargs)
        finally:
            self.leave(adopted)

    def enter(self) -> object:
        """Make the request and the span current; pass the result to `leave`."""
        return _core.request_adopt(self._inheritance, self._request)

    def leave(self, adopted: object) -> None:
        """Restore what was current before `enter`."""
        _core.request_leave(adopted, self._request)


# The parent reports its own requests.
forks.after_in_child(finished_requests.clear)
