"""Every analysis takes n log n time and linear memory, also for traces that no program writes."""

from __future__ import annotations

import json
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from commands import checked
from hostile import (
    HOSTILE,
    Events,
    many_arrows,
    many_devices,
    many_names,
    many_processes,
    many_streams,
    many_threads,
    nested_annotations,
)

import stagespan
from stagespan.pages.markdown import markdown
from stagespan.trace import Trace, read_trace
from stagespan.trace.analyses import stages
from stagespan.trace.analyses.flame import Flame
from stagespan.trace.analyses.stages import Stages
from stagespan.trace.analysis import Analysis, analyze
from stagespan.trace.compare import compare

PACKAGE = str(Path(stagespan.__file__).parent)
SIZES = (1, 4, 16)
# If the cost is linear, the second of three sizes that grow four times adds 4 times as much as the
# first. Costs that begin at a certain size can add a little more.
MOST_TIMES = 1.25 * 4
SPARED_LINES, SPARED_BYTES = 100_000, 1 << 20
DEEP = [make for make in HOSTILE if make.__name__.startswith(("nested", "crossing", "one_time"))]
CROWDED = (many_arrows, many_devices, many_processes, many_streams, many_threads)
WATCHDOG_CPU_S = 30


def everything(trace: Trace) -> None:
    """Run all analyses, and write all outputs."""
    analysis = analyze(trace)
    json.dumps(analysis.to_dict())
    markdown(analysis)
    folded = analysis.results["flame"]
    if isinstance(folded, Flame):
        folded.folded()
    found = compare(trace, trace)
    json.dumps(Analysis(trace, {"against": found}).to_dict())
    found.tables()


def lines_of(trace: Trace) -> int:
    """Return how many lines of the package, and how many other functions, run during all of it.

    A comprehension is a line for each of its elements.
    """
    count = 0

    def line(_frame: FrameType, _event: str, _argument: Any) -> Any:
        nonlocal count
        count += 1
        return line

    def called(frame: FrameType, _event: str, _argument: Any) -> Any:
        nonlocal count
        count += 1
        return line if frame.f_code.co_filename.startswith(PACKAGE) else None

    before = sys.gettrace()
    sys.settrace(called)
    try:
        everything(trace)
    finally:
        sys.settrace(before)
    return count


def peak_of(trace: Trace) -> int:
    """Return the peak memory of all of it, in bytes."""
    tracemalloc.start()
    try:
        everything(trace)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def read(folder: Path, events: Events) -> Trace:
    path = folder / "hostile.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return read_trace(path)


def grows_linearly(costs: list[int], spared: int) -> bool:
    """Return whether the increase from the second size to the third is as that to the second."""
    first, second, third = costs
    return third - second <= MOST_TIMES * max(0, second - first) + spared


def name_of(make: Callable[[int], Events]) -> str:
    return str(make.__name__)


@pytest.fixture(scope="module", autouse=True)
def _everything_is_imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Run all of it once, so that no test counts imports and the compilation of patterns."""
    for make in (nested_annotations, many_names):
        everything(read(tmp_path_factory.mktemp("first"), make(10)))


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("make", DEEP, ids=name_of)
def test_memory_and_work_grow_with_the_depth(make: Callable[[int], Events], tmp_path: Path) -> None:
    # GIVEN a deep trace, and traces that are 4 and 16 times as deep
    traces = [read(tmp_path, make(80 * size)) for size in SIZES]
    peaks = [peak_of(trace) for trace in traces]
    assert grows_linearly(peaks, SPARED_BYTES), peaks
    lines = [lines_of(trace) for trace in traces]
    assert grows_linearly(lines, SPARED_LINES), lines


@pytest.mark.slow
@pytest.mark.parametrize("make", [make for make in HOSTILE if make not in DEEP], ids=name_of)
def test_work_grows_with_the_number_of_events(
    make: Callable[[int], Events], tmp_path: Path
) -> None:
    # GIVEN a crowded trace, and traces of 4 and 16 times the size
    lines = [lines_of(read(tmp_path, make(50 * size))) for size in SIZES]
    assert grows_linearly(lines, SPARED_LINES), lines


@pytest.mark.slow
@pytest.mark.parametrize("make", CROWDED, ids=name_of)
def test_no_trace_takes_for_ever(make: Callable[[int], Events], tmp_path: Path) -> None:
    # GIVEN a trace so large that quadratic work takes long, also within a function of NumPy
    trace = read(tmp_path, make(4_000))
    ended: list[bool] = []

    def work() -> None:
        everything(trace)
        ended.append(True)

    worker = threading.Thread(target=work, daemon=True)
    limit = time.process_time() + WATCHDOG_CPU_S
    worker.start()
    while worker.is_alive() and time.process_time() < limit:
        worker.join(0.2)
    assert ended, "the analyses failed, or take more than n log n time"


def test_deep_annotations_close(tmp_path: Path) -> None:
    found = checked(stages.analyze(read(tmp_path, nested_annotations(1_500))), Stages)
    assert max(len(stage.path) for stage in found.stages) == 100
    assert found.deeper == 1_400
    assert sum(stage.calls for stage in found.stages) == 100
    assert sum(stage.device_self_ns or 0 for stage in found.stages) == 3_000 * 1_000
    assert sum(stage.host_self_ns for stage in found.stages) == found.stages[0].host_ns
    (table,) = found.tables()
    assert f"{found.deeper:,}" in table.note
