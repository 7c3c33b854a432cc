"""Programs that have hardly any free file descriptor take nobody for dead, and remove nothing."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from exporting import exporter, of, scraped
from recorded_process import started

from running import PROGRAMS, ran, tell, until
from stagespan import recording
from stagespan.errors import ShortageError

DESCRIPTORS = PROGRAMS / "descriptors.py"

# Leaves `free` descriptors, in the program itself or before it executes another one.
LIMIT = """
import os, resource, sys

def leave(free):
    used = [int(name) for name in os.listdir("/proc/self/fd")]
    highest = max(n for n in used if os.path.exists(f"/proc/self/fd/{n}"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + free,) * 2)
"""


@contextlib.contextmanager
def workers(number: int, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run live processes of one user, each within a span, which end with the block."""
    process = started(DESCRIPTORS, "workers", str(number), STAGESPAN_JOB="svc")
    assert len(files_in(folder)) == number
    yield process


def files_in(folder: Path) -> set[str]:
    names = (path.name for path in folder.iterdir())
    return {name for name in names if name.endswith(".stagespan") and not name.startswith(".")}


def run_with(free: int, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program that calls ``leave(free)`` itself."""
    return ran([sys.executable, "-c", f"{LIMIT}\nfree = {free}\n{program}"])


def stagespan_with(free: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command that has so many free descriptors from its start on."""
    program = "from stagespan.cli import main\nleave(free)\nmain()"
    return ran([sys.executable, "-c", f"{LIMIT}\nfree = {free}\n{program}", *arguments])


# --- processes that record ------------------------------------------------------------------------


def test_a_process_that_begins_to_record_removes_nothing_of_live_processes(folder: Path) -> None:
    with workers(20, folder):
        live = files_in(folder)
        for free in range(1, 8):
            run_with(
                free,
                "import stagespan\nleave(free)\nwith stagespan.span('x'): os._exit(1)",
            )
            assert live <= files_in(folder), free


def test_a_process_that_ends_leaves_its_recording_to_an_exporter_that_it_cannot_see(
    folder: Path,
) -> None:
    # GIVEN an exporter that is not reading at the moment
    with exporter() as (process, _):
        os.kill(process.pid, signal.SIGSTOP)
        try:
            for free in range(4):
                before = files_in(folder)
                done = run_with(
                    free, "import stagespan\nwith stagespan.span('x'): pass\nleave(free)"
                )
                assert done.returncode == 0, done.stderr
                assert len(files_in(folder) - before) == 1, free
        finally:
            os.kill(process.pid, signal.SIGCONT)


# --- readers --------------------------------------------------------------------------------------


@contextlib.contextmanager
def free_descriptors(number: int) -> Iterator[None]:
    """Leave so many free descriptors in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir("/proc/self/fd")}
    limit = max(used) + number + 1
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(limit - number - len(used) + 1)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(*used, *held) + 1 + number, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for handle in held:
            os.close(handle)


def test_a_live_process_is_not_said_to_have_died(folder: Path) -> None:
    with workers(1, folder):
        (name,) = files_in(folder)
        path = folder / name
        assert recording.open(path).state == "alive"  # imports what it needs
        for free in range(4):
            with free_descriptors(free):
                try:
                    state = recording.open(path).state
                except ShortageError as error:
                    state = str(error)
            assert state == "alive" or (free == 0 and "Too many open files" in state), free


def test_a_reader_that_cannot_read_proc_does_not_know_whether_a_process_is_dead(
    folder: Path,
) -> None:
    with workers(1, folder):
        (name,) = files_in(folder)
        pid = int(name.partition("-")[0])
        os.kill(pid, signal.SIGKILL)
        until(lambda: recording.open(folder / name).state == "died")
        with free_descriptors(1):
            state = recording.open(folder / name).state
        assert state == "unknown"


def test_all_recordings_are_listed_or_an_error_is_raised(folder: Path) -> None:
    with workers(3, folder):
        assert len(recording.recordings()) >= 3  # imports what it needs
        for free in range(4):
            with free_descriptors(free):
                try:
                    found = {Path(one.path).name for one in recording.recordings()}
                except ShortageError:
                    continue
            assert files_in(folder) <= found, free
            assert free > 0


# --- the exporter ---------------------------------------------------------------------------------


def limited(soft: int, hard: int) -> tuple[str, ...]:
    """Return the start of a command that runs the rest of it with limits of descriptors."""
    program = (
        "import os, resource, sys\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    return sys.executable, "-c", program


@pytest.mark.parametrize(("soft", "hard"), [(40, 40), (32, 200)])
def test_an_exporter_reads_more_processes_than_it_may_have_open_files(
    folder: Path, soft: int, hard: int
) -> None:
    number = 50
    with (
        workers(number, folder) as process,
        exporter(prefix=limited(soft, hard)) as (_, port),
    ):
        live = files_in(folder)

        def counted(stage: str) -> float | None:
            return of(scraped(port), "stagespan_stage_duration_seconds_count", stage=stage)

        until(lambda: counted("work") == 5 * number)
        assert process.stdin is not None
        tell(process)
        until(lambda: counted("work") == 10 * number)
        samples = scraped(port)
        assert of(samples, "stagespan_process_up") == number
        assert of(samples, "stagespan_lost_total") == 0
        assert files_in(folder) == live
        process.stdin.write("\n")
        process.stdin.flush()
        until(lambda: of(scraped(port), "stagespan_process_up") == 0)
        assert counted("serve") == number
        assert counted("work") == 10 * number
        assert of(scraped(port), "stagespan_lost_total") == 0


# --- commands -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("ps",),
        ("ps", "--all", "--json"),
        ("top", "PID", "--once", "--interval", "0.1"),
        ("show", "PID"),
        ("dump", "PID", "-o", "-"),
        ("requests",),
    ],
    ids=" ".join,
)
def test_a_command_with_three_free_descriptors_shows_a_live_process(
    arguments: tuple[str, ...], folder: Path
) -> None:
    process = started(DESCRIPTORS, "request_of_two_stages", STAGESPAN_JOB="the job")
    here = [str(process.pid) if one == "PID" else one for one in arguments]
    done = stagespan_with(3, *here)
    assert (done.returncode, done.stderr) == (0, "")
    assert "the request" in done.stdout or "the stage" in done.stdout
    assert "died" not in done.stdout
