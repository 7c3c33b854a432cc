"""All public calls from several threads, with signals, collections, forks and shutdowns.

python stress_program.py SECONDS

Writes to the working folder. Ends with status 0, or prints what went wrong, with the stacks of all
threads if an operation takes longer than it should.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable

import stagespan
from stagespan import ProfilingContext, ProfilingContext4Debug, request, span

SECONDS = float(sys.argv[1])
LONGEST_S = 30.0
"""The limit for one operation, on a busy machine."""

until_s = time.monotonic() + SECONDS
began: dict[str, tuple[float, str]] = {}
"""By worker: since when it has been running which operation."""
counts: dict[str, int] = {}
failures: list[str] = []


# --- stages ---------------------------------------------------------------------------------------


@ProfilingContext4Debug("debug stage")
def debug_stage(value: object, steps: int = 1) -> object:
    return [value]


@ProfilingContext("stage")
def stage(value: object) -> object:
    return debug_stage(value)


@span("span")
def spanned(value: object) -> object:
    return value


@span("generator")
def generator(count: int):  # type: ignore[no-untyped-def]
    for number in range(count):
        with span("in generator"):
            yield number


@span("coroutine")
async def coroutine() -> None:
    with span("before"):
        await asyncio.sleep(0)
    stage(1)


class Model:
    """Only a collection frees this object, which then times stages."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        stage("finalizer")
        with span("finalizer"):
            spanned(1)


# --- operations -----------------------------------------------------------------------------------


def stages() -> None:
    stage([1.0] * random.randrange(5))
    debug_stage({"a": 1}, steps=random.randrange(40))
    spanned(1)
    list(generator(3))
    with request("request", user="x"), span("block") as block:
        block.add(tokens=3)
        stagespan.current_request()
    with ProfilingContext(f"stage {random.randrange(20)}", capture_memory=True):
        pass
    with ProfilingContext4Debug("debug block") as debug:
        debug.inputs(a=1)
        debug.output(2)
    token = stagespan.begin("token")
    stagespan.end(token)
    now_ns = time.time_ns()
    stagespan.record("record", now_ns - 1000, now_ns)


def tasks() -> None:
    async def main() -> None:
        Model()
        await asyncio.gather(*(coroutine() for _ in range(3)))

    asyncio.run(main())


def decorate() -> None:
    for context in (span("new"), ProfilingContext("new"), ProfilingContext4Debug("new debug")):
        context(lambda: Model())()


def readers() -> None:
    str(stagespan.stats())
    stagespan.stats(random.choice([1e-6, 1e-3, 0.5, 5.0]))
    stagespan.spans(), stagespan.open_spans(), stagespan.stage_names(), stagespan.lost()
    stagespan.is_debug(), stagespan.is_enabled(), stagespan.get_profiler_output_dir()


def reports() -> None:
    me = threading.get_ident()
    stagespan.set_timing_metadata(f"key {me}", me)
    stagespan.memory_snapshot("now")
    stagespan.timing_report()
    first, second = f"first-{me}.json", f"second-{me}.json"
    stagespan.dump_timing_report(first)
    stagespan.dump_timing_report(second)
    stagespan.compare_timing_reports(first, second)
    stagespan.get_io_signatures()
    stagespan.dump_io_signatures(f"signatures-{me}.json")


def summary() -> None:
    stagespan.print_timing_summary()


def flush() -> None:
    stagespan.flush(random.choice([0.0, 0.1, 5.0]))


def settings() -> None:
    stagespan.reset_timing_registry(f"id {random.random()}", {"a": 1})
    stagespan.enable_profiler_for_names("a stage that never runs")
    stagespan.enable(device_every=1)
    stagespan.set_pipeline_name("stress")
    stagespan.set_profiler_output_dir("output")


OPERATIONS = (stages, stages, stages, tasks, decorate, readers, reports, flush, settings)


def signal_handler(*_: object) -> None:
    # Not `tasks`, because a loop cannot run inside a callback of another one.
    run("signal handler", random.choice([stages, decorate, readers, reports, flush, settings]))


def switch() -> None:
    stagespan.set_debug(random.random() < 0.7)
    stagespan.disable() if random.random() < 0.1 else stagespan.enable()
    time.sleep(random.random() * 0.02)


def collect() -> None:
    gc.set_threshold(random.choice([1, 10, 100, 700]))
    for _ in range(20):
        Model()
    gc.collect(random.randrange(3))
    time.sleep(random.random() * 0.01)


def fork() -> None:
    pid = os.fork()
    if pid == 0:
        signal.setitimer(signal.ITIMER_REAL, 0)
        # Prints the stacks of a child that hangs, and ends it.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        faulthandler.register(signal.SIGALRM, all_threads=True, chain=True)
        signal.alarm(int(LONGEST_S))
        stages()
        logging.getLogger("child").info("from the child")
        str(stagespan.stats())
        stagespan.timing_report()
        thread = threading.Thread(target=stages)
        thread.start()
        thread.join()
        sys.exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status != 0:
        failures.append(f"a forked child ended with {status}")


# Only the forking thread prints: a child would wait for another thread's lock on stdout.
OF_MAIN = (*OPERATIONS, summary, fork, fork, fork)


SHORT_PROGRAM = """
import atexit, random, signal, sys, threading, time
if sys.version_info < (3, 11):
    # Python 3.10 itself crashes if a daemon thread stops to wait for its turn after the interpreter
    # was freed. No thread stops to wait any more when the last function at exit has run.
    @atexit.register
    def last_at_exit():
        sys.setswitchinterval(60)
        time.sleep(0.02)
import stagespan
from stagespan import ProfilingContext, ProfilingContext4Debug, span
stagespan.set_debug(random.random() < 0.5)
@ProfilingContext4Debug("debug stage")
def debug_stage(value):
    return value
@span("span")
def spanned(value):
    return value
class Handle:
    def __init__(self):
        self.me = self
    def __del__(self):
        debug_stage(1), spanned(1)
        with ProfilingContext("at the end"):
            pass
def work():
    while True:
        debug_stage(1)
        with ProfilingContext("stage"):
            Handle()
        time.sleep(0.0002)
for _ in range(random.randrange(1, 3)):
    threading.Thread(target=work, daemon=True).start()
sys.modules["kept to the end"] = Handle()
is_ending = False
def handler(*_):
    debug_stage(1)
    try:
        stagespan.timing_report()
    except stagespan.StagespanError as error:  # it interrupted the import of what it calls
        assert "signal handler" in str(error)
    if not is_ending:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.signal(signal.SIGALRM, handler)
if random.random() < 0.5:
    signal.setitimer(signal.ITIMER_REAL, 0.01)
random.choice([stagespan.stats, stagespan.timing_report, stagespan.flush, stagespan.spans])()
time.sleep(random.random() * 0.1)
is_ending = True
signal.setitimer(signal.ITIMER_REAL, 0)  # or Python would report a signal that comes just now
signal.signal(signal.SIGALRM, signal.SIG_IGN)
"""


def shut_down() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", SHORT_PROGRAM],
        env={**os.environ, "STAGESPAN_OUTPUT_DIR": "short"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=2 * LONGEST_S,
    )
    stderr = "\n".join(line for line in done.stderr.splitlines() if "[Pro" not in line)
    if done.returncode or "Traceback" in stderr:
        failures.append(f"a short program ended with {done.returncode}:\n{stderr}")


# --- running them ---------------------------------------------------------------------------------


def run(worker: str, operation: Callable[[], None]) -> None:
    outer = began.get(worker)
    began[worker] = (time.monotonic(), operation.__name__)
    try:
        operation()
        counts[operation.__name__] = counts.get(operation.__name__, 0) + 1
    except SystemExit:
        raise
    except BaseException:
        failures.append(f"{worker}, {operation.__name__}:\n{traceback.format_exc()}")
    finally:
        began.pop(worker, None)
        if outer is not None:
            began[worker] = outer


def repeat(worker: str, *operations: Callable[[], None]) -> None:
    while time.monotonic() < until_s:
        run(worker, random.choice(operations))


def watch() -> None:
    """End the process and print all stacks if an operation takes too long."""
    while True:
        time.sleep(1)
        for worker, (since_s, what) in began.copy().items():
            if time.monotonic() - since_s > LONGEST_S * (3 if what in ("shut_down", "join") else 1):
                print(f"{worker} has been at {what!r} for too long", file=sys.stderr)
                faulthandler.dump_traceback(all_threads=True)
                os._exit(2)


def main() -> None:
    # For the process that waits for this program, even if the watching thread can no longer run.
    # Not dump_traceback_later, because a forked child would wait for it at its end.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(filename="lines.log", level=logging.INFO)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the tables
    sys.setswitchinterval(1e-3)  # threads take turns five times as often as usual
    for everything in (*OPERATIONS, summary, lambda: stagespan.set_debug(True)):
        everything()  # for modules that are imported on first use
    gc.freeze()  # so that collections examine what the operations make, not all modules
    threading.Thread(target=watch, daemon=True).start()
    jobs = {
        "worker 1": OPERATIONS,
        "worker 2": OPERATIONS,
        "switches": (switch,),
        "collections": (collect,),
        "shutdowns": (shut_down,),
    }
    threads = [
        threading.Thread(target=repeat, args=(name, *operations), name=name)
        for name, operations in jobs.items()
    ]
    for thread in threads:
        thread.start()
    signal.signal(signal.SIGALRM, signal_handler)
    while time.monotonic() < until_s and not failures:
        signal.setitimer(signal.ITIMER_REAL, random.random() * 0.02 + 1e-4)
        run("main", random.choice(OF_MAIN))
    signal.setitimer(signal.ITIMER_REAL, 0)
    for thread in threads:
        run("main, at the end", thread.join)
    stagespan.enable()
    before = stagespan.stats()["debug stage"].count
    stagespan.set_debug(True)
    run("main, at the end", stages)
    lost = stagespan.lost()
    if stagespan.stats()["debug stage"].count <= before:
        failures.append("nothing is timed any more")
    failures.extend(
        f"{lost[cause]} {cause}" for cause in ("hook_errors", "decorator_errors") if lost[cause]
    )
    print(dict(sorted(counts.items())), file=sys.stderr)
    print("\n".join(textwrap.indent(failure, "  ") for failure in failures[:5]), file=sys.stderr)
    sys.exit(1 if failures else 0)


main()
