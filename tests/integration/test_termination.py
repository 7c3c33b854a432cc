"""SIGTERM: reports are written, then the process ends as SIGTERM would have ended it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

STAGE = """
    import os, signal, sys, threading, time
    import stagespan

    @stagespan.ProfilingContext4Debug("encode")
    def encode(text):
        return len(text)

    def ready():
        print("ready", flush=True)
"""

WAIT = """
    encode("ab")
    ready()
    while True:
        time.sleep(0.01)
"""


class Program:
    """A program that is signalled after it has printed that it is ready."""

    def __init__(self, code: str, cwd: Path, *command: str, **variables: str) -> None:
        script = cwd / "script.py"
        script.write_text(textwrap.dedent(code))
        self.out = cwd / "out"
        settings = {"STAGESPAN_DEBUG": "true", "STAGESPAN_OUTPUT_DIR": str(self.out)}
        self.process = subprocess.Popen(
            [sys.executable, *(command or ("script.py",))],
            env={**os.environ, **settings, **variables},
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        while (line := self.process.stdout.readline()) != "ready\n":
            assert line, self.process.communicate()[1]

    def send(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def ended(self, status: int = -signal.SIGTERM) -> tuple[str, str]:
        """Return what the program wrote after it was ready. ``status`` is the expected one."""
        try:
            output, errors = self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(self.process.communicate()) from None
        assert self.process.returncode == status, (output, errors)
        return output, errors

    def files(self) -> dict[str, Any]:
        if not self.out.exists():
            return {}
        return {path.name: json.loads(path.read_text()) for path in self.out.iterdir()}

    def counts(self) -> dict[str, int]:
        stages = self.files()["timing.json"]["stages"]
        return {name: stage["count"] for name, stage in stages.items()}


def test_debug_mode_writes_its_files_before_sigterm_ends_the_process(tmp_path: Path) -> None:
    program = Program(STAGE + WAIT, tmp_path)

    program.send()
    _, errors = program.ended()
    assert sorted(program.files()) == ["timing.json", "timing_io_signature.json"]
    assert program.counts() == {"encode": 1}
    assert errors.splitlines()[-2:] == [
        f"[Profiler] Timing report saved to: {tmp_path}/out/timing.json",
        f"[Profiler] I/O signature saved to: {tmp_path}/out/timing_io_signature.json",
    ]


def test_debug_mode_that_is_switched_on_at_run_time_by_any_thread(tmp_path: Path) -> None:
    code = """
    switching = threading.Thread(target=stagespan.set_debug)
    switching.start()
    switching.join()
    """
    program = Program(STAGE + code + WAIT, tmp_path, STAGESPAN_DEBUG="")

    program.send()

    program.ended()
    assert program.counts() == {"encode": 1}


def test_without_debug_mode_nothing_changes(tmp_path: Path) -> None:
    code = "assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL\n"
    program = Program(STAGE + "\n    " + code + WAIT, tmp_path, STAGESPAN_DEBUG="")
    program.send()
    assert program.ended() == ("", "")
    assert program.files() == {}


def test_the_program_finds_the_default_action_as_without_stagespan(tmp_path: Path) -> None:
    # GIVEN a program that looks for a handler, and restores what it found
    code = """
    assert stagespan.is_debug()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.signal(signal.SIGTERM, signal.SIG_DFL) is signal.SIG_DFL
    """
    program = Program(STAGE + code + WAIT, tmp_path)

    program.send()

    program.ended()
    assert program.counts() == {"encode": 1}


HANDLERS = {
    "exits": (
        """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    """,
        3,
    ),
    "raises the signal again": (
        """
    def handler(number, frame):
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, handler)
    """,
        -signal.SIGTERM,
    ),
    "restores what was there and raises the signal again": (
        """
    def handler(number, frame):
        signal.signal(number, before)
        signal.raise_signal(number)

    before = signal.signal(signal.SIGTERM, handler)
    """,
        -signal.SIGTERM,
    ),
    "ends a loop, after which the main thread returns": (
        """
    class Stop(Exception):
        pass

    def handler(number, frame):
        raise Stop

    signal.signal(signal.SIGTERM, handler)
    sys.excepthook = lambda *_: None
    """,
        1,
    ),
}


@pytest.mark.parametrize("when", ["before debug mode", "later"])
@pytest.mark.parametrize("what", HANDLERS)
def test_the_programs_own_handler_is_called_and_the_files_are_written(
    what: str, when: str, tmp_path: Path
) -> None:
    handler, status = HANDLERS[what]
    switch = "\n    stagespan.set_debug()\n"
    code = STAGE + (handler + switch if when == "before debug mode" else switch + handler) + WAIT
    program = Program(code, tmp_path, STAGESPAN_DEBUG="")

    program.send()

    program.ended(status)
    assert program.counts() == {"encode": 1}


def test_a_handler_that_does_not_end_the_program_is_kept(tmp_path: Path) -> None:
    code = """
    seen = []
    signal.signal(signal.SIGTERM, lambda *_: seen.append(1))
    encode("ab")
    ready()
    while len(seen) < 2:
        time.sleep(0.01)
    print(os.path.exists("out"))
    """
    program = Program(STAGE + code, tmp_path)

    program.send()
    time.sleep(0.3)
    program.send()
    # THEN it continues until it ends by itself, and writes then
    output, _ = program.ended(0)
    assert output == "False\n"
    assert program.counts() == {"encode": 1}


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    code = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stagespan.set_debug()
    """
    program = Program(STAGE + code + WAIT, tmp_path, STAGESPAN_DEBUG="")
    program.send()
    time.sleep(0.3)
    assert program.process.poll() is None
    program.send(signal.SIGINT)
    program.ended(-signal.SIGINT)


def test_a_main_thread_that_never_runs_python_again(tmp_path: Path) -> None:
    code = """
    import ctypes
    encode("ab")
    lock = threading.Lock()
    lock.acquire()
    ready()
    ctypes.CDLL(None).usleep(4_000_000)  # nothing interrupts it: the call restarts in the test
    while True:
        ctypes.CDLL(None).pause()
    """
    program = Program(STAGE + code, tmp_path)

    program.send()
    program.ended()
    assert program.counts() == {"encode": 1}


def test_an_interpreter_whose_lock_is_never_released(tmp_path: Path) -> None:
    # GIVEN a main thread that holds the interpreter's lock forever: nothing can be written
    code = """
    import ctypes
    encode("ab")
    ready()
    while True:
        ctypes.PyDLL(None).usleep(1_000_000_000)
    """
    program = Program(STAGE + code, tmp_path)
    program.send()
    program.ended()


def test_two_signals_at_once_count_as_one(tmp_path: Path) -> None:
    # GIVEN a launcher that signals the process and its group
    program = Program(STAGE + WAIT, tmp_path)

    program.send()
    program.send()

    program.ended()
    assert program.counts() == {"encode": 1}


def test_a_second_signal_ends_a_process_that_takes_too_long(tmp_path: Path) -> None:
    # GIVEN a log handler that blocks, so that writing takes a long time
    code = """
    import logging

    class Blocks(logging.Handler):
        def emit(self, record):
            if "saved" in record.getMessage():
                print("writing", flush=True)
                time.sleep(3600)

    logging.getLogger("stagespan").addHandler(Blocks())
    logging.getLogger("stagespan").setLevel("INFO")
    """
    program = Program(STAGE + code + WAIT, tmp_path)
    program.send()
    assert program.process.stdout is not None
    assert program.process.stdout.readline() == "writing\n"
    began = time.monotonic()

    while program.process.poll() is None and time.monotonic() - began < 60:
        time.sleep(0.3)
        program.send()
    # THEN both files were written before the handler was called
    program.ended()
    assert sorted(program.files()) == ["timing.json", "timing_io_signature.json"]


def test_a_signal_while_the_main_thread_holds_a_log_handlers_lock(tmp_path: Path) -> None:
    code = """
    import logging

    class Signals(logging.Handler):
        def emit(self, record):
            if record.name == "app":
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.5)

    handler = Signals()
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel("INFO")
    encode("ab")
    ready()
    logging.getLogger("app").info("end")
    while True:
        time.sleep(0.01)
    """
    program = Program(STAGE + code, tmp_path)

    program.ended()
    assert program.counts() == {"encode": 1}


def test_a_signal_while_the_reports_are_written_at_exit(tmp_path: Path) -> None:
    # GIVEN a program that is signalled after its main thread has ended
    code = """
    import atexit

    @atexit.register
    def last():  # registered last: runs before the reports are written
        os.kill(os.getpid(), signal.SIGTERM)

    encode("ab")
    ready()
    """
    program = Program(STAGE + code, tmp_path)

    program.ended()
    assert program.counts() == {"encode": 1}


def test_forked_children_write_separate_files(tmp_path: Path) -> None:
    # GIVEN a pool whose workers are ended by SIGTERM
    code = """
    import multiprocessing

    def work(number):
        return encode("ab" * number)

    encode("a")
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert sum(pool.map(work, range(8), chunksize=1)) == 56
    ready()
    """
    program = Program(STAGE + code, tmp_path)
    program.ended(0)

    reports = {name: file for name, file in program.files().items() if "signature" not in name}
    assert reports.pop("timing.json")["stages"]["encode"]["count"] == 1
    assert sum(report["stages"]["encode"]["count"] for report in reports.values()) == 8
    for name, report in reports.items():
        assert name == f"timing_pid{report['environment']['pid']}.json"


def test_a_child_that_was_forked_without_python_ends_at_once(tmp_path: Path) -> None:
    code = """
    import ctypes
    encode("a")
    # PyDLL keeps Python's lock: the child would wait forever for a lock that another thread holds.
    libc = ctypes.PyDLL(None)
    child = libc.fork()
    if child == 0:
        libc["raise"](15)
        libc._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == 15
    ready()
    """
    program = Program(STAGE + code, tmp_path)
    program.ended(0)


def test_programs_that_are_started_have_the_default_action(tmp_path: Path) -> None:
    code = """
    import subprocess
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    child.terminate()
    assert child.wait(30) == -15, child.returncode
    ready()
    """
    Program(STAGE + code, tmp_path).ended(0)


# --- stagespan run --------------------------------------------------------------------------------

PLAIN = """
    import time

    def encode(text):
        return len(text)

    encode("ab")
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
"""


@pytest.mark.parametrize("debug", [False, True])
def test_stagespan_run_prints_its_results(debug: bool, tmp_path: Path) -> None:
    command = ["-m", "stagespan", "run", "--stage", "__main__:encode", "--output", "out"]
    command += ["--debug"] if debug else []
    program = Program(PLAIN, tmp_path, *command, "script.py", STAGESPAN_DEBUG="")

    program.send()
    _, errors = program.ended()
    assert "Timing report, 1 stage" in errors
    assert program.counts() == {"encode": 1}
    assert ("timing_io_signature.json" in program.files()) is debug


# --- servers --------------------------------------------------------------------------------------

SERVER = """
    import uvicorn

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            await receive()
            BEFORE
            encode("ab")
            ready()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})

    uvicorn.run(app, port=0, log_level="warning")
"""


@pytest.mark.parametrize("when", ["from the start", "while it serves"])
def test_uvicorn_which_raises_the_signal_again(when: str, tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="runs the real uvicorn")

    is_late = when == "while it serves"
    server = SERVER.replace("BEFORE", "stagespan.set_debug()" if is_late else "pass")
    program = Program(STAGE + server, tmp_path, STAGESPAN_DEBUG="" if is_late else "true")
    time.sleep(0.5)

    program.send()
    # THEN it shuts down as usual, and the files are there
    program.ended()
    assert program.counts() == {"encode": 1}
