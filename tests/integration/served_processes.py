"""A service of three processes, and the stamps that they write beside each call of stagespan."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import stagespan

Stamp = tuple[str, str, int, int]
"""Request id, what was called, and CLOCK_MONOTONIC before and after the call in ns."""


class Stamps:
    """Stamps of this process, written as lines of JSON."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def around(self, request_id: str, what: str, call: Callable[[], Any]) -> Any:
        """Make a call between two stamps."""
        before = time.monotonic_ns()
        result = call()
        after = time.monotonic_ns()
        self._file.write(json.dumps([request_id, what, before, after]) + "\n")
        return result


def worker(tasks: Any, replies: Any, folder: str) -> None:
    """Take tasks until one tells the worker to end."""
    stamps = Stamps(Path(folder, f"worker-{os.getpid()}"))
    while True:
        id_, kind, carrier = tasks.get()
        if kind == "end":
            break
        remote = stamps.around(id_, "extract", lambda c=carrier: stagespan.extract(c))
        stamps.around(id_, "enter", remote.__enter__)
        reply: dict[str, str] = {}
        with stagespan.span("work"):
            if kind == "kill":
                os.kill(os.getpid(), 9)
            if kind == "exit":
                os._exit(3)
            time.sleep(0.002)
            for _ in range(3):
                remote.chunk(tokens=2)
        stamps.around(id_, "send", lambda c=reply, r=remote: r.inject(c, queue="replies"))
        stamps.around(id_, "leave", lambda r=remote: r.__exit__(None, None, None))
        replies.put((id_, reply))


class Front:
    """The ASGI application of the front: a request for each call, whose work is done elsewhere."""

    def __init__(self, tasks: Any, replies: Any, folder: str) -> None:
        self._stamps = Stamps(Path(folder, "front"))
        self._tasks, self._replies = tasks, replies
        self._waiting: dict[str, asyncio.Future[dict[str, str]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def _dispatch(self) -> None:
        while True:
            id_, reply = self._replies.get()
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._resolve, id_, reply)

    def _resolve(self, id_: str, reply: dict[str, str]) -> None:
        future = self._waiting.pop(id_, None)
        if future is not None and not future.done():
            future.set_result(reply)

    async def __call__(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[dict[str, Any]]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        """Serve one request: /KIND/ID."""
        if scope["type"] != "http":
            return
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            threading.Thread(target=self._dispatch, daemon=True).start()
        _, kind, id_ = scope["path"].split("/")
        status = await self._serve(kind, id_)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def _serve(self, kind: str, id_: str) -> int:
        stamps = self._stamps
        request = stagespan.request(id_)
        stamps.around(id_, "begin", request.__enter__)
        with stagespan.span("parse"):
            future = self._loop.create_future() if self._loop else asyncio.Future()
            self._waiting[id_] = future
            carrier: dict[str, str] = {}
        stamps.around(id_, "send", lambda: stagespan.inject(carrier, queue="tasks"))
        self._tasks.put((id_, kind, carrier))
        status = 200
        try:
            reply = await asyncio.wait_for(future, 2.0 if kind in ("kill", "exit") else 60.0)
        except asyncio.TimeoutError:
            request.set_status("error")
            status = 504
        else:
            remote = stamps.around(id_, "extract", lambda: stagespan.extract(reply))
            stamps.around(id_, "enter", remote.__enter__)
            with stagespan.span("render"):
                pass
            stamps.around(id_, "leave", lambda: remote.__exit__(None, None, None))
        stamps.around(id_, "end", lambda: request.__exit__(None, None, None))
        return status


def serve(folder: str, workers: int) -> None:
    """Serve with a number of workers until standard input ends; print the port."""
    import uvicorn

    context = multiprocessing.get_context("spawn")
    # The thread of a Queue may still hold earlier replies when its process dies.
    tasks: Any = context.SimpleQueue()
    replies: Any = context.SimpleQueue()
    started = [
        context.Process(target=worker, args=(tasks, replies, folder)) for _ in range(workers)
    ]
    for one in started:
        one.start()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    config = uvicorn.Config(Front(tasks, replies, folder), log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    threading.Thread(target=lambda: (sys.stdin.read(), _stop(server)), daemon=True).start()
    print(listener.getsockname()[1], *(one.pid for one in started), flush=True)
    server.run(sockets=[listener])
    for _ in started:
        tasks.put(("", "end", {}))
    for one in started:
        one.join(10)


def _stop(server: Any) -> None:
    server.should_exit = True


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
