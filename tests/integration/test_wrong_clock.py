"""A system clock that is set back, or stops, while a program runs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from running import PROGRAMS, ran

PROGRAM = PROGRAMS / "clock_set_back.py"


def run(clock: Path, **variables: str) -> dict[str, object]:
    environment = {**os.environ, "LD_PRELOAD": str(clock), **variables}
    # The limit is for a program that would never end.
    done = ran([sys.executable, PROGRAM], env=environment, status=0)
    assert "Traceback" not in done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


COUNTS = {"elsewhere": 1, "before": 1, "token": 1, "across": 1, "logged": 1, "after": 1}


@pytest.mark.parametrize("source", ["auto", "monotonic"])
def test_a_clock_that_is_set_back(clock: Path, source: str) -> None:
    found = run(clock, STAGESPAN_CLOCK=source)

    # THEN everything returns, each span is counted, and no duration is negative or an hour
    assert found["counts"] == COUNTS
    assert found["shortest_ns"] >= 0
    assert all(0 <= seconds < 30 for seconds in found["total_s"].values())
    assert {"across", "after"} <= set(found["later"])
    # THEN the spans after it have their right duration and position
    assert found["total_s"]["after"] >= 0.04
    if found["clock"]["source"] != "monotonic":
        assert found["total_s"]["across"] >= 0.5
        assert found["off_s"] < 30


@pytest.mark.parametrize("source", ["auto", "monotonic"])
def test_a_clock_that_is_stopped(clock: Path, source: str) -> None:
    found = run(clock, STAGESPAN_CLOCK=source, CLOCK_STANDS_STILL="1")

    # THEN everything returns, each span is counted, and no duration is negative
    assert found["counts"] == COUNTS
    assert found["shortest_ns"] >= 0
    assert all(seconds >= 0 for seconds in found["total_s"].values())
