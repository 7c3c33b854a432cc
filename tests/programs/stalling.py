"""Programs whose spans stay open until a line about them was logged to stderr.txt."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import warnings

import stagespan


def until_logged() -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with open("stderr.txt") as file:
            if file.readline():
                return
        time.sleep(0.05)


def waits_for_another() -> None:
    until_logged()


def in_a_request() -> None:
    with stagespan.request("r-7"), stagespan.span("denoise"), stagespan.span("all_reduce"):
        waits_for_another()


def in_a_child() -> None:
    with stagespan.span("load"):
        pass
    # Python 3.12 and later warn of a fork beside other threads.
    warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
    pid = os.fork()
    if pid == 0:
        with stagespan.span("serve"):
            waits_for_another()
        os._exit(0)
    os.waitpid(pid, 0)


def in_a_later_span() -> None:
    with stagespan.span("denoise"):
        time.sleep(0.45)
        with stagespan.span("all_reduce"):
            until_logged()


def in_odd_names() -> None:
    def serve():
        with stagespan.request("r-8\nforged"), stagespan.span("decode"):
            until_logged()

    thread = threading.Thread(target=serve, name="worker\n1")
    thread.start()
    thread.join()


def in_time() -> None:
    until = time.monotonic() + 2.5
    while time.monotonic() < until:
        with stagespan.span("step"):
            time.sleep(0.01)
    print(stagespan.stats()["step"].max_ns)


def in_many_threads() -> None:
    def stands():
        with stagespan.span("stands"):
            until_logged()
            time.sleep(2)

    threads = [threading.Thread(target=stands) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)


def in_a_coroutine() -> None:
    @stagespan.span("waits")
    async def waits(event):
        await event.wait()

    async def main():
        event = asyncio.Event()
        task = asyncio.ensure_future(waits(event))
        await asyncio.get_running_loop().run_in_executor(None, until_logged)
        event.set()
        await task

    asyncio.run(main())


def for_two_seconds() -> None:
    with stagespan.span("stands"):
        time.sleep(2)


if __name__ == "__main__":
    globals()[sys.argv.pop(1)]()
