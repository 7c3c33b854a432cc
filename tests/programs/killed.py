"""Programs that are killed, or get no memory."""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import multiprocessing
import os
import resource
import signal
import sys
import threading
from typing import Any

import stagespan


def writers() -> None:
    file = open(sys.argv[1], "r+b")
    # One store writes a number, so the log is always whole. struct.pack_into writes zeros first.
    log = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")

    def write(i):
        with stagespan.span(f"writer {i}"):  # so that the first ones are not compared
            pass
        n = 1
        log[3 * i + 1] = log[3 * i + 2] = n
        log[3 * i] = threading.get_native_id()
        while True:
            n += 1
            log[3 * i + 1] = n
            with stagespan.span(f"writer {i}"):
                pass
            log[3 * i + 2] = n

    with stagespan.request("the request"), stagespan.span("main"):
        for i in range(8):
            threading.Thread(target=write, args=(i,), daemon=True).start()
        print("ready", flush=True)
        threading.Event().wait()


def tasks_in_turn() -> None:
    async def serve():
        with stagespan.span("serve"):
            await asyncio.sleep(0)
            with stagespan.span("wait"):
                await asyncio.sleep(60)

    async def main():
        tasks = [asyncio.create_task(serve()) for _ in range(2)]
        await asyncio.sleep(0.01)
        print("ready", flush=True)
        await tasks[0]

    asyncio.run(main())


def eater() -> None:
    working = threading.Event()

    def work():
        while True:
            with stagespan.span("work"):
                pass
            working.set()

    def limit_memory(how):
        if "/" in how:  # a control group
            with open(how, "w") as file:
                file.write(str(os.getpid()))
            return
        field = {"RLIMIT_AS": "VmSize:", "RLIMIT_DATA": "VmData:"}[how]
        lines = [line.split() for line in open("/proc/self/status")]
        (used_bytes,) = (int(line[1]) * 1024 for line in lines if line[0] == field)
        resource.setrlimit(getattr(resource, how), (used_bytes + (256 << 20),) * 2)

    threading.Thread(target=work, daemon=True).start()
    working.wait()
    with stagespan.request("large"), stagespan.span("serve"):
        for _ in range(100):
            with stagespan.span("step"):
                pass
        with stagespan.span("load"):
            limit_memory(sys.argv[1])
            kept = []
            try:
                for _ in range(256):
                    kept.append(bytes(range(256)) * (1 << 14))  # 4 MiB, in use
            except MemoryError:
                os.abort()  # as programs in C++ end
    os._exit(7)  # there was no limit


def short_threads() -> None:
    def work():
        for _ in range(20):
            with stagespan.span("work"):
                pass

    for _ in range(300):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    print("ready", flush=True)
    threading.Event().wait()


def dies() -> None:
    with stagespan.span("outer"):
        with stagespan.span("done"):
            pass
        with stagespan.span("inner"):
            if sys.argv[1] == "segmentation fault":
                ctypes.string_at(0)
            if sys.argv[1] == "abort":
                os.abort()
            if sys.argv[1] == "SIGKILL":
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(3)


def exits() -> None:
    with stagespan.span("stage"):
        pass
    if sys.argv[1] == "sys.exit":
        sys.exit(3)
    if sys.argv[1] == "an exception":
        raise ValueError


def work(_: object) -> str:
    with stagespan.span("work"):
        return os.path.basename(stagespan._core.recording_place()["path"])


def workers() -> None:
    with stagespan.span("main"):
        pass
    context: Any = multiprocessing.get_context(sys.argv[1])
    worker = context.Process(target=work, args=(1,))
    worker.start()
    worker.join()
    with context.Pool(1) as pool:
        print(pool.map(work, [1]))
        pool.close()
        pool.join()


if __name__ == "__main__":
    globals()[sys.argv.pop(1)]()
