"""Programs that end in an unusual state, or under unusual options of the interpreter."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import logging
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

import stagespan
import stagespan.recording
from stagespan import (
    ProfilingContext,
    ProfilingContext4Debug,
    begin,
    end,
    record,
    request,
    span,
)

kept: list[Any] = []
"""Objects that live until the modules are cleared."""


def forever() -> None:
    while True:
        time.sleep(0.0001)


def spans_at_work() -> None:
    while True:
        with span("at work"):
            pass


def generator_at_work() -> None:
    @span("at work")
    def generate():
        while True:
            time.sleep(0.0001)
            yield

    for _ in generate():
        pass


def coroutine_at_work() -> None:
    @span("at work")
    async def run():
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    asyncio.run(run())


def reading_at_work() -> None:
    while True:
        stagespan.spans(), stagespan._core.snapshot(), stagespan.open_spans()


def recordings_at_work() -> None:
    with span("makes the recording"):
        pass
    while True:
        stagespan.recording.open(os.getpid())


def traces_at_work() -> None:
    events = b'{"ph":"X","name":"work","ts":1,"dur":1,"pid":1,"tid":1},' * 100_000
    while True:
        stagespan._core.TraceScanner().scan(events, 0)


def waiting_at_work() -> None:
    while True:
        stagespan._core.service_wait(0.001)


def statistics_at_work() -> None:
    while True:
        str(stagespan.stats()), stagespan.stats(1.0)


def log_lines_at_work() -> None:
    while True:
        with ProfilingContext("at work"):
            pass


class Late:
    """Takes some time when the modules are cleared: all threads have requested the lock by then."""

    def __del__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        sleep(0.3)


def threads_at_work() -> None:
    """End while daemon threads do what the argument says."""
    what = sys.argv[1]
    stagespan.set_debug(what == "debug")
    contexts: dict[str, Any] = {
        "function": span,
        "profiling": ProfilingContext,
        "debug": ProfilingContext4Debug,
    }
    is_timed = what in contexts
    work = contexts[what]("at work")(forever) if is_timed else globals()[f"{what}_at_work"]
    for _ in range(4):
        threading.Thread(target=work, daemon=True).start()
    time.sleep(0.1)
    sys.modules["late"] = Late()  # type: ignore[assignment]
    print("done")


def thread_in_a_callback() -> None:
    """End while a daemon thread waits inside the callback of a debug stage."""
    stagespan.set_debug()

    class Slow(logging.Handler):
        def emit(self, record):
            time.sleep(0.01)

    for name in list(logging.Logger.manager.loggerDict):
        logging.getLogger(name).handlers[:] = [Slow()]

    @ProfilingContext4Debug("debug stage")
    def work():
        pass

    def work_on():
        while True:
            work()

    threading.Thread(target=work_on, daemon=True).start()
    time.sleep(0.05)
    sys.modules["late"] = Late()  # type: ignore[assignment]


def inside_of_spans() -> None:
    """End with everything open."""

    @span("generator")
    def generate():
        with span("block"):
            yield

    @atexit.register
    def last():
        with span("at exit"), ProfilingContext("profiling at exit"):
            print("last")

    class Later:
        def __del__(self):
            with span("very late"), ProfilingContext("very late"):
                os.write(1, b"later\n")

    generator = generate()
    next(generator)
    left = [span("never left"), span("open"), ProfilingContext("open too")]
    kept.extend((generator, begin("token"), Later(), left))
    for one in left:
        one.__enter__()


def exits() -> None:
    """Exit inside of spans, in the way of the argument."""

    @ProfilingContext("function")
    def function():
        if sys.argv[1] == "sys.exit":
            sys.exit(3)
        if sys.argv[1] == "SystemExit":
            raise SystemExit(3)
        os._exit(3)

    with span("open"):
        function()


def until_a_signal() -> None:
    with ProfilingContext("starts the service"):
        pass

    @span("function")
    def function():
        print("ready", flush=True)
        while True:  # a signal just before a sleep is handled only after it
            time.sleep(0.01)

    with ProfilingContext("open"):
        function()


def pool_work(number: int) -> int:
    with span("work"):
        return os.getpid()


def workers() -> None:
    """Run a pool of workers that end by themselves."""
    if sys.argv[1] == "billiard":  # whose workers end by os._exit, as those of Celery do
        from billiard.pool import Pool
    else:
        Pool = get_context(sys.argv[1]).Pool
    pool = Pool(2)
    print(*set(pool.map(pool_work, range(8), chunksize=1)))
    pool.close()
    pool.join()


def everything() -> None:
    logging.basicConfig()  # or the lines of debug mode would go to stderr
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # a busy machine is slow, which it tells
    stagespan.set_debug(True)
    for make in (span, ProfilingContext, ProfilingContext4Debug):

        @make("function")
        def function(a, *b, c=1, **d):
            return a

        @make("generator")
        def generator(n):
            for i in range(n):
                yield i

        @make("coroutine")
        async def coroutine():
            await asyncio.sleep(0)
            return 1

        @make("async generator")
        async def agen():
            for i in range(3):
                yield i
                await asyncio.sleep(0)

        class Class:
            @make("method")
            def method(self):
                return self

        async def main():
            async with make("async with"), contextlib.AsyncExitStack() as stack:
                stack.enter_context(make("stack"))
                await asyncio.gather(*(coroutine() for _ in range(5)))
                assert [i async for i in agen()] == [0, 1, 2]
                async for i in agen():
                    break
                task = asyncio.create_task(asyncio.wait_for(coroutine(), 60))
                await asyncio.to_thread(function, 1)
                return await task

        for _ in range(3):
            with make("block") as block, contextlib.suppress(KeyError):
                block.add(tokens=1)
                block.inputs(x=1)
                block.output(2)
                raise KeyError
            function(1, 2, c=3, d=4)
            assert list(generator(3)) == [0, 1, 2]
            next(generator(3))
            Class().method()
            asyncio.run(main())
            pickle.loads(pickle.dumps(make("pickled")))
            end(begin("token"))
            begin("given up")
            record("recorded", 1, 2)
            with request("r"):
                function(1)
            thread = threading.Thread(target=lambda: [function(1), list(generator(2))])
            thread.start()
            thread.join()
    str(stagespan.stats()), stagespan.spans(), stagespan.open_spans(), stagespan.lost()
    earlier = stagespan._core.snapshot()
    stagespan._core.snapshot().since(earlier).stages()
    gc.collect()
    stagespan.flush()
    stagespan.set_debug(False)
    print("done")


if __name__ == "__main__":
    globals()[sys.argv.pop(1)]()
