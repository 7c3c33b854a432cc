"""Processes that record in a folder of the test, and commands that look at them from outside."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from stagespan import cli, recording

RING = 128


def start(
    program: str, *arguments: str, python: Sequence[str] = (sys.executable,), **variables: str
) -> subprocess.Popen[str]:
    """Start a program that prints a line when it is ready."""
    environment = {"STAGESPAN_RING_SPANS": str(RING), **os.environ, **variables}
    return subprocess.Popen(
        [*python, "-c", textwrap.dedent(program), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def ready(process: subprocess.Popen[str]) -> str:
    """Wait for the line that a program prints."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        _, errors = process.communicate(timeout=30)
        pytest.fail(f"the program ended: {errors}")
    return line


def end(process: subprocess.Popen[str]) -> None:
    """Kill a program that a test has started."""
    process.kill()
    process.communicate(timeout=30)


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
