"""Everything at once for 6 seconds: nothing hangs, and nothing fails."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from running import start_command

pytestmark = pytest.mark.full

PROGRAM = Path(__file__).with_name("stress_program.py")
SECONDS = "6"


@pytest.mark.parametrize("turn", ["once", pytest.param("again", marks=pytest.mark.slow)])
def test_all_calls_at_once(turn: str, tmp_path: Path) -> None:
    # WHEN all public calls are made from several threads, with signals, collections with
    # finalizers, forks, switches and shutdowns of interpreters
    program = start_command(
        [sys.executable, "-W", "ignore::DeprecationWarning", str(PROGRAM), SECONDS], cwd=tmp_path
    )
    try:
        _, stderr = program.communicate(timeout=180)
    except subprocess.TimeoutExpired:
        program.send_signal(signal.SIGUSR1)  # it prints its stacks
        time.sleep(2)
        program.kill()
        _, stderr = program.communicate()
    # THEN no operation takes longer than it should (otherwise the program prints all stacks), and
    # none raises
    assert program.returncode == 0, stderr
    assert "Exception ignored" not in stderr, stderr
    assert "Logging error" not in stderr, stderr
