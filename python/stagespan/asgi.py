"""An ASGI middleware that makes each call of an application a request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from stagespan.contexts.remotes import Remote
from stagespan.contexts.requests import request

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
_MOST_ID_CHARACTERS = 256


class RequestMiddleware:
    """Make each HTTP call and each websocket of an ASGI application a request.

    The trace is that of the header ``traceparent``. The id is that of ``id_header`` if it is set
    and the client sends it, else one of this process. ``metadata`` of the request has the
    ``method``, the ``path`` and, if the framework tells it, the ``route``, which is also the
    request's pipeline. A client that has gone before the answer is complete makes the request
    cancelled, and an answer with a status of 500 and above makes it an error.

    Example:
        ```python
        app = stagespan.asgi.RequestMiddleware(app)
        ```
    """

    def __init__(
        self, app: Application, *, trusted: bool = False, id_header: str | None = None
    ) -> None:
        """Wrap an application.

        Args:
            app: The application.
            trusted: Whether the clients are part of the same system, and their own key is read.
            id_header: The name of a header with the id of the request, such as ``x-request-id``.
        """
        self.app = app
        self._trusted = trusted
        self._id_header = None if id_header is None else id_header.lower().encode("latin-1")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a call of the server."""
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        headers = scope.get("headers") or ()
        remote = Remote(headers, self._id_in(headers), trusted=self._trusted)
        remote.metadata.update(method=scope.get("method", "WEBSOCKET"), path=scope.get("path"))
        call = _Call(remote, scope, receive, send)
        async with remote:
            try:
                await self.app(scope, call.receive, call.send)
            finally:
                call.finish()

    def _id_in(self, headers: Any) -> str:
        for name, value in headers:
            if name.lower() == self._id_header:
                return str(value.decode("latin-1"))[:_MOST_ID_CHARACTERS]
        return ""


class _Call:
    """What the server and the application have said to each other."""

    def __init__(self, current: request, scope: Scope, receive: Receive, send: Send) -> None:
        self._current, self._scope = current, scope
        self._receive, self._send = receive, send
        self._is_complete = self._has_gone = False
        self._status = 0

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] in ("http.disconnect", "websocket.disconnect") and not self._is_complete:
            # Closing a websocket with code 1000 or 1001 is its usual end.
            self._has_gone = message.get("code") not in (1000, 1001)
        return message

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            self._status = int(message.get("status", 0))
            self._find_route()
        is_last = kind == "http.response.body" and not message.get("more_body", False)
        try:
            await self._send(message)
        except OSError:  # as servers say that the client has gone
            self._has_gone = True
            raise
        if is_last or kind == "websocket.close":
            self._is_complete = True

    def _find_route(self) -> None:
        # Frameworks add it to the scope. The path itself would be a name for each client's text.
        route = getattr(self._scope.get("route"), "path", None)
        if isinstance(route, str):
            self._current.metadata["route"] = self._current.pipeline = route

    def finish(self) -> None:
        """Set the status, and the route that the application has found."""
        self._find_route()
        if self._has_gone and not self._is_complete:
            self._current.set_status("cancelled")
        elif self._status >= 500:
            self._current.set_status("error")
