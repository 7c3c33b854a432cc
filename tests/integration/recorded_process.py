"""Processes that record in a folder of the test, and commands that look at them from outside."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from stagespan import cli, recording

RING = 128
_started: list[subprocess.Popen[str]] = []


def start(
    program: str | Path,
    *arguments: str,
    python: Sequence[str] = (sys.executable,),
    cwd: Path | None = None,
    **variables: str,
) -> subprocess.Popen[str]:
    """Start a program that prints a line when it is ready; it is ended after the test.

    Args:
        program: Text, or the path of a file.
        arguments: Of the program.
        python: The beginning of the command, such as `preloaded.python()`.
        cwd: The program's folder.
        variables: Added to the environment.
    """
    what = [str(program)] if isinstance(program, Path) else ["-c", textwrap.dedent(program)]
    process = subprocess.Popen(
        [*python, *what, *arguments],
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={"STAGESPAN_RING_SPANS": str(RING), **os.environ, **variables},
    )
    _started.append(process)
    return process


def ready(process: subprocess.Popen[str]) -> str:
    """Wait for the line that a program prints."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        _, errors = process.communicate(timeout=30)
        pytest.fail(f"the program ended: {errors}")
    return line


def started(program: str | Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start a program, with the options of `start`, and wait until it is ready."""
    process = start(program, *arguments, **options)
    ready(process)
    return process


def started_as_first(
    program: str, *arguments: str, mounts_proc: bool = False
) -> subprocess.Popen[str]:
    """Start a program that prints its id as process 1 of a pid namespace; skip if that fails."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare (util-linux) is not installed")
    inside = ["unshare", "--pid", "--fork", "--kill-child", *["--mount-proc"] * mounts_proc]
    process = start(program, *arguments, python=(*inside, sys.executable))
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        _, errors = process.communicate(timeout=30)
        pytest.skip(f"cannot create a namespace: run as root ({errors.strip()})")
    assert line == "1"
    return process


@contextlib.contextmanager
def serving(program: Path, *arguments: str, **variables: str) -> Iterator[tuple[Any, int, Path]]:
    """Run a service that ends with its input, and whose recordings are kept in an own folder.

    Yields its process, the port that it has printed, and the folder, in which this process also
    looks for recordings.
    """
    folder = Path(tempfile.mkdtemp(prefix="stagespan-test-", dir="/dev/shm"))
    variables |= {"STAGESPAN_RECORDING_DIR": str(folder), "STAGESPAN_RECORDING": "keep"}
    variables["STAGESPAN_RING_SPANS"] = "8192"  # all of its spans are read
    with pytest.MonkeyPatch.context() as patch, ending():
        for name, value in variables.items():
            patch.setenv(name, value)
        process = start(program, *arguments)
        try:
            yield process, int(ready(process).split()[0]), folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def tell(process: subprocess.Popen[str], line: object = "") -> str:
    """Write a line to a program, and return the line with which it answers."""
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    return ready(process)


def end(process: subprocess.Popen[str]) -> None:
    """Kill a program that a test has started, before the end of the test."""
    process.kill()
    process.communicate(timeout=30)


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """End the programs that were started in the block and still run."""
    before = len(_started)
    try:
        yield
    finally:
        for process in _started[before:]:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with the processes that it has started
            process.communicate(timeout=30)  # also closes the streams
        del _started[before:]


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "stagespan", *arguments], capture_output=True, text=True, timeout=60
    )


def command_here(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, for tests that run `command` too, or run it many times."""
    out, errors, status = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            cli.command.main(arguments, prog_name="stagespan")
        except SystemExit as end:
            status = int(end.code or 0)
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), errors.getvalue())


def recordings_in(folder: Path) -> list[recording.Recording]:
    """Return the recordings of a test's own processes."""
    return [one for one in recording.recordings() if Path(one.path).parent == folder]


def extents(handle: int) -> list[tuple[int, int]]:
    """Return the parts of a file that are not holes, as offset and length."""
    found = []
    end = os.fstat(handle).st_size
    at = 0
    while at < end:
        try:
            begin = os.lseek(handle, at, os.SEEK_DATA)
        except OSError:  # the rest is a hole
            break
        at = os.lseek(handle, begin, os.SEEK_HOLE)
        found.append((begin, at - begin))
    return found


def copy_sparse(source: Path, target: Path) -> None:
    """Copy a recording without its holes, which are most of it."""
    with source.open("rb") as old, target.open("wb") as new:
        for begin, length in extents(old.fileno()):
            os.pwrite(new.fileno(), os.pread(old.fileno(), length, begin), begin)
        os.ftruncate(new.fileno(), os.fstat(old.fileno()).st_size)
