"""Programs that are ended by SIGTERM. They print "ready" before."""

from __future__ import annotations

import atexit
import ctypes
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import stagespan


@stagespan.ProfilingContext4Debug("encode")
def encode(text: str) -> int:
    return len(text)


def ready() -> None:
    print("ready", flush=True)


def wait() -> None:
    encode("ab")
    ready()
    while True:
        time.sleep(0.01)


def switched_on_by_a_thread() -> None:
    switching = threading.Thread(target=stagespan.set_debug)
    switching.start()
    switching.join()
    wait()


def finds_the_default_action() -> None:
    """Look for a handler, and restore what it found."""
    assert stagespan.is_debug() == (sys.argv[1:] == ["debug"])
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.signal(signal.SIGTERM, signal.SIG_DFL) is signal.SIG_DFL
    wait()


def own_handler() -> None:
    """Set a handler before debug mode or later; see HANDLERS in the test."""
    what, when = sys.argv[1:]

    class Stop(Exception):
        pass

    def handler(number, frame):
        if what == "exits":
            sys.exit(3)
        if what == "ends a loop, after which the main thread returns":
            raise Stop
        if what == "raises the signal again":
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        else:
            signal.signal(number, before)
            signal.raise_signal(number)

    if when == "later":
        stagespan.set_debug()
    before = signal.signal(signal.SIGTERM, handler)
    sys.excepthook = lambda *_: None
    if when != "later":
        stagespan.set_debug()
    wait()


def two_signals() -> None:
    seen: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: seen.append(1))
    encode("ab")
    ready()
    while len(seen) < 2:
        time.sleep(0.01)
    print(os.path.exists("out"))


def ignores() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stagespan.set_debug()
    wait()


def never_runs_python_again() -> None:
    encode("ab")
    lock = threading.Lock()
    lock.acquire()
    ready()
    ctypes.CDLL(None).usleep(4_000_000)  # nothing interrupts it: the call restarts in the test
    while True:
        ctypes.CDLL(None).pause()


def never_releases_the_lock() -> None:
    encode("ab")
    ready()
    while True:
        ctypes.PyDLL(None).usleep(1_000_000_000)


def blocks_while_writing() -> None:
    class Blocks(logging.Handler):
        def emit(self, record):
            if "saved" in record.getMessage():
                print("writing", flush=True)
                time.sleep(3600)

    logging.getLogger("stagespan").addHandler(Blocks())
    logging.getLogger("stagespan").setLevel("INFO")
    wait()


def signals_within_a_log_handler() -> None:
    class Signals(logging.Handler):
        def emit(self, record):
            if record.name == "app":
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.5)

    logging.getLogger().addHandler(Signals())
    logging.getLogger().setLevel("INFO")
    encode("ab")
    ready()
    logging.getLogger("app").info("end")
    while True:
        time.sleep(0.01)


def signals_at_exit() -> None:
    @atexit.register
    def last():  # registered last: runs before the reports are written
        os.kill(os.getpid(), signal.SIGTERM)

    encode("ab")
    ready()


def work(number: int) -> int:
    return encode("ab" * number)


def pool() -> None:
    encode("a")
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert sum(pool.map(work, range(8), chunksize=1)) == 56
    ready()


def forks_without_python() -> None:
    encode("a")
    # PyDLL keeps Python's lock: the child would wait forever for a lock that another thread holds.
    libc = ctypes.PyDLL(None)
    child = libc.fork()
    if child == 0:
        libc["raise"](15)
        libc._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == 15
    ready()


def starts_a_program() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    child.terminate()
    assert child.wait(30) == -15, child.returncode
    ready()


def serves() -> None:
    """Serve with uvicorn; the argument says when debug mode is switched on."""
    import uvicorn

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            await receive()
            if sys.argv[1] == "while it serves":
                stagespan.set_debug()
            encode("ab")
            ready()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})

    uvicorn.run(app, port=0, log_level="warning")


if __name__ == "__main__":
    globals()[sys.argv.pop(1)]()
