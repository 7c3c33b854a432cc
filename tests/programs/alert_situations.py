"""Does what its argument says, as a service does it that hangs, fails, waits or is replaced."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from typing import NoReturn

import stagespan


def hang() -> NoReturn:
    while True:
        time.sleep(3600)


def decode(seconds: float = float("inf")) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with stagespan.span("decode"):
            time.sleep(0.02)


def hang_in_decode(after_s: float) -> None:
    decode(after_s)
    with stagespan.span("decode"):
        hang()


def serve(request_s: float) -> None:
    """Serve a request now and then, the first one slowly."""
    with stagespan.request("r"), stagespan.span("decode"):
        time.sleep(5 * request_s)
    while True:
        with stagespan.request("r"), stagespan.span("decode"):
            time.sleep(request_s)
        time.sleep(1)


def square(number: int) -> int:
    with stagespan.span("task"):
        return number * number


def first_run() -> None:
    with stagespan.span("load_model"):
        hang()


def one_of_eight() -> None:
    for number in range(8):
        if os.fork() == 0:
            hang_in_decode(2) if number == 3 else decode()
    hang()


def one_of_two_runs() -> None:
    threading.Thread(target=hang_in_decode, args=(2,)).start()
    decode()


def hung_batch() -> None:
    for _ in range(50):
        with stagespan.batch("forward", [stagespan.extract({})]):
            time.sleep(0.01)
    with stagespan.batch("forward", [stagespan.extract({})]):
        hang()


def full_queue() -> None:
    with stagespan.queued("jobs"):
        pass
    waits = [stagespan.begin("jobs", kind="queue") for _ in range(5)]
    hang()
    del waits


def backlog() -> None:
    waits = []
    while True:  # ten come in a second, of which eight are served
        waits += [stagespan.begin("jobs", kind="queue") for _ in range(5)]
        for wait in waits[:4]:
            stagespan.end(wait)
        del waits[:4]
        time.sleep(0.5)


def errors() -> None:
    began = time.monotonic()
    for number in range(1_000_000):
        with contextlib.suppress(ValueError), stagespan.request("r"), stagespan.span("decode"):
            time.sleep(0.05)
            if number % 2 == 0 and time.monotonic() - began > 8:
                raise ValueError


def request() -> None:
    with stagespan.request("r"):
        hang()


def killed() -> None:
    while True:
        child = os.fork()
        if child == 0:
            hang_in_decode(0.5)
        time.sleep(3)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def main_span() -> None:
    with stagespan.span("main"):
        while True:
            with stagespan.span("epoch"), stagespan.span("decode"):
                time.sleep(0.3)


def pool() -> None:
    with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as workers:
        workers.map(square, range(6), chunksize=1)
        hang()


def deployment() -> None:
    def start() -> int:
        child = os.fork()
        if child == 0:
            serve(0.05)
        return child

    children = [start() for _ in range(4)]
    while True:
        time.sleep(3)
        os.kill(children[0], signal.SIGTERM)
        os.waitpid(children.pop(0), 0)
        children.append(start())


def restart() -> None:
    serve(0.05)


SITUATIONS = {
    function.__name__: function
    for function in (
        *(first_run, one_of_eight, one_of_two_runs, hung_batch, full_queue, backlog, errors),
        *(request, killed, main_span, pool, deployment, restart),
    )
}

if __name__ == "__main__":
    print("ready", flush=True)
    SITUATIONS[sys.argv[1]]()
