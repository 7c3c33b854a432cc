"""The cache of a view of a trace; faster lookups find the same as slow ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted import Program

from stagespan.trace import Trace, read_trace
from stagespan.trace.derived.device import device_work, launch_of
from stagespan.trace.derived.threads import TimeIndex
from stagespan.trace.read.intervals import outermost_first
from stagespan.trace.read.view import TraceView, once

Write = Callable[..., Path]
TIMES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=600)


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    program = Program()
    for _ in range(3):
        program.operator(us=20)
        program.launch("kernel", 30)
    return program.trace(tmp_path)


def test_a_view_runs_each_function_once(trace: Trace) -> None:
    # GIVEN a function of a trace, with and without an argument
    runs: list[object] = []

    @once
    def derived(trace: Trace, of: object = None) -> list[object]:
        runs.append(of)
        return [of]

    view = TraceView.of(trace)
    first, same, other = derived(view), derived(TraceView.of(view)), derived(view, 1)

    # THEN it ran once for each argument; on the trace itself it runs each time
    assert first is same
    assert other == [1]
    assert runs == [None, 1]
    derived(trace)
    derived(trace)
    assert runs == [None, 1, None, None]


def test_cached_values_of_a_view_cannot_be_changed_by_mistake(trace: Trace) -> None:
    view = TraceView.of(trace)
    assert view.events is trace.events
    rows = view.rows_of(["cpu_op"])
    assert np.array_equal(rows, trace.rows_of(["cpu_op"]))
    with pytest.raises(ValueError, match="read-only"):
        rows[0] = False


@pytest.mark.parametrize("step", [1, 2**33], ids=["dense", "far-apart"])
def test_launches_found_on_a_view_are_those_of_the_trace(step: int, write_trace: Write) -> None:
    # GIVEN launches with correlations, nested ones, and one that two processes share
    def event(cat: str, ts: int, dur: int, correlation: int, pid: int = 1) -> dict[str, Any]:
        args = {"correlation": correlation * step, "stream": 7, "device": 0}
        return {"ph": "X", "cat": cat, "name": cat, "pid": pid, "tid": 1, "ts": ts, "dur": dur} | {
            "args": args
        }

    calls = [event("cuda_runtime", 10 * number, 5, number) for number in range(6)]
    calls += [event("cuda_driver", 11, 2, 1), event("cuda_runtime", 20, 5, 3, pid=2)]
    kernels = [event("kernel", 100 + 10 * number, 5, number, pid=0) for number in range(9)]
    trace = read_trace(write_trace([*calls, *kernels]))
    rows = device_work(trace).rows

    found = launch_of(trace, rows)

    # THEN they are the same: the outer call of two, and none that is shared or missing
    assert np.array_equal(found, launch_of(TraceView.of(trace), rows))
    assert found.tolist() == [0, 1, 2, -1, 4, 5, -1, -1, -1]


@given(TIMES, st.integers(0, 60), st.integers(0, 20))
def test_events_in_a_range_are_those_that_a_search_finds(
    times: list[tuple[int, int]], begin: int, length: int
) -> None:
    # GIVEN events in any order, more than fit into one block
    begins = np.array([at for at, _ in times], dtype=np.int64)
    ends = begins + np.array([dur for _, dur in times], dtype=np.int64)

    class Events:
        begin_ns, end_ns = begins, ends

    class Some:
        events = Events

    index = TimeIndex(Some, np.arange(len(times)))  # type: ignore[arg-type]

    overlapping = np.flatnonzero((begins < begin + length) & (ends > begin))
    around = np.flatnonzero((begins <= begin) & (ends >= begin + length))
    assert index.overlapping(begin, begin + length).tolist() == overlapping.tolist()
    assert index.around(begin, begin + length).tolist() == around.tolist()


@given(TIMES, st.randoms(use_true_random=False))
def test_intervals_are_ordered_as_a_full_sort_does(
    times: list[tuple[int, int]], chance: Any
) -> None:
    begins = np.array([at for at, _ in times], dtype=np.int64)
    ends = begins + np.array([dur for _, dur in times], dtype=np.int64)
    first = np.array([chance.randrange(3) for _ in times], dtype=np.int64)
    second = np.array([chance.randrange(3) for _ in times], dtype=np.int64)
    expected = np.lexsort((second, first, -ends, begins))
    assert outermost_first(begins, ends, first, second).tolist() == expected.tolist()
