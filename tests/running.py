"""Runs commands and checks how they end, and runs calls in threads."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path


def ran(
    command: Sequence[str | Path],
    *,
    cwd: Path | str | None = None,
    input: str | None = None,
    status: int | None = None,
    timeout_s: float = 300,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and return its output as text.

    Args:
        command: The program and its arguments.
        cwd: Its folder.
        input: What it reads.
        status: The exit status that it has to have; None for any.
        timeout_s: After this time, in seconds, the command is ended and the test fails.
        variables: Added to the environment.
    """
    done = subprocess.run(
        command,
        cwd=cwd,
        input=input,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert status is None or done.returncode == status, done.stdout + done.stderr
    return done


def in_threads(*calls: Callable[[], object]) -> None:
    """Make each call in a thread of its own, all at once, and wait until they have ended."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
