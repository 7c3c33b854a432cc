"""Recordings of processes that are killed, run out of memory, or end by themselves."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from recorded_process import RING, command_here, start, started

from running import PROGRAMS, end, ended, ran
from stagespan import recording

KILLED = PROGRAMS / "killed.py"

SEQUENCE = (1 << 40) - 1  # of an id: the rest distinguishes threads


def test_a_killed_process_leaves_the_spans_that_had_ended(folder: Path, tmp_path: Path) -> None:
    chosen = random.Random(7)
    for _ in range(6):
        # GIVEN threads that write spans, and record separately which ones have ended
        path = tmp_path / "log"
        path.write_bytes(bytes(24 * 8))
        victim = started(KILLED, "writers", str(path))
        time.sleep(chosen.random() * 0.2)
        end(victim)
        found = recording.open(victim.pid)
        assert found.state == "died"
        assert found.warnings() == []
        spans, counts = found.spans(), found.stats()
        open_spans = {span["thread"]: span for span in found.open_spans()}
        assert open_spans[victim.pid]["stage"] == "main"
        assert open_spans[victim.pid]["request"] == "the request"
        assert open_spans[victim.pid]["elapsed_ns"] is None
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as log:
            for i in range(8):
                thread, begun, ended = struct.unpack_from("qqq", log, 24 * i)
                if thread == 0:
                    continue
                name = f"writer {i}"
                assert ended <= (counts[name].count if name in counts else 0) <= begun
                mine = spans[spans["thread"] == thread]
                assert len(mine) >= min(ended, RING) - 1
                if len(mine) == 0:  # killed before its first spans were recorded
                    continue
                names = {found.stage_names()[stage] for stage in mine["stage"].tolist()}
                assert names == {name}
                sequence = [number & SEQUENCE for number in mine["id"].tolist()]
                assert sequence == list(range(sequence[0], sequence[0] + len(mine)))
                assert ended <= sequence[-1] <= begun
                assert (mine["end_ns"] >= mine["begin_ns"]).all()
                assert (mine["begin_ns"][1:] >= mine["end_ns"][:-1]).all()
                if thread in open_spans:
                    assert open_spans[thread]["stage"] == name


@pytest.mark.parametrize("way", ["segmentation fault", "abort", "os._exit", "SIGKILL"])
def test_the_stages_of_a_dead_process_are_shown(way: str, folder: Path) -> None:
    process = start(KILLED, "dies", way)
    process.communicate(timeout=60)
    assert process.returncode != 0
    found = recording.open(process.pid)
    assert found.state == "died"
    assert [span["stage"] for span in found.open_spans()] == ["outer", "inner"]
    assert {name: stage.count for name, stage in found.stats().items()} == {"done": 1}
    shown = command_here("show", str(process.pid))
    assert shown.returncode == 0, shown.stderr
    assert "died without a clean exit" in shown.stdout
    assert "in inner (since" in shown.stdout


def test_tasks_that_take_turns_are_not_shown_inside_each_other(folder: Path) -> None:
    process = started(KILLED, "tasks_in_turn")
    shown = command_here("show", str(process.pid))
    end(process)
    # THEN each stage is below the one that contains it
    lines = [line for line in shown.stdout.splitlines() if line.lstrip().startswith("in ")]
    assert [line.partition(" (")[0] for line in lines] == ["    in serve", "      in wait"] * 2


def check_eater(process: subprocess.Popen[str]) -> None:
    """Compare the recording with what the program did."""
    found = recording.open(process.pid)
    assert found.state == "died"
    assert found.warnings() == []
    assert found.stats()["step"].count == 100
    main = [span for span in found.open_spans() if span["thread"] == process.pid]
    assert [(span["stage"], span["request"]) for span in main] == [
        ("serve", "large"),
        ("load", "large"),
    ]
    stage = found.stage_names().index("work")
    count = found.stats()["work"].count
    assert min(count, RING) - 1 <= (found.spans()["stage"] == stage).sum() <= RING


@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_a_program_that_finds_no_memory_leaves_its_spans(limit: str, folder: Path) -> None:
    process = start(KILLED, "eater", limit)
    ended(process, -signal.SIGABRT)
    check_eater(process)


def memory_group(limit_bytes: int) -> Path | None:
    """Create a control group with this memory limit; None if that is not possible."""
    for root, limit in (
        ("/sys/fs/cgroup", "memory.max"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
    ):
        if not Path(root, "cgroup.procs").exists():
            continue
        group = Path(root, f"stagespan-test-{os.getpid()}")
        with contextlib.suppress(OSError):
            group.mkdir()
            try:
                (group / limit).write_text(str(limit_bytes))
                return group
            except OSError:
                group.rmdir()
    return None


def test_a_process_that_is_killed_for_its_memory_leaves_its_spans(folder: Path) -> None:
    group = memory_group(256 << 20)
    if group is None:
        pytest.skip("cannot limit memory: run as root with control groups at /sys/fs/cgroup")
    try:
        process = start(KILLED, "eater", str(group / "cgroup.procs"))
        _, errors = process.communicate(timeout=120)
    finally:
        with contextlib.suppress(OSError):
            group.rmdir()
    if process.returncode == 7:
        pytest.skip("the control group does not limit memory: enable its memory controller")
    assert process.returncode == -signal.SIGKILL, errors
    check_eater(process)


@pytest.mark.parametrize("way", ["the end", "sys.exit", "an exception"])
@pytest.mark.parametrize("keep", [False, True])
def test_after_a_clean_exit_the_file_is_there_if_it_was_asked_for(
    way: str, keep: bool, folder: Path
) -> None:
    process = start(KILLED, "exits", way, STAGESPAN_RECORDING="keep" if keep else "on")
    process.communicate(timeout=60)
    files = list(folder.iterdir())
    assert len(files) == (1 if keep else 0)
    if keep:
        found = recording.open(files[0])
        assert found.state == "exited"
        assert found.end_ns is not None
        assert found.end_ns >= found.begin_ns
        assert found.stats()["stage"].count == 1


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_multiprocessing_leave_no_file(method: str, folder: Path) -> None:
    # GIVEN workers that end without the interpreter's own exit
    done = ran([sys.executable, KILLED, "workers", method], status=0)
    # THEN none of them looks as if it had died
    assert ".stagespan" in done.stdout
    assert list(folder.iterdir()) == []


def test_a_process_that_opens_no_span_makes_no_file(folder: Path) -> None:
    process = start(
        "import stagespan; print(list(__import__('os').scandir(__import__('sys').argv[1])))",
        str(folder),
    )
    out, errors = process.communicate(timeout=60)
    assert out.strip() == "[]", errors


def test_threads_that_end_share_a_few_rings(folder: Path) -> None:
    # GIVEN a program with 300 threads, one after the other
    program = started(KILLED, "short_threads", STAGESPAN_RING_SPANS="8192")
    size_bytes = sum(path.stat().st_blocks * 512 for path in folder.iterdir())
    found = recording.open(program.pid)
    spans, counts = found.spans(), found.stats()
    end(program)
    # THEN it has the rings of 32 threads that have ended and of one that runs, as the page of
    # documentation says
    assert size_bytes < (1.2 + 33 * 0.6) * 2**20
    assert counts["work"].count == len(spans) == 300 * 20
    assert len(set(spans["thread"].tolist())) == 300
