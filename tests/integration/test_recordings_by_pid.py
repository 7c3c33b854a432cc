"""Process ids are not unique: containers reuse them, and so does the system after a while."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest
from click.testing import CliRunner
from recorded_process import command_here, copy_sparse, start, started, started_as_first

from running import PROGRAMS, end, ready, tell
from stagespan import recording
from stagespan.cli import command
from stagespan.errors import StagespanError

LIVE = PROGRAMS / "live.py"


@pytest.mark.parametrize("mounts_proc", [True, False])
def test_containers_in_which_everything_is_process_1(mounts_proc: bool, folder: Path) -> None:
    older = started_as_first(LIVE, "stage_and_inner", "older", "asks", mounts_proc=mounts_proc)
    newer = started_as_first(LIVE, "stage_and_inner", "newer", "asks", mounts_proc=mounts_proc)
    assert tell(older) == "alive older"
    assert tell(newer) == "alive newer"
    for arguments in (("show", "1"), ("top", "1", "--once"), ("dump", "1")):
        done = command_here(*arguments)
        assert done.returncode == 2
        for path in folder.glob("1-*.stagespan"):
            assert f"{path} (python live.py, pid namespace " in done.stderr


def replace_number(path: Path, before: bytes, after: bytes) -> None:
    """Replace a number in the header of a recording."""
    with path.open("r+b") as file:
        at = file.read(8192).index(before)
        file.seek(at)
        file.write(after)


def copy_for_another_container(path: Path, name: str) -> Path:
    """Copy a recording as if a process of another pid namespace had written it."""
    other = path.with_name(name)
    copy_sparse(path, other)
    space = os.stat("/proc/self/ns/pid").st_ino
    replace_number(other, struct.pack("<Q", space), struct.pack("<Q", 123456))
    return other


def test_a_live_process_is_preferred_to_others_that_had_its_id(folder: Path) -> None:
    process = start(LIVE, "stage_and_inner", "here")
    pid = int(ready(process))
    (path,) = folder.glob("*.stagespan")
    copy_for_another_container(path, f"{pid}-{10**12}.stagespan")
    assert recording.open(pid).path == str(path)
    assert recording.open(str(pid)).pid_namespace == os.stat("/proc/self/ns/pid").st_ino
    end(process)
    # THEN nobody knows which one is meant
    for asked in (pid, str(pid)):
        with pytest.raises(StagespanError, match="pid namespace 123456") as caught:
            recording.open(asked)
        assert str(path) in str(caught.value)
    path.unlink()
    assert recording.open(pid).pid_namespace == 123456


def test_two_processes_that_had_one_id_after_each_other(folder: Path) -> None:
    process = start(LIVE, "stage_and_inner", "here")
    pid = int(ready(process))
    end(process)
    (path,) = folder.glob("*.stagespan")
    copy_sparse(path, folder / f"{pid}-7.stagespan")

    done = command_here("show", str(pid))

    assert done.returncode == 2
    assert done.stderr.count(", died)") == 2
    assert command_here("show", str(path)).returncode == 0


def test_a_process_without_a_recording_is_not_another_one_with_its_id(folder: Path) -> None:
    process = started(LIVE, "stage_and_inner", "here")
    end(process)
    (path,) = folder.glob("*.stagespan")
    now = start(LIVE, "without_a_recording")
    pid = int(ready(now))
    replace_number(path, struct.pack("<I", process.pid), struct.pack("<I", pid))
    earlier = path.rename(folder / f"{pid}-7.stagespan")
    assert f"The process {pid} has no recording that can be read here" in tell(now)
    assert recording.open(pid).state == "died"
    copy_for_another_container(earlier, f"{pid}-8.stagespan")
    earlier.unlink()
    # THEN it is named, but not taken for the live one
    with pytest.raises(StagespanError, match=f"{pid}-8.stagespan .*pid namespace 123456, died"):
        recording.open(pid)


def test_the_spans_of_a_trace_are_those_of_its_time(folder: Path, tmp_path: Path) -> None:
    process = start(LIVE, "stage_and_inner", "first")
    pid = int(ready(process))
    end(process)
    (path,) = folder.glob("*.stagespan")
    (span,) = (row for row in recording.open(path).spans())
    other = copy_for_another_container(path, f"{pid}-7.stagespan")
    trace = tmp_path / "trace.json"
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": pid, "tid": pid, "dur": 1000.0}
    trace.write_text(json.dumps({"traceEvents": [{**event, "ts": span["begin_ns"] / 1e3}]}))

    done = CliRunner().invoke(command, ["dump", "--into", str(trace)])

    assert done.exit_code == 2
    assert str(path) in done.output
    assert str(other) in done.output
    later = started(LIVE, "stage_and_inner", "second")
    end(later)
    (wrong,) = folder.glob(f"{later.pid}-*.stagespan")
    replace_number(wrong, struct.pack("<I", later.pid), struct.pack("<I", pid))
    wrong.replace(other)
    done = CliRunner().invoke(command, ["dump", "--into", str(trace)])
    assert done.exit_code == 0, done.output
    assert f"of process {pid}" in done.output
