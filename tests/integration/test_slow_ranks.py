"""Two live ranks, of which one waits for the other: the times of their runs tell which."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from recorded_process import command_here, started

# A rank whose steps end together with those of the other one. All times are in ms of a step.
RANK = """
    import sys, time
    import stagespan

    slow, stages = sys.argv[1], sys.argv[2].split(",")
    begin_ns = time.time_ns() // 10**9 * 10**9 - 20 * 10**9
    for step in range(40):
        at_ns = begin_ns + step * 100 * 10**6
        for stage, ms in zip(stages, (30, 70) if slow == "slow" else (10, 90)):
            # The second stage ends together with that of the other rank.
            stagespan.record(stage, at_ns, at_ns + ms * 10**6)
            at_ns += ms * 10**6
    stagespan.flush()
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("stages", ["load,exchange", "all_reduce,decode"])
@pytest.mark.parametrize("slow", [0, 1])
def test_the_rank_that_waits_is_not_accused(slow: int, stages: str, folder: Path) -> None:
    job = f"slow-{os.getpid()}"
    [
        started(
            RANK,
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
