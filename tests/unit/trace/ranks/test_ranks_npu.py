"""Ranks of Ascend, including folders with tables and without a trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from planted_ranks import US, codes_in, finding_in, ranks_in

from click_runner import cli_runner
from stagespan.cli import command
from stagespan.trace.paths import analyze_path

BEGIN_US = 1_736_408_883_000_000


def write_tables(
    folder: Path,
    rank: int,
    step: tuple[float, float, float],
    calls: list[tuple[str, float, float, float]],
    world: int | None = None,
    matrix: dict[str, Any] | None = None,
    kernels: str | None = None,
) -> Path:
    """A rank's folder without a trace, in us.

    `step` is its computing, exposed communication and free time; `calls` are name, begin, end and
    transit of its collectives.
    """
    root = folder / f"rank{rank}_ascend_pt"
    output = root / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    (root / f"profiler_info_{rank}.json").write_text(json.dumps({"config": {}, "rank_id": rank}))
    if world is not None:
        about = {"distributed_args": {"world_size": world, "rank": rank}}
        (root / "profiler_metadata.json").write_text(json.dumps(about))
    computing, exposed, free = step
    (output / "step_trace_time.csv").write_text(
        "Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
        "Communication(Not Overlapped and Exclude Receive),Preparing\n"
        f"1,{computing},{exposed},0,{exposed},{free},{sum(step)},0,{exposed},10\n"
    )
    operations = {
        f"{name}@1": {
            "Communication Time Info": {
                "Start Timestamp(us)": BEGIN_US + begin,
                "Elapse Time(ms)": (end - begin) / 1000,
                "Transit Time(ms)": transit / 1000,
            }
        }
        for name, begin, end, transit in calls
    }
    document = {"step1": {"collective": operations}}
    (output / "communication.json").write_text(json.dumps(document))
    if matrix is not None:
        (output / "communication_matrix.json").write_text(json.dumps(matrix))
    if kernels is not None:
        (output / "kernel_details.csv").write_text(kernels)
    return root


def names(count: int) -> list[str]:
    return [f"hcom_allReduce__586_{number}_1" for number in range(count)]


def test_ranks_with_only_tables(tmp_path: Path) -> None:
    # GIVEN three ranks without a trace, of which rank 2 computes longer, and arrives 300 µs later
    # at each of four all-reduces
    for rank in range(3):
        late = 300 if rank == 2 else 0
        calls = [(name, 1_000.0 * n + late, 1_000.0 * n + 400, 50.0)
                 for n, name in enumerate(names(4), 1)]  # fmt: skip
        step = (2_000.0 + 4 * late, 4 * (400.0 - late), 500.0)
        write_tables(tmp_path, rank, step, calls, world=3)
    found = ranks_in(tmp_path)
    assert (found.numbers, found.world_size, found.missing) == ([0, 1, 2], 3, [])
    assert found.matched.count == 4
    assert found.waits.waited_ns.tolist() == [4 * 300 * US, 4 * 300 * US, 0]
    late_rank = finding_in(found, "ranks.late")
    assert (late_rank.numbers["rank"], late_rank.numbers["waited_percent"]) == (2, 100)
    written = found.to_dict()
    assert written["imbalance"]["ranks"] == [2]
    assert [row["parts_us"]["computing"] for row in written["ranks"]] == [2_000, 2_000, 3_200]
    assert [row["computed_us"] for row in written["ranks"]] == [None] * 3
    assert "ranks.imbalance" in codes_in(found)
    # THEN no reason for its lateness is invented
    because = written["ranks"][2]["late_because_us"]
    assert because["unknown"] == sum(because.values()) == 2 * 4 * 300


def test_a_rank_with_its_kernels_shows_what_it_computed(tmp_path: Path) -> None:
    for rank in range(2):
        late = 300 if rank else 0
        calls = [(name, 1_000.0 * n + late, 1_000.0 * n + 400, 50.0)
                 for n, name in enumerate(names(4), 1)]  # fmt: skip
        rows = [f"1,0,a,Mul,AI_CORE,{BEGIN_US + 1_000 * n + 500},{400 + late}" for n in range(1, 4)]
        head = "Step Id,Device_id,Name,Type,Accelerator Core,Start Time(us),Duration(us)"
        kernels = "\n".join([head, *rows]) + "\n"
        write_tables(tmp_path, rank, (1_200.0, 1_600.0, 0.0), calls, kernels=kernels)
    written = ranks_in(tmp_path).to_dict()
    # THEN this is the reason for the waiting, except for the first, before which nothing is known
    because = written["ranks"][1]["late_because_us"]
    assert because["computing"] == 3 * 300
    assert because["unknown"] == 300


def test_ranks_that_wait_for_missing_ones(tmp_path: Path) -> None:
    # GIVEN two ranks that arrive together at all-reduces of 900 µs in which data moves for 20 µs,
    # in a group of four
    pairs = {f"0-{other}": {} for other in range(4)}
    matrix = {"step1": {"collective": {"allreduce-total@1": pairs}}}
    for rank in range(2):
        calls = [(name, 1_000.0 * n, 1_000.0 * n + 900, 20.0)
                 for n, name in enumerate(names(3), 1)]  # fmt: skip
        write_tables(tmp_path, rank, (300.0, 2_700.0, 0.0), calls, matrix=matrix)
    found = ranks_in(tmp_path)
    assert (found.world_size, found.missing) == (4, [2, 3])
    assert [each.still_ns for each in found.waits.instances] == [880 * US] * 3
    (finding,) = found.findings()
    assert (finding.code, finding.severity) == ("ranks.exposed_communication", "high")
    assert finding.numbers["percent"] == pytest.approx(90)
    assert "2, 3" in finding.text
    assert [each.figure for each in finding.evidence][-1] == 880 * US


def test_a_transit_longer_than_the_collective_leaves_no_time(tmp_path: Path) -> None:
    for rank in range(2):
        calls = [(name, 1_000.0 * n, 1_000.0 * n + 900, 950.0)
                 for n, name in enumerate(names(3), 1)]  # fmt: skip
        write_tables(tmp_path, rank, (300.0, 2_700.0, 0.0), calls)
    assert [each.still_ns for each in ranks_in(tmp_path).waits.instances] == [0, 0, 0]


def test_a_transit_of_zero_is_ignored(tmp_path: Path) -> None:
    for rank in range(2):
        calls = [(name, 1_000.0 * n, 1_000.0 * n + 900, 0.0)
                 for n, name in enumerate(names(3), 1)]  # fmt: skip
        write_tables(tmp_path, rank, (300.0, 2_700.0, 0.0), calls)
    # THEN nothing is reported about data that did not move
    found = ranks_in(tmp_path)
    assert {each.still_ns for each in found.waits.instances} == {None}
    assert codes_in(found) == ["ranks.exposed_communication"]


def test_a_folder_without_steps_is_left_out(tmp_path: Path) -> None:
    for rank in range(3):
        calls = [(name, 1_000.0, 1_900.0, 20.0) for name in names(1)]
        root = write_tables(tmp_path, rank, (300.0, 900.0, 0.0), calls)
    (root / "ASCEND_PROFILER_OUTPUT" / "step_trace_time.csv").write_text("Step,Computing\n1,N/A\n")
    found = ranks_in(tmp_path)
    assert found.numbers == [0, 1]
    assert [each.path for each in found.unreadable] == [str(root)]


def test_tables_cannot_be_merged(tmp_path: Path) -> None:
    for rank in range(2):
        write_tables(tmp_path / "job", rank, (300.0, 900.0, 0.0), [])
    result = cli_runner().invoke(
        command, ["analyze", str(tmp_path / "job"), "--merge", str(tmp_path / "merged.json")]
    )
    assert result.exit_code == 2
    assert "trace_view.json" in result.stderr
    assert not (tmp_path / "merged.json").exists()


def test_four_real_ranks_without_a_trace(more_traces: Path) -> None:
    found = ranks_in(more_traces / "ascend_st_level2")
    assert (found.numbers, found.world_size, found.missing) == ([0, 1, 2, 3], 4, [])
    assert found.matched.count == 28
    # THEN their computing and exposed communication equal those of step_trace_time.csv
    parts = [found.usage(at) for at in range(4)]
    assert [each["computing"] for each in parts] == [231_290_100, 230_903_720, 400_448_260,
                                                     401_131_700]  # fmt: skip
    assert [each["waiting"] + each["communicating"] for each in parts] == [
        420_174_260, 441_708_380, 277_649_660, 261_498_440,
    ]  # fmt: skip
    # AND ranks 2 and 3 compute 1.73 times as long: 400.8 against 231.1 ms
    written = found.to_dict()
    assert written["imbalance"]["ranks"] == [2, 3]
    assert written["imbalance"]["times_the_others"] == pytest.approx(1.734, abs=0.001)
    imbalance = finding_in(found, "ranks.imbalance")
    assert imbalance.numbers["times"] == written["imbalance"]["times_the_others"]
    assert [row["pipeline_stage"] for row in written["ranks"]] == [0, 0, 1, 1]
    # AND no share is above 100 %
    assert 0 < written["lost_percent"] < 100
    for at, exposed in enumerate((51.9, 54.6, 34.3, 32.3)):
        page = analyze_path(more_traces / "ascend_st_level2" / f"rank_{at}_ascend_pt")
        codes = {each.code: each for each in page.findings()}
        percent = codes["ascend.exposed_communication"].numbers["percent"]
        assert percent == pytest.approx(exposed, abs=0.05)
        row = written["ranks"][at]
        assert 100 * row["stage_exposed_comm_us"] / row["stage_us"] == pytest.approx(
            exposed, abs=0.05
        )
