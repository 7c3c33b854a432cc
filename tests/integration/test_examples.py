"""The small examples run unchanged, and their output is as documented."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import preloaded
from running import ran

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, folder: Path, python: Sequence[str] = (sys.executable,)) -> str:
    return ran([*python, EXAMPLES / name], cwd=folder, status=0).stdout


def test_service_shows_percentiles_and_what_is_open(tmp_path: Path) -> None:
    printed = run("service.py", tmp_path)

    # THEN it counted every call of both stages, and saw the open one
    rows = [line.split() for line in printed.splitlines()]
    assert {(row[0], row[1]) for row in rows if len(row) > 2} >= {
        ("generate", "100"),
        ("tokenize", "100"),
    }
    assert "right now: 'waiting for a lock'" in printed


def test_find_slow_stage_shows_report_and_signature(tmp_path: Path) -> None:
    pytest.importorskip("torch")

    printed = run("find_slow_stage.py", tmp_path, preloaded.python())

    for stage in ("encode", "normalise", "decode"):
        assert stage in printed
    assert "decode takes [8, 256]" in printed
    folder = tmp_path / printed.split()[-1]
    assert {path.name for path in folder.iterdir()} == {"timing.json", "timing_io_signature.json"}


def test_replay_stage_writes_trace_breakdown_and_script(tmp_path: Path) -> None:
    pytest.importorskip("torch")

    printed = run("replay_stage.py", tmp_path, preloaded.python())

    # THEN it shows a time and names the files
    assert "ms (median)" in printed
    assert "mix_breakdown.json, mix_trace.json.gz, profile_mix.py" in printed
