"""The table of operators of msprof: alone, in its folders, of several versions of CANN."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from ascend_folders import analysed

from stagespan.errors import TraceError
from stagespan.trace.paths import analyze_path

HEADINGS = (
    "Device_id,Model ID,Task ID,Stream ID,Op Name,OP Type,OP State,Task Type,{start},"
    "Task Duration(us),Task Wait Time(us),Block Dim,Input Shapes,aicore_time(us)"
)
ROWS = (
    ("MatMulV3_1", "MatMulV3", "AI_CORE", 0, 120.25, 0.0),
    ("Add_2", "Add", "AI_VECTOR_CORE", 130, 10.5, 9.75),
    ("Index_3", "Index", "AI_CPU", 150, 60.25, 9.5),
    ("hcom_allReduce__1", "hcom_allReduce_", "COMMUNICATION", 215, 500.0, 4.75),
    ("MatMulV3_4", "MatMulV3", "AI_CORE", 720, 119.0, 5.0),
)


def written(path: Path, start: str = "Task Start Time(us)") -> Path:
    """Write a table with the columns of msprof; times of start end with a tab."""
    lines = [HEADINGS.format(start=start)]
    for number, (name, kind, core, begin, us, wait) in enumerate(ROWS):
        at = f"{1_700_000_000_000_000 + begin}.500" if "us" in start else f"{begin * 1000 + 500}"
        lines.append(
            f'0,4294967295,{number},2,{name},{kind},dynamic,{core},"{at}\t",{us},{wait},24,"8,8",1'
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join(lines) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def types(found: dict[str, Any]) -> dict[tuple[str, str], tuple[int, float]]:
    listed = found["ascend_operators"]["by_type"]
    return {(each["type"], each["core"]): (each["count"], each["total_us"]) for each in listed}


EXPECTED = {
    ("MatMulV3", "AI_CORE"): (2, 239.25),
    ("Index", "AI_CPU"): (1, 60.25),
    ("Add", "AI_VECTOR_CORE"): (1, 10.5),
}


@pytest.mark.parametrize("core", ["EVENT_WAIT", "Other"])
def test_waits_are_not_operators_and_do_not_compute(core: str, tmp_path: Path) -> None:
    path = written(tmp_path / "op_summary_0_1.csv")
    before = analysed(path)
    row = f"0,4294967295,9,2,EVENT_WAIT,EVENT_WAIT,dynamic,{core},1700000000000900.5,200,0,1,,1"
    path.write_text(f"{path.read_text()}{row}\n")
    found = analysed(path)
    assert types(found) == EXPECTED
    (step,), (without,) = (each["ascend_steps"]["steps"] for each in (found, before))
    assert step["computing_us"] == without["computing_us"]


@pytest.mark.parametrize("start", ["Task Start Time(us)", "Task Start Time"])
@pytest.mark.parametrize("name", ["op_summary_20261101.csv", "op_summary_0_1.csv.gz"])
def test_the_table_alone(name: str, start: str, tmp_path: Path) -> None:
    found = analysed(written(tmp_path / name, start))
    assert types(found) == EXPECTED
    (slow,) = [each for each in found["findings"] if each["code"] == "ascend.ai_cpu"]
    assert slow["figures"]["time_us"] == 60.25


@pytest.mark.parametrize(
    "inside", ["mindstudio_profiler_output", "device_0/summary", "."], ids=["new", "old", "flat"]
)
def test_the_folders_of_msprof(inside: str, tmp_path: Path) -> None:
    folder = tmp_path / "PROF_000001_20261101120000000_ABCDEF"
    written(folder / inside / "op_summary_20261101120001.csv")
    assert types(analysed(folder)) == EXPECTED
    # AND the folder in which msprof wrote it
    assert types(analysed(tmp_path)) == EXPECTED


def test_a_table_without_durations_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "op_summary_0.csv"
    path.write_text("Op Name,OP Type\nadd,Add\n")
    with pytest.raises(TraceError, match="Task Duration"):
        analyze_path(path)


def test_raw_data_names_the_next_step(tmp_path: Path) -> None:
    (tmp_path / "PROF_000001_20261101120000000_ABCDEF" / "device_0" / "data").mkdir(parents=True)
    with pytest.raises(TraceError, match="msprof"):
        analyze_path(tmp_path)


def test_of_two_tables_that_differ_the_one_with_more_operators_counts(tmp_path: Path) -> None:
    written(tmp_path / "op_summary_1.csv")
    for rows, source in ((2, "op_statistic.csv"), (1, "kernel_details.csv")):
        (tmp_path / "op_statistic_1.csv").write_text(
            "Device_id,OP Type,Core Type,Count,Total Time(us),Min Time(us),Avg Time(us),"
            f"Max Time(us),Ratio(%)\n0,MatMulV3,AI_CORE,{rows},300,119,120,181,80\n"
            f"0,Add,AI_VECTOR_CORE,{rows},10.5,10.5,10.5,10.5,20\n"
        )
        found = analysed(tmp_path)
        assert found["ascend_operators"]["source"] == source
        assert (types(found) == EXPECTED) == (source == "kernel_details.csv")
        (differ,) = [e for e in found["findings"] if e["code"] == "ascend.operators_differ"]
        assert f"The figures are those of {source}" in differ["details"]
