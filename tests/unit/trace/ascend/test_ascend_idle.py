"""Causes of idle time if a task queue launches: those of the thread that requested the work."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import checked
from synthetic_ascend import QUEUE, SyntheticAscend

from stagespan.trace.analyses import idle
from stagespan.trace.analyses.idle import Idle

LINE = "train.py(12): step"


def idle_in(it: SyntheticAscend, folder: Path) -> Idle:
    found = checked(idle.analyze(it.trace(folder)), Idle)
    assert sum(found.by_cause.values()) == found.idle_ns
    return found


def late_request() -> SyntheticAscend:
    """A device that is idle from 100 µs to 5 ms, because work was requested at 4.9 ms."""
    it = SyntheticAscend()
    it.kernel(
        "a_Mul", 0, 100_000, launched=(-40_000, -30_000), tid=QUEUE, queued=(-60_000, -50_000)
    )
    it.kernel(
        "b_Mul",
        5_000_000,
        5_100_000,
        launched=(4_970_000, 4_980_000),
        tid=QUEUE,
        queued=(4_900_000, 4_960_000),
    )
    return it


@pytest.mark.parametrize(
    ("name", "category", "cause"),
    [
        ("aten::linear", "cpu_op", "host_work"),
        ("AscendCL@aclrtSynchronizeStreamWithTimeout", "", "synchronisation"),
        ("AscendCL@aclrtMallocAlign32", "", "memory_allocation"),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "cpu_op", "data_loading"),
        ("compile_inner (dynamo_timed)", "cpu_op", "first_compilation"),
    ],
)
def test_the_thread_that_requested_the_work_shows_the_cause(
    name: str, category: str, cause: str, tmp_path: Path
) -> None:
    it = late_request()
    it.host(LINE, -100_000, 5_200_000, cat="python_function")
    if category:
        it.host(name, 100_000, 4_800_000, cat=category)
    else:
        it.cann(name, 100_000, 4_800_000)
    found = idle_in(it, tmp_path)
    assert found.by_cause[cause] >= 4_700_000
    assert "host_unseen" not in found.by_cause
    (gap,) = found.largest
    assert (gap.cause, gap.line) == (cause, LINE)


def test_time_in_the_queue_is_part_of_the_launch(tmp_path: Path) -> None:
    # GIVEN work that was requested in time, and that the queue's thread launched 4.8 ms later
    it = SyntheticAscend()
    it.kernel(
        "a_Mul", 0, 100_000, launched=(-40_000, -30_000), tid=QUEUE, queued=(-60_000, -50_000)
    )
    launched, queued = (4_970_000, 4_980_000), (50_000, 4_960_000)
    it.kernel("b_Mul", 5_000_000, 5_100_000, launched=launched, tid=QUEUE, queued=queued)
    # THEN the host was not fast enough
    assert idle_in(it, tmp_path).by_cause == {"launch": 4_900_000}


def test_a_long_call_of_the_queues_thread_is_distinguished(tmp_path: Path) -> None:
    # GIVEN a task for which the queue's thread compiled for 3 ms before it launched
    it = SyntheticAscend()
    it.kernel(
        "a_Mul", 0, 100_000, launched=(-40_000, -30_000), tid=QUEUE, queued=(-60_000, -50_000)
    )
    it.cann("AscendCL@aclopCompile", 1_000_000, 4_000_000, tid=QUEUE)
    launched, queued = (4_970_000, 4_980_000), (50_000, 900_000)
    it.kernel("b_Mul", 5_000_000, 5_100_000, launched=launched, tid=QUEUE, queued=queued)
    assert idle_in(it, tmp_path).by_cause == {"runtime_call": 3_000_000, "launch": 1_900_000}


def test_steps_end_on_the_thread_that_requests_work(tmp_path: Path) -> None:
    it = late_request()
    it.host("ProfilerStep#1", -100_000, 2_000_000)
    it.host("ProfilerStep#2", 2_000_000, 5_200_000)
    # THEN the time without launches is between the steps
    found = idle_in(it, tmp_path)
    assert found.by_cause["between_steps"] >= 4_700_000


def test_without_a_queue_the_calls_thread_shows_the_cause(tmp_path: Path) -> None:
    it = SyntheticAscend()
    it.kernel("a_Mul", 0, 100_000, launched=(-40_000, -30_000))
    it.host("aten::linear", 100_000, 4_800_000)
    it.host("aten::item", 100_000, 4_800_000, tid=QUEUE)
    it.kernel("b_Mul", 5_000_000, 5_100_000, launched=(4_970_000, 4_980_000))
    (gap,) = idle_in(it, tmp_path).largest
    assert (gap.cause, gap.culprit) == ("host_work", "aten::linear")
