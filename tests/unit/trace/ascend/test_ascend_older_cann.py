"""Traces of older versions of CANN: types of tasks that say little, calls with other numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_ascend import CANN, DEVICE, MAIN, SyntheticAscend

from stagespan.trace.ascend.operators import cores
from stagespan.trace.derived.device import device_work, launch_of
from stagespan.trace.derived.device_time import device_use

US = 1_000


@pytest.mark.parametrize("type_", ["Other", "AI_NEW", "KERNEL_MIX_AIC"])
def test_a_task_of_an_unknown_type_is_work(type_: str, tmp_path: Path) -> None:
    it = SyntheticAscend()
    it.kernel("aclnnMm_MatMul", 0, 900 * US, core=type_)
    it.kernel("aclnnCast_Cast", 900 * US, 1_000 * US, core="AI_CPU")
    found = device_use(it.trace(tmp_path))
    assert (found.compute_ns, found.busy_ns) == (1_000 * US, 1_000 * US)


@pytest.mark.parametrize(
    ("type_", "name"),
    [
        ("EVENT_WAIT_SQE", "EVENT_WAIT"),
        ("Other", "EVENT_WAIT"),
        ("Notify Wait", "Notify Wait"),
        ("Write Value", "Write Value"),
        ("Stream_Wait_Event", "wait"),
        ("SDMA", "SDMA"),
        ("PLACE_HOLDER_SQE", "PROFILING_ENABLE"),
        ("COMMUNICATION", "hcom_allReduce__123_0_1"),
    ],
)
def test_waits_and_marks_are_not_work(type_: str, name: str, tmp_path: Path) -> None:
    it = SyntheticAscend()
    it.kernel("aclnnMm_MatMul", 0, 100 * US, core="Other")
    it.event(name, DEVICE, 3, 100 * US, 900 * US, **{"Task Type": type_})
    it.kernel("aclnnMm_MatMul", 900 * US, 1_000 * US, core="Other")
    found = device_use(it.trace(tmp_path))
    assert (found.compute_ns, found.busy_ns) == (200 * US, 200 * US)


def test_unknown_tasks_of_a_stream_that_communicates_are_not_work(tmp_path: Path) -> None:
    it = SyntheticAscend()
    it.kernel("aclnnMm_MatMul", 0, 100 * US)
    it.event("Notify Wait", DEVICE, 4, 0, 50 * US, **{"Task Type": "Notify Wait"})
    it.event("Inline", DEVICE, 4, 50 * US, 900 * US, **{"Task Type": "Inline"})
    assert device_use(it.trace(tmp_path)).compute_ns == 100 * US


def test_copies_of_an_unknown_type_are_copies(tmp_path: Path) -> None:
    it = SyntheticAscend()
    it.kernel("aclnnMm_MatMul", 0, 100 * US, core="Other")
    it.event("MEMCPY_ASYNC", DEVICE, 2, 100 * US, 150 * US, **{"Task Type": "Other"})
    found = device_use(it.trace(tmp_path))
    assert (found.compute_ns, found.copy_ns) == (100 * US, 50 * US)


def test_operators_of_the_ai_cpu_are_a_share_of_all(tmp_path: Path) -> None:
    it = SyntheticAscend()
    it.kernel("aclnnMm_MatMul", 0, 900 * US, core="Other")
    it.kernel("aclnnCast_Cast", 900 * US, 1_000 * US, core="AI_CPU")
    found = cores(it.trace(tmp_path))
    (slow,) = (finding for finding in found.findings() if finding.code == "ascend.ai_cpu")
    assert "(10.0 % of all operators' time)" in slow.text


def test_a_flow_tells_the_call_that_launched_a_task(tmp_path: Path) -> None:
    # GIVEN calls of CANN with other numbers than the tasks; the second launches two of them
    it = SyntheticAscend(level=0)
    calls = [(100 * US, 300 * US), (500 * US, 900 * US)]
    for number, (begin, end) in enumerate(calls):
        it.event("AscendCL@aclnnMm", CANN, MAIN, begin, end, connection_id=9_000 + number)
    for begin in (200 * US, 600 * US, 800 * US, 950 * US):
        launched = (begin, begin + US)
        it.kernel("aclnnMm_MatMul", begin + 10 * US, begin + 20 * US, launched=launched)
    trace = it.trace(tmp_path)
    rows = device_work(trace).rows
    rows = rows[trace.events.begin_ns[rows].argsort()]
    first, second = (
        row for row, code in enumerate(trace.events.name) if trace.names[code].startswith("Ascend")
    )
    # THEN the last one, which no call contains, has no launch
    assert launch_of(trace, rows).tolist() == [first, second, second, -1]
