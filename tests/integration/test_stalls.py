"""STAGESPAN_STALL_S: a span that stays open is logged once, with the stack of its thread."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from running import PROGRAMS, ended, start_command

STALLING = PROGRAMS / "stalling.py"


def run(program: str, folder: Path, stall_s: str = "1") -> tuple[str, list[str]]:
    """Run a program that reads its own stderr; return its output, and those lines."""
    with (folder / "stderr.txt").open("w") as stderr:
        process = start_command(
            [sys.executable, STALLING, program],
            cwd=folder,
            stderr=stderr,
            STAGESPAN_STALL_S=stall_s,
        )
        output, _ = ended(process, 0, timeout_s=120)
    return output, (folder / "stderr.txt").read_text().splitlines()


@pytest.mark.parametrize(
    ("program", "pattern"),
    [
        (
            "in_a_request",
            (
                r"\[Profiler\] 'all_reduce' in 'denoise' has been open for .* for request r-7 in "
                r"thread MainThread: .*stalling\.py:\d+ until_logged"
                r" < \S+stalling\.py:\d+ waits_for_another"
                r" < \S+stalling\.py:\d+ in_a_request < \S+stalling\.py:\d+ <module>"
            ),
        ),
        # The child of a process that has recorded: the stack of its thread is known.
        (
            "in_a_child",
            (
                r"\[Profiler\] 'serve' has been open for .*"
                r"stalling\.py:\d+ until_logged < \S+stalling\.py:\d+ waits_for_another.*"
            ),
        ),
        # The stage around it has been open for longer.
        ("in_a_later_span", r"\[Profiler\] 'all_reduce' in 'denoise' has been open for 1\..*"),
        ("in_odd_names", r".* for request r-8\\nforged in thread worker\\n1: .*"),
        (
            "in_a_coroutine",
            r"\[Profiler\] 'waits' has been open for .*; no thread runs it at the moment",
        ),
        # Each of them is stalled for longer than several checks.
        ("in_many_threads", r"\[Profiler\] 'stands' has been open for .*"),
    ],
)
def test_one_line_names_the_span_and_its_code(program: str, pattern: str, tmp_path: Path) -> None:
    _, (line,) = run(program, tmp_path)
    assert re.fullmatch(pattern, line), line


def test_spans_that_end_in_time_are_not_logged(tmp_path: Path) -> None:
    longest_ns, lines = run("in_time", tmp_path)
    # If the machine paused the program for a second, a line is right.
    assert lines == [] or int(longest_ns) > 10**9


def test_off_by_default(tmp_path: Path) -> None:
    assert run("for_two_seconds", tmp_path, stall_s="") == ("", [])
