"""Two live ranks, of which one waits for the other: the times of their runs tell which."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from recorded_process import command_here, started

from running import PROGRAMS

JOBS = PROGRAMS / "jobs.py"

# A rank whose steps end together with those of the other one. All times are in ms of a step.


@pytest.mark.parametrize("stages", ["load,exchange", "all_reduce,decode"])
@pytest.mark.parametrize("slow", [0, 1])
def test_the_rank_that_waits_is_not_accused(slow: int, stages: str, folder: Path) -> None:
    job = f"slow-{os.getpid()}"
    [
        started(
            JOBS,
            "rank_of_two_stages",
            "slow" if rank == slow else "fast",
            stages,
            STAGESPAN_JOB=job,
            RANK=str(rank),
            WORLD_SIZE="2",
            STAGESPAN_RING_SPANS="256",
        )
        for rank in range(2)
    ]
    done = command_here("show", "--job", job)
    said = " ".join(done.stdout.split())
    first, second = stages.split(",")
    assert f"ank {slow} spent 3.0x as long in `{first}` as the other ranks" in said
    assert f"rank {1 - slow} waits about 20.0 ms for it in `{second}`" in said
    assert f"ank {1 - slow} spent" not in said
