"""Process ids are not unique: containers reuse them, and so does the system after a while."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner
from recorded_process import command_here, copy_sparse, end, ready, start

from stagespan import recording
from stagespan.cli import command
from stagespan.errors import StagespanError

HOLD = """
    import os, sys, time
    import stagespan
    with stagespan.span(sys.argv[1]):
        with stagespan.span("inner"):
            time.sleep(0.01)
        print(os.getpid(), flush=True)
        sys.stdin.readline()
        if len(sys.argv) > 2:
            from stagespan import recording
            mine = recording.open(os.getpid())
            print(mine.state, *[span["stage"] for span in mine.open_spans()], flush=True)
            sys.stdin.readline()
"""


def in_a_container(*arguments: str, mounts_proc: bool) -> subprocess.Popen[str]:
    """Start the program as process 1 of a pid namespace; skip if that is not allowed."""
    options = ["--pid", "--fork", "--kill-child", *(["--mount-proc"] if mounts_proc else [])]
    try:
        process = subprocess.Popen(
            ["unshare", *options, sys.executable, "-c", textwrap.dedent(HOLD), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except FileNotFoundError:
        pytest.skip("unshare (util-linux) is not installed")
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        _, errors = process.communicate(timeout=30)
        pytest.skip(f"cannot create a namespace: run as root ({errors.strip()})")
    assert line == "1"
    return process


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


@pytest.mark.parametrize("mounts_proc", [True, False])
def test_containers_in_which_everything_is_process_1(mounts_proc: bool, folder: Path) -> None:
    older = in_a_container("older", "asks", mounts_proc=mounts_proc)
    newer = in_a_container("newer", "asks", mounts_proc=mounts_proc)
    try:
        # THEN each of them finds its own recording by its own process id
        assert answer(older) == "alive older"
        assert answer(newer) == "alive newer"
        for arguments in (("recover", "1"), ("top", "1", "--once"), ("dump", "1")):
            done = command_here(*arguments)
            assert done.returncode == 2
            for path in folder.glob("1-*.stagespan"):
                assert f"{path} (python -c, pid namespace " in done.stderr
        end(older)
        end(newer)
    finally:
        for process in (older, newer):
            process.kill()
            process.wait(timeout=30)


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
    process = start(HOLD, "here")
    try:
        pid = int(ready(process))
        (path,) = folder.glob("*.stagespan")
        # GIVEN the recording of a process of another container, which started later
        copy_for_another_container(path, f"{pid}-{10**12}.stagespan")
        assert recording.open(pid).path == str(path)
        assert recording.open(str(pid)).pid_namespace == os.stat("/proc/self/ns/pid").st_ino
    finally:
        end(process)
    # THEN nobody knows which one is meant
    for asked in (pid, str(pid)):
        with pytest.raises(StagespanError, match="pid namespace 123456") as caught:
            recording.open(asked)
        assert str(path) in str(caught.value)
    path.unlink()
    assert recording.open(pid).pid_namespace == 123456


def test_two_processes_that_had_one_id_after_each_other(folder: Path) -> None:
    process = start(HOLD, "here")
    pid = int(ready(process))
    end(process)
    (path,) = folder.glob("*.stagespan")
    copy_sparse(path, folder / f"{pid}-7.stagespan")

    done = command_here("recover", str(pid))

    assert done.returncode == 2
    assert done.stderr.count(", died)") == 2
    assert command_here("recover", str(path)).returncode == 0


WITHOUT_A_RECORDING = """
    import os, sys
    from stagespan import recording
    print(os.getpid(), flush=True)
    sys.stdin.readline()
    try:
        print(recording.open(os.getpid()), flush=True)
    except Exception as error:
        print(error, flush=True)
    sys.stdin.readline()
"""


def test_a_process_without_a_recording_is_not_another_one_with_its_id(folder: Path) -> None:
    process = start(HOLD, "here")
    ready(process)
    end(process)
    (path,) = folder.glob("*.stagespan")
    now = start(WITHOUT_A_RECORDING)
    try:
        pid = int(ready(now))
        replace_number(path, struct.pack("<I", process.pid), struct.pack("<I", pid))
        earlier = path.rename(folder / f"{pid}-7.stagespan")
        assert f"The process {pid} has no recording that can be read here" in answer(now)
        # THEN others find that of the ended process
        assert recording.open(pid).state == "died"
        copy_for_another_container(earlier, f"{pid}-8.stagespan")
        earlier.unlink()
        # THEN it is named, but not taken for the live one
        with pytest.raises(StagespanError, match=f"{pid}-8.stagespan .*pid namespace 123456, died"):
            recording.open(pid)
    finally:
        end(now)


def test_the_spans_of_a_trace_are_those_of_its_time(folder: Path, tmp_path: Path) -> None:
    process = start(HOLD, "first")
    pid = int(ready(process))
    end(process)
    (path,) = folder.glob("*.stagespan")
    (span,) = (row for row in recording.open(path).spans())
    other = copy_for_another_container(path, f"{pid}-7.stagespan")
    trace = tmp_path / "trace.json"
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": pid, "tid": pid, "dur": 1000.0}
    trace.write_text(json.dumps({"traceEvents": [{**event, "ts": span["begin_ns"] / 1e3}]}))

    done = CliRunner().invoke(command, ["merge-spans", str(trace)])

    assert done.exit_code == 2
    assert str(path) in done.output
    assert str(other) in done.output
    later = start(HOLD, "second")
    ready(later)
    end(later)
    (wrong,) = folder.glob(f"{later.pid}-*.stagespan")
    replace_number(wrong, struct.pack("<I", later.pid), struct.pack("<I", pid))
    wrong.replace(other)
    done = CliRunner().invoke(command, ["merge-spans", str(trace)])
    assert done.exit_code == 0, done.output
    assert f"of process {pid}" in done.output
