"""Programs that do not get all the memory that they ask for.

They import stagespan themselves, because it asks for its memory then.
"""

from __future__ import annotations

import asyncio
import concurrent.futures  # noqa: F401 (Python itself must be loaded before the limit)
import contextvars
import ctypes
import functools
import json
import logging  # noqa: F401
import os
import resource
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any


def _addresses_bytes() -> int:
    """Return the size of the address space in use."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def limited() -> None:
    """Record everything within as many MiB of address space as the argument says."""
    import msgspec  # noqa: F401
    import numpy  # noqa: F401

    more = int(sys.argv[1]) << 20
    resource.setrlimit(resource.RLIMIT_AS, (_addresses_bytes() + more, -1))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        import stagespan
        from stagespan import _core
    with stagespan.span("outer"), stagespan.request("r"):
        for _ in range(300):
            with stagespan.span("inner"):
                pass
    stagespan.end(stagespan.begin("token"))
    stagespan.record("recorded", time.time_ns() - 1000, time.time_ns())
    with stagespan.ProfilingContext("context"):
        pass

    @stagespan.span("function")
    def function():
        return 7

    async def main():
        async with stagespan.span("task"):
            await asyncio.sleep(0)

    assert function() == 7
    asyncio.run(main())
    found = {
        "warnings": [str(warning.message) for warning in warned],
        "arena": _core.arena_info(),
        "counts": {name: stage.count for name, stage in stagespan.stats().items()},
        "spans": len(stagespan.spans()),
        "open": len(stagespan.open_spans()),
        "enabled": stagespan.is_enabled(),
    }
    print(json.dumps(found))


def exhausted() -> None:
    """Record in a thread while there is no memory at all."""
    import stagespan
    from stagespan import _core

    # The thread is started before, and both wait with plain locks, because an Event allocates
    # while it waits.
    go, done, again, over = (threading.Lock() for _ in range(4))
    for lock in (go, done, again, over):
        lock.acquire()
    results = []

    @stagespan.span("generator")
    def generator():
        yield 1
        yield 2

    def body():
        go.acquire()
        try:
            for _ in range(10):
                with stagespan.span("short"):
                    pass
            with stagespan.ProfilingContext("logged"):
                pass
            stagespan.end(stagespan.begin("token"))
            results.append(sum(generator()))
        finally:
            done.release()
        again.acquire()
        with stagespan.span("later"):
            pass
        over.release()

    # An error of the main thread ends the program.
    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    with stagespan.span("known"):
        pass
    for name in ("short", "logged", "token", "generator", "later"):
        stagespan.record(name, time.time_ns(), time.time_ns())
    before = _core.lost()["memory"]
    counts = {name: stage.count for name, stage in _core.snapshot().stages().items()}
    # Python's own objects find a place here: every second small one is freed, and the large one
    # later.
    small = [bytes(size) for size in range(0, 480, 16) for _ in range(400)]
    del small[::2]
    large = bytearray(1 << 13)
    used = _addresses_bytes()
    held = []
    resource.setrlimit(resource.RLIMIT_AS, (used, -1))
    size = 1 << 24
    while size >= 1 << 14:
        try:
            held.append(bytearray(size))
        except MemoryError:
            size //= 2
    del large
    go.release()
    done.acquire()
    with stagespan.span("known"):
        pass
    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
    del held
    lost = _core.lost()["memory"] - before
    again.release()
    over.acquire()
    thread.join()
    after = {name: stage.count for name, stage in _core.snapshot().stages().items()}
    new = {name: after[name] - counts.get(name, 0) for name in after}
    print(json.dumps({"lost": lost, "results": results, "new": new}))


def spans_of_tasks() -> None:
    """Open spans of tasks through the library in the argument, which leaves no memory."""
    import stagespan
    from stagespan import _core

    call_without_memory = ctypes.PyDLL(sys.argv[1]).call_without_memory
    call_without_memory.argtypes = [ctypes.py_object, ctypes.c_size_t]
    call_without_memory.restype = ctypes.py_object

    def entered(kind):
        # As in a task: the context is a copy, and the span stays open in it.
        context, span = contextvars.copy_context(), stagespan.span(kind)
        context.run(span.__enter__)
        return functools.partial(context.run, span.__exit__, None, None, None)

    def short_of_memory(left_bytes):
        context, span = contextvars.copy_context(), stagespan.span("short")
        freed = [bytes(size) for size in range(0, 480, 16) for _ in range(100)]
        del freed[::2]
        try:
            call_without_memory(functools.partial(context.run, span.__enter__), left_bytes)
        except MemoryError:
            return  # Python could not enter the context
        context.run(span.__exit__, None, None, None)
        entered("later")()

    left = {}
    for is_reused in (False, True):
        for left_bytes in (0, *range(48, 145, 16)):
            child = os.fork()
            if child == 0:
                with stagespan.span("own"):  # prepares the thread
                    pass
                if is_reused:
                    entered("before")()  # what this allocates is kept for the next task
                short_of_memory(left_bytes)
                stages = stagespan.stats()
                done = [stages[name].count if name in stages else 0 for name in ("short", "later")]
                os._exit(0 if done == [1, 1] and not _core.open_spans() else 1)
            left[f"{is_reused} {left_bytes}"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps({"failed": {case: status for case, status in left.items() if status}}))


def many_tasks() -> None:
    """Open spans in more tasks than there is memory for."""
    resource.setrlimit(
        resource.RLIMIT_AS, (_addresses_bytes() + 122 * 2**20, resource.RLIM_INFINITY)
    )
    import stagespan as s

    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    count = 36_000
    wrong: list[Any] = []

    async def serve(event, number):
        async with s.request(f"r{number}") as own:
            with s.span("serve"):
                await event.wait()
                wrong.append(s.current_request() is not own)

    async def unrelated():
        wrong.append(s.current_request() is not None)
        with s.span("unrelated"):
            await asyncio.sleep(0)

    async def main():
        event = asyncio.Event()
        tasks = [asyncio.create_task(serve(event, i)) for i in range(count)]
        await asyncio.sleep(0)
        # WHEN even the frames that are not shown are in use
        await asyncio.gather(*(asyncio.create_task(unrelated()) for _ in range(20)))
        event.set()
        await asyncio.gather(*tasks)
        wrong.append(s.current_request() is not None)

    asyncio.run(main())
    with s.span("afterwards"):
        pass
    stages, lost = s.stats(), s.lost()
    print(sum(wrong), lost["unmatched"], len(s.open_spans()))
    timed = stages["serve"].count
    print(timed == count or (lost["memory"] > 0 and 0 < timed < count))
    names = s.stage_names()
    print({int(span["request"]) for span in s.spans() if names[span["stage"]] == "afterwards"})


if __name__ == "__main__":
    globals()[sys.argv.pop(1)]()
