"""Ascend result folders with any of their files: figures, and a sentence for what is wrong."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ascend_folders import OUTPUT, analysed, rows_of, synthetic
from commands import fits, run

from stagespan.errors import TraceError
from stagespan.trace.ascend import find_ascend_folder, is_ascend_folder, read_ascend_folder
from stagespan.trace.ascend.folder import DOCUMENTS, TABLES
from stagespan.trace.json_schema import json_schema
from stagespan.trace.paths import analyze_path
from stagespan.trace.read.csv_tables import read_table


def test_every_file_of_a_folder_is_reported(tmp_path: Path) -> None:
    found = analysed(synthetic(tmp_path))
    assert found["ascend_steps"]["differences"] == []
    assert found["ascend_steps"]["checked_against"].keys() == {
        "operators",
        "file",
        "kernels",
    }
    assert (found["ascend_operators"]["compared"], found["ascend_operators"]["differences"]) == (
        True,
        [],
    )
    assert [each["type"] for each in found["ascend_operators"]["by_type"]] == [
        "TransData",
        "MatMulV2",
        "Nonzero",
    ]
    call = found["ascend_api"]["calls"][0]
    assert (call["total_us"], call["count"], call["max_us"]) == (1200.5, 3, 1000.0)
    operator = found["ascend_host_operators"]["operators"][0]
    assert (operator["calls"], operator["host_self_us"], operator["device_total_us"]) == (
        2,
        11.5,
        6,
    )
    peaks = {peak["component"]: peak for peak in found["ascend_memory"]["peaks"]}
    assert peaks["PTA"]["reserved_bytes"] == 3 << 30
    assert peaks["PTA"]["allocated_bytes"] == 32 << 20
    assert (peaks["PTA"]["allocated_at_us"], peaks["APP"]["allocated_bytes"]) == (50.0, None)
    allocated = found["ascend_memory"]["operators"][0]
    assert (allocated["total_bytes"], allocated["not_released"]) == (1536 << 10, 1)
    (operation,) = found["ascend_collectives"]["operations"]
    assert (operation["elapse_us"], operation["transit_us"]) == (250.0, None)
    assert found["ascend_collectives"]["compared_operations"] == 1
    assert found["ascend_collectives"]["differences"] == []
    (link,) = found["ascend_collectives"]["links"]
    assert (link["from"], link["to"], link["gb_per_s"]) == ("0", "1", 10.0)
    assert found["ascend_files"]["missing"] == found["ascend_files"]["problems"] == []
    told = " ".join(f"{one['sentence']} {one['details']}" for one in found["findings"])
    for words in (
        "1 operator ran on the AI CPU, which is slow: 100 µs (20.2 %",
        "Conversions take 200 µs (40.4 % of all operators' time): TransData 1 time",
        "Collectives spent 200 µs of 250 µs (80.0 %) waiting for other ranks",
        "PTA reserved 3.00 GiB and never used more than 32.0 MiB",
    ):
        assert words in told, told


@pytest.mark.parametrize("name", ["trace_view.json", *TABLES, *DOCUMENTS])
@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        ("missing", lambda data: None),
        ("empty", lambda data: b""),
        ("cut", lambda data: data[: len(data) * 2 // 3]),
        ("garbage", lambda data: bytes(range(256)) * 40),
        ("cut gzip", lambda data: gzip.compress(data)[:60]),
        ("other", lambda data: b"[1, 2]\n"),
        ("head alone", lambda data: data.split(b"\n")[0] + b"\n"),
    ],
)
def test_a_file_that_is_missing_or_damaged(
    name: str, kind: str, damage: Callable[[bytes], bytes | None], tmp_path: Path
) -> None:
    root = synthetic(tmp_path)
    file = root / OUTPUT / name
    data = damage(file.read_bytes())
    if data is None:
        file.unlink()
    else:
        file.write_bytes(data)
    status, text, error = run(root, "--json")
    assert (status, error) == (0, "")
    written = json.loads(text)
    _, out, _ = run(root)
    fits(written, json_schema())
    files = written["ascend_files"]
    if data is None:
        assert files["missing"] == [name]
    if kind in ("empty", "garbage", "cut gzip", "other"):
        assert len(files["problems"]) == 1
    if files["problems"]:
        assert name in files["problems"][0]
        assert files["problems"][0].replace(" ", "") in "".join(out.split())
    # THEN no figure is invented
    for finding in written["findings"]:
        assert finding["evidence"]


def test_a_collective_with_another_time_in_the_trace_is_reported(tmp_path: Path) -> None:
    root = synthetic(tmp_path)
    file = root / OUTPUT / "communication.json"
    file.write_text(file.read_text().replace("0.25", "0.26"))
    found = analysed(root)
    assert found["ascend_collectives"]["differences"] == [
        "hcom_allReduce__1 takes 260 µs in the file, 250 µs in the trace"
    ]
    (finding,) = [f for f in found["findings"] if f["code"] == "ascend.collectives_differ"]
    assert finding["figures"] == {"differences": 1}


def test_missing_figures_are_unknown(tmp_path: Path) -> None:
    # GIVEN tables without some of their columns, and a collective without its time
    root = synthetic(tmp_path)
    output = root / OUTPUT
    (output / "operator_details.csv").write_text("Name,Host Self Duration(us)\naten::mm,10.5\n")
    (output / "operator_memory.csv").write_text("Name,Size(KB)\naten::empty,1024\n")
    file = output / "communication.json"
    file.write_text(file.read_text().replace('"Elapse Time(ms)": 0.25', '"x": 1'))
    found = analysed(root)
    (operator,) = found["ascend_host_operators"]["operators"]
    assert (operator["host_self_us"], operator["calls"]) == (10.5, 1)
    assert {operator[f"{key}_us"] for key in ("host_total", "device_self", "device_total")} == {
        None
    }
    (allocated,) = found["ascend_memory"]["operators"]
    assert (allocated["allocations"], allocated["not_released"]) == (1, None)
    assert found["ascend_collectives"]["compared_operations"] == 0
    assert found["ascend_collectives"]["differences"] == []


def test_sizes_beyond_all_bounds(tmp_path: Path) -> None:
    # GIVEN links whose sizes do not fit into a double, or are not numbers
    root = synthetic(tmp_path)
    file = root / OUTPUT / "communication_matrix.json"
    link = {"Transport Type": "HCCS", "Transit Time(ms)": 2.0}
    sizes = {"0-1": 10**400, "0-2": True, "0-3": "x", "0-4": 20}
    links = {pair: link | {"Transit Size(MB)": size} for pair, size in sizes.items()}
    file.write_text(json.dumps({"step1": {"collective": {"allreduce-total@9": links}}}))
    (found,) = analysed(root)["ascend_collectives"]["links"]
    assert (found["to"], found["megabytes"]) == ("4", 20)


def test_a_truncated_row_is_reported(tmp_path: Path) -> None:
    root = synthetic(tmp_path)
    file = root / OUTPUT / "kernel_details.csv"
    file.write_text(file.read_text()[:-30])
    folder = read_ascend_folder(root)
    assert folder.problems == ["kernel_details.csv ends in the middle of a row, which is skipped."]
    found = analysed(root)
    assert found["ascend_operators"]["differences"] == [
        "Nonzero on AI_CPU is not in kernel_details.csv"
    ]


def test_other_layouts_and_units_of_tables(tmp_path: Path) -> None:
    # GIVEN columns in another order, case and unit, quoted numbers, a byte order mark, compressed
    root = synthetic(tmp_path)
    file = root / OUTPUT / "kernel_details.csv"
    plain = analysed(root)["ascend_operators"]
    rows = rows_of(file)
    head = ("Device_id", "DURATION(ns)", "accelerator core", "Step Id", "type", "Name")
    lines = [",".join(head)]
    for row in rows:
        duration = f"{round(float(row['Duration(us)']) * 1000):,}"
        cells = ("0", f'"{duration}"', row["Accelerator Core"], "1", row["Type"], row["Name"])
        lines.append(" ,".join(cells))
    data = ("\ufeff" + "\r\n".join(lines) + "\r\n\r\n").encode()
    file.unlink()
    (root / OUTPUT / "kernel_details.csv.gz").write_bytes(gzip.compress(data))
    assert analysed(root)["ascend_operators"] == plain
    (root / OUTPUT / "op_statistic.csv").unlink()
    found = analysed(root)["ascend_operators"]
    assert found["source"] == "kernel_details.csv"
    assert [each["total_us"] for each in found["by_type"]] == [
        each["total_us"] for each in plain["by_type"]
    ]


def test_statistics_of_several_devices_are_summed(tmp_path: Path) -> None:
    (tmp_path / "op_statistic.csv").write_text(
        "Device_id,OP Type,Core Type,Count,Total Time(us),Min Time(us),Avg Time(us),Max Time(us)\n"
        "0,Add,AI_CORE,3,30.5,5,10,20\n1,Add,AI_CORE,2,10,4,5,6\n1,Mul,AI_CORE,1,N/A,1,1,1\n"
        "0,Mul,AI_CORE,1,50,50,50,50\n"
    )
    found = analysed(tmp_path)["ascend_operators"]
    mul, add = found["by_type"]
    assert (mul["type"], mul["total_us"], mul["percent"]) == ("Mul", 50.0, pytest.approx(55.2486))
    figures = add["count"], add["total_us"], add["min_us"], add["max_us"], add["avg_us"]
    assert figures == (5, 40.5, 4.0, 20.0, 8.1)
    assert (found["unread_rows"], found["compared"]) == (1, False)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_levels(level: int, tmp_path: Path) -> None:
    # GIVEN a folder of a level; level 0 has neither CANN's calls nor the statistic
    root = synthetic(tmp_path, level)
    found = analysed(root)
    assert found["ascend_files"]["level"] == f"Level{level}"
    assert found["ascend_steps"]["differences"] == []
    assert found["head_overhead"]["totals"]["torchair_us"] == 280.0
    assert found["head_overhead"]["totals"]["ge_to_first_operator_us"] == 5.0
    assert found["head_overhead"]["per_call"][0]["first_operator_by"] == "launch"
    # THEN so is the free time, except for the duration of calls
    free = found["ascend_free"]["parts_us"]
    assert sum(free.values()) == found["ascend_free"]["free_us"] == 170.0 + 100.0
    assert "unknown" not in free


def test_a_folder_of_few_files(tmp_path: Path) -> None:
    root = synthetic(tmp_path)
    few = tmp_path / "few"
    few.mkdir()
    shutil.copy(root / OUTPUT / "step_trace_time.csv", few)
    found = analysed(few)
    # THEN this is reported, and nothing else
    assert found["ascend_steps"]["source"] == "file"
    assert found["ascend_steps"]["steps"][0]["communication_us"] == 250.0
    assert "verdict" not in found
    assert found["trace"]["entries"] == 0


def test_kernel_details_alone_give_the_steps(tmp_path: Path) -> None:
    (tmp_path / "kernel_details.csv").write_text(
        "Step Id,Device_id,Name,Type,Accelerator Core,Start Time(us),Duration(us)\n"
        "1,0,a,Mul,AI_CORE,1736408883000100.000\t,50.5\n"
        "1,0,hcom_allReduce__1,hcom_allReduce_,HCCL,1736408883000140.500\t,30\n"
        "1,0,b,Mul,AI_CORE,1736408883000200\t,10\n"
        "2,0,c,Mul,AI_CORE,1736408883000300.000\t,1\n"
        "2,0,d,Mul,AI_CORE,N/A,1\n"
    )
    found = analysed(tmp_path)["ascend_steps"]
    # THEN the figures are exact, and the host's are unknown
    assert found["source"] == "kernels"
    first, second = found["steps"]
    assert (first["step"], first["device"], first["preparing_us"]) == ("1", "0", None)
    assert (first["computing_us"], first["communication_us"]) == (60.5, 30.0)
    assert (first["communication_not_overlapped_us"], first["overlapped_us"]) == (20.0, 10.0)
    assert (first["free_us"], first["stage_us"]) == (29.5, 110.0)
    assert (second["computing_us"], second["free_us"]) == (1.0, 0.0)


def test_ascend_folders_are_recognised(tmp_path: Path) -> None:
    root = synthetic(tmp_path)
    assert is_ascend_folder(root)
    assert is_ascend_folder(root / OUTPUT)
    assert is_ascend_folder(str(root))
    # AND a folder that contains only one of them counts as one, with two as a folder of ranks
    assert not is_ascend_folder(tmp_path)
    assert find_ascend_folder(tmp_path) == root
    assert analysed(tmp_path) == analysed(root)
    shutil.copytree(root, tmp_path / "other_ascend_pt")
    assert find_ascend_folder(tmp_path) is None
    assert not is_ascend_folder(root / OUTPUT / "trace_view.json")
    assert not is_ascend_folder(tmp_path / "none")


def test_a_trace_without_its_folder_is_analysed_too(tmp_path: Path) -> None:
    root = synthetic(tmp_path)
    file = tmp_path / "trace_view.json.gz"
    file.write_bytes(gzip.compress((root / OUTPUT / "trace_view.json").read_bytes()))
    found = analysed(file)
    assert found["head_overhead"]["calls"] == 1
    assert found["ascend_steps"]["source"] == "tracks"
    assert [each["name"] for each in found["ascend_cores"]["ai_cpu_operators"]] == ["c_Nonzero"]
    # THEN the file's tables are not reported as missing
    assert "ascend_operators" not in found


def test_folders_without_readable_files(tmp_path: Path) -> None:
    # GIVEN folders without parsed results: raw data, databases, or unreadable files
    nothing, raw, databases, garbage = (
        tmp_path / f"{name}_ascend_pt" for name in ("nothing", "raw", "databases", "garbage")
    )
    nothing.mkdir()
    (raw / "PROF_000001").mkdir(parents=True)
    (databases / OUTPUT).mkdir(parents=True)
    (databases / OUTPUT / "ascend_pytorch_profiler_0.db").touch()
    (garbage / OUTPUT).mkdir(parents=True)
    (garbage / OUTPUT / "trace_view.json").write_bytes(b"\x00\xff" * 9)
    for path, words in (
        (nothing, "contains no files of torch_npu.profiler"),
        (raw, "contains only raw data"),
        (databases, "contains only databases"),
        (garbage, "No file of"),
    ):
        with pytest.raises(TraceError, match=words):
            analyze_path(path)
        status, _, error = run(path)
        assert (status, error.count("\n")) == (2, 1)
        assert "Traceback" not in error


def test_tables_with_long_cells_are_read_by_several_threads(tmp_path: Path) -> None:
    path = tmp_path / "operator_details.csv"
    path.write_text(f'Name,Call Stack\naten::mm,"{"f;" * 100_000}"\n')
    before = csv.field_size_limit()
    with ThreadPoolExecutor(8) as pool:
        tables = list(pool.map(read_table, [path] * 40))
    assert {(table.problem, len(table.rows)) for table in tables} == {(None, 1)}
    assert csv.field_size_limit() == before
