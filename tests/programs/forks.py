"""Programs of test_fork.py: Forks and worker processes.

Arguments: the name of the program, and its own.
"""

from __future__ import annotations

import logging
import os
import sys
import threading

import stagespan
from stagespan import ProfilingContext, _core, begin, end, request, span


def a_child_records_its_own() -> None:
    def show(who):
        for name, stage in sorted(_core.snapshot().stages().items()):
            print(who, name, stage.count, *sorted(map(str, stage.parents)))
        lost = {cause: n for cause, n in _core.lost().items() if n}
        opened = [one["stage"] for one in _core.open_spans()]
        print(who, "ends with", lost, opened, len(stagespan.spans()), flush=True)

    @span("generator")
    def generate():
        with span("in generator"):
            yield 1
        yield 2

    @span("function")
    def function():
        return os.fork()

    token, generator, reused = begin("token"), generate(), span("reused")
    next(generator)
    with span("before"):
        pass
    with request("r"), reused, ProfilingContext("profiling"), span("outer"):
        pid = function()
        if pid == 0:
            show("new child")
            with span("child's"), reused:
                pass
    end(token)
    list(generator)
    del token, generator
    with reused:
        pass
    if pid == 0:
        show("child")
        os._exit(0)
    os.waitpid(pid, 0)
    show("parent")


def forks_while_threads_time_and_read() -> None:
    stagespan.spans()  # imports numpy, which a fork must not interrupt
    stop = threading.Event()

    def short(name):
        thread = threading.Thread(target=lambda: span(name)(lambda: None)())
        thread.start()
        thread.join()

    def times(i):
        n = 0
        while not stop.is_set():
            with span(f"t{i} {n % 100}"), ProfilingContext("profiling"):
                n += 1

    def reads():
        while not stop.is_set():
            _core.snapshot(), stagespan.spans(), _core.open_spans(), _core.clock_info()

    def comes_and_goes():
        while not stop.is_set():
            short("short")

    works = [lambda: times(0), lambda: times(1), reads, comes_and_goes]
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    failed = 0
    for _ in range(60):
        pid = os.fork()
        if pid == 0:
            # All that can be done in the child works at once.
            with span("child"), ProfilingContext("in child"):
                short("thread")
            counts = {n: s.count for n, s in _core.snapshot().stages().items()}
            right = counts == {"child": 1, "in child": 1, "thread": 1}
            stagespan.flush()
            os._exit(0 if right and len(stagespan.spans()) == 3 else 1)
        failed += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0
    stop.set()
    for thread in threads:
        thread.join()
    print(failed)


def children_of_children() -> None:
    depth = 0
    with span("open"):
        for depth in range(1, 5):
            pid = os.fork()
            if pid:
                os.waitpid(pid, 0)
                depth -= 1
                break
            with span(f"level {depth}"):
                pass
    print(depth, {n: s.count for n, s in _core.snapshot().stages().items()}, flush=True)
    os._exit(0)


def a_childs_open_spans_name_its_thread() -> None:
    threading.current_thread().name = "decoder"
    with stagespan.span("load"):
        pass
    if os.fork() == 0:
        with stagespan.span("decode"):
            print(stagespan.open_spans()[0]["thread_name"], flush=True)
        os._exit(0)
    os.wait()


def a_childs_end_writes_nothing_of_the_parents() -> None:
    logging.basicConfig(level=logging.INFO, format="%(process)d %(message)s", stream=sys.stdout)
    from stagespan import ProfilingContext

    print(os.getpid(), "is the parent", flush=True)
    for i in range(20):
        with ProfilingContext(f"parent's {i}"):
            pass
    pid = os.fork()
    if pid == 0:
        with ProfilingContext("child's"):
            pass
        sys.exit(0)
    os.waitpid(pid, 0)


if __name__ == "__main__":
    globals()[sys.argv.pop(1)]()
