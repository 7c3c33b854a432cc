"""Times stages around the moment in which the system clock is set back."""

from __future__ import annotations

import ctypes
import json
import logging
import time

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
print(
    json.dumps(
        {
            "counts": {name: stage.count for name, stage in figures.items()},
            "total_s": {name: stage.total_ns / 1e9 for name, stage in figures.items()},
            "later": sorted(later),
            "shortest_ns": int((spans["end_ns"] - spans["begin_ns"]).min()),
            "off_s": abs(time.time_ns() - int(spans["end_ns"].max())) / 1e9,
            "clock": _core.clock_info(),
        }
    )
)
