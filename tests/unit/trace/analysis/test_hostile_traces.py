"""Every analysis takes n log n time and linear memory, also of traces that no program writes."""

from __future__ import annotations

import json
import sys
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hostile import HOSTILE, Events, nested_annotations

from stagespan.trace import Trace, read_trace
from stagespan.trace.analysis import Analysis, analyze, stages
from stagespan.trace.analysis.flame import Flame
from stagespan.trace.analysis.markdown import markdown
from stagespan.trace.analysis.stages import Stages
from stagespan.trace.comparison import compare

SMALL, TIMES = 100, 4
# What any trace costs, whatever is in it.
SPARED_CALLS, SPARED_BYTES = 10_000, 1 << 19
WATCHDOG_S = 60


def everything(trace: Trace) -> None:
    """All analyses, and all that is written of them."""
    analysis = analyze(trace)
    json.dumps(analysis.to_dict())
    markdown(analysis)
    folded = analysis.results["flame"]
    if isinstance(folded, Flame):
        folded.folded()
    found = compare(trace, trace)
    json.dumps(Analysis(trace, {"against": found}).to_dict())
    found.tables()


def cost_of(trace: Trace) -> tuple[int, int]:
    """How many functions, of Python and of C, all of it runs, and the most memory in bytes."""
    count = 0

    def counted(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    tracemalloc.start()
    sys.setprofile(counted)
    try:
        everything(trace)
        sys.setprofile(None)
        return count, tracemalloc.get_traced_memory()[1]
    finally:
        sys.setprofile(None)
        tracemalloc.stop()


def read(folder: Path, events: Events) -> Trace:
    path = folder / "hostile.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return read_trace(path)


@pytest.mark.slow
@pytest.mark.parametrize("make", HOSTILE, ids=lambda make: str(make.__name__))
def test_cost_grows_with_the_number_of_events(
    make: Callable[[int], Events], tmp_path: Path
) -> None:
    # GIVEN a hostile trace, and one of four times the size
    small, large = read(tmp_path, make(SMALL)), read(tmp_path, make(TIMES * SMALL))
    everything(small)
    # WHEN both are analysed
    (calls, peak), (more_calls, higher_peak) = cost_of(small), cost_of(large)
    # THEN calls and memory grow about as the trace does, not by its square
    assert more_calls <= 1.5 * TIMES * (calls + SPARED_CALLS)
    assert higher_peak <= 1.5 * TIMES * (peak + SPARED_BYTES)


@pytest.mark.slow
@pytest.mark.parametrize("make", HOSTILE, ids=lambda make: str(make.__name__))
def test_no_trace_takes_for_ever(make: Callable[[int], Events], tmp_path: Path) -> None:
    # GIVEN a trace so large that work by the square would take many minutes
    trace = read(tmp_path, make(3_000))
    # WHEN it is analysed THEN the watchdog, which is far above what it takes, does not bite
    worker = threading.Thread(target=everything, args=(trace,), daemon=True)
    worker.start()
    worker.join(WATCHDOG_S)
    assert not worker.is_alive(), "the analyses take more than n log n time"


def test_deep_annotations_close(tmp_path: Path) -> None:
    # GIVEN annotations 1,500 deep, of which each launches one kernel, and as many behind them
    found = stages.analyze(read(tmp_path, nested_annotations(1_500)))
    # WHEN they are summed up THEN no path is deeper than 100, and what lies deeper is counted
    assert isinstance(found, Stages)
    assert max(len(stage.path) for stage in found.stages) == 100
    assert found.deeper == 1_400
    assert sum(stage.calls for stage in found.stages) == 100
    # AND all device time and the host's is somewhere
    assert sum(stage.device_self_ns or 0 for stage in found.stages) == 3_000 * 1_000
    assert sum(stage.host_self_ns for stage in found.stages) == found.stages[0].host_ns
    (table,) = found.tables()
    assert "1,400 annotations" in table.note
