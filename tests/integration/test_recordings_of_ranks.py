"""Eight ranks of torch.distributed, one of which is stalled: it is identified from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import pytest
from recorded_process import command, command_here

import preloaded
from running import PROGRAMS, command_of, ready, start_command

pytest.importorskip("torch")

RANKS = 8
# One process has imported torch, because eight imports would take most of the test.
PROGRAM = PROGRAMS / "stalled_rank.py"


@pytest.mark.parametrize("way", ["stopped", "holds Python's lock"])
def test_the_rank_that_the_others_wait_for_is_named(way: str, folder: Path, tmp_path: Path) -> None:
    # GIVEN eight ranks, one of which is stalled in a stage, so that the others wait for it
    job = start_command(
        command_of(PROGRAM, way, python=preloaded.python()),
        cwd=tmp_path,
        stderr=(tmp_path / "stderr").open("w"),
        OMP_NUM_THREADS="1",
        GLOO_SOCKET_IFNAME="lo",
    )
    line = ready(job)
    try:
        expected = {rank: "load" if rank == 3 else "all_reduce" for rank in range(RANKS)}
        stalled: dict[int, str] = {}
        until_s = time.monotonic() + 120
        while stalled != expected and time.monotonic() < until_s:
            time.sleep(0.5)
            found = json.loads(command_here("ps", "--stalled", "1", "--json").stdout)["stalled"]
            of_job = [one for one in found if one["job"] == "job-8"]
            stalled = {one["rank"]: one["open_spans"][0]["stage"] for one in of_job}
        assert stalled == expected, (tmp_path / "stderr").read_text()
        shown = command("ps", "--stalled", "1", "--job", "job-8")
        pages = [
            command_here(*arguments, "--job", "job-8")
            for arguments in (("ps",), ("show",), ("top", "--once"))
        ]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(line), signal.SIGKILL)
        job.communicate(timeout=30)
    assert shown.returncode == 1
    for rank, stage in expected.items():
        (line,) = (line for line in shown.stdout.splitlines() if f", rank {rank}:" in line)
        assert f" has been in `{stage}` for " in line
    for page in pages:
        assert page.returncode == 0, page.stderr
        assert "rank 3 has been in `load` for " in page.stdout
        assert "it finished `load` 5 times, the others 6." in page.stdout
