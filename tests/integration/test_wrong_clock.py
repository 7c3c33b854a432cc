"""A system clock that is set back, or stops, while a program runs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from running import ran

PROGRAM = """
import ctypes, json, logging, time
import stagespan
from stagespan import _core

logging.basicConfig(level=logging.CRITICAL)

def spend(seconds):
    end = time.process_time() + seconds  # sleeping would ask the clock
    while time.process_time() < end:
        pass

stagespan.record("elsewhere", time.time_ns() - 10**9, time.time_ns())
with stagespan.span("before"):
    spend(0.05)
token = stagespan.begin("token")
first = _core.snapshot()
with stagespan.span("across"), stagespan.ProfilingContext("logged"):
    spend(0.3)
    ctypes.CDLL(None).set_clock_back()
    spend(0.3)
with stagespan.span("after"):
    spend(0.05)
print("open", [span["elapsed_ns"] for span in stagespan.open_spans()])
stagespan.end(token)
figures = stagespan.stats()
str(figures)
stagespan.stats(window_s=1)
stagespan.stats(window_s=1000)
later = _core.snapshot().since(first).stages()
stagespan.timing_report()
stagespan.flush(2.0)
spans = stagespan.spans()
print(json.dumps({
    "counts": {name: stage.count for name, stage in figures.items()},
    "total_s": {name: stage.total_ns / 1e9 for name, stage in figures.items()},
    "later": sorted(later),
    "shortest_ns": int((spans["end_ns"] - spans["begin_ns"]).min()),
    "off_s": abs(time.time_ns() - int(spans["end_ns"].max())) / 1e9,
    "clock": _core.clock_info(),
}))
"""


def run(clock: Path, **variables: str) -> dict[str, object]:
    environment = {**os.environ, "LD_PRELOAD": str(clock), **variables}
    # The limit is for a program that would never end.
    done = ran([sys.executable, "-c", PROGRAM], env=environment, status=0)
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
