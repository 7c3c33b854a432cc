"""Profiles a stage in each of two forked workers."""

from __future__ import annotations

import multiprocessing
import sys


def work(i):
    import torch

    import stagespan

    with stagespan.ProfilingContext("work"):
        for _ in range(i + 1):
            torch.ones(8, 8) @ torch.ones(8, 8)


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")  # so that torch is imported once
    workers = [context.Process(target=work, args=(i,)) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert "stagespan" not in sys.modules
