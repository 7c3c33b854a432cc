"""The public result folders of two NPU ranks: our figures equal those of their own files."""

from __future__ import annotations

from pathlib import Path

import pytest
from ascend_folders import OUTPUT, analysed, rows_of


def near(value: float | None, cell: str, least: float = 0.001) -> bool:
    """Within 0.001 µs or 1e-6."""
    assert value is not None
    return abs(value - float(cell)) <= max(least + 1e-9, 1e-6 * abs(float(cell)))


@pytest.mark.parametrize("rank", [0, 1])
def test_real_folders_equal_their_own_files(rank: int, traces: Path) -> None:
    folder = traces / "ascend_level1" / f"rank{rank}_ascend_pt"
    files = folder / OUTPUT
    found = analysed(folder)
    (step,), (row,) = found["ascend_steps"]["steps"], rows_of(files / "step_trace_time.csv")
    assert found["ascend_steps"]["source"] == "tracks"
    assert step["step"] == row["Step"]
    for key, column in {
        "computing_us": "Computing",
        "communication_not_overlapped_us": "Communication(Not Overlapped)",
        "overlapped_us": "Overlapped",
        "communication_us": "Communication",
        "free_us": "Free",
        "bubble_us": "Bubble",
        "communication_not_overlapped_exclude_receive_us": (
            "Communication(Not Overlapped and Exclude Receive)"
        ),
    }.items():
        assert near(step[key], row[column]), key
    assert near(step["stage_us"], row["Stage"], 0.25)
    assert near(step["preparing_us"], row["Preparing"], 0.25)
    # THEN the operators alone give the same figures, except for rounding to ns
    assert found["ascend_steps"]["differences"] == []
    statistic = rows_of(files / "op_statistic.csv")
    types = {(each["type"], each["core"]): each for each in found["ascend_operators"]["by_type"]}
    assert len(types) == len(statistic)
    for row in statistic:
        each = types[row["OP Type"], row["Core Type"]]
        assert each["count"] == int(row["Count"])
        assert near(each["total_us"], row["Total Time(us)"])
        assert near(each["min_us"], row["Min Time(us)"])
        assert near(each["max_us"], row["Max Time(us)"])
        assert near(
            each["total_of_kernel_details_us"], row["Total Time(us)"], 0.001 * each["count"]
        )
    assert found["ascend_operators"]["differences"] == []
    calls = {(each["level"], each["name"]): each for each in found["ascend_api"]["calls"]}
    for row in rows_of(files / "api_statistic.csv"):
        each = calls[row["Level"], row["API Name"]]
        assert each["count"] == int(row["Count"])
        assert near(each["total_us"], row["Time(us)"])
    assert found["ascend_api"]["compared_functions"] == len(calls)
    assert found["ascend_api"]["differences"] == []
    # AND communication.json has the trace's collectives
    assert found["ascend_collectives"]["compared_operations"] == 4
    assert found["ascend_collectives"]["differences"] == []
    assert (found["ascend_files"]["level"], found["ascend_files"]["rank"]) == ("Level1", rank)


def test_the_real_folder_has_the_findings_of_an_expert(traces: Path) -> None:
    # GIVEN rank 0, which computes 9 ms of 137 and waits for the others
    folder = traces / "ascend_level1" / "rank0_ascend_pt"
    found = analysed(folder)
    waits, host = found["ascend_waits"], found["ascend_host_waits"]["waits"]
    # THEN the first collective waited 79 ms for another rank, and stream 2 for the collective
    longest = waits["largest"][0]
    assert (longest["event"], longest["operator"]) == ("Notify Wait", "hcom_allReduce__586_0_1")
    assert longest["wait_us"] == pytest.approx(78_764.614, abs=0.001)
    event = next(wait for wait in waits["largest"] if wait["kind"] == "event")
    assert event["overlapped_by"] == "hcom_allReduce__586_0_1"
    assert host[0]["operator"] == "aten::item"
    assert host[0]["python"] == "main.py(483): __str__"
    assert host[0]["longest_us"] == pytest.approx(91_682.16)
    free = found["ascend_free"]
    assert sum(free["parts_us"].values()) == pytest.approx(free["free_us"])
    assert free["free_us"] == pytest.approx(found["ascend_steps"]["steps"][0]["free_us"], rel=1e-6)
    assert max(free["parts_us"], key=lambda part: free["parts_us"][part]) == "framework"
    (told,) = [each for each in found["findings"] if each["code"] == "ascend.exposed_communication"]
    assert told["figures"]["time_us"] == pytest.approx(101_963.203, abs=0.001)
    assert told["evidence"][0]["figure"] == pytest.approx(91_933.297, abs=0.001)
    # AND its share is that of step_trace_time.csv: 101,963.203 of 136,581 µs
    assert told["figures"]["percent"] == pytest.approx(100 * 101_963.203 / 136_581, abs=0.001)
    # AND nothing is reported about compiled calls, because there are none
    assert "unknown" in found["head_overhead"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_device_that_waits_for_the_host_gets_one_finding(rank: int, traces: Path) -> None:
    # GIVEN a folder in which two analyses find the idle time that the host caused
    found = analysed(traces / "ascend_level1" / f"rank{rank}_ascend_pt")
    # THEN the one with more detail is shown, also for changes of format
    codes = [finding["code"] for finding in found["findings"]]
    assert len(codes) == len(set(codes))
    assert {"ascend.host_bound", "ascend.conversions"} <= set(codes)
    assert not {"idle.host_unseen", "idle.host_work", "idle.launch", "kernels.layout"} & set(codes)
    told = next(each for each in found["findings"] if each["code"] == "ascend.host_bound")
    assert "aten::linear, torchvision/models/alexnet.py(47): forward" in {
        each["event"] for each in told["evidence"]
    }
    assert "host_unseen" not in found["idle"]["by_cause"]
