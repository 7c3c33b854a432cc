"""Profiles a stage in each of two forked workers."""

from __future__ import annotations

import multiprocessing
import sys

from shared import in_workers


def work(i):
    import torch

    import stagespan

    with stagespan.ProfilingContext("work"):
        for _ in range(i + 1):
            torch.ones(8, 8) @ torch.ones(8, 8)


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")  # so that torch is imported once
    in_workers(context, work, 2)
    assert "stagespan" not in sys.modules
