"""One of two processes that train together; rank 1 sleeps before every all-reduce."""

from __future__ import annotations

import sys
import time
from pathlib import Path

ROUNDS = 8
"""The minimum number of rounds in both traces."""
ROUNDS_MISSED = 4
"""The rounds before them, because a profiler can begin to record some time after its start."""
SLEEP_S = 0.15


def main(rank: int, folder: Path) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    weights, gradients = torch.randn(64, 64), torch.ones(100_000)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        # The profiler may take long to start in one of them; from here on they are synchronised.
        dist.all_reduce(gradients)
        for _ in range(ROUNDS_MISSED + ROUNDS):
            for _ in range(5):
                weights = (weights @ weights).clamp(-1, 1)
            if rank == 1:
                time.sleep(SLEEP_S)
            dist.all_reduce(gradients)
            profiler.step()
    profiler.export_chrome_trace(str(folder / f"rank{rank}_trace.json"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
