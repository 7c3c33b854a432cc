"""Real-world folders: ranks that are missing, duplicated or unnumbered, other jobs, other files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from planted_ranks import US, ranks_in, together, write_rank

from stagespan.errors import TraceError
from stagespan.trace.ranks.find import traces_in
from stagespan.trace.ranks.summary import RankSummary, summarise

CALLS = [("AllReduce_Sum_f32", 100.0 + 1_000 * n, 150.0 + 1_000 * n) for n in range(4)]


@pytest.mark.parametrize(
    "name",
    [
        "rank3.json",
        "rank_3_trace.json.gz",
        "trace_rank3.json",
        "worker3_step_12.169.pt.trace.json.gz",
        "Rank-3.JSON",
        "trace-r3.json",
        "stage_rank3_trace.json.gz",
        "3.json",
        "trace_3.json",
        "rank3/trace.json",
    ],
)
def test_ranks_from_names(name: str, tmp_path: Path) -> None:
    write_rank(tmp_path, 0, CALLS, info=False, name=name.replace("3", "0", 1))
    write_rank(tmp_path, 3, CALLS, info=False, name=name)
    found = ranks_in(tmp_path)
    assert found.numbers == [0, 3]
    assert {each.rank_from for each in found.summaries} == {"name"}
    assert found.missing == [1, 2]


def test_the_content_of_a_trace_has_priority_over_its_name(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, CALLS, world=2, name="rank1.json")
    write_rank(tmp_path, 1, CALLS, world=2, name="rank0.json")
    found = ranks_in(tmp_path)
    assert [Path(each.path).name for each in found.summaries] == ["rank1.json", "rank0.json"]


@pytest.mark.parametrize(
    "info",
    [
        {"rank": 10**30, "world_size": 10**30},
        {"rank": True, "world_size": True},
        {"rank": -1, "world_size": -2},
        "{'rank': " + "9" * 5_000 + ", 'world_size': " + "9" * 5_000 + "}",
    ],
    ids=["huge", "bool", "negative", "endless"],
)
def test_impossible_ranks(info: object, tmp_path: Path) -> None:
    for rank in range(2):
        path = write_rank(tmp_path, rank, CALLS, name=f"rank{rank}.json")
        whole = json.loads(path.read_text())
        whole["distributedInfo"] = info
        path.write_text(json.dumps(whole))
    found = ranks_in(tmp_path)
    assert found.numbers == [0, 1]
    assert {each.rank_from for each in found.summaries} == {"name"}
    assert {each.world_size for each in found.summaries} == {None}


def test_ranks_that_are_written_as_text(tmp_path: Path) -> None:
    for rank in range(3):
        path = write_rank(tmp_path, rank, CALLS, name=f"x{rank}y.json")
        whole = json.loads(path.read_text())
        whole["distributedInfo"] = {"rank": str(rank), "world_size": " 4 "}
        path.write_text(json.dumps(whole))
    found = ranks_in(tmp_path)
    assert (found.numbers, found.world_size, found.missing) == ([0, 1, 2], 4, [3])
    assert {each.rank_from for each in found.summaries} == {"metadata"}


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (["1718116821.77-TP-0.trace", "1718116821.77-TP-1.trace"], [0, 1]),
        (["1-TP-0-DP-0-PP-0-EP-0", "1-TP-1-DP-0-PP-0-EP-1"], [0, 1]),
        (["TP-0-DP-0", "TP-1-DP-0", "TP-0-DP-1", "TP-1-DP-1"], [0, 1, 2, 3]),
        # Data parallelism within tensor parallelism.
        (["TP-0-DP-0", "TP-1-DP-0", "TP-2-DP-1", "TP-3-DP-1"], [0, 1, 2, 3]),
        (["tp0_pp1_a", "tp0_pp0_a", "tp1_pp0_a"], [2, 0, 1]),
    ],
)
def test_names_with_places_in_groups(names: list[str], ranks: list[int], tmp_path: Path) -> None:
    for number, name in enumerate(names):
        write_rank(tmp_path, number, CALLS, info=False, name=f"{name}.json")
    found = ranks_in(tmp_path)
    by_name = {Path(each.path).name.removesuffix(".json"): each.rank for each in found.summaries}
    assert [by_name[name] for name in names] == ranks


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (["node0_rank0", "node0_rank1", "node1_rank0", "node1_rank1"], [0, 1, 2, 3]),
        (["host-7/rank1", "host-7/rank0", "host-12/rank0"], [1, 0, 2]),
        # The ranks of all nodes are numbered.
        (["node0_rank0", "node1_rank1"], [0, 1]),
        (["node0_rank0", "node1_rank1", "node1_rank2"], [0, 1, 2]),
    ],
)
def test_names_with_the_ranks_of_each_node(
    names: list[str], ranks: list[int], tmp_path: Path
) -> None:
    for number, name in enumerate(names):
        path = tmp_path / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        write_rank(path.parent, number, CALLS, info=False, name=path.name)
    found = ranks_in(tmp_path)
    by_name = {
        Path(each.path).relative_to(tmp_path).as_posix().removesuffix(".json"): each.rank
        for each in found.summaries
    }
    assert [by_name[name] for name in names] == ranks
    assert not found.duplicated
    is_told = any("those of a node are neighbours" in remark for remark in found.remarks)
    assert is_told == (len({name[-1] for name in names}) < len(names))


def test_one_file_of_a_node_twice_is_a_duplicate(tmp_path: Path) -> None:
    for number, name in enumerate(["node0_rank0", "node0_rank0.again", "node1_rank0"]):
        write_rank(tmp_path, number, CALLS, info=False, name=f"{name}.json")
    with pytest.raises(TraceError, match="are not those of the ranks of one job"):
        ranks_in(tmp_path)


@pytest.mark.parametrize("inside", [True, False])
def test_raw_data_of_an_ascend_profiler_is_named(inside: bool, tmp_path: Path) -> None:
    raw = tmp_path / "PROF_000001_20260101120000000_ABC"
    (raw / "device_0" / "data").mkdir(parents=True)
    (raw / "device_0" / "data" / "aicore.data.0.slice_0").write_bytes(bytes(64))
    with pytest.raises(TraceError, match="contains only raw data of an Ascend profiler: parse it"):
        ranks_in(raw if inside else tmp_path)


@pytest.mark.parametrize("host", ["r1t0{}", "gpu4b{}", "worker2node{}"])
def test_a_number_that_letters_follow_is_not_a_rank(host: str, tmp_path: Path) -> None:
    for number in range(3):
        name = f"{host.format(number)}_4917{number}.17181168217.pt.trace.json"
        write_rank(tmp_path, number, CALLS, info=False, name=name)
    # WHEN the ranks are analysed together THEN they have no rank, instead of all the same one
    with pytest.raises(TraceError, match="None of the 3 traces"):
        ranks_in(tmp_path)


def test_a_time_is_not_a_rank(tmp_path: Path) -> None:
    for n in range(2):
        write_rank(tmp_path, n, CALLS, info=False, name=f"trace-1700000{n}00000.json")
    with pytest.raises(TraceError, match="None of the 2 traces"):
        ranks_in(tmp_path)


def test_an_ascend_folder_of_an_impossible_rank(tmp_path: Path) -> None:
    for name in ("profiler_info_99999999999.json", "profiler_info_7000000.json"):
        folder = tmp_path / name.removesuffix(".json")
        folder.mkdir()
        write_rank(folder, 0, CALLS, info=False, name="trace_view.json")
        (folder / name).write_text("{}")
        found = summarise(folder, tmp_path)
        assert isinstance(found, RankSummary)
        assert found.rank is None


def test_the_rank_of_profiler_info_json(tmp_path: Path) -> None:
    for rank in (3, 5):
        folder = tmp_path / f"host_{900 + rank}_ascend_pt"
        folder.mkdir()
        write_rank(folder, rank, CALLS, info=False, name="trace_view.json")
        (folder / "profiler_info.json").write_text(json.dumps({"config": {}, "rank_id": rank}))
    found = ranks_in(tmp_path)
    assert found.numbers == [3, 5]
    assert {each.rank_from for each in found.summaries} == {"metadata"}


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    for rank in (0, 2):
        write_rank(tmp_path, rank, CALLS, world=5)
    found = ranks_in(tmp_path)
    assert found.missing == [1, 3, 4]
    assert found.remarks[0].startswith("3 of 5 ranks are missing: 1, 3, 4.")


def test_one_rank_alone(tmp_path: Path) -> None:
    write_rank(tmp_path, 1, CALLS, world=2)
    found = ranks_in(tmp_path)
    # THEN nothing is reported about others
    assert {each.code for each in found.findings()} <= {"ranks.exposed_communication"}
    assert found.matched.count == 0
    assert found.numbers == [1]
    assert found.to_dict()["ranks"][0]["last_in"] is None


def test_several_files_of_a_rank(tmp_path: Path) -> None:
    # GIVEN a rank with two traces, one of which is an hour older than those of the others
    early = [(op, begin - 3.6e9, end - 3.6e9) for op, begin, end in CALLS]
    write_rank(tmp_path, 0, early, world=2, name="rank0_a.json", clock=4e9, begin=-3.6e9)
    write_rank(tmp_path, 0, CALLS, world=2, name="rank0_b.json", clock=4e9)
    write_rank(tmp_path, 1, CALLS, world=2, clock=4e9)
    found = ranks_in(tmp_path)
    assert [Path(path).name for path in found.duplicated[0]] == ["rank0_a.json"]
    assert Path(found.summaries[0].path).name == "rank0_b.json"
    (remark,) = found.remarks
    assert "rank0_b.json" in remark
    assert found.matched.count == 4


def test_several_stages_of_each_rank(tmp_path: Path) -> None:
    for rank in range(3):
        late = [(op, begin + 5e6 * rank, end + 5e6 * rank) for op, begin, end in CALLS]
        write_rank(tmp_path, rank, late, world=3, name=f"dit_rank{rank}.json", begin=5e6 * rank)
        if rank:
            write_rank(tmp_path, rank, CALLS, world=3, name=f"vae_rank{rank}.json")
    found = ranks_in(tmp_path)
    names = [Path(each.path).name for each in found.summaries]
    assert names == ["dit_rank0.json", "dit_rank1.json", "dit_rank2.json"]


def test_a_copy_of_a_rank(tmp_path: Path) -> None:
    for rank in range(2):
        write_rank(tmp_path, rank, CALLS, world=2)
    shutil.copy(tmp_path / "rank0.json.gz", tmp_path / "rank0_copy.json.gz")
    found = ranks_in(tmp_path)
    assert found.numbers == [0, 1]
    assert len(found.duplicated[0]) == 1


def test_files_that_are_not_traces(tmp_path: Path) -> None:
    for rank in range(2):
        write_rank(tmp_path, rank, CALLS, world=2)
    whole = write_rank(tmp_path, 2, CALLS, world=3, name="rank2.json").read_bytes()
    (tmp_path / "rank2.json").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "breakdown.json").write_text(json.dumps({"name": "x"}))
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "notes.txt").write_text("no trace")
    (tmp_path / "other.json.gz").write_bytes(b"\x1f\x8bnot gzip")
    found = ranks_in(tmp_path)
    assert found.numbers == [0, 1, 2]
    assert [Path(each.path).name for each in found.unreadable] == [
        "breakdown.json",
        "empty.json",
        "other.json.gz",
    ]
    assert [each.incomplete is not None for each in found.summaries] == [False, False, True]
    for name in ("breakdown.json", "empty.json", "other.json.gz"):
        assert sum(name in each for each in found.remarks) == 1
    assert len(found.remarks) == 4


def test_a_folder_without_traces(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="contains no traces: pass a folder"):
        traces_in(tmp_path)
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(TraceError, match=r"No trace in .* can be read; the first problem"):
        ranks_in(tmp_path)


@pytest.mark.parametrize(
    ("pid", "begin", "is_one"), [(7, 5e6, True), (8, 5e6, False), (7, 50.0, False)]
)
def test_two_traces_of_one_process_are_not_ranks(
    pid: int, begin: float, is_one: bool, tmp_path: Path
) -> None:
    # GIVEN windows of training and validation, two processes, and two at the same time
    for name, process, first in (("fit-train.json", 7, 0.0), ("fit-validate.json", pid, begin)):
        about = {"ph": "X", "name": "aten::mm", "cat": "cpu_op", "pid": process, "tid": 1}
        events = [{**about, "ts": first + 100 * number, "dur": 90} for number in range(5)]
        (tmp_path / name).write_text(json.dumps({"host_name": "node", "traceEvents": events}))
    with pytest.raises(TraceError) as caught:
        ranks_in(tmp_path)
    assert ("are of one process" in str(caught.value)) == is_one
    assert ("contains its rank" in str(caught.value)) != is_one


def test_traces_without_any_rank(tmp_path: Path) -> None:
    for name in ("before.json", "after.json"):
        write_rank(tmp_path, 0, CALLS, info=False, name=name)
    with pytest.raises(TraceError, match=r"None of the 2 traces in .* contains its rank"):
        ranks_in(tmp_path)
    # Traces with a rank are analysed; the others are listed.
    write_rank(tmp_path, 0, CALLS, world=2)
    write_rank(tmp_path, 1, CALLS, world=2)
    found = ranks_in(tmp_path)
    assert found.numbers == [0, 1]
    assert [Path(each).name for each in found.without_rank] == ["after.json", "before.json"]
    (remark,) = found.remarks
    assert "after.json, before.json" in remark


def test_traces_of_other_jobs(tmp_path: Path) -> None:
    for rank in range(2):
        write_rank(tmp_path, rank, CALLS, world=2)
    write_rank(tmp_path, 0, CALLS, world=8, name="other_rank0.json")
    found = ranks_in(tmp_path)
    assert (found.world_size, found.numbers, found.missing) == (2, [0, 1], [])
    (remark,) = found.remarks
    assert "other_rank0.json" in remark


def test_unrelated_traces(tmp_path: Path) -> None:
    for world in (2, 4, 8):
        write_rank(tmp_path, 0, CALLS, world=world, name=f"run{world}_rank0.json")
    with pytest.raises(TraceError, match="are not those of the ranks of one job"):
        ranks_in(tmp_path)


def test_real_traces_of_many_programs(traces: Path) -> None:
    with pytest.raises(TraceError, match="are not those of the ranks of one job"):
        ranks_in(traces)


def test_mixed_backends_and_windows(tmp_path: Path) -> None:
    # GIVEN a CUDA rank, and a ROCm rank whose trace is much shorter
    write_rank(tmp_path, 0, CALLS, world=2, computing=[(10, 90)])
    write_rank(tmp_path, 1, CALLS[:2], world=2, computing=[(10, 90)], call="hipLaunchKernel")
    found = ranks_in(tmp_path)
    assert [each.backend for each in found.summaries] == ["cuda", "rocm"]
    assert sum("cuda on 0; rocm on 1" in remark for remark in found.remarks) == 1
    first, second = (each.window_ns for each in found.summaries)
    assert first > 1.5 * second
    assert len(found.remarks) == 2
    assert found.matched.count == 2


def test_a_rank_recorded_at_another_time(tmp_path: Path) -> None:
    # GIVEN a rank whose trace is ten minutes later, with another rhythm
    other = [("AllReduce_Sum_f32", 6e8 + 700.0 * n * n, 6e8 + 50 + 700.0 * n * n) for n in range(4)]
    write_rank(tmp_path, 0, CALLS, world=3)
    write_rank(tmp_path, 1, CALLS, world=3)
    write_rank(tmp_path, 2, other, world=3, begin=6e8)
    found = ranks_in(tmp_path)
    assert found.waits.took_part.tolist() == [4, 4, 0]
    assert found.clocks.how == ("collectives", "collectives", "unknown")
    assert len([remark for remark in found.remarks if "ranks 2" in remark]) == 2


def test_ranks_without_collectives(tmp_path: Path) -> None:
    for rank in range(2):
        write_rank(tmp_path, rank, [], world=2, computing=[(10, 90)])
    found = ranks_in(tmp_path)
    assert [len(each.collectives) for each in found.summaries] == [0, 0]
    assert found.to_dict()["matched_collectives"] == 0
    assert found.to_dict()["waited_us"] is None
    assert len(found.remarks) == 1
    assert found.imbalance is None


def test_clocks_that_are_an_hour_off(tmp_path: Path) -> None:
    arrivals = [[100.0 + 1_000 * n * (n + 3) + 20 * rank for n in range(6)] for rank in range(2)]
    for rank, calls in enumerate(together(arrivals)):
        write_rank(tmp_path, rank, calls, world=2, clock=3.6e9 * rank)
    found = ranks_in(tmp_path)
    assert found.clocks.offset_ns[1] - found.clocks.offset_ns[0] == 3_600_000_000 * US
    assert found.waits.last.tolist() == [0, 6]


def test_of_ranks_in_traces_and_in_names_those_that_tell_more_apart_count(tmp_path: Path) -> None:
    # GIVEN four traces that all state rank 0, as processes do that each believe to be alone
    for rank in range(4):
        write_rank(tmp_path, 0, CALLS, name=f"rank{rank}.json.gz")
    found = ranks_in(tmp_path)
    assert [each.rank for each in found.summaries] == [0, 1, 2, 3]
    assert found.missing == []
    # THEN one sentence names both, and which is used
    (remark,) = [each for each in found.remarks if "names" in each]
    assert "rank3.json.gz is of rank 0" in remark
    assert remark.endswith("those of the names are used, which tell 4 ranks apart, and not 1.")


def test_a_trace_that_states_its_rank_may_have_another_number_in_its_name(tmp_path: Path) -> None:
    for rank in range(3):
        write_rank(tmp_path, rank, CALLS, name=f"rank{2 - rank}.json.gz")
    found = ranks_in(tmp_path)
    names = [(each.rank, Path(each.path).name) for each in found.summaries]
    assert names == [(0, "rank2.json.gz"), (1, "rank1.json.gz"), (2, "rank0.json.gz")]
    (remark,) = [each for each in found.remarks if "names" in each]
    assert "rank2.json.gz is of rank 0" in remark
    assert remark.endswith("those in the traces are used.")
