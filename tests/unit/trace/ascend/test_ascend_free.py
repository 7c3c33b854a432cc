"""Why an Ascend device was free: synthetic traces in which the host is late for one reason each."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import checked
from synthetic_ascend import QUEUE, SyntheticAscend

from stagespan.pages.result import Unavailable
from stagespan.trace.ascend import free_time as ascend_free
from stagespan.trace.ascend.free_time import Free
from stagespan.trace.ascend.operators import cores


def free_in(it: SyntheticAscend, folder: Path) -> Free:
    return checked(ascend_free.analyze(it.trace(folder)), Free)


def test_a_gap_is_split_along_the_next_operators_way(tmp_path: Path) -> None:
    # GIVEN a gap from 100 to 1,000 µs: requested at 400, taken at 550, launched until 750
    it = SyntheticAscend()
    it.kernel("a_Mul", 0, 100_000)
    it.kernel(
        "b_Mul",
        1_000_000,
        1_200_000,
        launched=(600_000, 750_000),
        tid=QUEUE,
        queued=(400_000, 550_000),
    )
    found = free_in(it, tmp_path)
    assert found.parts == {
        "framework": 300_000,
        "launched": 250_000,
        "launching": 200_000,
        "task_queue": 150_000,
    }
    assert sum(found.parts.values()) == found.free_ns == 900_000
    assert (found.host_ns, found.span_ns, found.gaps) == (650_000, 1_200_000, 1)
    (gap,) = found.largest
    assert (gap.begin_ns, gap.time_ns, gap.following) == (100_000, 900_000, "b_Mul")


def test_level_0_shows_where_calls_began(tmp_path: Path) -> None:
    it = SyntheticAscend(level=0)
    it.kernel("a_Mul", 0, 100_000)
    queued = (400_000, 550_000)
    launched = (600_000, 750_000)
    it.kernel("b_Mul", 1_000_000, 1_200_000, launched=launched, tid=QUEUE, queued=queued)
    found = free_in(it, tmp_path)
    assert found.parts == {
        "launched": 400_000,
        "framework": 300_000,
        "task_queue": 150_000,
        "launching": 50_000,
    }


@pytest.mark.parametrize(
    ("launched", "queued", "part"),
    [
        ((970_000, 980_000), (950_000, 960_000), "framework"),
        ((970_000, 980_000), (50_000, 960_000), "task_queue"),
        ((70_000, 980_000), (50_000, 60_000), "launching"),
    ],
)
def test_host_bound_says_which_part_of_the_host(
    launched: tuple[int, int], queued: tuple[int, int], part: str, tmp_path: Path
) -> None:
    # GIVEN operators of 5 µs with 900 µs between them, all late for one reason
    it = SyntheticAscend()
    for number in range(10):
        at = number * 1_000_000
        it.kernel(
            "a_Mul",
            at + 1_000_000,
            at + 1_005_000,
            launched=(at + launched[0], at + launched[1]),
            tid=QUEUE,
            queued=(at + queued[0], at + queued[1]),
        )
    found = free_in(it, tmp_path)
    assert max(found.parts, key=lambda name: found.parts[name]) == part
    (finding,) = found.findings()
    assert (finding.code, finding.severity) == ("ascend.host_bound", "high")
    assert finding.numbers["worst_ns"] == found.parts[part]
    assert finding.gain is not None
    assert (finding.gain.time_ns, finding.gain.at_most) == (found.host_ns, True)
    assert (finding.numbers["short_operators"], finding.numbers["operators"]) == (10, 10)
    assert finding.evidence[0].event == "free before a_Mul"


def test_work_that_was_launched_in_time_is_not_the_hosts(tmp_path: Path) -> None:
    it = SyntheticAscend()
    for number in range(5):
        at = number * 100_000
        it.kernel("a_Mul", at, at + 50_000, launched=(1_000 * number, 1_000 * number + 500))
    found = free_in(it, tmp_path)
    assert found.parts == {"launched": 200_000}
    (finding,) = found.findings()
    assert (finding.code, finding.numbers["time_ns"]) == ("ascend.late_start", 200_000)
    assert finding.gain is not None
    assert finding.gain.time_ns == 200_000


def test_copies_are_reported_as_free_time(tmp_path: Path) -> None:
    it = SyntheticAscend()
    it.kernel("a_Mul", 0, 100_000)
    it.wait("MEMCPY_ASYNC", 100_000, 150_000)
    it.kernel("b_Mul", 160_000, 260_000)
    found = free_in(it, tmp_path)
    assert found.parts == {"copying": 50_000, "unknown": 10_000}
    assert found.free_ns == 60_000
    assert found.findings() == []


def test_a_busy_device_has_no_finding(tmp_path: Path) -> None:
    it = SyntheticAscend()
    for number in range(20):
        at = number * 100_000
        it.kernel("a_Mul", at, at + 99_000, launched=(at, at + 1_000))
    found = free_in(it, tmp_path)
    assert found.free_ns == 19_000
    assert found.findings() == []
    empty = SyntheticAscend()
    empty.host("aten::mm", 0, 1_000)
    assert isinstance(ascend_free.analyze(empty.trace(tmp_path)), Unavailable)


def test_operators_of_the_ai_cpu_are_named(tmp_path: Path) -> None:
    # GIVEN a trace in which two operators of nine run on the AI CPU, for 30 % of the time
    it = SyntheticAscend()
    for number in range(7):
        it.kernel("a_Mul", number * 100_000, number * 100_000 + 100_000)
    it.kernel("b_Nonzero", 700_000, 900_000, core="AI_CPU")
    it.kernel("c_Unique", 900_000, 1_000_000, core="AI_CPU")
    found = cores(it.trace(tmp_path))
    assert found.to_dict()["cores"] == [
        {"core": "AI_CORE", "operators": 7, "total_us": 700.0},
        {"core": "AI_CPU", "operators": 2, "total_us": 300.0},
    ]
    (finding,) = found.findings()
    assert (finding.code, finding.severity) == ("ascend.ai_cpu", "medium")
    assert finding.numbers == {"operators": 2, "time_ns": 300_000, "percent": 30}
    assert finding.gain is not None
    assert (finding.gain.time_ns, finding.gain.at_most) == (300_000, True)
    assert [each.event for each in finding.evidence] == ["b_Nonzero", "c_Unique"]
    it = SyntheticAscend()
    it.kernel("a_Mul", 0, 100_000)
    assert cores(it.trace(tmp_path)).findings() == []
