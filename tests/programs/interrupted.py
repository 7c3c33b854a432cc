"""Programs in which a handler of a signal, or a finalizer, runs in the middle of stagespan's code.

A program that hangs is ended, with the stacks of all threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import faulthandler
import gc
import itertools
import logging
import os
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import stagespan
from stagespan import ProfilingContext, ProfilingContext4Debug, _core, recording, request, span

FOLDERS = (os.path.dirname(stagespan.__file__), os.path.dirname(logging.__file__))


def log_to_file() -> None:
    logging.getLogger("stagespan").addHandler(logging.FileHandler("lines.log"))
    logging.getLogger("stagespan").setLevel(logging.INFO)


def interrupted(
    work: Callable[[], object], handler: Callable[[], object], only: tuple[str, ...] = ()
) -> None:
    """Call `handler` at each line that `work` reaches in the package and in logging.

    It runs like the handler of a signal. `only` has the ends of the names of the files.
    """
    seen = set()

    def trace(frame, event, argument):
        name = frame.f_code.co_filename
        if not name.startswith(FOLDERS) or (only and not name.endswith(only)):
            return None
        if event == "line" and (name, frame.f_lineno) not in seen:
            seen.add((name, frame.f_lineno))
            sys.settrace(None)
            try:
                handler()
            finally:
                sys.settrace(trace)
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    assert seen, "nothing was interrupted"


@ProfilingContext4Debug("stage")
def stage(value: object, steps: int = 1) -> list[object]:
    return [value]


rounds = itertools.count(1)


def all_calls() -> None:
    if next(rounds) % 10 == 0:  # or reports would hold the snapshots of hundreds of calls
        stagespan.reset_timing_registry()
    stage([1.0], steps=2)
    with span("span"), ProfilingContext("context"), request("request"):
        pass
    stagespan.stats(), stagespan.stats(1e-3), stagespan.spans(), stagespan.open_spans()
    stagespan.timing_report(), stagespan.get_io_signatures()
    stagespan.memory_snapshot("now")
    stagespan.set_timing_metadata("key", 1)
    stagespan.flush(0.2)
    span("decorated")(lambda: None)()
    stagespan.enable_profiler_for_names("never runs")
    stagespan.dump_timing_report("timing.json")
    stagespan.dump_io_signatures("signatures.json")


WORK: dict[str, Callable[[], object]] = {
    "a stage": lambda: stage([1.0, 2.0]),
    "a first signature": lambda: [stage([0] * n) for n in range(40)],
    "signatures": lambda: stagespan.get_io_signatures(),
    "a dump of signatures": lambda: stagespan.dump_io_signatures("a.json"),
    "a report": lambda: stagespan.timing_report(),
    "a new report": lambda: stagespan.reset_timing_registry("id", {"a": 1}),
    "a dump of the report": lambda: stagespan.dump_timing_report("b.json"),
    "statistics": lambda: stagespan.stats(),
    "a window": lambda: stagespan.stats(0.001),
    "a flush": lambda: ([stage(1) for _ in range(5)], stagespan.flush(1)),
    "memory": lambda: stagespan.memory_snapshot("x"),
    "memory of a context": lambda: ProfilingContext("m", capture_memory=True)(len)(()),
    "profiled names": lambda: stagespan.enable_profiler_for_names(["x", "y"]),
    "a switch": lambda: list(map(stagespan.set_debug, (False, True))),
    "a decorator": lambda: ProfilingContext4Debug("new")(lambda: None)(),
    "open spans": lambda: stagespan.open_spans(),
}


def at_each_line() -> None:
    log_to_file()
    stagespan.set_debug()
    all_calls()
    # WHEN a handler does all that at each line that some work comes to
    interrupted(WORK[sys.argv[1]], all_calls)
    # THEN nothing waits for what its own thread holds, and all works as before
    all_calls()
    assert stagespan.flush(30)


def first_call() -> None:
    """Interrupt the first call of a function, which imports it."""
    log_to_file()
    name, *arguments = sys.argv[1:]
    calls, refused = [], []

    def call():
        getattr(stagespan, name)(*arguments)

    def handler():
        with span("span"), ProfilingContext("context"):
            stage(1)
        try:
            call()
            calls.append(1)
        except stagespan.StagespanError as error:
            refused.append(str(error))

    interrupted(call, handler)
    # THEN the handler's own call works or is refused, in one sentence, and nothing hangs
    assert calls
    assert all("signal handler or finalizer" in reason for reason in refused), refused
    with ProfilingContext("context"):
        pass
    assert stagespan.flush(30)
    assert [t.name for t in threading.enumerate()].count("stagespan") == 1


def exceptions() -> None:
    """Raise an exception in a handler while a block is entered again and again."""
    warnings.filterwarnings("ignore", "coroutine 'asynchronous' was never awaited")

    class TimeLimit(Exception):
        pass

    def stop(*_):
        raise TimeLimit

    async def asynchronous():
        async with request("r"), stagespan.extract({}):
            pass

    with request("outer"), span("outer"):
        bound = stagespan.bind(lambda: None)
        carrier = stagespan.inject()
    decorated = request("nightly")(lambda: None)
    remote = stagespan.extract(carrier)
    # The block is compiled here, because a call around it would leave at other places.
    block = compile(
        f"while True:\n  try:\n    {sys.argv[1]}\n  except StopIteration: pass", "block", "exec"
    )
    names = {
        "stagespan": stagespan,
        "asynchronous": asynchronous,
        "bound": bound,
        "decorated": decorated,
        "remote": remote,
    }
    signal.signal(signal.SIGALRM, stop)
    for _ in range(400):
        with contextlib.suppress(TimeLimit):
            signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-4, 8e-4))
            exec(block, names)
        # THEN what it has interrupted is not current any more
        assert stagespan.current_request() is None, stagespan.current_request()
        assert stagespan.open_spans() == []


def first_request() -> None:
    """Raise an exception at a line of the first request and its first failure, in a child each."""

    class TimeLimit(Exception):
        pass

    def block():
        with contextlib.suppress(KeyError), request("first", steps=1):
            raise KeyError

    def child(line):
        lines = itertools.count(1)

        def trace(frame, event, argument):
            name = frame.f_code.co_filename
            # No code can go on cleaning up if it is interrupted in `finally`, as in imports.py.
            if not name.startswith(FOLDERS[0]) or name.endswith("process/imports.py"):
                return None
            if event == "line" and next(lines) == line:
                raise TimeLimit
            return trace

        was_raised = False
        try:
            sys.settrace(trace)
            block()
        except TimeLimit:
            was_raised = True
        finally:
            sys.settrace(None)
        # THEN the program gets the exception, and nothing is current
        assert was_raised == (next(lines) > line), "the exception is lost"
        assert stagespan.current_request() is None
        assert stagespan.open_spans() == []
        # AND later requests are recorded as the environment asks
        with request("later", steps=2):
            pass
        segments = recording.open(os.getpid()).segments()
        assert segments[-1]["fields"] == {"steps": 2}, segments
        os._exit(0 if was_raised else 3)

    # Python 3.12 and later warn of a fork beside other threads.
    warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
    for line in itertools.count(1):
        pid = os.fork()
        if pid == 0:
            try:
                child(line)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status == 3:  # it has no such line
            break
        assert status == 0, line
    assert line > 10


def log_handler_with_a_lock() -> None:
    stagespan.timing_report()
    wants = threading.Event()

    class Handler(logging.FileHandler):
        def handle(self, record):
            if threading.current_thread().name == "stagespan":
                wants.set()
            return super().handle(record)

    handler = Handler("lines.log")
    logging.getLogger("stagespan").addHandler(handler)
    logging.getLogger("stagespan").setLevel(logging.INFO)
    with ProfilingContext("outside"):
        pass
    assert handler.lock is not None
    with handler.lock:
        with ProfilingContext("context"):
            pass
        assert wants.wait(30)

        began = time.monotonic()
        report: Any = stagespan.timing_report()
        is_flushed = stagespan.flush(50)
        took_s = time.monotonic() - began
    # THEN it has all that has run, without the lines, for which nobody waited
    context = report["stages"]["context"]
    print(context["count"])
    print(context["memory"]["peak_rss_mb"] > 0, is_flushed, took_s < 40)
    assert stagespan.flush(30)


# --- finalizers ---


@ProfilingContext4Debug("release")
def release(size: int) -> int:
    return size


class Model:
    def __init__(self) -> None:
        self.me = self  # only a collection frees it

    def __del__(self) -> None:
        with request(), span("finalizer"), ProfilingContext("context of a finalizer"):
            release(1)


def collect(count: int) -> None:
    gc.set_threshold(700)
    until_s = time.monotonic() + 60
    # gc.collect() does nothing while another thread, here that of the service, collects.
    while stagespan.stats()["finalizer"].count < count and time.monotonic() < until_s:
        gc.collect()
        time.sleep(0.01)


def finalizers_in_debug_mode() -> None:
    logging.getLogger("stagespan").disabled = True
    stagespan.set_debug()

    @ProfilingContext4Debug("stage")
    def stage(x, y):
        return [x] * 10

    for n in range(1500):
        # So that one comes anywhere: garbage is gone with the first allocation otherwise.
        gc.set_threshold(1 + n % 97)
        Model()
        stage(1, [[k] for k in range(n % 40)])
        if n % 10 == 0:
            stagespan.get_io_signatures(), stagespan.timing_report(), stagespan.stats(1)
    collect(1500)
    # THEN each has run
    assert stagespan.stats()["release"].count == 1500


def finalizers_in_context_variables() -> None:
    """Change many variables, so that each change creates several objects."""
    logging.getLogger("stagespan").disabled = True
    variables: list[contextvars.ContextVar[object]]
    variables = [contextvars.ContextVar(f"v{n}") for n in range(100)]
    for variable in variables:
        variable.set("first")

    def change():
        for n in range(600):
            changed = variables[n % 50 :][:20]
            Model()
            tokens = [variable.set(n) for variable in changed]
            Model()
            copy = contextvars.copy_context()
            Model()
            for variable, token in zip(changed, tokens, strict=True):
                variable.reset(token)
            # THEN none of them is lost
            assert [copy[variable] for variable in changed] == [n] * 20
            assert [variable.get() for variable in variables] == ["first"] * 100
            with span("work"), request("request"):
                pass

    # WHEN finalizers open spans and requests in the middle of the changes
    gc.set_threshold(1)
    contextvars.copy_context().run(change)
    collect(1800)
    assert stagespan.stats()["finalizer"].count == 1800
    assert stagespan.stats()["work"].count == 600


def finalizers_in_tasks() -> None:
    """Run tasks whose spans create objects when they open and close."""
    logging.getLogger("stagespan").disabled = True

    async def work():
        for n in range(400):
            Model()
            with span("a"):
                Model()
            with request("r"):
                Model()
                with ProfilingContext("b"):
                    Model()
            if n % 10 == 0:
                await asyncio.sleep(0)

    async def main():
        await asyncio.gather(*(work() for _ in range(5)))

    gc.set_threshold(1)
    asyncio.run(main())
    collect(8000)

    stats = stagespan.stats()
    assert (stats["a"].count, stats["finalizer"].count) == (2000, 8000)


def finalizer_at_the_end() -> None:
    """Run a timed function when the modules are cleared."""
    kind = sys.argv[1]
    context: Any = span("release")
    if kind == "debug":
        stagespan.set_debug()
        context = ProfilingContext4Debug("release")

    class Handle:
        @context
        def release(self):
            print("released")

        @context
        def generator(self):
            yield self.release()

        @context
        async def coroutine(self):
            self.release()

        @context
        async def generate(self):
            yield self.release()

        def __del__(self):
            if kind == "generator":
                list(self.generator())
            elif kind in ("coroutine", "async"):
                call = self.coroutine() if kind == "coroutine" else self.generate().__anext__()
                with contextlib.suppress(StopIteration):
                    call.send(None)
            else:
                self.release()

    sys.modules["keep"] = Handle()  # type: ignore[assignment]


# --- readers ---


def window_and_snapshot() -> None:
    """Compute windows from snapshots, because the rings have wrapped."""
    from stagespan.live import service

    log_to_file()

    def snapshot():
        for _ in range(100):
            with span("span"):
                pass
        service.history().add(_core.snapshot().pack())

    for window_s in (1e-6, 1e-3, 0.1):
        stagespan.stats(window_s)
        # WHEN the service thread takes a snapshot at each line of the call / THEN
        interrupted(
            lambda window_s=window_s: stagespan.stats(window_s),  # type: ignore[misc]
            snapshot,
            only=("statistics.py", "history.py", "service.py"),
        )


def first_debug_mode() -> None:
    """Read while debug mode is switched on for the first time."""
    call = getattr(stagespan, sys.argv[1])
    call()
    halfway, go_on = threading.Event(), threading.Event()

    def trace(frame, event, argument):
        name = frame.f_code.co_filename
        if name.endswith("signature/store.py") and frame.f_code.co_name == "<module>":
            halfway.set()
            go_on.wait(30)

    threading.settrace(trace)
    thread = threading.Thread(target=stagespan.set_debug)
    thread.start()

    assert halfway.wait(60)
    threading.settrace(None)
    # WHEN this thread reads in the meantime / THEN neither waits for the other
    call()

    go_on.set()
    thread.join()
    call()


if __name__ == "__main__":
    faulthandler.dump_traceback_later(100, exit=True)
    globals()[sys.argv.pop(1)]()
