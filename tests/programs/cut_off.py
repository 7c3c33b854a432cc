"""Programs whose recordings are truncated by another program, for which they stand in."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import pathlib
import signal
import sys
import threading

import stagespan as s
from stagespan import _core, recording

_paths: list[str] = []
"""The file of the recording."""


def begin() -> None:
    """Make the recording; end the program if it is not in a file."""
    with s.span("before"):
        pass
    place = _core.recording_place()
    if place["kind"] != "file":
        print("no file")
        sys.exit()
    _paths.append(place["path"])


def cut(size: int) -> None:
    os.truncate(_paths[-1], size)


def use() -> None:
    """Use all kinds of spans, requests and readers."""
    for _ in range(3000):
        with s.span("with"), s.ProfilingContext("context"):
            pass

    @s.span("decorated")
    def decorated(depth):
        return depth and decorated(depth - 1)

    def generate():
        with s.request(), s.span("generator"):
            yield 1
            yield 2

    @s.span("coroutine")
    async def job():
        with s.request(), s.span("task"):
            await asyncio.sleep(0)

    async def main():
        await asyncio.gather(*(job() for _ in range(100)))

    decorated(50)
    for _ in generate():
        pass
    held = [generate() for _ in range(10)]
    for one in held:
        next(one)
    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    thread.join()
    del held
    s.end(s.begin("token"))
    s.record("record", 10**18, 10**18 + 5)
    for _ in range(20):
        thread = threading.Thread(target=lambda: decorated(5))
        thread.start()
        thread.join()
    s.stats(), s.spans(), s.open_spans(), s.lost(), s.flush()


def at_once() -> None:
    begin()
    cut(int(sys.argv[1]))
    use()
    print(s.is_enabled(), _core.recording_place()["kind"])
    print(_core.recording_place()["why"])


def in_the_middle() -> None:
    @s.span("around")
    def around():
        with contextlib.ExitStack() as stack:
            for i in range(40):
                stack.enter_context(s.span(f"level {i}"))
                stack.enter_context(s.request(f"level {i}"))
            cut(0)
            use()
        use()

    async def waits(event):
        async with s.request("task") as own:
            with s.span("waits"), s.ProfilingContext("waits in a context"):
                await event.wait()
                with s.span("little"):
                    pass
                assert s.current_request() is own

    @s.span("decorated")
    async def decorated(event):
        with s.span("inside"):
            await event.wait()
            with s.span("inside later"):
                await asyncio.sleep(0)

    def generate():
        with s.span("generator"):
            yield 1
            yield 2

    async def main():
        event = asyncio.Event()
        tasks = [
            asyncio.create_task(work(event)) for _ in range(200) for work in (waits, decorated)
        ]
        await asyncio.sleep(0.01)
        around()
        event.set()
        await asyncio.gather(*tasks)
        assert s.current_request() is None

    begin()
    held = [generate() for _ in range(5)]
    for one in held:
        next(one)
    token = s.begin("token")
    asyncio.run(main())
    del held
    s.end(token)
    use()
    print("survived", s.current_request())


def while_threads_record() -> None:
    begin()
    stop = threading.Event()
    counts = []

    def work():
        done = 0
        while not stop.is_set():
            with s.span("outer"):
                for _ in range(10):
                    with s.span("inner"):
                        done += 1
        counts.append(done)

    sys.setswitchinterval(1e-4)
    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    cut(0)
    for _ in range(200):
        with s.span("main"):
            pass
        s.stats()
    stop.set()
    for thread in threads:
        thread.join()
    print(len(counts))


def before_a_fork() -> None:
    begin()
    cut(0)
    with s.span("after"):
        pass
    child = os.fork()
    if child == 0:
        for _ in range(7):
            with s.span("in the child"):
                pass
        place = _core.recording_place()
        print(s.is_enabled(), place["kind"], s.stats()["in the child"].count, flush=True)
        os.truncate(place["path"], 0)
        use()
        print(s.is_enabled(), flush=True)
        os._exit(0)
    print(os.waitpid(child, 0)[1], s.is_enabled())


def other_faults() -> None:
    """Fault elsewhere, as the argument says."""
    with s.span("before"):
        pass
    print(signal.getsignal(signal.SIGBUS) is signal.SIG_DFL, flush=True)
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGBUS)
    elif sys.argv[1] == "raise":
        signal.raise_signal(signal.SIGBUS)
    elif sys.argv[1] == "ignored":
        signal.signal(signal.SIGBUS, signal.SIG_IGN)
        os.kill(os.getpid(), signal.SIGBUS)
    else:
        with open("file", "wb+") as file:
            file.truncate(4096)
            pages = mmap.mmap(file.fileno(), 4096)
            file.truncate(0)
        pages[0]


def memfd() -> None:
    with s.span("a"):
        pass
    place = _core.recording_place()
    print(place["kind"], place["path"], place["why"])
    links = list(pathlib.Path("/proc/self/fd").iterdir())
    (link,) = (
        one
        for one in links
        if (one.exists() or one.is_symlink()) and "memfd:stagespan" in os.readlink(one)
    )
    try:
        os.truncate(link, 0)
    except PermissionError:
        print("refused")
    with s.span("a"):
        pass
    print(recording.open(os.getpid()).stats()["a"].count)


if __name__ == "__main__":
    globals()[sys.argv.pop(1)]()
