"""Programs whose spans are compared with what they did."""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import math
import mmap
import os
import random
import signal
import sys
import threading
import time

from shared import hold

import stagespan
from stagespan import _core, span


def loop() -> None:
    greenlets = os.environ["GREENLETS"] == "yes"
    if greenlets:
        importlib.import_module("greenlet")

    def compute(ms):
        until = time.thread_time_ns() + ms * 1_000_000
        while time.thread_time_ns() < until:
            pass

    @span("called", cpu=True)
    def called():
        compute(5)

    async def works():
        with span("does not await", cpu=True):
            compute(5)
        called()

    async def main():
        await asyncio.gather(works(), works())

    with span("around the loop", cpu=True):
        asyncio.run(main())
    with span("around a context", cpu=True):
        contextvars.copy_context().run(compute, 5)
    names = _core.stage_names()
    for row in _core.spans():
        # Switches of greenlets cannot be told from those of contexts.
        is_known = not (greenlets and names[row["stage"]].startswith("around"))
        assert math.isnan(row["cpu_ns"]) != is_known, row
        assert not row["cpu_ns"] < 5_000_000, row
    assert len(_core.spans()) == 6
    if not greenlets:
        whole = max(row["cpu_ns"] for row in _core.spans())
        assert whole >= 20_000_000, whole


def greenlets_that_switch() -> None:
    import greenlet

    @span("switches", cpu=True)
    def switches():
        other.switch()

    other = greenlet.greenlet(lambda: None)
    greenlet.greenlet(switches).switch()
    with span("main", cpu=True):
        greenlet.greenlet(lambda: None).switch()
    with span("does not switch", cpu=True):
        pass
    assert list(map(math.isnan, _core.spans()["cpu_ns"])) == [True, True, False]


def all_stages() -> None:
    @stagespan.span
    def decorated():
        pass

    with stagespan.span("block"), stagespan.ProfilingContext("context"):
        with stagespan.span("block"), stagespan.batch("batch", []):
            decorated()
    stagespan.flush()
    stats = stagespan.stats()
    assert stats["block"].cpu_count == 2, stats
    assert stats["context"].cpu_count == stats[decorated.__qualname__].cpu_count == 1, stats
    assert not any(map(math.isnan, _core.spans()["cpu_ns"]))


def child() -> None:
    with stagespan.span("parent", cpu=True):
        child = os.fork()
        if child == 0:
            with stagespan.span("child", cpu=True):
                pass
            (mine,) = _core.spans()["cpu_ns"]
            os._exit(math.isnan(mine))
    assert os.waitpid(child, 0)[1] == 0
    (mine,) = _core.spans()["cpu_ns"]
    assert not math.isnan(mine)


def slow_request() -> None:
    with stagespan.request("slow"):
        with stagespan.span("outer", cpu=True):
            time.sleep(0.1)
            until = time.thread_time_ns() + 12_000_000
            while time.thread_time_ns() < until:
                pass
            with stagespan.span("plain"):
                pass
    hold()


def faults_and_switches() -> None:
    def touch(pages):
        with mmap.mmap(-1, pages * mmap.PAGESIZE) as memory:
            memory.madvise(mmap.MADV_NOHUGEPAGE)
            for page in range(pages):
                memory[page * mmap.PAGESIZE] = 1

    with stagespan.request("slow"):
        with stagespan.span("outer"):
            with stagespan.span("touches"):
                touch(2000)
            with stagespan.span("waits"):
                for _ in range(20):
                    time.sleep(0.001)
    hold()


def bound_in_a_child() -> None:
    def work():
        with stagespan.span("work"):
            return stagespan.current_request()

    with stagespan.request("r"), stagespan.span("outer"):
        bound = stagespan.bind(work)

    if os.fork() == 0:
        print(bound(), stagespan.spans()[["parent", "request"]].tolist(), flush=True)
        os._exit(0)
    os.wait()


def started_thread() -> None:
    def work():
        with stagespan.span("work"):
            found.append(stagespan.current_request())

    found: list[object] = []
    with stagespan.request("r") as current:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        # The service thread, too, starts in here.
        with stagespan.ProfilingContext("profiled"):
            pass
    print(found == [current])


def repeated_readings() -> None:
    chance = random.Random(1)
    fields = ["begin_ns", "end_ns", "suspended_ns", "depth", "stage", "thread", "parent"]
    known: dict[int, list[float]] = {}
    changed, reads = 0, 0

    @stagespan.span("generates")
    def generates():
        yield from range(3)

    until = time.monotonic() + 2.5  # the clock is fitted again twice
    while time.monotonic() < until or reads <= 20:
        with stagespan.span("outer"):
            for _ in generates():
                with stagespan.span("inner"):
                    pass
        now = time.time_ns()
        stagespan.record("past", now - 10**12, now - 10**9 * chance.randrange(999))
        # WHEN the same spans are read again
        for row in stagespan.spans():
            values = row[fields].tolist()
            changed += known.setdefault(int(row["id"]), values) != values
        reads += 1
        time.sleep(chance.choice([0, 0.0001, 0.001, 0.02]))

    print(changed, len(known) > 100)
    print(all(begin <= end for begin, end, *_ in known.values()))
    # The smallest difference, because the program can be paused between the two calls.
    print(min(abs(stagespan._core.now_ns() - time.time_ns()) for _ in range(100)) < 10**6)


def thousand_stages() -> None:
    for n in range(1000):
        with stagespan.span(f"stage {n}"):
            for _ in range(n % 50):
                pass
    stats, names = stagespan.stats(), stagespan.stage_names()
    for row in stagespan.spans():
        print(row["end_ns"] - row["begin_ns"] - stats[names[row["stage"]]].total_ns)


def cursor_of_a_child() -> None:
    cursor = stagespan.SpanCursor()
    with stagespan.span("parents"):
        pass
    stagespan.spans(since=cursor)
    with stagespan.span("unread"):
        pass
    if os.fork() == 0:
        with stagespan.span("childs"):
            pass
        rows = stagespan.spans(since=cursor)
        print(
            [stagespan.stage_names()[row["stage"]] for row in rows], cursor.overwritten, flush=True
        )
        os._exit(0)
    os.wait()
    print(len(stagespan.spans(since=cursor)))


def audited_requests() -> None:
    def serve():
        with stagespan.request("r") as root, stagespan.span("parse"):
            root.chunk()
            carrier = stagespan.inject(queue="work")
            remote = stagespan.extract(carrier)
            with remote, stagespan.batch("forward", [remote]), stagespan.queued("replica"):
                root.set_status("ok")

    serve()  # what is imported and made once
    seen: list[str] = []
    mine = threading.get_ident()

    def hook(event, arguments):
        if threading.get_ident() == mine and is_on:
            seen.append(event)

    is_on = False
    sys.addaudithook(hook)
    is_on = True
    for _ in range(100):
        serve()
    is_on = False
    print([event for event in seen if event.split(".")[0] in ("open", "socket", "os", "mmap")])


def ends_of_children() -> None:
    import multiprocessing

    def work(end, carrier):
        with stagespan.extract(carrier):
            for _ in range(100):
                with stagespan.span(end):
                    pass
        if end == "exits":
            os._exit(0)
        if end == "killed":
            os.kill(os.getpid(), signal.SIGKILL)

    context = multiprocessing.get_context("fork")
    for end in ("returns", "exits", "killed"):
        with stagespan.request(end):
            child = context.Process(target=work, args=(end, stagespan.inject(queue="child")))
            child.start()
            child.join()


if __name__ == "__main__":
    globals()[sys.argv.pop(1)]()
