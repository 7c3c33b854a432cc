"""Ends of processes: signals, threads that are still running, strict interpreters."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from recording import in_child, python

from running import ran

pytestmark = pytest.mark.usefixtures("fresh")


FOREVER = "lambda: [time.sleep(0.0001) for _ in iter(int, 1)]"
AT_WORK = {
    "spans": """
        while True:
            with span("at work"):
                pass
    """,
    "function": f"span('at work')({FOREVER})()",
    "profiling": f"ProfilingContext('at work')({FOREVER})()",
    "debug": f"ProfilingContext4Debug('at work')({FOREVER})()",
    "generator": """
        @span("at work")
        def generate():
            while True:
                time.sleep(0.0001)
                yield
        for _ in generate():
            pass
    """,
    "coroutine": """
        @span("at work")
        async def run():
            while True:
                await asyncio.sleep(0)
        asyncio.run(run())
    """,
    "reading": """
        while True:
            stagespan.spans(), stagespan._core.snapshot(), stagespan.open_spans()
    """,
    "recordings": """
        with span("makes the recording"):
            pass
        while True:
            stagespan.recording.open(os.getpid())
    """,
    "traces": """
        events = b'{"ph":"X","name":"work","ts":1,"dur":1,"pid":1,"tid":1},' * 100_000
        while True:
            stagespan._core.TraceScanner().scan(events, 0)
    """,
    "waiting": """
        while True:
            stagespan._core.service_wait(0.001)
    """,
    "statistics": """
        while True:
            str(stagespan.stats()), stagespan.stats(1.0)
    """,
    "log lines": """
        while True:
            with ProfilingContext("at work"):
                pass
    """,
}


@pytest.mark.slow
@pytest.mark.parametrize("what", AT_WORK)
def test_the_interpreter_ends_while_daemon_threads_are_at_work(what: str, tmp_path: Path) -> None:
    # GIVEN daemon threads in the middle of work. Until Python 3.13, pthread_exit ends them where
    # they request the interpreter's lock, which unwinds through the extension.
    code = f"""
import asyncio, os, sys, threading, time, stagespan, stagespan.recording
from stagespan import ProfilingContext, ProfilingContext4Debug, span
stagespan.set_debug({what == "debug"})
def work():
{textwrap.indent(textwrap.dedent(AT_WORK[what]), "    ")}
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
class Late:
    def __del__(self, sleep=time.sleep):
        sleep(0.3)  # all threads have requested the lock by then
sys.modules["late"] = Late()
print("done")
"""

    def run(number: int) -> str:
        folder = tmp_path / str(number)
        folder.mkdir()
        return python(code, folder, STAGESPAN_OUTPUT_DIR=str(folder / "out")).stdout

    with ThreadPoolExecutor(3) as pool:
        outputs = list(pool.map(run, range(3)))
    assert outputs == ["done\n"] * 3


def test_the_interpreter_ends_inside_of_spans(tmp_path: Path) -> None:
    # GIVEN a program that ends with everything open
    lines = in_child(
        """
        import atexit, os, stagespan
        from stagespan import ProfilingContext, begin, span
        @span("generator")
        def generate():
            with span("block"):
                yield
        generator, token = generate(), begin("token")
        next(generator)
        span("never left").__enter__()
        @atexit.register
        def last():
            with span("at exit"), ProfilingContext("profiling at exit"):
                print("last")
        class Late:
            def __del__(self):
                with span("very late"), ProfilingContext("very late"):
                    os.write(1, b"later\\n")
        late = Late()
        span("open").__enter__()
        ProfilingContext("open too").__enter__()
        """,
        tmp_path,
    )

    assert lines == ["last", "later"]


@pytest.mark.parametrize("how", ["sys.exit(3)", "raise SystemExit(3)", "os._exit(3)"])
def test_exit_codes_are_kept(how: str, tmp_path: Path) -> None:
    code = f"""
    import os, sys
    from stagespan import ProfilingContext, span
    @ProfilingContext("function")
    def function():
        {how}
    with span("open"):
        function()
    """

    python(code, tmp_path, returncode=3)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_a_program_as_without_stagespan(number: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import time
            from stagespan import ProfilingContext, span
            with ProfilingContext("starts the service"):
                pass
            @span("function")
            def function():
                print("ready", flush=True)
                while True:  # a signal just before a sleep is handled only after it
                    time.sleep(0.01)
            with ProfilingContext("open"):
                function()
            """
        )
    )
    program = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    program.stdout.readline()

    program.send_signal(number)
    _, stderr = program.communicate(timeout=60)

    assert program.returncode == -number
    if number == signal.SIGTERM:
        assert stderr == ""
    else:
        assert stderr.rstrip().endswith("KeyboardInterrupt")


WORKERS = """
import os, sys
import stagespan

def work(number):
    with stagespan.span("work"):
        return os.getpid()

if __name__ == "__main__":
    if sys.argv[1] == "billiard":  # whose workers end by os._exit, as those of Celery do
        from billiard.pool import Pool
    else:
        from multiprocessing import get_context
        Pool = get_context(sys.argv[1]).Pool
    pool = Pool(2)
    print(*set(pool.map(work, range(8), chunksize=1)))
    pool.close()
    pool.join()
"""


@pytest.mark.parametrize("kind", ["billiard", "fork", "spawn"])
def test_a_worker_of_a_pool_that_ends_by_itself_ends_cleanly(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    if kind == "billiard":
        pytest.importorskip("billiard")
    script = tmp_path / "program.py"
    script.write_text(WORKERS)

    done = ran([sys.executable, str(script), kind])

    # THEN their recordings are removed, as at every clean exit
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split()
    assert list(folder.glob("*.stagespan")) == []


def test_a_thread_that_python_ends_in_a_callback(tmp_path: Path) -> None:
    # GIVEN a daemon thread that waits inside the callback of a debug stage, while the interpreter
    # ends. Until Python 3.13, pthread_exit ends it, which unwinds through the extension.
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import logging, sys, threading, time
            from stagespan import ProfilingContext4Debug, set_debug
            set_debug()
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
            class Late:
                def __del__(self, sleep=time.sleep):
                    sleep(0.3)
            sys.modules["late"] = Late()
            """
        )
    )
    command = [sys.executable, str(script)]
    programs = [
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) for _ in range(6)
    ]

    for program in programs:
        _, stderr = program.communicate(timeout=60)
        assert program.returncode == 0, stderr


EVERYTHING = """
    import asyncio, contextlib, gc, logging, pickle, threading, stagespan
    logging.basicConfig()  # or the lines of debug mode would go to stderr
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # a busy machine is slow, which it tells
    from stagespan import ProfilingContext, ProfilingContext4Debug, span
    from stagespan import begin, end, record, request
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
"""


@pytest.mark.parametrize(
    "options",
    [
        ("-X", "dev", "-W", "error"),
        ("-I",),
        *(
            pytest.param(options, marks=pytest.mark.full)
            for options in (
                ("-X", "dev"),
                ("-W", "error"),
                ("-X", "faulthandler"),
                ("-O",),
                ("-X", "tracemalloc=5"),
            )
        ),
    ],
    ids=" ".join,
)
def test_everything_under_strict_interpreters(options: tuple[str, ...], tmp_path: Path) -> None:
    done = python(
        EVERYTHING,
        tmp_path,
        *options,
        STAGESPAN_OUTPUT_DIR=str(tmp_path / "out"),
    )

    assert done.stdout == "done\n"


def test_memory_that_is_refused(tmp_path: Path) -> None:
    lines = in_child(
        """
        import numpy, resource, sys, warnings
        limit = int(open("/proc/self/statm").read().split()[0]) * 4096 + 50 * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            import asyncio, stagespan
        print(len(warned))
        from stagespan import ProfilingContext, begin, end, record, request, span
        @span("function")
        def function():
            return 1
        async def main():
            async with span("task"):
                await asyncio.sleep(0)
        stagespan.enable()
        with span("block"), ProfilingContext("block"), request("r"):
            assert function() == 1
            record("r", 1, 2)
        end(begin("token"))
        asyncio.run(main())
        print(stagespan.is_enabled(), len(stagespan.stats()), len(stagespan.spans()))
        print(stagespan.open_spans())
        """,
        tmp_path,
    )
    # THEN there is one warning, nothing is recorded, and the program continues
    assert lines == ["1", "False 0 0", "[]"]


def test_another_interpreter_times_nothing(tmp_path: Path) -> None:
    lines = in_child(
        """
        import sys
        import stagespan
        try:
            import _xxsubinterpreters as interpreters
        except ImportError:
            import _interpreters as interpreters
        # From 3.13 the import system itself refuses extensions in any other than this kind.
        kind = ("legacy",) if sys.version_info >= (3, 13) else ()
        other = interpreters.create(*kind)
        code = '''if True:
            import logging
            logging.getLogger("stagespan").addHandler(logging.NullHandler())
            import stagespan
            from stagespan import without_core
            with stagespan.span("there"):
                available = stagespan.is_available()
            print(available, without_core.reason(), flush=True)
        '''
        print(interpreters.run_string(other, code))
        with stagespan.span("here"):
            pass
        print(stagespan.stats()["here"].count)
        """,
        tmp_path,
        "-W",
        "ignore",
    )
    assert lines[0].startswith("False the extension cannot be imported (")
    assert lines[0].endswith(": import it there, not in a sub-interpreter)")
    assert lines[1:] == ["None", "1"]
