"""Forks while other threads write log lines or import: neither process waits for long."""

from __future__ import annotations

from pathlib import Path

import pytest
from recording import in_child

from running import PROGRAMS

FORKING = PROGRAMS / "forking.py"
# From 3.12 on, Python itself warns about forks with threads.
FORK_WARNING = ("-W", "ignore::DeprecationWarning")


def test_forks_do_not_wait_for_a_slow_log_handler(tmp_path: Path) -> None:
    # GIVEN a service thread that is always writing lines
    lines = in_child((FORKING, "slow_log_handler"), tmp_path, *FORK_WARNING)
    assert lines == ["{0: 30} True"]
    written = (tmp_path / "slow.log").read_text().splitlines()
    assert written.count("INFO:mine:from the child") == 90


def test_a_child_can_write_to_a_file_that_was_being_written_to(tmp_path: Path) -> None:
    # GIVEN a service thread that is stuck in the middle of a line, as with a full pipe without a
    # reader
    lines = in_child((FORKING, "full_pipe"), tmp_path, *FORK_WARNING)
    assert lines == ["{0: 10} True 10", "3000"]


@pytest.mark.parametrize(
    "call",
    [
        *("stats", "spans", "timing_report", "the environment in a report", "flush"),
        *("get_io_signatures", "memory_snapshot", "set_debug", "decorate"),
    ],
)
def test_a_child_can_make_a_call_that_another_thread_was_importing(
    call: str, tmp_path: Path
) -> None:
    assert in_child((FORKING, "while_importing", call, "0.02"), tmp_path, *FORK_WARNING) == ["0"]


def test_a_child_whose_parent_imports_for_a_long_time(tmp_path: Path) -> None:
    # GIVEN a thread whose import takes longer than a fork waits
    program = (FORKING, "while_importing", "stats", "20")
    assert in_child(program, tmp_path, *FORK_WARNING) == ["0"]
