"""An inference engine of four processes: a web server, a scheduler and two workers through ZeroMQ.

    python served_engine.py FOLDER CALLS

FOLDER gets the sockets. CALLS names the class whose methods the processes call where a request
begins, is sent, waits, is worked on, and so on, as MODULE:CLASS. The port is printed. The engine
ends with standard input.

The worker runs all its requests in one batch a step, as engines with continuous batching do, and
each step is one chunk for each of them. `/KIND/STEPS/ID` is one request. KIND is `plain`, `preempt`
(is put back into the queue once), `kill` and `exit` (end their worker at the first attempt), or
`endless` (until its client has gone).
"""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import connection
from typing import Any

import zmq
import zmq.asyncio

Carrier = dict[str, str]
WORKERS = 2
STEP_S = 0.001
_MOST_RUNNING = 4
_MOST_STEPS = 100_000
_END_S = 20.0


class Calls:
    """Records nothing. Classes that record something override these methods."""

    def __init__(self, role: str) -> None:
        """Prepare the process with this role: front, scheduler or worker."""

    def begin(self, id_: str) -> Any:
        """Begin a request, in the front, and return it."""
        return id_

    def end(self, request: Any, status: str) -> None:
        """End a request in the front."""

    def send(self, request: Any, queue: str, attempt: int = 1) -> Carrier:
        """Return the carrier to send with a request to the queue of another process."""
        return {}

    def receive(self, carrier: Carrier) -> Any:
        """Return the request of a carrier, immediately after it was received."""
        return None

    def enter(self, request: Any) -> None:
        """Make a received request current."""

    def leave(self, request: Any, status: str = "ok") -> None:
        """Make it current no longer."""

    def wait(self, request: Any) -> Any:
        """Begin to wait in the scheduler's list."""

    def waited(self, request: Any, token: Any) -> None:
        """End the wait."""

    def open(self, request: Any, stage: str) -> Any:
        """Begin a stage of the current request."""

    def close(self, request: Any, token: Any) -> None:
        """End the stage."""

    def begin_batch(self, stage: str, requests: list[Any]) -> Any:
        """Begin one execution for all requests."""

    def end_batch(self, requests: list[Any], token: Any) -> None:
        """End it."""

    def chunk(self, request: Any) -> None:
        """Record one output."""


def calls_named(name: str, role: str) -> Calls:
    """Return the class of MODULE:CLASS for a process."""
    module, _, attribute = name.partition(":")
    found: Calls = getattr(importlib.import_module(module), attribute)(role)
    return found


def _inbox(context: Any, folder: str, name: str) -> Any:
    found = context.socket(zmq.PULL)
    found.bind(f"ipc://{folder}/{name}")
    return found


def _outbox(context: Any, folder: str, name: str) -> Any:
    found = context.socket(zmq.PUSH)
    found.linger = 1000
    found.connect(f"ipc://{folder}/{name}")
    return found


# --- worker ---------------------------------------------------------------------------------------


@dataclass
class Running:
    """A request in a worker."""

    id: str
    kind: str
    attempt: int
    steps_left: int
    request: Any
    steps: int = 0


def work(name: str, folder: str, calls_name: str) -> None:
    """Run requests until the scheduler says that it ends."""
    calls = calls_named(calls_name, "worker")
    context = zmq.Context()
    inbox, scheduler = _inbox(context, folder, name), _outbox(context, folder, "scheduler")
    running: dict[str, Running] = {}
    while True:
        for what, id_, *rest in _messages(inbox, wait=not running):
            if what == "end":
                return
            if what == "cancel":
                gone = running.pop(id_, None)
                if gone is not None:
                    calls.enter(gone.request)
                    calls.leave(gone.request, "cancelled")
                    scheduler.send_json(("cancelled", id_))
                continue
            kind, steps, attempt, carrier = rest
            request = calls.receive(carrier)
            running[id_] = Running(id_, kind, attempt, steps, request)
            calls.enter(request)
            token = calls.open(request, "prefill")
            calls.close(request, token)
            calls.leave(request)
        if running:
            _step(list(running.values()), calls)
        for one in list(running.values()):
            is_last = one.steps_left == 0
            if is_last or (one.kind == "preempt" and one.steps == 1):
                del running[one.id]
                calls.enter(one.request)
                queue = "replies" if is_last else "scheduler"
                carrier = calls.send(one.request, queue)
                calls.leave(one.request)
                what = "reply" if is_last else "preempted"
                scheduler.send_json((what, one.id, "plain", one.steps_left, carrier))
            else:
                scheduler.send_json(("chunk", one.id))


def _messages(inbox: Any, *, wait: bool) -> Iterator[list[Any]]:
    if wait:
        yield inbox.recv_json()
    while inbox.poll(0):
        yield inbox.recv_json()


def _step(running: list[Running], calls: Calls) -> None:
    requests = [one.request for one in running]
    batch = calls.begin_batch("forward", requests)
    time.sleep(STEP_S)
    for one in running:
        if one.attempt == 1 and one.kind in ("kill", "exit"):
            time.sleep(0.05)  # for what ZeroMQ has not sent yet
            if one.kind == "exit":
                os._exit(3)
            os.kill(os.getpid(), 9)
    calls.end_batch(requests, batch)
    for one in running:
        calls.chunk(one.request)
        one.steps += 1
        one.steps_left -= 1


# --- scheduler ------------------------------------------------------------------------------------


@dataclass
class Task:
    """A request in the scheduler."""

    id: str
    kind: str
    steps: int
    request: Any
    attempt: int = 1
    token: Any = None


@dataclass
class Worker:
    """A worker, as the scheduler sees it."""

    process: Any
    outbox: Any
    running: dict[str, Task] = field(default_factory=dict)


class Scheduler:
    """Keeps the requests that wait, and gives them to the workers that have room."""

    def __init__(self, folder: str, calls_name: str) -> None:
        self._folder, self._calls_name = folder, calls_name
        self._calls = calls_named(calls_name, "scheduler")
        self._context = zmq.Context()
        self._inbox = _inbox(self._context, folder, "scheduler")
        self._front = _outbox(self._context, folder, "front")
        self._waiting: deque[Task] = deque()
        self._started = 0
        self._workers = [self._start() for _ in range(WORKERS)]

    def _start(self) -> Worker:
        name = f"worker{self._started}"
        self._started += 1
        arguments = (name, self._folder, self._calls_name)
        process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
        process.start()
        return Worker(process, _outbox(self._context, self._folder, name))

    def run(self) -> None:
        """Serve until the front says that it ends."""
        poller = zmq.Poller()
        poller.register(self._inbox, zmq.POLLIN)
        for worker in self._workers:
            poller.register(worker.process.sentinel, zmq.POLLIN)
        while True:
            poller.poll()
            if not self._take(0):
                break
            for i, worker in enumerate(self._workers):
                if connection.wait([worker.process.sentinel], 0):
                    poller.unregister(worker.process.sentinel)
                    self._take(100)  # what it has sent before it died
                    self._workers[i] = self._replace(worker)
                    poller.register(self._workers[i].process.sentinel, zmq.POLLIN)
            self._dispatch()
        for worker in self._workers:
            worker.outbox.send_json(("end", ""))
            worker.process.join(_END_S)
        self._context.destroy()

    def _take(self, timeout_ms: int) -> bool:
        """Take messages until there are none for a time; return False if the engine ends."""
        while self._inbox.poll(timeout_ms):
            what, id_, *rest = self._inbox.recv_json()
            if what == "end":
                return False
            if what == "cancel":
                self._cancel(id_)
            elif what == "task":
                self._admit(id_, *rest)
            else:
                self._hear(what, id_, rest)
        return True

    def _hear(self, what: str, id_: str, rest: list[Any]) -> None:
        if what == "chunk":
            self._front.send_json((what, id_))
            return
        for worker in self._workers:
            if worker.running.pop(id_, None) is not None:
                if what == "reply":
                    self._front.send_json((what, id_, rest[2]))
                elif what == "preempted":
                    self._admit(id_, *rest)

    def _admit(self, id_: str, kind: str, steps: int, carrier: Carrier) -> None:
        self._queue(Task(id_, kind, steps, self._calls.receive(carrier)))

    def _queue(self, task: Task) -> None:
        self._calls.enter(task.request)
        task.token = self._calls.wait(task.request)
        self._calls.leave(task.request)
        self._waiting.append(task)

    def _cancel(self, id_: str) -> None:
        for task in self._waiting:
            if task.id == id_:
                self._waiting.remove(task)
                self._calls.enter(task.request)
                self._calls.waited(task.request, task.token)
                self._calls.leave(task.request, "cancelled")
                return
        for worker in self._workers:
            if id_ in worker.running:
                worker.running[id_].kind = "plain"  # a client that has gone waits for no retry
                worker.running[id_].steps = 1
                worker.outbox.send_json(("cancel", id_))

    def _replace(self, worker: Worker) -> Worker:
        worker.process.join()
        worker.outbox.close(linger=0)
        for task in worker.running.values():
            task.attempt += 1
            self._queue(task)
        return self._start()

    def _dispatch(self) -> None:
        while self._waiting:
            worker = min(self._workers, key=lambda one: len(one.running))
            if len(worker.running) >= _MOST_RUNNING:
                return
            task = self._waiting.popleft()
            worker.running[task.id] = task
            self._calls.enter(task.request)
            self._calls.waited(task.request, task.token)
            carrier = self._calls.send(task.request, "worker", task.attempt)
            self._calls.leave(task.request)
            worker.outbox.send_json(("task", task.id, task.kind, task.steps, task.attempt, carrier))


def schedule(folder: str, calls_name: str) -> None:
    """Run the scheduler in this process."""
    Scheduler(folder, calls_name).run()


# --- front ----------------------------------------------------------------------------------------


class Front:
    """The ASGI application."""

    def __init__(self, folder: str, calls: Calls) -> None:
        self._calls = calls
        self._folder = folder
        self._scheduler: Any = None
        self._answers: dict[str, asyncio.Queue[Any]] = {}

    async def _listen(self, inbox: Any) -> None:
        while True:
            what, id_, *rest = await inbox.recv_json()
            answers = self._answers.get(id_)
            if answers is not None:
                answers.put_nowait((what, *rest))

    def _connect(self) -> None:
        context = zmq.asyncio.Context()
        self._scheduler = _outbox(context, self._folder, "scheduler")
        self._listener = asyncio.create_task(self._listen(_inbox(context, self._folder, "front")))

    async def __call__(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[dict[str, Any]]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        """Serve one request."""
        if self._scheduler is None:
            self._connect()
        calls = self._calls
        _, kind, steps, id_ = scope["path"].split("/")
        answers = self._answers[id_] = asyncio.Queue()
        watcher = asyncio.create_task(_watch(receive, answers))
        request = calls.begin(id_)
        token = calls.open(request, "parse")
        steps_left = _MOST_STEPS if kind == "endless" else int(steps)
        calls.close(request, token)
        carrier = calls.send(request, "scheduler")
        await self._scheduler.send_json(("task", id_, kind, steps_left, carrier))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        status = "ok"
        while True:
            what, *rest = await answers.get()
            if what == "chunk":
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
                continue
            if what == "gone":
                status = "cancelled"
                await self._scheduler.send_json(("cancel", id_))
            else:
                back = calls.receive(rest[0])
                calls.enter(back)
                token = calls.open(request, "render")
                calls.close(request, token)
                calls.leave(back)
            break
        calls.end(request, status)
        del self._answers[id_]
        watcher.cancel()
        await send({"type": "http.response.body", "body": b"."})


async def _watch(receive: Callable[[], Awaitable[dict[str, Any]]], answers: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    answers.put_nowait(("gone",))


def serve(folder: str, calls_name: str) -> None:
    """Start the other processes, and serve until standard input ends; print the port."""
    import uvicorn

    calls = calls_named(calls_name, "front")
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=schedule, args=(folder, calls_name))
    process.start()
    # With the protocol, asyncio sends small parts of answers at once.
    listener = socket.socket(proto=socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    config = uvicorn.Config(Front(folder, calls), log_level="error", lifespan="off")  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    threading.Thread(target=lambda: (sys.stdin.read(), _stop(server)), daemon=True).start()
    print(listener.getsockname()[1], process.pid, flush=True)
    server.run(sockets=[listener])
    with zmq.Context() as ending, _outbox(ending, folder, "scheduler") as scheduler:
        scheduler.send_json(("end", ""))
    process.join(_END_S)


def _stop(server: Any) -> None:
    server.should_exit = True


if __name__ == "__main__":
    serve(*sys.argv[1:])
