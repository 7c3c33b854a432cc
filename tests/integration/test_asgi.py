"""The ASGI middleware and the logging filter, with a real server and real clients."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import stagespan
from stagespan import current_request, inject, span
from stagespan.contexts.requests import FinishedRequest, finished_requests

uvicorn = pytest.importorskip("uvicorn")
from stagespan.asgi import RequestMiddleware  # noqa: E402
from stagespan.logging import RequestFilter  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")
TRACE = "0af7651916cd43dd8448eb211c80319c"
HEADER = f"00-{TRACE}-b7ad6b7169203331-01"
Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]


class Route:
    path = "/items/{item}"


async def application(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Answer by path."""
    if scope["type"] != "http":
        return
    path = scope["path"]
    current = current_request()
    assert current is not None
    scope["route"] = Route()
    with span("handle"):
        if path == "/raises":
            raise KeyError(path)
        status = 503 if path == "/503" else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        if path in ("/stream", "/long"):
            for _ in range(3 if path == "/stream" else 100_000):
                current.chunk(tokens=2)
                await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
                if path == "/long" and (await _next(receive))["type"] == "http.disconnect":
                    return
        if path == "/waits":
            while (await receive())["type"] != "http.disconnect":
                pass
            return
    body = f"{current.id} {current.trace_id} {inject().get('traceparent')}".encode()
    await send({"type": "http.response.body", "body": body})


async def _next(receive: Receive) -> dict[str, Any]:
    with contextlib.suppress(asyncio.TimeoutError):
        return await asyncio.wait_for(receive(), 0.001)
    return {"type": ""}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(16)
    app: Any = RequestMiddleware(application, id_header="X-Request-Id")  # type: ignore[arg-type]
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join()


def get(port: int, path: str, **headers: str) -> str:
    """Return the body of an answer."""
    call = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    with urllib.request.urlopen(call, timeout=30) as answer:
        body: bytes = answer.read()
        return body.decode("latin-1")


def finished(path: str) -> FinishedRequest:
    """Wait for the end of the latest request of a path."""
    for _ in range(3000):
        for one in list(finished_requests)[::-1]:
            if one["metadata"].get("path") == path:
                return one
        time.sleep(0.01)
    pytest.fail(f"no request of {path} has ended")


def test_a_call_is_a_request_of_the_client_s_trace(port: int) -> None:
    sent = "1;stolen;0000000000000001;0000000000000001;0000000000000001;0000000000000001;;1;"
    headers = {"X-Request-Id": "r-17", "Stagespan": sent, "traceparent": HEADER}
    id_, trace, out = get(port, "/items/5", **headers).split()
    # The client's own key is not believed.
    assert (id_, trace, out[3:35]) == ("r-17", TRACE, TRACE)
    one = finished("/items/5")
    assert (one["status"], one["trace_id"]) == ("ok", TRACE)
    assert one["metadata"] == {"method": "GET", "path": "/items/5", "route": "/items/{item}"}
    other = get(port, "/items/6").split()
    assert other[0].startswith("req_")
    assert other[1] != TRACE


def test_a_stream_has_chunks_of_its_route(port: int) -> None:
    get(port, "/stream")
    assert finished("/stream")["status"] == "ok"
    assert stagespan.stats(kind="part_first_chunk")["/items/{item}"].count == 1
    assert stagespan.stats(kind="between_chunks")["/items/{item}"].count == 2


@pytest.mark.parametrize(("path", "status"), [("/raises", "error"), ("/503", "error")])
def test_an_answer_that_fails_is_an_error(port: int, path: str, status: str) -> None:
    with pytest.raises(urllib.error.HTTPError):
        get(port, path)
    assert finished(path)["status"] == status


@pytest.mark.parametrize("path", ["/waits", "/long"])
def test_a_client_that_has_gone_makes_the_request_cancelled(port: int, path: str) -> None:
    # GIVEN a client that goes before the answer is complete, while the application waits or sends
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        client.recv(100)
    # THEN the request is cancelled, although the application only returns
    assert finished(path)["status"] == "cancelled"


def test_websockets_and_other_calls() -> None:
    seen: list[Any] = []

    async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        seen.append(current_request())
        while (await receive())["type"] != "websocket.disconnect":
            await send({"type": "websocket.send", "text": "x"})

    async def run(kind: str, *codes: int) -> None:
        messages = [
            {"type": "websocket.connect"},
            *({"type": "websocket.disconnect", "code": c} for c in codes),
        ]

        async def receive() -> dict[str, Any]:
            return messages.pop(0)

        async def send(message: dict[str, Any]) -> None:
            pass

        scope = {
            "type": kind,
            "path": f"/ws{codes[0]}",
            "headers": [(b"traceparent", HEADER.encode())],
        }
        await RequestMiddleware(app)(scope, receive, send)  # type: ignore[arg-type]

    for code in (1000, 1001, 1006):
        asyncio.run(run("websocket", code))
    assert [finished(f"/ws{code}")["status"] for code in (1000, 1001, 1006)] == [
        "ok",
        "ok",
        "cancelled",
    ]
    asyncio.run(run("lifespan", 1))
    assert [one and one.trace_id for one in seen] == [TRACE] * 3 + [None]
    assert current_request() is None


def test_log_records_have_the_request_and_the_stage() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(RequestFilter())
    handler.setFormatter(logging.Formatter("%(request)s %(stage)s %(trace_id)s %(message)s"))
    log = logging.getLogger("test.requests")
    log.addHandler(handler)
    try:
        log.warning("outside")
        with stagespan.request("r", traceparent=HEADER), span("outer"), span("inner"):
            log.warning("inside")
            log.warning("given", extra={"stage": "mine"})
    finally:
        log.removeHandler(handler)
    assert stream.getvalue().splitlines() == [
        "- - - outside",
        f"r inner {TRACE} inside",
        f"r mine {TRACE} given",
    ]
