"""The formats in which a recording is printed and dumped."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import sys
from pathlib import Path

import pytest
from recorded_process import command, command_here, left_by, started

from page_data import data_of, rows_of
from running import PROGRAMS, end, ran
from stagespan import recording
from stagespan.recording import dump

LIVE = PROGRAMS / "live.py"


def test_dumps_have_every_span(real_file: Path, tmp_path: Path) -> None:
    found = recording.open(real_file)
    total = len(found.spans()) + len(found.open_spans())
    done = command("dump", str(real_file), "-o", str(tmp_path / "trace.json"))
    assert done.returncode == 0, done.stderr
    trace = json.loads((tmp_path / "trace.json").read_text())
    slices = [event for event in trace["traceEvents"] if event.get("cat") == "user_annotation"]
    assert len(slices) == total == 22
    assert {event["name"] for event in slices} == {"stage", "open", "token"}
    for event in slices:
        assert event["dur"] >= 0
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
    assert sum(event["args"].get("open", False) for event in slices) == 2
    # THEN a name that ends with .gz gives a compressed file
    packed = tmp_path / "trace.json.gz"
    assert command_here("dump", str(real_file), "-o", str(packed)).returncode == 0
    # (with other times, because each process measures the distance of its clocks)
    unpacked = json.loads(gzip.decompress(packed.read_bytes()))["traceEvents"]
    unpacked_slices = [event for event in unpacked if event.get("cat") == "user_annotation"]
    assert [event["args"] for event in unpacked_slices] == [event["args"] for event in slices]
    table = list(
        csv.DictReader(io.StringIO(command_here("dump", str(real_file), "--format", "csv").stdout))
    )
    assert len(table) == total
    assert table[0]["stage"] == "stage"
    assert table[0]["request"] == "r"
    page = json.loads(command_here("dump", str(real_file), "--format", "json").stdout)
    assert len(page["spans"]) == total
    assert page["stages"]["stage"]["count"] == 20
    assert page["stages"]["stage"]["work"] == {"tokens": 60}
    from stagespan.trace import read_trace

    read = read_trace(tmp_path / "trace.json")
    assert int(read.rows_of(["user_annotation"]).sum()) == total


def test_parquet_has_every_span_with_its_types(real_file: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    copy = recording.open(real_file)
    table = parquet.read_table(io.BytesIO(dump.as_parquet(copy)))
    # THEN both have the same rows and columns, and unknown values are null
    found = table.to_pylist()
    as_text = [{k: "" if v is None else str(v) for k, v in row.items()} for row in found]
    assert as_text == list(csv.DictReader(io.StringIO(dump.as_csv(copy))))
    assert sum(row["end_ns"] is None for row in found) == 2
    assert all(isinstance(row["begin_ns"], int) for row in found)
    assert json.loads(table.schema.metadata[b"stagespan"])["state"] == "died"
    file = tmp_path / "spans.parquet"
    done = command_here("dump", str(real_file), "--format", "parquet", "-o", str(file))
    assert done.returncode == 0, done.stderr
    assert parquet.read_table(file).num_rows == table.num_rows == 22


def test_parquet_without_pyarrow_says_what_to_install(real_file: Path, tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['pyarrow'] = None; from stagespan.cli import main; main()"
    done = ran(
        [sys.executable, "-c", hidden, "dump", str(real_file), "--format", "parquet"], status=2
    )
    assert "pip install pyarrow" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_recording_as_one_page(real_file: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = command("show", str(real_file), "--stages", "--html", str(page))
    assert done.returncode == 0, done.stderr
    # THEN it has the open and the ended stages, and a bar for each span
    data = data_of(page.read_text())
    assert "died without a clean exit" in data["summary"]
    tables = {table["title"]: table for table in data["sections"][0]["tables"]}
    assert {row[1].strip() for row in tables["Open stages of each thread"]["rows"]} == {
        "open",
        "token",
    }
    assert [row[:2] for row in tables["Statistics"]["rows"]] == [["stage", 20]]
    assert sum(row["events"] for row in rows_of(data).values()) == 21


@pytest.mark.full
def test_the_page_of_a_long_chain_of_stages(folder: Path, tmp_path: Path) -> None:
    # GIVEN a process whose stages were nested deeper than Python's limit for recursion
    path = left_by(LIVE, "long_chain")
    done = command_here("show", str(path), "--stages")
    assert done.returncode == 0, done.stderr
    assert [int(number) for number in re.findall(r"stage (\d+) ", done.stdout)] == [*range(1500)]
    page = tmp_path / "page.html"
    assert command_here("show", str(path), "--html", str(page)).returncode == 0
    assert len(data_of(page.read_text())["sections"][0]["tables"][0]["rows"]) == 1500


def test_the_page_of_a_process_in_its_first_stage(folder: Path, tmp_path: Path) -> None:
    # GIVEN a process whose outermost stage has not ended yet
    process = started(LIVE, "first_stage")
    done = command_here("show", str(process.pid), "--stages")
    end(process)
    assert done.returncode == 0, done.stderr
    names: list[str] = re.findall(r"(?:inside )?(?:load|serve)(?= )", done.stdout)
    assert sorted(names) == ["inside load", "inside serve", "load", "serve"]
    for name in ("load", "serve"):
        assert names.index(f"inside {name}") == names.index(name) + 1
