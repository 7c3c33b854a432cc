"""An ASGI middleware that makes each call of an application a request."""

from __future__ import annotations

import contextlib
import functools
import importlib
import time
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, MutableMapping
from typing import Any

from stagespan import _core
from stagespan.contexts.remotes import Remote
from stagespan.contexts.requests import request
from stagespan.errors import StagespanError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
_MOST_ID_CHARACTERS = 256
_LONGEST_RETURN_NS = 1_000_000
"""An application that does not wait and returns so soon after its answer does no work there."""
_GONE = ("http.disconnect", "websocket.disconnect")
_USUAL_CLOSES = (1000, 1001)
_UNMATCHED = "(unmatched)"
_ENTRY = "http"
"""What the wait until an application is called counts as, if the client does not name a queue."""
_POOL = "thread pool"
_timed_pools: set[Any] = set()
"""Functions that `_time_thread_pool` has made."""


class RequestMiddleware:
    """Make each HTTP call and each websocket of an ASGI application a request.

    The trace is that of the header ``traceparent``. The id is that of ``id_header`` if it is set
    and the client sends it, else one of this process. ``metadata`` of the request has the
    ``method``, the ``path`` and, if the framework tells it, the ``route``, which is also the
    request's pipeline; that of a path without a route is ``(unmatched)``. The route of a mounted
    application begins with the path of its mount. A client that has gone before the answer is
    complete makes the request cancelled, and an answer with a status of 500 and above makes it an
    error.

    The request ends with the last message of the answer, or when the websocket is closed. What the
    application does afterwards, such as background tasks, is a part of its own: it has the id and
    the trace of the request, but neither its duration nor its status include it.

    Example:
        ```python
        app = stagespan.asgi.RequestMiddleware(app)
        ```
    """

    def __init__(
        self,
        app: Application,
        *,
        trusted: bool = False,
        id_header: str | None = None,
        thread_pool: bool = False,
    ) -> None:
        """Wrap an application.

        Args:
            app: The application.
            trusted: Whether the clients are part of the same system, and their own key is read.
            id_header: The name of a header with the id of the request, such as ``x-request-id``.
            thread_pool: Whether waits for a thread of AnyIO's pool, in which frameworks run what
                is not async, are recorded in the queue ``thread pool``. For this,
                ``anyio.to_thread.run_sync`` is replaced, in the whole process.

        Raises:
            StagespanError: If the pool is to be timed, and AnyIO is not installed.
        """
        if thread_pool:
            _time_thread_pool()
        self.app = app
        self._trusted = trusted
        self._id_header = None if id_header is None else id_header.lower().encode("latin-1")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a call of the server."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = scope.get("headers") or ()
        ids = (value for name, value in headers if name.lower() == self._id_header)
        id_ = next(ids, b"").decode("latin-1")[:_MOST_ID_CHARACTERS]
        remote = Remote(headers, id_, trusted=self._trusted, entry=_ENTRY)
        remote._serve_http(None)
        remote.metadata.update(method=scope.get("method", "WEBSOCKET"), path=scope.get("path"))
        await _Call(remote, scope, receive, send).serve(self.app)


def _time_thread_pool() -> None:
    """Record how long calls in requests wait for a thread of AnyIO's pool."""
    try:
        to_thread: Any = importlib.import_module("anyio.to_thread")
    except ImportError:
        raise StagespanError(
            "There is no pool of AnyIO to time: install anyio, or leave thread_pool out."
        ) from None
    run_sync = to_thread.run_sync
    if run_sync in _timed_pools:
        return

    @functools.wraps(run_sync)
    async def timed(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if _core.current_request() is None:
            return await run_sync(function, *args, **options)
        waits = [_core.begin(_POOL, kind="queue")]

        def end() -> None:
            with contextlib.suppress(IndexError):  # an abandoned call may begin after its end
                _core.end(waits.pop())

        def run(*args: Any) -> Any:
            end()
            return function(*args)

        try:
            return await run_sync(run, *args, **options)
        finally:
            end()

    _timed_pools.add(timed)
    to_thread.run_sync = timed


class _After(request):
    """What an application does after its answer. It is no request, so that none is counted."""

    def __init__(self, answered: request) -> None:
        self._follow(answered)
        self._begin_ns = time.monotonic_ns()

    def leave(self, error: BaseException | None) -> None:
        """End it. It is recorded if it has taken time, or has failed."""
        if error is not None or time.monotonic_ns() - self._begin_ns > _LONGEST_RETURN_NS:
            self._show()
        self._leave(None if error is None else type(error))


class _Call:
    """What the server and the application have said to each other."""

    def __init__(self, current: request, scope: Scope, receive: Receive, send: Send) -> None:
        self._current, self._scope = current, scope
        self._receive, self._send = receive, send
        self._root_path = scope.get("root_path", "")
        self._is_complete = self._has_gone = self._has_trailers = False
        self._status = 0
        self._after: _After | None = None
        self._is_running = False

    async def serve(self, app: Application) -> None:
        """Let the application answer, and work afterwards."""

        async def answer() -> None:
            await app(self._scope, self.receive, self.send)

        # It is left earlier, with the answer. After an interrupt, it is left here.
        with self._current:
            try:
                await self._run(answer())
                self._end(None)
            except BaseException as error:
                self._end(error)
                raise

    @types.coroutine
    def _run(self, application: Coroutine[Any, Any, None]) -> Generator[Any, Any, None]:
        """Run the application, and enter the part after its answer in its own context.

        Another task can send the answer, such as one that a framework makes for a stream.
        """
        resume: Callable[[Any], Any] = application.send
        value = None
        while True:
            self._is_running = True
            try:
                waits_for = resume(value)
            except StopIteration:
                return
            finally:
                self._is_running = False
            if self._after is not None and self._after._is_open:
                self._after._show()
            try:
                value = yield waits_for
                resume = application.send
            except BaseException as error:
                resume, value = application.throw, error
            self._enter_after()

    async def receive(self) -> Message:
        message = await self._receive()
        kind = message["type"]
        if kind in _GONE and not self._is_complete:
            # Closing a websocket with code 1000 or 1001 is its usual end.
            self._has_gone = message.get("code") not in _USUAL_CLOSES
            if kind == "websocket.disconnect":
                self._complete()
        return message

    async def send(self, message: Message) -> None:
        # An answer that refuses a websocket has the same messages.
        kind = message["type"].removeprefix("websocket.http.").removeprefix("http.")
        if kind == "response.start":
            self._status = int(message.get("status", 0))
            self._has_trailers = bool(message.get("trailers", False))
            self._find_route()
        if kind == "response.trailers":
            is_last = not message.get("more_trailers", False)
        elif kind in ("response.body", "response.zerocopysend", "response.pathsend"):
            is_last = not (message.get("more_body", False) or self._has_trailers)
        else:
            is_last = kind == "websocket.close"
        was_complete, self._is_complete = self._is_complete, self._is_complete or is_last
        try:
            await self._send(message)
        except OSError:  # as servers say that the client has gone
            if not was_complete:
                self._is_complete, self._has_gone = False, True
            raise
        if is_last:
            self._complete()

    def _complete(self) -> None:
        """End the request, after its answer is complete or its websocket is closed."""
        self._is_complete = True
        if self._after is None:
            self._leave(None)
            self._after = _After(self._current)
            if self._is_running:
                self._enter_after()

    def _enter_after(self) -> None:
        if self._after is not None and not self._after._is_open:
            self._after.__enter__()

    def _end(self, error: BaseException | None) -> None:
        """End what is open after the application has returned or raised."""
        if self._after is None:
            self._leave(error)
        else:
            self._after.leave(error)

    def _leave(self, error: BaseException | None) -> None:
        """Set the status and the route that the application has found, and leave the request."""
        self._find_route()
        if self._has_gone:
            self._current.set_status("cancelled")
        elif self._status >= 500:
            self._current.set_status("error")
        self._current.__exit__(None if error is None else type(error), error, None)

    def _find_route(self) -> None:
        # Frameworks add it to the scope. The path itself would be a name for each client's text.
        route = getattr(self._scope.get("route"), "path", None)
        if isinstance(route, str):
            route = self._mounted_at(route) + route
            self._current.metadata["route"] = route
            self._current._serve_http(route)
        elif "router" in self._scope and "endpoint" not in self._scope:  # of Starlette
            self._current.pipeline = _UNMATCHED

    def _mounted_at(self, route: str) -> str:
        """Return the path of the mounts that lead to the application with this route.

        Parameters of the mounts are shown as in a route, because their values are the client's.
        """
        path: str = self._scope.get("path", "")
        inner: str = self._scope.get("root_path", "")
        # Starlette's mounts keep what `root_path` was outside of them.
        outer = self._scope.get("app_root_path", self._root_path)
        is_mounted = "app_root_path" in self._scope or path.startswith(inner)
        if not (is_mounted and inner.startswith(outer)):
            return ""
        mounts = inner[len(outer) :].rstrip("/")
        for name, value in self._scope.get("path_params", {}).items():
            if f"{{{name}}}" in route or f"{{{name}:" in route:
                continue
            before, is_there, after = f"{mounts}/".partition(f"/{value}/")
            if not is_there:
                return f"/{{{name}}}"
            mounts = f"{before}/{{{name}}}/{after}".rstrip("/")
        return mounts
