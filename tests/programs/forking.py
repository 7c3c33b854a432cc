"""Programs that fork while other threads write log lines or import.

A program that takes too long is ended, with the stacks of all threads.
"""

from __future__ import annotations

import array
import collections
import faulthandler
import fcntl
import logging
import os
import select
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable

import stagespan
from stagespan import ProfilingContext, ProfilingContext4Debug, span


def fork(in_child: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        status = 1
        try:
            in_child()
            status = 0
        finally:
            os._exit(status)
    return pid


def ended(pid: int) -> int | str:
    status = os.waitpid(pid, 0)[1]
    return "hung" if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def slow_log_handler() -> None:
    class Slow(logging.FileHandler):
        def emit(self, record):
            super().emit(record)
            time.sleep(0.004)

    logging.basicConfig(level=logging.INFO, handlers=[Slow("slow.log")])

    def work():
        while True:
            with ProfilingContext("stage"):
                time.sleep(0.001)

    threading.Thread(target=work, daemon=True).start()
    while os.path.getsize("slow.log") < 200:
        time.sleep(0.001)

    def child():
        for _ in range(3):
            logging.getLogger("mine").info("from the child")

    began = time.monotonic()
    found = collections.Counter(ended(fork(child)) for _ in range(30))
    took_s = time.monotonic() - began
    # THEN no child hangs, and all is over long before each fork has waited for seconds
    print(dict(found), took_s < 30, flush=True)
    os._exit(0)


def full_pipe() -> None:
    """Fork while the service thread is stuck in the middle of a line."""
    read, write = os.pipe()
    stream = os.fdopen(write, "w")
    logging.basicConfig(level=logging.INFO, stream=stream, format="%(message)s")
    for _ in range(3000):
        with ProfilingContext("a stage whose lines fill the pipe"):
            pass

    def size():
        waiting = array.array("i", [0])
        fcntl.ioctl(read, termios.FIONREAD, waiting)
        return waiting[0]

    before = -1
    while select.select([], [write], [], 0)[1] or size() != before:
        before = size()
        time.sleep(0.02)

    def child():
        logging.getLogger("mine").info("from the child")
        stagespan.flush()

    began = time.monotonic()
    children = [fork(child) for _ in range(10)]
    took_s = time.monotonic() - began
    seen: list[str] = []

    def reads():
        for line in os.fdopen(read):
            seen.append(line)  # noqa: PERF402 (others look at it meanwhile)

    threading.Thread(target=reads, daemon=True).start()
    found = collections.Counter(map(ended, children))
    assert stagespan.flush(60)
    stream.flush()
    while "the last\n" not in seen:
        logging.getLogger("mine").info("the last")
        time.sleep(0.01)

    print(dict(found), took_s < 15, seen.count("from the child\n"))
    print(sum("[Profile]" in line for line in seen), flush=True)
    os._exit(0)


FIRST_CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "stats": (lambda: stagespan.stats(), "live/statistics.py"),
    "spans": (lambda: stagespan.spans(), "numpy/__init__.py"),
    "timing_report": (lambda: stagespan.timing_report(), "report/timing.py"),
    "the environment in a report": (lambda: stagespan.timing_report(), "device/environment.py"),
    "flush": (lambda: stagespan.flush(), "live/service.py"),
    "get_io_signatures": (lambda: stagespan.get_io_signatures(), "signature/store.py"),
    "memory_snapshot": (lambda: stagespan.memory_snapshot("x"), "device/memory.py"),
    "set_debug": (lambda: stagespan.set_debug(), "signature/recorder.py"),
    "decorate": (lambda: stagespan.span("x")(print), "contexts/decorators.py"),
}
"""Calls, and a file that each of them imports at first."""


def while_importing() -> None:
    """Fork while another thread imports for as many seconds as the second argument says."""
    logging.getLogger("stagespan").disabled = True  # debug mode would show lines on stderr
    call, module = FIRST_CALLS[sys.argv[1]]
    pause_s = float(sys.argv[2])
    halfway, forking = threading.Event(), threading.Event()
    os.register_at_fork(before=forking.set)  # before the functions that stagespan has registered

    def trace(frame, event, argument):
        name = frame.f_code.co_filename
        if name.endswith(module) and frame.f_code.co_name == "<module>":
            sys.settrace(None)
            halfway.set()
            forking.wait()
            time.sleep(pause_s)

    threading.settrace(trace)
    threading.Thread(target=call, daemon=True).start()
    assert halfway.wait(60)
    threading.settrace(None)

    def child():
        with ProfilingContext4Debug("debug"), ProfilingContext("stage"), span("span"):
            pass
        call()

    print(ended(fork(child)), flush=True)
    os._exit(0)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(80, exit=True)
    globals()[sys.argv.pop(1)]()
