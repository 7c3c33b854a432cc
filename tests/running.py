"""Starts programs, waits for what they print, and ends them; runs calls in threads.

Each program is the leader of a session of its own, so that the processes that it has started end
with it: after the test, or as soon as it takes too long.
"""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"
READY_S = 120.0
"""A program that has not printed a line after this time is ended, and the test fails."""

_running: list[subprocess.Popen[str]] = []


def command_of(
    program: str | Path, *arguments: object, python: Sequence[str] = (sys.executable,)
) -> list[str]:
    """Return the command of a program in Python.

    Args:
        program: Its text, or the path of its file.
        arguments: Of the program.
        python: The beginning of the command, such as `preloaded.python()`.
    """
    what = ["-c", textwrap.dedent(program)] if isinstance(program, str) else [str(program)]
    return [*python, *what, *map(str, arguments)]


def start_command(
    command: Sequence[str | Path],
    *,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    stdin: int | IO[str] | None = subprocess.PIPE,
    stdout: int | IO[str] | None = subprocess.PIPE,
    stderr: int | IO[str] | None = subprocess.PIPE,
    **variables: str,
) -> subprocess.Popen[str]:
    """Start a command, which is ended after the test.

    Args:
        command: The program and its arguments.
        cwd: Its folder.
        env: Its environment; by default, that of this process.
        stdin: Its standard streams, as for `subprocess.Popen`: by default, pipes of text.
        stdout: See `stdin`.
        stderr: See `stdin`.
        variables: Added to the environment.
    """
    process = subprocess.Popen(
        command,
        cwd=cwd,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        text=True,
        start_new_session=True,
        env={**(os.environ if env is None else env), **variables},
    )
    _running.append(process)
    return process


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a program and the processes that it has started.

    Nothing is done if its end has been waited for, because its id may have a new owner then.
    """
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)


def ready(process: subprocess.Popen[str]) -> str:
    """Wait for the line that a program prints, and return it."""
    assert process.stdout is not None
    timer = threading.Timer(READY_S, _kill, (process,))
    timer.start()
    try:
        line = process.stdout.readline().strip()
    finally:
        timer.cancel()
    if not line:
        _, errors = process.communicate(timeout=30)
        pytest.fail(f"the program ended or took too long: {errors}")
    return line


def tell(process: subprocess.Popen[str], line: object = "") -> str:
    """Write a line to a program, and return the line with which it answers."""
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    return ready(process)


def end(process: subprocess.Popen[str]) -> None:
    """Kill a program that a test has started, before the end of the test."""
    process.kill()
    process.wait(timeout=30)  # before its input is closed, which its children may read, too
    process.communicate(timeout=30)


def ended(
    process: subprocess.Popen[str],
    status: int | None = None,
    *,
    input: str | None = None,
    timeout_s: float = 60,
) -> tuple[str, str]:
    """Wait until a program has ended by itself, and return what it has written.

    Args:
        process: The program.
        status: The exit status that it has to have; None for any.
        input: What it reads.
        timeout_s: After this time, in seconds, the program is killed and the test fails.
    """
    try:
        output, errors = process.communicate(input, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _kill(process)
        pytest.fail(f"the program has not ended: {process.communicate(timeout=30)}")
    _running.remove(process)
    assert status is None or process.returncode == status, (process.returncode, output, errors)
    return output or "", errors or ""


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """End the programs that were started in the block and still run."""
    before = list(_running)
    try:
        yield
    finally:
        for process in [one for one in _running if one not in before]:
            _kill(process)
            process.communicate(timeout=30)  # also closes the streams
            _running.remove(process)


def ran(
    command: Sequence[str | Path],
    *,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    input: str | None = None,
    status: int | None = None,
    timeout_s: float = 300,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and return its output as text.

    For arguments see `start_command` and `ended`.
    """
    pipe = subprocess.PIPE
    stdin = None if input is None else pipe
    process = start_command(
        command, cwd=cwd, env=env, stdin=stdin, stdout=pipe, stderr=pipe, **variables
    )
    output, errors = ended(process, status, input=input, timeout_s=timeout_s)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def on_terminal(command: Sequence[str | Path], **options: Any) -> tuple[str, str]:
    """Run a command whose standard error is a terminal; return its output and what that shows."""
    ours, theirs = pty.openpty()
    process = start_command(command, stderr=theirs, **options)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # EIO: the last writer has closed the terminal
        while part := os.read(ours, 1 << 16):
            shown += part
    os.close(ours)
    output, _ = ended(process, 0)
    return output, shown.decode()


def free_port() -> int:
    """Return a port of this machine that nobody uses."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def until(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """Wait until a condition holds, and return its value; the test fails after this time."""
    end_s = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end_s, "it did not come to be within the time"
        time.sleep(0.05)
    return value


def in_threads(*calls: Callable[[], object]) -> None:
    """Make each call in a thread of its own, all at once, and wait until they have ended."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
