"""Processes that record in a folder of the test, and commands that look at them from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from stagespan import recording

RING = 128


def start(program: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start a program that prints a line when it is ready."""
    environment = {"STAGESPAN_RING_SPANS": str(RING), **os.environ, **variables}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
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
    """Run the command."""
    return subprocess.run(
        [sys.executable, "-m", "stagespan", *arguments], capture_output=True, text=True, timeout=60
    )


def recordings_in(folder: Path) -> list[recording.Recording]:
    """Return the recordings of a test's own processes."""
    return [one for one in recording.recordings() if Path(one.path).parent == folder]
