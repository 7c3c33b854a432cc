"""Ends of processes: signals, threads that are still running, strict interpreters."""

from __future__ import annotations

import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from recording import in_child, python

from running import PROGRAMS, ended, ran, ready, start_command

ENDING = PROGRAMS / "ending.py"

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.slow
@pytest.mark.parametrize(
    "what",
    [
        *("spans", "function", "profiling", "debug", "generator", "coroutine", "reading"),
        *("recordings", "traces", "waiting", "statistics", "log_lines"),
    ],
)
def test_the_interpreter_ends_while_daemon_threads_are_at_work(what: str, tmp_path: Path) -> None:
    # GIVEN daemon threads in the middle of work. Until Python 3.13, pthread_exit ends them where
    # they request the interpreter's lock, which unwinds through the extension.
    def run(number: int) -> str:
        folder = tmp_path / str(number)
        folder.mkdir()
        program = (ENDING, "threads_at_work", what)
        return python(program, folder, STAGESPAN_OUTPUT_DIR=str(folder / "out")).stdout

    with ThreadPoolExecutor(3) as pool:
        outputs = list(pool.map(run, range(3)))
    assert outputs == ["done\n"] * 3


def test_the_interpreter_ends_inside_of_spans(tmp_path: Path) -> None:
    assert in_child((ENDING, "inside_of_spans"), tmp_path) == ["last", "later"]


@pytest.mark.parametrize("how", ["sys.exit", "SystemExit", "os._exit"])
def test_exit_codes_are_kept(how: str, tmp_path: Path) -> None:
    python((ENDING, "exits", how), tmp_path, returncode=3)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_a_program_as_without_stagespan(number: signal.Signals) -> None:
    program = start_command([sys.executable, ENDING, "until_a_signal"])
    ready(program)

    program.send_signal(number)
    _, stderr = ended(program, -number)
    if number == signal.SIGTERM:
        assert stderr == ""
    else:
        assert stderr.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize("kind", ["billiard", "fork", "spawn"])
def test_a_worker_of_a_pool_that_ends_by_itself_ends_cleanly(kind: str, folder: Path) -> None:
    if kind == "billiard":
        pytest.importorskip("billiard")
    done = ran([sys.executable, ENDING, "workers", kind])

    # THEN their recordings are removed, as at every clean exit
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split()
    assert list(folder.glob("*.stagespan")) == []


def test_a_thread_that_python_ends_in_a_callback(tmp_path: Path) -> None:
    # Until Python 3.13, pthread_exit ends it, which unwinds through the extension.
    command = [sys.executable, ENDING, "thread_in_a_callback"]
    for program in [start_command(command, cwd=tmp_path) for _ in range(6)]:
        ended(program, 0)


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
        (ENDING, "everything"), tmp_path, *options, STAGESPAN_OUTPUT_DIR=str(tmp_path / "out")
    )

    assert done.stdout == "done\n"


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
            print(available, without_core.reason, flush=True)
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
