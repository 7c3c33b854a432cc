"""Waits on an Ascend device and for it: synthetic traces with exact results."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import checked
from synthetic_ascend import QUEUE, SyntheticAscend

from stagespan.pages.result import Unavailable
from stagespan.trace import Trace
from stagespan.trace.analysis import analyze
from stagespan.trace.ascend import host_waits as ascend_host_waits
from stagespan.trace.ascend import waits as ascend_waits
from stagespan.trace.ascend.host_waits import HostWaits
from stagespan.trace.ascend.waits import StreamWaits

SYNCHRONISE = "AscendCL@aclrtSynchronizeStreamWithTimeout"


def waits_in(trace: Trace) -> StreamWaits:
    return checked(ascend_waits.analyze(trace), StreamWaits)


def host_waits_in(trace: Trace) -> HostWaits:
    return checked(ascend_host_waits.analyze(trace), HostWaits)


def test_event_waits_are_named_with_operator_and_time(tmp_path: Path) -> None:
    # GIVEN a stream that waits 600 µs for a collective, while another computes for 100 of them
    it = SyntheticAscend()
    it.kernel("a_MatMul", 0, 100_000)
    it.wait("EVENT_WAIT", 100_000, 700_000)
    it.collective("hcom_allReduce__1", 100_000, 690_000)
    it.kernel("b_Add", 150_000, 250_000, stream=3)
    it.kernel("c_Mul", 700_000, 1_000_000)
    found = waits_in(it.trace(tmp_path))
    (wait,) = found.largest
    assert (wait.event, wait.time_ns, wait.wait_ns) == ("EVENT_WAIT", 100_000, 600_000)
    assert (wait.operator, wait.overlapped_by, wait.stream) == (
        "c_Mul",
        "hcom_allReduce__1",
        "Stream 2",
    )
    (kind,) = found.by_kind.values()
    assert (kind.total_ns, kind.exposed_ns) == (600_000, 500_000)
    assert wait.exposed_ns == 500_000
    # THEN the 10 µs of it without a collective are distinguished
    assert kind.communicating_ns == 490_000


def test_a_wait_for_other_work_is_a_finding(tmp_path: Path) -> None:
    # GIVEN a stream that waits 600 µs while nothing runs
    it = SyntheticAscend()
    it.kernel("a_MatMul", 0, 100_000)
    it.wait("EVENT_WAIT", 100_000, 700_000)
    it.kernel("c_Mul", 700_000, 1_000_000)
    found = waits_in(it.trace(tmp_path))
    (finding,) = found.findings()
    assert (finding.code, finding.severity) == ("ascend.event_wait", "high")
    assert (finding.numbers["time_ns"], finding.numbers["waits"]) == (600_000, 1)
    assert [wait.operator for wait in found.largest] == ["c_Mul"]
    assert finding.gain is not None
    assert finding.gain.time_ns == 600_000
    assert [(e.event, e.figure) for e in finding.evidence] == [("EVENT_WAIT", 600_000)]


def test_waits_within_a_collective_are_one_finding(tmp_path: Path) -> None:
    # GIVEN a collective of 700 µs that waits for other ranks and for which a stream waits
    it = SyntheticAscend()
    it.kernel("a_MatMul", 0, 300_000)
    it.collective("hcom_allReduce__1", 300_000, 1_000_000)
    it.wait("Notify Wait", 310_000, 900_000, stream=4)
    it.wait("EVENT_WAIT", 300_000, 1_000_000)
    it.kernel("b_Add", 1_000_000, 1_100_000)
    findings = analyze(it.trace(tmp_path)).findings()
    told = [f for f in findings if f.code == "ascend.exposed_communication"]
    # THEN it wins its time, of which 400 µs of operators could hide a part
    assert told[0].gain is not None
    assert told[0].gain.time_ns == 700_000
    figures = {each.event.partition(",")[0]: each.figure for each in reversed(told[0].evidence)}
    assert told[0].numbers["time_ns"] == 700_000
    assert (figures["EVENT_WAIT"], figures["Notify Wait"]) == (700_000, 590_000)
    # AND the longest collective with its start, which another analysis found
    assert ("hcom_allReduce__1", 300_000) in {(e.event, e.time_ns) for e in told[0].evidence}
    # AND none of the others appears a second time
    codes = {each.code for each in findings}
    assert codes.isdisjoint(
        {"ascend.event_wait", "ascend.notify_wait", "device_use.exposed_communication"}
    )


def test_waits_for_other_ranks_are_distinguished(tmp_path: Path) -> None:
    it = SyntheticAscend()
    it.kernel("a_MatMul", 0, 300_000)
    it.collective("hcom_allReduce__1", 300_000, 1_000_000)
    it.wait("Notify Wait", 310_000, 900_000, stream=4)
    it.wait("Notify Wait", 310_000, 410_000, stream=5)
    found = waits_in(it.trace(tmp_path))
    # THEN their sum counts both planes, and the wall time only one
    kind = found.by_kind["notify"]
    assert (kind.count, kind.total_ns, kind.exposed_ns) == (2, 690_000, 590_000)
    assert found.largest[0].operator == "hcom_allReduce__1"
    assert kind.communicating_ns == 590_000
    assert found.findings() == []


def test_a_wait_for_other_ranks_outside_of_collectives_is_a_finding(tmp_path: Path) -> None:
    it = SyntheticAscend(level=0)
    it.kernel("a_MatMul", 0, 300_000)
    it.wait("Notify Wait", 310_000, 900_000, stream=4)
    it.kernel("b_Add", 900_000, 1_000_000)
    (finding,) = waits_in(it.trace(tmp_path)).findings()
    assert (finding.code, finding.severity) == ("ascend.notify_wait", "high")
    assert finding.numbers["time_ns"] == 590_000


def test_waits_hidden_by_computation_are_not_a_finding(tmp_path: Path) -> None:
    it = SyntheticAscend()
    it.kernel("a_MatMul", 0, 1_000_000)
    it.wait("EVENT_WAIT", 100_000, 900_000, stream=3)
    it.kernel("b_Add", 900_000, 910_000, stream=3)
    found = waits_in(it.trace(tmp_path))
    assert found.by_kind["event"].exposed_ns == 0
    assert found.findings() == []
    clean = SyntheticAscend()
    clean.kernel("a_MatMul", 0, 1_000_000)
    assert isinstance(ascend_waits.analyze(clean.trace(tmp_path)), Unavailable)


def item(it: SyntheticAscend, begin: int, wait: int, name: str = "aten::item") -> None:
    """An operator that waits for the device."""
    it.host(name, begin, begin + wait + 20_000)
    it.host("aten::_local_scalar_dense", begin + 5_000, begin + wait + 15_000)
    it.cann(SYNCHRONISE, begin + 10_000, begin + 10_000 + wait)


def test_item_and_to_are_named_with_their_waits(tmp_path: Path) -> None:
    # GIVEN three times item, during which the device is busy for a quarter, and once to
    it = SyntheticAscend()
    for number in range(3):
        begin = number * 1_000_000
        item(it, begin, 400_000)
        it.kernel("a_Mul", begin + 10_000, begin + 110_000)
    item(it, 3_000_000, 100_000, name="aten::to")
    it.host("aten::mm", 3_900_000, 4_000_000)
    found = host_waits_in(it.trace(tmp_path))
    assert [(g.operator, g.call, g.waits, g.total_ns, g.busy_ns) for g in found.groups] == [
        ("aten::item", SYNCHRONISE, 3, 1_200_000, 300_000),
        ("aten::to", SYNCHRONISE, 1, 100_000, 0),
    ]
    assert (found.total_ns, found.window_ns) == (1_300_000, 4_000_000)
    assert [(wait.operator, wait.time_ns, wait.wait_ns) for wait in found.longest] == [
        ("aten::item", 10_000, 400_000),
        ("aten::item", 1_010_000, 400_000),
        ("aten::item", 2_010_000, 400_000),
        ("aten::to", 3_010_000, 100_000),
    ]
    (finding,) = found.findings()
    assert (finding.code, finding.severity) == ("ascend.host_waits", "high")
    assert found.groups[0].label == f"aten::item ({SYNCHRONISE})"
    assert found.groups[0].label in finding.text
    assert finding.numbers == {
        "time_ns": 1_300_000,
        "percent": pytest.approx(32.5),
        "waits": 4,
        "worst_ns": 1_200_000,
        "worst_calls": 3,
        "busy_percent": 25,
    }


def test_a_wait_for_a_busy_device_has_less_weight(tmp_path: Path) -> None:
    it = SyntheticAscend()
    item(it, 0, 900_000)
    it.kernel("a_Mul", 0, 1_000_000)
    (finding,) = host_waits_in(it.trace(tmp_path)).findings()
    assert (finding.severity, finding.numbers["busy_percent"]) == ("low", 100)
    # AND nothing can be won, because the device worked all the time
    assert finding.gain is None


def test_on_level_0_the_time_of_operators_counts(tmp_path: Path) -> None:
    # GIVEN the same on level 0, a `to` of 5 ms, and one that is too short to have waited
    it = SyntheticAscend(level=0)
    item(it, 0, 2_000_000)
    it.host("aten::to", 3_000_000, 8_000_000)
    it.host("aten::copy_", 3_100_000, 7_900_000)
    it.host("aten::to", 9_000_000, 9_100_000)
    it.kernel("a_Mul", 0, 10_000_000)
    found = host_waits_in(it.trace(tmp_path))
    # THEN long operators are listed, the outermost of each, without a call
    assert [(g.operator, g.call, g.waits, g.total_ns) for g in found.groups] == [
        ("aten::to", None, 1, 5_000_000),
        ("aten::item", None, 1, 2_020_000),
    ]


def test_a_to_without_waiting_calls_is_not_a_wait(tmp_path: Path) -> None:
    it = SyntheticAscend()
    item(it, 0, 100_000)
    it.host("aten::to", 1_000_000, 9_000_000)
    it.kernel("a_Mul", 0, 10_000_000)
    found = host_waits_in(it.trace(tmp_path))
    assert [group.operator for group in found.groups] == ["aten::item"]
    assert found.findings() == []


def test_an_operator_that_overlaps_one_with_a_recorded_wait(tmp_path: Path) -> None:
    it = SyntheticAscend()
    item(it, 0, 2_000_000)
    it.host("aten::item", 2_010_000, 3_500_000)
    it.host("aten::is_nonzero", 2_020_000, 3_920_000)
    # GIVEN one on another thread at that time
    it.host("aten::item", 500_000, 1_700_000, tid=QUEUE)
    found = host_waits_in(it.trace(tmp_path))
    assert [(g.operator, g.call, g.waits, g.total_ns) for g in found.groups] == [
        ("aten::item", SYNCHRONISE, 1, 2_000_000),
        ("aten::is_nonzero", None, 1, 1_900_000),
        ("aten::item", None, 1, 1_200_000),
    ]


def test_many_long_operators(tmp_path: Path) -> None:
    it = SyntheticAscend()
    for number in range(5_000):
        item(it, 4_000_000 * number, 1_000_000)
        it.host("aten::item", 4_000_000 * number + 2_000_000, 4_000_000 * number + 3_500_000)
    trace = it.trace(tmp_path)
    found = host_waits_in(trace)
    assert [(g.call, g.waits) for g in found.groups] == [(None, 5_000), (SYNCHRONISE, 5_000)]


def test_a_trace_without_waits(tmp_path: Path) -> None:
    it = SyntheticAscend()
    it.host("aten::mm", 0, 10_000)
    it.kernel("a_Mul", 0, 10_000)
    assert isinstance(ascend_host_waits.analyze(it.trace(tmp_path)), Unavailable)
