"""The recording of a process that has ended stays while its job still has a live process."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from recorded_process import start

from running import PROGRAMS, end, ran, ready, tell
from stagespan import recording
from stagespan.recording.timelines import timelines

JOBS = PROGRAMS / "jobs.py"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    found = Path("/dev/shm", f"stagespan-test-{os.getpid()}-{tmp_path.name}")
    monkeypatch.setenv("STAGESPAN_RECORDING_DIR", str(found))
    yield found
    for path in found.iterdir():
        path.unlink()
    found.rmdir()


def files(folder: Path) -> list[str]:
    """Return the recordings in a folder."""
    return sorted(path.name for path in folder.iterdir())


def test_what_is_missing_may_be_in_recordings_that_were_not_named(folder: Path) -> None:
    front = start(JOBS, "front", STAGESPAN_JOB="a")
    try:
        worker = start(JOBS, "worker", ready(front), STAGESPAN_JOB="a")
        worker.communicate()
        tell(front)
        of_front = next(folder.glob(f"{front.pid}-*"))
        of_worker = next(folder.glob(f"{worker.pid}-*"))
        for named, causes in (
            ([of_front], ["receiver not among these recordings"]),
            ([of_worker], ["sender not among these recordings"]),
            ([of_front, of_worker], []),
        ):
            done = ran(
                [sys.executable, "-m", "stagespan", "requests", *map(str, named), "--json"],
                status=0,
            )
            # THEN nobody says that the message was not received, or that a recording was removed
            (found,) = json.loads(done.stdout)["requests"]
            assert found["causes"] == causes
    finally:
        front.communicate("\n", timeout=30)


@pytest.mark.parametrize("jobs", [("a", "a"), ("a", "b"), ("", "")])
def test_an_ended_worker_can_be_read_while_its_job_lives(
    folder: Path, jobs: tuple[str, str]
) -> None:
    front = start(JOBS, "front", STAGESPAN_JOB=jobs[0])
    carrier = ready(front)
    worker = start(JOBS, "worker", carrier, STAGESPAN_JOB=jobs[1])
    worker.communicate()
    tell(front)
    (one,) = timelines(
        found for found in recording.recordings(spans=True) if Path(found.path).parent == folder
    )
    # THEN it is read as if the worker were alive; otherwise, the cause is said
    is_same = jobs == ("a", "a")
    assert len(files(folder)) == (2 if is_same else 1)
    assert [stretch.segment["origin"] for stretch in one.segments] == (
        ["root", "remote"] if is_same else ["root"]
    )
    assert one.causes == ([] if is_same else ["message not received"])
    assert sum(one.where.values()) == one.total_ns
    front.communicate("\n", timeout=30)
    assert files(folder) == []


def test_a_killed_process_does_not_keep_the_others(folder: Path) -> None:
    killed = start(JOBS, "front", STAGESPAN_JOB="a")
    other = start(JOBS, "front", STAGESPAN_JOB="a")
    ready(killed)
    ready(other)
    end(killed)
    other.communicate("\n\n", timeout=30)
    (left,) = files(folder)
    assert left.startswith(f"{killed.pid}-")
