"""Another program truncates the file of a recording while the process runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from recording import in_child

from running import PROGRAMS, ran

CUT_OFF = PROGRAMS / "cut_off.py"


WITH_HANDLER = ("-X", "faulthandler")
"""Options of an interpreter that handles the signal before stagespan is imported."""


def run(tmp_path: Path, *program: str, options: Sequence[str] = ()) -> list[str]:
    """Run a program; skip the test if its recording is not in a file."""
    lines = in_child((CUT_OFF, *program), tmp_path, *options)
    if lines == ["no file"]:
        pytest.skip("recordings are not in a file on this machine")
    return lines


@pytest.mark.parametrize("size", ["0", "1", "4096", "100000", "1000000"])
def test_a_program_continues(size: str, tmp_path: Path) -> None:
    state, why = run(tmp_path, "at_once", size)
    assert state == "False memory"
    assert "truncated" in why
    assert "STAGESPAN_RECORDING=memfd" in why


@pytest.mark.parametrize(
    ("program", "lines"),
    [
        ("in_the_middle", ["survived None"]),
        ("while_threads_record", ["6"]),
        ("before_a_fork", ["True file 7", "False", "0 False"]),
    ],
)
def test_a_program_continues_after_it_was_cut(
    program: str, lines: list[str], tmp_path: Path
) -> None:
    assert run(tmp_path, program) == lines


@pytest.mark.parametrize(
    ("how", "returncode"), [("elsewhere", -7), ("kill", -7), ("raise", -7), ("ignored", 0)]
)
@pytest.mark.parametrize("options", [(), WITH_HANDLER])
def test_other_faults_have_their_usual_effect(
    how: str, returncode: int, options: Sequence[str], tmp_path: Path
) -> None:
    done = ran([sys.executable, *options, CUT_OFF, "other_faults", how], cwd=tmp_path)
    # THEN Python knows of the handler of faulthandler only
    assert (done.returncode, done.stdout) == (returncode, f"{not options}\n"), done.stderr
    assert ("Bus error" in done.stderr) == bool(options and returncode)


def test_a_handler_that_was_there_before_still_survives(tmp_path: Path) -> None:
    state, _ = run(tmp_path, "at_once", "0", options=WITH_HANDLER)
    assert state == "False memory"


def test_a_memfd_cannot_be_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGESPAN_RECORDING", "memfd")
    found = in_child((CUT_OFF, "memfd"), tmp_path)
    assert found == ["memfd None None", "refused", "2"]
