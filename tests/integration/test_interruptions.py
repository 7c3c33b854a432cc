"""Signal handlers and finalizers in the middle of stagespan's own code, and concurrent readers."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from running import ran

# Runs `handler` at each line that `work` reaches in the package and in logging, like a signal
# handler. If it hangs, it is ended, with the stacks of all threads.
AT_EACH_LINE = """
import faulthandler, itertools, logging, os, sys
faulthandler.dump_traceback_later(100, exit=True)
import stagespan
from stagespan import ProfilingContext, ProfilingContext4Debug, span

FOLDERS = (os.path.dirname(stagespan.__file__), os.path.dirname(logging.__file__))
logging.getLogger("stagespan").addHandler(logging.FileHandler("lines.log"))
logging.getLogger("stagespan").setLevel(logging.INFO)

def interrupted(work, handler, only=None):
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
def stage(value, steps=1):
    return [value]

rounds = itertools.count(1)

def all_calls():
    if next(rounds) % 10 == 0:  # or reports would hold the snapshots of hundreds of calls
        stagespan.reset_timing_registry()
    stage([1.0], steps=2)
    with span("span"), ProfilingContext("context"), stagespan.request("request"):
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
"""


def run(code: str, folder: Path, *options: str) -> str:
    """Run a program; output on stderr, such as the stacks of a hang, is a failure."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(code))
    done = ran(
        [sys.executable, *options, str(script)], cwd=folder, STAGESPAN_OUTPUT_DIR=str(folder)
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


# --- signal handlers ------------------------------------------------------------------------------

TAKES_SECONDS = {
    *("a stage", "a first signature", "a dump of signatures", "a report", "a dump of the report"),
    *("a flush", "a decorator"),
}
WORK = {
    "a stage": "stage([1.0, 2.0])",
    "a first signature": "[stage([0] * n) for n in range(40)]",
    "signatures": "stagespan.get_io_signatures()",
    "a dump of signatures": "stagespan.dump_io_signatures('a.json')",
    "a report": "stagespan.timing_report()",
    "a new report": "stagespan.reset_timing_registry('id', {'a': 1})",
    "a dump of the report": "stagespan.dump_timing_report('b.json')",
    "statistics": "stagespan.stats()",
    "a window": "stagespan.stats(0.001)",
    "a flush": "[stage(1) for _ in range(5)], stagespan.flush(1)",
    "memory": "stagespan.memory_snapshot('x')",
    "memory of a context": "ProfilingContext('m', capture_memory=True)(len)(())",
    "profiled names": "stagespan.enable_profiler_for_names(['x', 'y'])",
    "a switch": "stagespan.set_debug(False), stagespan.set_debug(True)",
    "a decorator": "ProfilingContext4Debug('new')(lambda: None)()",
    "open spans": "stagespan.open_spans()",
}


@pytest.mark.parametrize(
    "work",
    [
        pytest.param(name, marks=[pytest.mark.slow, pytest.mark.full] * (name in TAKES_SECONDS))
        for name in WORK
    ],
)
def test_a_signal_handler_may_do_anything_at_any_line(work: str, tmp_path: Path) -> None:
    code = f"""
stagespan.set_debug()
all_calls()
# WHEN a handler does all that at each line that some work comes to
interrupted(lambda: ({WORK[work]}), all_calls)
# THEN nothing waits for what its own thread holds, and all works as before
all_calls()
assert stagespan.flush(30)
"""
    run(AT_EACH_LINE + code, tmp_path)


@pytest.mark.parametrize(
    "name",
    ["stats", "timing_report", "flush", "get_io_signatures", "memory_snapshot", "set_debug"],
)
def test_a_signal_handler_may_interrupt_the_first_call(name: str, tmp_path: Path) -> None:
    # GIVEN a program whose first call of a function, which imports it, is interrupted
    argument = "'x'" if name == "memory_snapshot" else ""
    code = f"""
import threading
calls, refused = [], []
def handler():
    with span("span"), ProfilingContext("context"):
        stage(1)
    try:
        stagespan.{name}({argument})
        calls.append(1)
    except stagespan.StagespanError as error:
        refused.append(str(error))

interrupted(lambda: stagespan.{name}({argument}), handler)
# THEN the handler's own call works or is refused, in one sentence, and nothing hangs
assert calls
assert all("signal handler or finalizer" in reason for reason in refused), refused
with ProfilingContext("context"):
    pass
assert stagespan.flush(30)
assert [t.name for t in threading.enumerate()].count("stagespan") == 1
"""
    run(AT_EACH_LINE + code, tmp_path)


@pytest.mark.parametrize(
    "block",
    [
        "with stagespan.request('r'): pass",
        "with stagespan.extract({}): pass",
        "with remote: pass",
        "with stagespan.request('r'), stagespan.span('s'), stagespan.extract({}): pass",
        "asynchronous().send(None)",
        "bound()",
        "decorated()",
    ],
)
def test_an_exception_of_a_signal_handler_leaves_no_request_current(
    block: str, tmp_path: Path
) -> None:
    # On Python 3.10, the handler may also run between the call and `send`.
    code = f"""
import random, signal, warnings
import stagespan

warnings.filterwarnings("ignore", "coroutine 'asynchronous' was never awaited")
class TimeLimit(Exception): pass

def stop(*_):
    raise TimeLimit

async def asynchronous():
    async with stagespan.request("r"), stagespan.extract({{}}): pass

with stagespan.request("outer"), stagespan.span("outer"):
    bound = stagespan.bind(lambda: None)
    carrier = stagespan.inject()
decorated = stagespan.request("nightly")(lambda: None)
remote = stagespan.extract(carrier)
signal.signal(signal.SIGALRM, stop)
for _ in range(400):
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-4, 8e-4))
        while True:
            try:
                {block}
            except StopIteration: pass
    except TimeLimit:
        pass
    # WHEN the handler raises an exception THEN what it has interrupted is not current any more
    assert stagespan.current_request() is None, stagespan.current_request()
    assert stagespan.open_spans() == []
"""
    run(code, tmp_path)


def test_a_report_in_a_signal_handler_does_not_wait_for_a_log_handler(tmp_path: Path) -> None:
    lines = run(
        """
        import faulthandler, logging, threading, time
        faulthandler.dump_traceback_later(60, exit=True)
        import stagespan
        from stagespan import ProfilingContext
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
        with handler.lock:
            with ProfilingContext("context"):
                pass
            assert wants.wait(30)

            began = time.monotonic()
            report, is_flushed = stagespan.timing_report(), stagespan.flush(50)
            took_s = time.monotonic() - began
        # THEN it has all that has run, without the lines, for which nobody waited
        print(report["stages"]["context"]["count"])
        print(report["stages"]["context"]["memory"]["peak_rss_mb"] > 0, is_flushed, took_s < 40)
        assert stagespan.flush(30)
        """,
        tmp_path,
    ).splitlines()
    assert lines == ["1", "True False True"]


# --- finalizers -----------------------------------------------------------------------------------

FINALIZERS = """
import faulthandler, gc, logging, sys, time
faulthandler.dump_traceback_later(100, exit=True)
import stagespan
from stagespan import ProfilingContext, ProfilingContext4Debug, request, span
logging.getLogger("stagespan").disabled = True

@ProfilingContext4Debug("release")
def release(size):
    return size

class Model:
    def __init__(self):
        self.me = self  # only a collection frees it
    def __del__(self):
        with request(), span("finalizer"), ProfilingContext("context of a finalizer"):
            release(1)

def collect(count):
    gc.set_threshold(700)
    until_s = time.monotonic() + 60
    # gc.collect() does nothing while another thread, here that of the service, collects.
    while stagespan.stats()["finalizer"].count < count and time.monotonic() < until_s:
        gc.collect()
        time.sleep(0.01)
"""


@pytest.mark.full
def test_finalizers_run_stages_in_the_middle_of_debug_mode(tmp_path: Path) -> None:
    # GIVEN collections anywhere in the code, if Python allows that
    run(
        FINALIZERS
        + textwrap.dedent(
            """
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
            """
        ),
        tmp_path,
    )


def test_finalizers_run_stages_in_the_middle_of_changes_of_context_variables(
    tmp_path: Path,
) -> None:
    # GIVEN many variables, so that each change creates several objects
    run(
        FINALIZERS
        + textwrap.dedent(
            """
            import contextvars
            variables = [contextvars.ContextVar(f"v{n}") for n in range(100)]
            for variable in variables:
                variable.set("first")
            def change():
                for n in range(600):
                    changed = variables[n % 50:][:20]
                    Model()
                    tokens = [variable.set(n) for variable in changed]
                    Model()
                    copy = contextvars.copy_context()
                    Model()
                    for variable, token in zip(changed, tokens):
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
            """
        ),
        tmp_path,
    )


def test_finalizers_run_stages_in_the_middle_of_tasks(tmp_path: Path) -> None:
    # GIVEN tasks whose spans create objects when they open and close
    run(
        FINALIZERS
        + textwrap.dedent(
            """
            import asyncio
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
            """
        ),
        tmp_path,
    )


# --- readers --------------------------------------------------------------------------------------


def test_a_window_and_a_snapshot_that_is_taken_at_the_same_time(tmp_path: Path) -> None:
    # GIVEN rings that have wrapped, so that windows are computed from snapshots
    code = """
from stagespan import _core
from stagespan.live import service
def snapshot():
    for _ in range(100):
        with span("span"):
            pass
    service.history().add(_core.snapshot().pack())
for window_s in (1e-6, 1e-3, 0.1):
    stagespan.stats(window_s)
    # WHEN the service thread takes a snapshot at each line of the call / THEN
    interrupted(
        lambda: stagespan.stats(window_s),
        snapshot,
        only=("statistics.py", "history.py", "service.py"),
    )
"""
    small_rings = "import os; os.environ['STAGESPAN_RING_SPANS'] = '64'"
    run(small_rings + AT_EACH_LINE + code, tmp_path)


# get_io_signatures() itself imports the module.
@pytest.mark.parametrize("call", ["timing_report", "reset_timing_registry", "stats"])
def test_reading_while_debug_mode_is_first_switched_on(call: str, tmp_path: Path) -> None:
    run(
        f"""
        import faulthandler, sys, threading
        faulthandler.dump_traceback_later(60, exit=True)
        import stagespan
        stagespan.{call}()
        halfway, go_on = threading.Event(), threading.Event()
        def trace(frame, event, argument):
            name = frame.f_code.co_filename
            if name.endswith("signature/store.py") and frame.f_code.co_name == "<module>":
                halfway.set()
                go_on.wait(30)
            return None
        threading.settrace(trace)
        thread = threading.Thread(target=stagespan.set_debug)
        thread.start()

        assert halfway.wait(60)
        threading.settrace(None)
        # WHEN this thread reads in the meantime / THEN neither waits for the other
        stagespan.{call}()

        go_on.set()
        thread.join()
        stagespan.{call}()
        """,
        tmp_path,
    )


# --- the end of the interpreter -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["debug", "function", "generator", "coroutine", "async"])
def test_a_finalizer_runs_a_timed_function_at_the_end(kind: str, tmp_path: Path) -> None:
    # GIVEN an object that lives until the modules are cleared
    out = run(
        f"""
        import sys
        import stagespan
        context = stagespan.span("release")
        if {kind!r} == "debug":
            stagespan.set_debug()
            context = stagespan.ProfilingContext4Debug("release")

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
                kind = {kind!r}
                if kind == "generator":
                    list(self.generator())
                elif kind == "coroutine":
                    try:
                        self.coroutine().send(None)
                    except StopIteration:
                        pass
                elif kind == "async":
                    try:
                        self.generate().__anext__().send(None)
                    except StopIteration:
                        pass
                else:
                    self.release()

        sys.modules["keep"] = Handle()
        """,
        tmp_path,
    )
    assert out == "released\n"
