"""What the page of an Ascend device uses if two sources of one fact disagree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from synthetic_ascend import DEVICE, GROUPS, SyntheticAscend

from stagespan.trace.paths import analyze_path

MS = 1_000_000
TASKS = "the tasks of the device"


def program() -> SyntheticAscend:
    """Computing for 0.9 ms of 1.2 ms, and a collective of 0.4 ms that is exposed for 0.3 ms."""
    it = SyntheticAscend()
    it.host("aten::mm", 0, MS // 10)
    it.kernel("a_MatMulV2", 0, 600_000)
    it.kernel("b_Add", 600_000, 800_000)
    it.collective("hcom_allReduce__1", 700_000, 1_100_000)
    it.kernel("c_Cast", 1_100_000, 1_200_000, core="AI_CPU")
    return it


def written(it: SyntheticAscend, folder: Path, entries: list[dict[str, Any]]) -> Path:
    """The folder of `it`, whose trace has these entries."""
    root = it.write(folder)
    (root / "ASCEND_PROFILER_OUTPUT" / "trace_view.json").write_text(json.dumps(entries))
    return root


def analysed(path: Path) -> tuple[dict[str, Any], list[str]]:
    analysis = analyze_path(path)
    return analysis.to_dict(), analysis.notes()


def without(entries: list[dict[str, Any]], pid: int, *names: str) -> list[dict[str, Any]]:
    """The entries without some events of a process, or without all of them."""
    return [
        each
        for each in entries
        if each.get("ph") != "X" or each["pid"] != pid or (names and each["name"] not in names)
    ]


def check(found: dict[str, Any]) -> None:
    """Device use, verdict and steps state the work of `program`."""
    use, steps = found["device_use"], found["ascend_steps"]["steps"]
    assert use["compute_union_us"] == 900
    assert use["exposed_comm_us"] == 300
    parts = found["verdict"]["parts_us"]
    assert (parts["computing"], parts["communicating"]) == (900, 300)
    assert [step["computing_us"] for step in steps] == [900]
    assert [step["communication_not_overlapped_us"] for step in steps] == [300]


def test_sources_that_agree_are_not_mentioned(tmp_path: Path) -> None:
    it = program()
    found, notes = analysed(written(it, tmp_path, it.entries()))
    check(found)
    assert found["trace"]["settled"] == []
    assert not any("is used" in note for note in notes)


def test_tracks_that_show_more_than_the_tasks_are_used(tmp_path: Path) -> None:
    # GIVEN a trace without its tasks, and without its collectives
    it = program()
    entries = without(without(it.entries(), DEVICE, "a_MatMulV2", "c_Cast"), GROUPS)
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps(entries))
    found, notes = analysed(path)
    # THEN the time of the tracks counts everywhere, and one sentence names both
    check(found)
    assert [
        (each["what"], each["time_us"], each["source"], each["other_us"], each["other"])
        for each in found["trace"]["settled"]
    ] == [
        ("computed", 900, "Overlap Analysis", 200, TASKS),
        ("communicated", 400, "Overlap Analysis", 0, TASKS),
    ]
    (sentence,) = [note for note in notes if "computed" in note]
    assert "by Overlap Analysis" in sentence
    assert f"by {TASKS}: Overlap Analysis is used" in sentence
    (kernel,) = [each for each in found["kernels"]["top"] if "Overlap" in each["name"]]
    assert kernel["time_us"] == 700


def test_tasks_that_show_more_than_the_tracks_are_used(tmp_path: Path) -> None:
    it = program()
    entries = it.entries()
    computing = [each for each in entries if each.get("name") == "Computing"]
    entries = [each for each in entries if each is not computing[-1]]
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps(entries))
    found, _ = analysed(path)
    check(found)
    assert found["ascend_steps"]["source"] == "operators"
    (differ,) = [e for e in found["findings"] if e["code"] == "ascend.steps_differ_from_operators"]
    assert "the tracks of the trace's Overlap Analysis" in differ["sentence"]
    assert differ["details"] == "The figures are those of the operators in the trace."


def test_operators_that_only_the_table_shows_are_in_the_trace(tmp_path: Path) -> None:
    # GIVEN a trace of the table's last operator alone, without tracks
    it = program()
    entries = it.entries(overlap=False)
    root = written(it, tmp_path, without(entries, DEVICE, "a_MatMulV2", "b_Add"))
    found, notes = analysed(root)
    # THEN all figures are of the table's operators, by name and core
    check(found)
    assert {each["name"]: each["time_us"] for each in found["kernels"]["top"]} == {
        "a_MatMulV2": 600,
        "b_Add": 200,
        "c_Cast": 100,
    }
    (settled,) = found["trace"]["settled"]
    assert (settled["source"], settled["time_us"], settled["other_us"]) == (
        "kernel_details.csv",
        900,
        100,
    )
    (sentence,) = [note for note in notes if "computed" in note]
    assert "900 µs by kernel_details.csv" in sentence.replace(".000", "")
    assert "kernel_details.csv is used" in sentence


def test_a_task_that_the_table_has_on_a_core_is_work(tmp_path: Path) -> None:
    # GIVEN a task with the name and the type of a mark, which the table has on the AI Core
    it = program()
    entries = it.entries(overlap=False)
    for each in entries:
        if each.get("name") == "a_MatMulV2":
            each["name"], each["args"]["Task Type"] = "EVENT_RECORD", "Other"
    found, _ = analysed(written(it, tmp_path, entries))
    check(found)
    assert len(found["kernels"]["top"]) == 3


@pytest.mark.parametrize("shift_us", [-250.0, 40.0, 3e9])
def test_a_table_of_another_clock_adds_nothing(tmp_path: Path, shift_us: float) -> None:
    it = program()
    entries = without(it.entries(), DEVICE, "b_Add")
    for each in entries:
        if "ts" in each:
            each["ts"] = float(each["ts"]) + shift_us
    found, _ = analysed(written(it, tmp_path, entries))
    assert found["device_use"]["compute_union_us"] == pytest.approx(900, abs=1)
    names = {each["name"] for each in found["kernels"]["top"]}
    assert names == {"a_MatMulV2", "c_Cast", "Computing (Overlap Analysis)"}


def test_of_a_function_the_source_with_more_calls_is_used(tmp_path: Path) -> None:
    it = program()
    for number in range(3):
        it.cann("AscendCL@aclrtMemcpy", number * 1_000, number * 1_000 + 500)
    it.cann("AscendCL@aclrtMalloc", 5_000, 5_700)
    root = it.write(tmp_path)
    rows = ["Level,API Name,Time(us),Count,Min(us),Max(us)"]
    rows += ["acl,aclrtMemcpy,0.5,1,0.5,0.5", "acl,aclrtMalloc,1.4,2,0.7,0.7"]
    (root / "ASCEND_PROFILER_OUTPUT" / "api_statistic.csv").write_text("\n".join(rows))
    found, _ = analysed(root)
    calls = {
        each["name"]: (each["count"], each["total_us"]) for each in found["ascend_api"]["calls"]
    }
    assert calls == {"aclrtMemcpy": (3, 1.5), "aclrtMalloc": (2, 1.4)}
    (differ,) = [e for e in found["findings"] if e["code"] == "ascend.calls_differ"]
    assert "the one with more calls" in differ["details"]
