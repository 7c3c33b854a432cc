"""Requests whose parts are in several jobs, and the recordings that commands read for them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from exporting import exporter, of, scraped
from recorded_process import command, command_here, start, started

from running import PROGRAMS, end, ready, tell, until
from stagespan import _core, recording

JOBS = PROGRAMS / "jobs.py"

# A front that sends each request to a batcher, which answers with its batches of two.


def row_of(pid: int) -> dict[str, Any]:
    """Return the row of a process in the list; processes of others may be in it too."""
    rows = json.loads(command_here("ps", "--json").stdout)["processes"]
    found: dict[str, Any] = next(row for row in rows if row["pid"] == pid)
    return found


def requests_of(job: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(command_here("requests", "--job", job, "--json").stdout)
    return found


def test_the_requests_of_a_job_have_their_parts_in_other_jobs(folder: Path) -> None:
    fronts = [start(JOBS, "front_of_batches", job, STAGESPAN_JOB=job) for job in ("left", "right")]
    batcher = started(JOBS, "batcher", STAGESPAN_JOB="batcher")
    for _ in range(4):
        carriers = [json.loads(ready(front)) for front in fronts]
        tell(batcher, json.dumps(carriers))
        for front in fronts:
            assert front.stdin is not None
            front.stdin.write("\n")
            front.stdin.flush()
    assert [ready(front) for front in fronts] == ["done", "done"]
    found = {job: requests_of(job) for job in ("left", "right")}
    of_batcher = command_here("requests", "--job", "batcher")
    for job, page in found.items():
        assert [one["request_id"][:-1] for one in page["requests"]] == [f"{job}-"] * 4
        for one in page["requests"]:
            assert (one["complete"], one["causes"]) == (True, [])
            names = [row["name"] for row in one["where"] if row["kind"] == "execution"]
            assert names == ["forward"]
            assert len(one["segments"]) == 2
            (batch,) = one["segments"][1]["spans"]
            assert (batch["kind"], batch["size"]) == ("batch", 2)
    # THEN none began in the third one
    assert "There are no requests" in of_batcher.stdout
    assert "'batcher'" in of_batcher.stdout


def test_what_was_lost_is_that_of_the_recordings_that_are_shown(folder: Path) -> None:
    # GIVEN a job without losses beside one that has lost links
    lossy = start(JOBS, "many_links", STAGESPAN_JOB="lossy", STAGESPAN_REQUESTS="64")
    quiet = start(JOBS, "one_request", "one", STAGESPAN_JOB="quiet")
    ready(lossy)
    ready(quiet)
    assert requests_of("lossy")["lost"]["links"] > 0
    assert not any(requests_of("quiet")["lost"].values())
    assert "lost" not in command_here("requests", "--job", "quiet").stdout


def test_all_commands_read_only_the_folder_that_is_set(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STAGESPAN_RECORDING_DIR")
    process = start(JOBS, "one_request", "elsewhere", STAGESPAN_JOB="elsewhere")
    if ready(process) != "file":
        pytest.skip(f"{_core.recording_default_folder()} cannot be used: free 256 MiB there")
    assert process.pid in {one.pid for one in recording.recordings()}
    monkeypatch.setenv("STAGESPAN_RECORDING_DIR", str(folder))
    rows = json.loads(command_here("ps", "--all", "--json").stdout)["processes"]
    listed = json.loads(command_here("requests", "--json", "--slowest", "1000").stdout)
    with exporter() as (_, port):
        exported = scraped(port)
    end(process)
    assert process.pid not in {row["pid"] for row in rows}
    assert "elsewhere" not in {one["request_id"] for one in listed["requests"]}
    assert of(exported, "stagespan_process_up", service="elsewhere") is None


def test_the_list_says_how_many_open_requests_it_does_not_show(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # other tests' processes are in the list too
    process = started(JOBS, "open_requests", STAGESPAN_REQUESTS="64", STAGESPAN_JOB="many")
    row = row_of(process.pid)
    text = command_here("ps").stdout
    job = command_here("ps", "--job", "many").stdout
    assert (row["open_requests"], row["unshown_requests"]) == (64, 86)
    assert " 64+ " in text
    assert f"{process.pid}: 64 of up to 150 open requests are shown" in text
    assert "64 requests are open" in job
    assert "Up to 86 more may be open" in job


def test_batches_are_runs_of_their_process(folder: Path) -> None:
    process = started(JOBS, "failing_batches", STAGESPAN_JOB="engine")
    row = row_of(process.pid)
    job = json.loads(command_here("ps", "--job", "engine", "--json").stdout)
    recovered = json.loads(command_here("show", str(process.pid), "--json").stdout)
    assert row["spans"] >= 30
    assert row["spans_per_s"] > 0
    assert row["errors"] == 3
    assert job["stages"]["forward"]["count"] >= 30
    assert job["counts"]["forward"][f"pid {process.pid}"] >= 30
    assert recovered["stages"]["forward"]["errors"] == 3


def test_doctor_leaves_nothing_in_the_metrics(folder: Path) -> None:
    with exporter() as (_, port):
        until(lambda: "stagespan_lost_total" in scraped(port))
        done = command("doctor", "--json", "--no-device")
        rows = {row["name"]: row for row in json.loads(done.stdout)["findings"]}
        assert rows["recording"]["state"] == "works"
        assert str(folder) in rows["recording"]["text"]
        samples = [dict(labels) for found in scraped(port).values() for labels in found]
        assert {labels.get("service") for labels in samples} == {None}
        assert "doctor" not in (folder / ".export-state.json").read_text()
    assert {name for name in os.listdir(folder) if "stagespan" in name} == set()
