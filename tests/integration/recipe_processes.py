"""Programs around the recipes of docs/requests_recipes.md: `python recipe_processes.py NAME`.

Each makes four requests, r0 to r3. The folder of the recipes is on the path of modules.
"""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import os
import queue
import socket
import sys
import tempfile
import threading
import urllib.request
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import stagespan

REQUESTS = [f"r{i}" for i in range(4)]
spawn = multiprocessing.get_context("spawn")


def run_in_process(module: str, function: str, *arguments: Any) -> None:
    """Call a function of a recipe, in another process."""
    getattr(importlib.import_module(module), function)(*arguments)


def start(module: str, function: str, *arguments: Any) -> Any:
    """Start a process that calls a function of a recipe."""
    process = spawn.Process(target=run_in_process, args=(module, function, *arguments))
    process.start()
    return process


def web_and_queue() -> None:
    """Serve calls of HTTP with uvicorn, and generate in another process."""
    import uvicorn

    from stagespan.asgi import RequestMiddleware

    recipe = importlib.import_module("web_and_queue")
    tasks: Any = spawn.Queue()
    replies: Any = spawn.Queue()
    waiting: dict[str, asyncio.Future[Any]] = {}

    def dispatch(loop: asyncio.AbstractEventLoop) -> None:
        for id_, *reply in iter(replies.get, None):
            loop.call_soon_threadsafe(waiting.pop(id_).set_result, reply)

    def reply_to(id_: str) -> asyncio.Future[Any]:
        return waiting[id_]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        id_ = dict(scope["headers"])[b"x-request-id"].decode()
        waiting[id_] = asyncio.get_running_loop().create_future()
        body = await recipe.generate(id_, "a cat", tasks, reply_to)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    worker = start("web_and_queue", "worker", tasks, replies)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    wrapped: Any = RequestMiddleware(app, id_header="x-request-id")
    server = uvicorn.Server(uvicorn.Config(wrapped, log_level="error", lifespan="off"))

    def get(id_: str) -> bytes:
        asked = urllib.request.Request(url, headers={"x-request-id": id_})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            found: bytes = answer.read()
        return found

    async def main() -> None:
        loop = asyncio.get_running_loop()
        dispatcher = threading.Thread(target=dispatch, args=(loop,))
        dispatcher.start()
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        answers = [loop.run_in_executor(None, get, id_) for id_ in REQUESTS]
        assert await asyncio.gather(*answers) == [b"A CAT"] * len(REQUESTS)
        server.should_exit = True
        await serving
        replies.put(None)
        dispatcher.join()

    listener.listen(64)
    asyncio.run(main())
    tasks.put(None)
    worker.join()


def work_in_batches(folder: str, name: str) -> None:
    """Run pairs of tasks with the recipe of a worker."""
    import zmq

    recipe = importlib.import_module("batch_worker")
    with zmq.Context() as context:
        inbox, replies = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        inbox.bind(f"ipc://{folder}/{name}")
        replies.connect(f"ipc://{folder}/replies")
        tasks = [inbox.recv_json() for _ in range(2)]
        recipe.step(tasks, lambda prompts: [prompt.upper() for prompt in prompts], replies)
        context.destroy(linger=5000)


def schedule(folder: str) -> None:
    """Admit all tasks, and give them to two workers in turn."""
    import zmq

    recipe = importlib.import_module("scheduler")
    with zmq.Context() as context:
        inbox = context.socket(zmq.PULL)
        inbox.bind(f"ipc://{folder}/tasks")
        workers = [context.socket(zmq.PUSH) for _ in range(2)]
        for number, outbox in enumerate(workers):
            outbox.connect(f"ipc://{folder}/worker{number}")
        waiting: deque[Any] = deque()
        for _ in REQUESTS:
            recipe.admit(inbox.recv_json(), waiting)
        for number in range(len(REQUESTS)):
            recipe.dispatch(waiting, workers[number % 2])
        context.destroy(linger=5000)


def scheduler() -> None:
    """Send tasks to a scheduler, which gives them to two workers, all through ZeroMQ."""
    import zmq

    with tempfile.TemporaryDirectory() as folder, zmq.Context() as context:
        replies = context.socket(zmq.PULL)
        replies.bind(f"ipc://{folder}/replies")
        tasks = context.socket(zmq.PUSH)
        tasks.connect(f"ipc://{folder}/tasks")
        here = "recipe_processes"
        started = [start(here, "schedule", folder)]
        started += [start(here, "work_in_batches", folder, f"worker{i}") for i in range(2)]
        # Several are open at once in this context, and none is a child of another.
        opened = {id_: stagespan.request(id_, new=True).__enter__() for id_ in REQUESTS}
        for id_, request in opened.items():
            carrier = request.inject(queue="tasks")
            tasks.send_json({"id": id_, "prompt": "a cat", "carrier": carrier})
        for _ in REQUESTS:
            reply = replies.recv_json()
            with stagespan.extract(reply["carrier"]), stagespan.span("render"):
                assert reply["text"] == "A CAT"
            opened[reply["id"]].__exit__()
        for process in started:
            process.join()
        context.destroy(linger=0)


def replicas() -> None:
    """Serve requests in threads with two replicas behind pipes."""
    recipe = importlib.import_module("replicas")
    free: queue.Queue[Any] = queue.Queue()
    pipes = [spawn.Pipe() for _ in range(2)]
    started = [start("replica", "replica", there) for _, there in pipes]
    for here, _ in pipes:
        free.put(here)

    def serve(id_: str) -> bytes:
        with stagespan.request(id_):
            found: bytes = recipe.generate("a cat", free)
        return found

    with ThreadPoolExecutor(len(REQUESTS)) as pool:
        assert list(pool.map(serve, REQUESTS)) == [b"A CAT"] * len(REQUESTS)
    for here, _ in pipes:
        here.send(None)
    for process in started:
        process.join()


def serve_grpc(pipe: Any) -> None:
    """Serve the recipe's method until the pipe says that it ends."""
    import grpc

    recipe = importlib.import_module("grpc_calls")

    def method(prompt: bytes, context: Any) -> bytes:
        text: str = recipe.serve(prompt.decode(), context)
        return text.encode()

    server = grpc.server(ThreadPoolExecutor(2))
    handler = grpc.unary_unary_rpc_method_handler(method)
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("engine", {"Generate": handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    pipe.send(port)
    pipe.recv()
    server.stop(5).wait()


def grpc_calls() -> None:
    """Call a server of gRPC in another process."""
    import grpc

    recipe = importlib.import_module("grpc_calls")
    here, there = spawn.Pipe()
    process = start("recipe_processes", "serve_grpc", there)
    with grpc.insecure_channel(f"127.0.0.1:{here.recv()}") as channel:
        method = channel.unary_unary("/engine/Generate")
        for id_ in REQUESTS:
            with stagespan.request(id_):
                assert recipe.generate(method, b"a cat") == b"TAC A"
    here.send(None)
    process.join()


def ray_actor() -> None:
    """Call an actor of Ray."""
    import ray

    recipe = importlib.import_module("ray_actor")
    paths = {"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}}
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, runtime_env=paths)
    model = recipe.Model.remote()
    for id_ in REQUESTS:
        with stagespan.request(id_):
            assert recipe.generate(model, "a cat") == b"A CAT"
    ray.shutdown()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
