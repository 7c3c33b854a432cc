"""Processes that record in a folder of the test, and commands that look at them from outside."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from running import command_of, ended, ending, ran, ready, start_command
from stagespan import cli, recording

RING = 128


def start(
    program: str | Path,
    *arguments: object,
    python: Sequence[str] = (sys.executable,),
    cwd: Path | None = None,
    **variables: str,
) -> subprocess.Popen[str]:
    """Start a program whose rings are small; for arguments see `command_of`, `start_command`."""
    size = {"STAGESPAN_RING_SPANS": os.environ.get("STAGESPAN_RING_SPANS", str(RING))}
    return start_command(
        command_of(program, *arguments, python=python), cwd=cwd, **{**size, **variables}
    )


def started(program: str | Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start a program, with the options of `start`, and wait until it is ready."""
    process = start(program, *arguments, **options)
    ready(process)
    return process


def left_by(program: str | Path, *arguments: str, **options: Any) -> Path:
    """Run a program that prints the path of its recording and ends; return the path."""
    process = start(program, *arguments, **options)
    path = Path(ready(process))
    ended(process)
    return path


def copy_of(copy: Path, program: str | Path, *arguments: str, **options: Any) -> Path:
    """Copy the recording that a program leaves in a folder of its own; see `left_by`."""
    with tempfile.TemporaryDirectory(prefix="stagespan-test-", dir="/dev/shm") as folder:
        options["STAGESPAN_RECORDING_DIR"] = folder
        copy_sparse(left_by(program, *arguments, **options), copy)
    return copy


def skip_unless_works(*command: str) -> None:
    """Skip the test if a command fails that only root can run."""
    try:
        done = ran(command)
    except FileNotFoundError:
        pytest.skip(f"{command[0]} (util-linux) is not installed")
    if done.returncode != 0:
        pytest.skip(
            f"{' '.join(command)} does not work: run as root ({done.stderr.strip()[-200:]})"
        )


def started_as_first(
    program: str, *arguments: str, mounts_proc: bool = False
) -> subprocess.Popen[str]:
    """Start a program that prints its id as process 1 of a pid namespace; skip if that fails."""
    inside = ["unshare", "--pid", "--fork", "--kill-child", *["--mount-proc"] * mounts_proc]
    skip_unless_works(*inside, "true")
    process = start(program, *arguments, python=(*inside, sys.executable))
    assert ready(process) == "1"
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


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return ran([sys.executable, "-m", "stagespan", *arguments])


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
