"""`stagespan analyze` reads what stagespan writes: recordings, dumps, timing reports, ranks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from recorded_process import command_here, start, started

from running import PROGRAMS, end, ready

LIVE = PROGRAMS / "live.py"


def analyzed(*arguments: str) -> dict[str, Any]:
    """Return the JSON of an analysis, which is also printed as a page and written as HTML."""
    shown = command_here("analyze", *arguments)
    assert shown.returncode == 0, shown.stderr
    assert "annot tell" not in shown.stdout
    assert "record the" not in shown.stdout
    done = command_here("analyze", *arguments, "--json", "-")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def shares_of(found: dict[str, Any]) -> dict[str, int]:
    """Return the calls of each stage, and check that its own time is less than its time."""
    stages = {stage["path"][-1]: stage for stage in found["stages"]["stages"]}
    assert stages["step"]["host_self_us"] < stages["augment"]["host_self_us"]
    assert stages["augment"]["host_us"] <= stages["step"]["host_us"]
    assert stages["augment"]["path"] == ["step", "augment"]
    return {name: stage["calls"] for name, stage in stages.items()}


def test_one_process_in_every_form(tmp_path: Path) -> None:
    # GIVEN a running process with spans, its recording, a dump of it, and its timing report
    process = started(LIVE, "steps_and_a_report", str(tmp_path / "timing.json"))
    pid = str(process.pid)
    assert command_here("dump", pid, "-o", str(tmp_path / "dump.json.gz")).returncode == 0
    found = [
        analyzed(pid),
        analyzed(str(tmp_path / "dump.json.gz")),
        analyzed(str(tmp_path / "timing.json")),
        analyzed(str(tmp_path)),  # the only traces in the folder are those of the dump
    ]
    end(process)
    for each in found:
        assert shares_of(each) == {"step": 4, "augment": 4, "forward": 4}
        assert each["verdict"]["verdict"] == "in stages"
        assert each["verdict"]["sentence"].startswith("In stages: augment ")


def test_a_folder_of_recordings_of_ranks(folder: Path, tmp_path: Path) -> None:
    processes = [
        started(
            LIVE,
            "steps_and_a_report",
            str(tmp_path / "t.json"),
            RANK=str(rank),
            WORLD_SIZE="2",
            SLEEP=sleep,
        )
        for rank, sleep in enumerate(("0.2", "0.005"))
    ]
    found = analyzed(str(folder))
    (finding,) = [each for each in found["findings"] if "in `augment`" in each["sentence"]]
    assert finding["sentence"].startswith("Rank 0 spent ")
    assert found["ranks"]["verdict"]["verdict"] == "in stages"
    other = start(LIVE, "steps_and_a_report", str(tmp_path / "t.json"))
    processes.append(other)
    ready(other)
    done = command_here("analyze", str(folder))
    assert done.returncode != 0
    assert "not one for each rank" in done.stderr


@pytest.mark.parametrize("slow", [0, 1])
def test_a_folder_of_ranks(slow: int, tmp_path: Path) -> None:
    reports, dumps = tmp_path / "reports", tmp_path / "dumps"
    reports.mkdir()
    dumps.mkdir()
    for rank in range(3):
        process = started(
            LIVE,
            "steps_and_a_report",
            str(reports / f"timing_rank{rank}.json"),
            RANK=str(rank),
            WORLD_SIZE="3",
            SLEEP="0.2" if rank == slow else "0.005",
        )
        # The dump contains the rank, so the name of its file need not.
        path = dumps / f"{'abc'[rank]}.json.gz"
        assert command_here("dump", str(process.pid), "-o", str(path)).returncode == 0
        end(process)
    for folder in (reports, dumps):
        found = analyzed(str(folder))
        # THEN one finding names the slow rank and its stage (a busy machine may slow others too)
        (finding,) = [
            each
            for each in found["findings"]
            if "as long in `augment` as the other ranks" in each["sentence"]
        ]
        assert finding["code"] == "ranks.stage"
        assert finding["sentence"].startswith(f"Rank {slow} spent ")
    # AND an output folder that also contains traces is analysed by its traces
    for path in reports.iterdir():
        path.rename(dumps / path.name)
    assert "ranks" in analyzed(str(dumps))


def test_reports_of_different_content(tmp_path: Path) -> None:
    # GIVEN reports as TeleFuser writes them, with few keys, from two processes without ranks
    for name, ms in (("timing.json", 10.0), ("timing_pid7.json", 400.0)):
        stage = {"duration_ms": ms, "count": 4}
        report = {"num_stages": 1, "stages": {"denoise": stage}}
        (tmp_path / name).write_text(json.dumps(report))
    found = analyzed(str(tmp_path))
    # THEN the files name the processes
    (finding,) = found["findings"]
    assert finding["sentence"].startswith("Timing_pid7 spent 40x as long in `denoise`")
    alone = analyzed(str(tmp_path / "timing.json"))
    assert alone["stages"]["stages"][0]["host_us"] == 10_000


def test_what_is_not_there_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "timing.json").write_text('{"num_stages": 0, "stages": {}}')
    for argument in (str(tmp_path / "x.stagespan"), "999999999", str(tmp_path / "none.json")):
        done = command_here("analyze", argument)
        assert done.returncode != 0
        assert done.stderr.count("\n") == 1, done.stderr
    os.makedirs(tmp_path / "recordings")
    (tmp_path / "recordings" / "1-2.stagespan").write_bytes(b"no recording")
    assert command_here("analyze", str(tmp_path / "recordings")).stderr.count("\n") == 1
    # An empty report is a report of nothing.
    assert command_here("analyze", str(tmp_path / "timing.json")).returncode == 0
