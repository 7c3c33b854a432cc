"""The ASGI middleware and the logging filter, with a real server and real clients."""

from __future__ import annotations

import asyncio
import contextlib
import dis
import functools
import io
import itertools
import logging
import os
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import pytest

import stagespan
from stagespan import current_request, inject, recording, request, span
from stagespan.contexts.remotes import Remote
from stagespan.contexts.requests import FinishedRequest, finished_requests
from stagespan.recording.timelines import timelines

uvicorn = pytest.importorskip("uvicorn")
fastapi = pytest.importorskip("fastapi")
responses = pytest.importorskip("fastapi.responses")
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


def served_by_fastapi() -> Any:
    """An application with streams, mounts, background tasks and dependencies that clean up."""
    app, api, inner = fastapi.FastAPI(), fastapi.FastAPI(), fastapi.FastAPI()

    def task(kind: str) -> None:
        current = current_request()
        with span(f"task of {kind}"):
            AFTERWARDS[kind] = current and (current.id, current.trace_id)
            RELEASED[kind].wait(60)
        if kind == "raises":
            raise ValueError(kind)

    def dependency() -> Iterator[None]:
        yield
        task("dependency")

    @app.get("/task/{kind}")
    async def with_task(kind: str, tasks: fastapi.BackgroundTasks) -> dict[str, int]:
        tasks.add_task(task, kind)
        with span("handle"):
            return {}

    @app.get("/stream/{kind}")
    async def stream(kind: str, tasks: fastapi.BackgroundTasks) -> Any:
        def parts() -> Iterator[bytes]:
            for _ in range(3):
                yield b"x" * 1000

        tasks.add_task(task, kind)
        return responses.StreamingResponse(parts(), background=tasks)

    @app.get("/cleans", dependencies=[fastapi.Depends(dependency)])
    async def cleans() -> dict[str, int]:
        return {}

    @inner.get("/items/{item}")
    async def get_item(item: int) -> dict[str, int]:
        return {}

    @inner.websocket("/socket")
    async def socket_(socket: fastapi.WebSocket) -> None:
        await socket.accept()
        await socket.close()

    api.mount("/{tenant}/v2", inner)
    app.mount("/api", api)
    app.mount("/direct", inner)
    return app


AFTERWARDS: dict[str, Any] = {}
"""The id of the request and the trace that work after an answer sees, by kind."""
RELEASED: dict[str, threading.Event] = {}
"""When that work may end."""


async def _next(receive: Receive) -> dict[str, Any]:
    with contextlib.suppress(asyncio.TimeoutError):
        return await asyncio.wait_for(receive(), 0.001)
    return {"type": ""}


@contextlib.contextmanager
def served(application: Any, **options: Any) -> Iterator[int]:
    """Serve an application; yields the port."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(16)
    app: Any = RequestMiddleware(application, id_header="X-Request-Id", **options)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with served(application) as port:
        yield port


@pytest.fixture(scope="module")
def fastapi_port() -> Iterator[int]:
    with served(served_by_fastapi()) as port:
        yield port


def get(port: int, path: str, **headers: str) -> str:
    """Return the body of an answer."""
    call = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    with urllib.request.urlopen(call, timeout=30) as answer:
        body: bytes = answer.read()
        return body.decode("latin-1")


def finished(path: str) -> FinishedRequest:
    """Wait for the end of the latest request of a path."""
    for _ in range(3000):
        for one in finished_requests()[::-1]:
            if one["metadata"].get("path") == path:
                return one
        time.sleep(0.01)
    pytest.fail(f"no request of {path} has ended")


@pytest.fixture
def one_thread() -> Iterator[Any]:
    """Give a function that lets AnyIO's pool have one thread, and end the timing of the pool."""
    to_thread = pytest.importorskip("anyio.to_thread")
    run_sync = to_thread.run_sync

    async def limit() -> None:
        to_thread.current_default_thread_limiter().total_tokens = 1

    yield limit
    to_thread.run_sync = run_sync


def test_waits_for_a_thread_of_a_full_pool_are_a_queue(one_thread: Any) -> None:
    # GIVEN an endpoint that is not async, and a pool with one thread
    app, leave, runs = fastapi.FastAPI(), threading.Event(), []
    app.get("/limits")(one_thread)

    @app.get("/blocks")
    def blocks() -> None:
        with span("work"):
            runs.append(time.time_ns())
            leave.wait(30)

    def waiting() -> int:
        return sum(one["stage"] == "thread pool" for one in stagespan.open_spans())

    with served(app, thread_pool=True) as port:
        get(port, "/limits")
        clients = [threading.Thread(target=get, args=(port, "/blocks")) for _ in range(3)]
        for client in clients:
            client.start()
        # WHEN one of three calls has the thread
        for _ in range(3000):
            if runs and waiting() == 2:
                break
            time.sleep(0.01)
        released_ns = time.time_ns()
        assert (len(runs), waiting()) == (1, 2)
        leave.set()
        for client in clients:
            client.join()
    # THEN the others wait for it until their endpoints begin
    waits = stagespan.stats(kind="queue")["thread pool"]
    assert (waits.count, waiting()) == (3, 0)
    spans = stagespan.spans()
    of_pool = spans[spans["stage"] == stagespan.stage_names().index("thread pool")]
    assert len(set(of_pool["request"].tolist()) - {0}) == 3
    ends_ns = sorted(of_pool["end_ns"].tolist())
    assert runs == sorted(runs)
    for end_ns, run_ns in zip(ends_ns, runs, strict=True):
        assert end_ns < run_ns + 1_000_000  # two clocks
    assert ends_ns[0] < released_ns < ends_ns[1] + 1_000_000


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


def test_the_entry_of_a_plain_service_is_called_http(port: int) -> None:
    get(port, "/items/7")
    finished("/items/7")
    found = timelines([recording.open(os.getpid())])[-1]
    assert found.hops[0].queue == "http"  # the application itself sends another
    assert {name for kind, name in found.where if kind == "queue"} <= {"http"}
    # A client that is part of the system names the queue itself.
    with request("front"):
        carrier = inject(queue="front end")
    assert Remote(carrier, entry="http").queue == "front end"


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


def segments_of(id_: str) -> list[Any]:
    """Return the segments of a request in this process, in the order in which they begin."""
    recording = stagespan.recording.open(os.getpid())
    found = [one for one in recording.segments() if one["id"] == id_]
    return sorted(found, key=lambda one: one["begin_ns"] or 0)


def ended_segments_of(id_: str, count: int) -> list[Any]:
    """Wait until this number of segments of a request have ended."""
    for _ in range(3000):
        segments = segments_of(id_)
        if [one["status"] == "open" for one in segments] == [False] * count:
            return segments
        time.sleep(0.01)
    pytest.fail(f"{id_} has no {count} segments that have ended: {segments}")


@pytest.mark.parametrize("path", ["/task/plain", "/task/raises", "/stream/streamed", "/cleans"])
def test_work_after_the_answer_is_a_part_of_its_own(fastapi_port: int, path: str) -> None:
    kind = {"/cleans": "dependency"}.get(path, path.rpartition("/")[2])
    released = RELEASED[kind] = threading.Event()
    # GIVEN a call whose answer is complete while the application goes on
    with contextlib.closing(socket.create_connection(("127.0.0.1", fastapi_port))) as client:
        id_, trace = f"after{path}".replace("/", "-"), os.urandom(16).hex()
        parent = f"00-{trace}-{os.urandom(8).hex()}-01"
        headers = f"Host: x\r\nX-Request-Id: {id_}\r\ntraceparent: {parent}\r\n\r\n"
        client.sendall(f"GET {path} HTTP/1.1\r\n{headers}".encode())
        one = finished(path)
        assert (one["id"], one["status"]) == (id_, "ok")
        released.set()
    root, part = ended_segments_of(id_, 2)
    assert AFTERWARDS[kind] == (id_, trace)
    assert (part["trace_id"], part["parent_segment"]) == (trace, root["segment"])
    assert (part["origin"], part["received_ns"]) == ("root", None)
    assert part["begin_ns"] >= root["end_ns"]
    assert (root["status"], part["status"]) == ("ok", "error" if kind == "raises" else "ok")
    numbers = {
        stagespan.stage_names()[row["stage"]]: row["request"]
        for row in stagespan.spans()
        if row["request"] in (root["number"], part["number"])
    }
    assert numbers[f"task of {kind}"] == part["number"]
    assert [done["id"] for done in finished_requests()].count(id_) == 1
    (shown,) = timelines([stagespan.recording.open(os.getpid())], id_)
    assert (shown.causes, len(shown.segments)) == ([], 2)
    assert stagespan.current_request() is None


def test_routes_of_mounted_applications_begin_with_the_mount(fastapi_port: int) -> None:
    for path in ("/direct/items/5", "/api/anna/v2/items/5", "/api/5/v2/items/5"):
        get(fastapi_port, path)
    assert finished("/direct/items/5")["metadata"]["route"] == "/direct/items/{item}"
    for tenant in ("anna", "5"):
        path = f"/api/{tenant}/v2/items/5"
        assert finished(path)["metadata"]["route"] == "/api/{tenant}/v2/items/{item}"


def test_an_answer_ends_with_its_trailers() -> None:
    open_after: list[tuple[str, Any]] = []

    async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        current = current_request()
        assert current is not None

        async def send_and_look(**message: Any) -> None:
            await send(message)
            open_after.append((message["type"], current._is_open))

        await send_and_look(type="http.response.start", status=200, trailers=True)
        await send_and_look(type="http.response.body", body=b"x")
        await send_and_look(type="http.response.trailers", headers=[], more_trailers=True)
        await send_and_look(type="http.response.trailers", headers=[])

    async def nothing(*_message: Any) -> dict[str, Any]:
        return {}

    scope = {"type": "http", "method": "GET", "path": "/trailers", "headers": []}
    asyncio.run(RequestMiddleware(app)(scope, nothing, nothing))  # type: ignore[arg-type]
    assert [is_open for _, is_open in open_after] == [True, True, True, False]


def test_an_application_that_only_returns_has_no_other_part(port: int) -> None:
    id_ = get(port, "/items/7").split()[0]
    assert finished("/items/7")["id"] == id_
    assert [one["origin"] for one in segments_of(id_)] == ["remote"]


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


@contextlib.contextmanager
def log_of_requests(layout: str) -> Iterator[tuple[logging.Logger, io.StringIO]]:
    """A log whose lines have this layout, and where it is written to."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(RequestFilter())
    handler.setFormatter(logging.Formatter(layout))
    log = logging.getLogger("test.requests")
    log.addHandler(handler)
    yield log, stream
    log.removeHandler(handler)


def test_ids_and_stages_do_not_forge_lines_of_a_log() -> None:
    with log_of_requests("%(request)s|%(stage)s|%(message)s") as (log, stream):
        for end in ("\n", "\r", "\x85", "\u2028", "\x1b[2J", "\x00"):
            with stagespan.request(f"a{end}forged"):
                carrier = stagespan.inject()
            with stagespan.extract(carrier), span(f"s{end}forged"):
                log.warning("told")
    assert stream.getvalue().splitlines() == [
        f"a{shown}forged|s{shown}forged|told"
        for shown in ("\\n", "\\r", "\\x85", "\\u2028", "\\x1b[2J", "\\x00")
    ]


def test_log_records_have_the_request_and_the_stage() -> None:
    with log_of_requests("%(request)s %(stage)s %(trace_id)s %(message)s") as (log, stream):
        log.warning("outside")
        with stagespan.request("r", traceparent=HEADER), span("outer"), span("inner"):
            log.warning("inside")
            log.warning("given", extra={"stage": "mine"})
    assert stream.getvalue().splitlines() == [
        "- - - outside",
        f"r inner {TRACE} inside",
        f"r mine {TRACE} given",
    ]


@functools.cache
def after_calls(code: CodeType) -> set[int]:
    """Return the offsets of the instructions that come directly after a call."""
    following = itertools.pairwise(dis.get_instructions(code))
    return {one.offset for before, one in following if before.opname.startswith("CALL")}


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_an_interrupt_leaves_no_request_current() -> None:
    # GIVEN an application that works after its answer, without waiting
    async def works_afterwards(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x"})
        with span("afterwards"):
            pass

    async def send(message: dict[str, Any]) -> None:
        pass

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    middleware: Any = RequestMiddleware(works_afterwards)
    module = sys.modules[RequestMiddleware.__module__].__file__

    def is_interrupted(at: int) -> bool:
        """Serve a call that is interrupted after a call in the middleware; False if it has fewer.

        Python runs the handlers of signals there, and not between a block and its `with`.
        """
        calls = 0

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal calls
            if frame.f_code.co_filename != module:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode" and frame.f_lasti in after_calls(frame.f_code):
                calls += 1
                if calls == at:
                    raise KeyboardInterrupt
            return trace

        scope = {"type": "http", "path": "/", "headers": []}
        serving = middleware(scope, receive, send)
        sys.settrace(trace)
        try:
            serving.send(None)
        except StopIteration:
            return False
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
            serving.close()
        raise AssertionError("the call has waited")

    # WHEN an interrupt comes at each of these places THEN nothing is current afterwards
    for at in itertools.count(1):
        is_over = not is_interrupted(at)
        assert current_request() is None, f"call {at}"
        if is_over:
            break
    assert at > 20
