"""Steps on an Ascend device: three ways to the same figures, and files that disagree."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from commands import checked
from msgspec import structs
from synthetic_ascend import QUEUE, SyntheticAscend

from stagespan.pages.result import Line, Unavailable
from stagespan.trace import read_trace
from stagespan.trace.ascend import free_time as ascend_free
from stagespan.trace.ascend import steps as ascend_steps
from stagespan.trace.ascend.steps import AscendSteps
from stagespan.trace.read.csv_tables import read_table
from stagespan.trace.read.intervals import merged, minus

# Computing, not overlapped, overlapped, communication, free, stage, bubble, without receive,
# preparing.
FIRST = (350_000, 100_000, 50_000, 150_000, 450_000, 900_000, 0, 100_000, 200_000)
SECOND = (200_000, 60_000, 0, 60_000, 40_000, 240_000, 60_000, 0, 100_000)


def program() -> SyntheticAscend:
    """Two steps; a collective overlaps a kernel in the first, the second receives."""
    it = SyntheticAscend()
    it.host("ProfilerStep#7", 0, 1_000_000)
    it.host("aten::mm", 10_000, 100_000)
    it.kernel("mm_MatMulV2", 200_000, 400_000, launched=(50_000, 60_000))
    it.kernel("add_Add", 500_000, 650_000, launched=(90_000, 95_000))
    it.collective("hcom_allReduce__1", 600_000, 750_000)
    it.kernel("add_Add", 500_000, 520_000, stream=3, launched=(80_000, 85_000))
    # Free time from a step's last work to the next work belongs to the step until it ends.
    it.collective("hcom_allReduce__2", 800_000, 800_000)
    it.host("ProfilerStep#8", 1_000_000, 1_500_000)
    it.kernel("mm_MatMulV2", 1_100_000, 1_300_000, launched=(1_020_000, 1_030_000))
    it.collective("hcom_receive__1", 1_340_000, 1_400_000)
    return it


def steps_of(
    folder: Path, rows: dict[str, tuple[int, ...]] | None, overlap: bool = True
) -> AscendSteps:
    it = program()
    trace = it.trace(folder, overlap=overlap)
    table = None
    if rows is not None:
        path = it.write(folder, rows) / "ASCEND_PROFILER_OUTPUT" / "step_trace_time.csv"
        table = read_table(path)
    return checked(ascend_steps.analyze(trace, table), AscendSteps)


def figures(steps: AscendSteps) -> list[tuple[int | None, ...]]:
    return [tuple(step.times().values()) for step in steps.steps]


def test_the_overlap_analysis_and_operators_give_the_same_steps(tmp_path: Path) -> None:
    # GIVEN two steps with figures known by hand
    found = steps_of(tmp_path, None)
    assert found.source == "tracks"
    assert [step.step for step in found.steps] == ["7", "8"]
    # THEN these are the figures; the time from the last work of a step to the next is the first's
    assert figures(found) == [FIRST, SECOND]
    without = steps_of(tmp_path, None, overlap=False)
    assert without.source == "operators"
    assert figures(without) == [FIRST, SECOND]
    assert found.differences == []


def test_differences_from_the_file_are_reported(tmp_path: Path) -> None:
    # GIVEN a step_trace_time.csv with these figures
    (tmp_path / "a").mkdir()
    found = steps_of(tmp_path / "a", {"7": FIRST, "8": SECOND})
    assert found.differences == []
    assert list(found.to_dict()["checked_against"]) == ["operators", "file"]
    # THEN GIVEN one with 2 ns more computing, which is more than 1e-6 of it
    (tmp_path / "b").mkdir()
    changed = (350_002, *FIRST[1:])
    found = steps_of(tmp_path / "b", {"7": changed, "8": SECOND})
    (difference,) = found.differences
    assert (difference.figure, difference.step) == ("Computing", "step 7")
    assert (difference.time_ns, difference.other_ns) == (350_000, 350_002)
    (finding,) = [f for f in found.findings() if f.code == "ascend.steps_differ_from_file"]
    assert finding.severity == "medium"
    assert finding.numbers == {"differences": 1}
    assert finding.evidence[0].figure == 2


def test_stage_and_preparing_have_the_precision_of_the_file(tmp_path: Path) -> None:
    # GIVEN a file whose Stage is off by the rounding error of a double for today's time
    first = (*FIRST[:5], 900_250, 0, 100_000, 199_750)
    found = steps_of(tmp_path, {"7": first, "8": SECOND})
    assert found.differences == []


def test_an_overlap_analysis_that_does_not_fit_the_operators_is_found(tmp_path: Path) -> None:
    it = program()
    entries = it.entries()
    name = next(e for e in entries if e.get("name") == "Computing")
    name["dur"] += 10
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(entries))
    found = ascend_steps.analyze(read_trace(path))
    assert isinstance(found, AscendSteps)
    assert [d.figure for d in found.differences] == ["Computing"]


def test_without_steps_the_whole_trace_is_one(tmp_path: Path) -> None:
    it = SyntheticAscend()
    it.host("aten::mm", 30_000, 90_000)
    it.kernel("mm_MatMulV2", 130_000, 150_000)
    found = ascend_steps.analyze(it.trace(tmp_path))
    assert isinstance(found, AscendSteps)
    assert found.steps[0].name == "the whole trace"
    assert figures(found) == [(20_000, 0, 0, 0, 0, 20_000, 0, 0, 100_000)]


def test_queued_launches_belong_to_the_step_that_requested_them(tmp_path: Path) -> None:
    # GIVEN work that the first step requests, and that ends after the second's start
    it = SyntheticAscend()
    it.host("ProfilerStep#0", 0, 100_000)
    queued = (20_000, 40_000)
    it.kernel("a_Mul", 150_000, 250_000, launched=(50_000, 60_000), tid=QUEUE, queued=queued)
    it.host("ProfilerStep#1", 100_000, 300_000)
    it.kernel("b_Mul", 260_000, 290_000, launched=(110_000, 120_000))
    found = ascend_steps.analyze(it.trace(tmp_path))
    assert isinstance(found, AscendSteps)
    assert [step.computing_ns for step in found.steps] == [100_000, 30_000]
    assert [step.free_ns for step in found.steps] == [0, 0]


def test_much_free_time_without_a_trace_has_a_finding(tmp_path: Path) -> None:
    # GIVEN a folder whose files say that the device was free for 30 %, or for 5 %
    for free, severities in ((300, ["medium"]), (35, [])):
        file = tmp_path / "step_trace_time.csv"
        file.write_text(f"Step,Computing,Communication(Not Overlapped),Free\n1,600,100,{free}\n")
        found = ascend_steps.analyze(SyntheticAscend().trace(tmp_path), read_table(file))
        assert [finding.severity for finding in found.findings()] == severities
    it = SyntheticAscend()
    it.kernel("a_Mul", 0, 10_000)
    it.kernel("a_Mul", 100_000, 110_000)
    assert ascend_steps.analyze(it.trace(tmp_path)).findings() == []
    (finding,) = ascend_free.analyze(it.trace(tmp_path)).findings()
    assert (finding.code, finding.severity) == ("ascend.free_unexplained", "high")
    assert finding.evidence[0].figure == finding.numbers["time_ns"] == 90 * 1_000


def test_the_screen_has_a_line_a_step(tmp_path: Path) -> None:
    found = steps_of(tmp_path, None)
    assert found.head()[0] == Line(
        "step 7: computing 350 µs, communicating alone 100 µs, free 450 µs,"
        " stage 900 µs, preparing 200 µs"
    )
    many = structs.replace(found, steps=found.steps * 5)
    assert many.head()[4:] == [Line("and 6 more: see --markdown")]


def test_devices_are_distinguished(tmp_path: Path) -> None:
    entries = []
    for device in (0, 1):
        it = SyntheticAscend()
        it.kernel("a_Mul", 0, 100_000 + 50_000 * device)
        it.kernel("b_Mul", 200_000, 250_000)
        for entry in it.entries():
            if entry["name"] == "process_labels" and entry["args"]["labels"] == "NPU":
                entry["args"]["labels"] = f"NPU {device}"
            entries.append(entry | {"pid": entry["pid"] + 10_000 * device})
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(entries))
    (tmp_path / "step_trace_time.csv").write_text(
        "Device_id,Step,Computing,Free\n0,,150,100\n1,,200.1,50\n"
    )
    table = read_table(tmp_path / "step_trace_time.csv")
    found = ascend_steps.analyze(read_trace(path), table)
    assert isinstance(found, AscendSteps)
    assert [(s.device, s.computing_ns, s.free_ns) for s in found.steps] == [
        ("0", 150_000, 100_000),
        ("1", 200_000, 50_000),
    ]
    (difference,) = found.differences
    assert (difference.step, difference.figure) == ("the whole trace, device 1", "Computing")


def test_a_trace_without_a_device(tmp_path: Path) -> None:
    it = SyntheticAscend()
    it.host("aten::mm", 0, 10)
    assert isinstance(ascend_steps.analyze(it.trace(tmp_path)), Unavailable)


@pytest.mark.parametrize("seed", range(20))
def test_differences_of_intervals_against_counting(seed: int) -> None:
    draw = random.Random(seed)
    sets = []
    for _ in range(2):
        begin = np.array([draw.randrange(60) for _ in range(draw.randrange(8))], dtype=np.int64)
        sets.append(merged(begin, begin + draw.randrange(1, 9)))
    begin, end = minus(*sets)
    # THEN the result contains the moments that only the first contains
    points = [
        {p for b, e in zip(*map(list, each), strict=True) for p in range(b, e)} for each in sets
    ]
    left = {p for b, e in zip(begin, end, strict=True) for p in range(b, e)}
    assert left == points[0] - points[1]
