"""Measures the highest rates of this machine's processors, for traces of stages that run on them.

There is no table of processors with the rates that torch reaches on them with some number of
threads, so they are measured where the stage runs: products of matrices that fit into the caches,
and copies of memory that do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

KEY = "stagespan_peaks"
"""The metadata of a trace that contains the rates."""

_SIZE = 512
_COPIED_BYTES = 1 << 25
_REPEATS = 5


def measured_peaks() -> dict[str, float]:
    """Return TFLOP/s of products as `fp32` and `bf16`, and TB/s of memory as `memory_tb_s`.

    Each is the fastest of five runs with torch's current number of threads. It takes some tens of
    milliseconds. A product that this torch cannot compute on these processors has no rate.
    """
    import torch

    peaks = {}
    with torch.inference_mode():
        for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            matrix = torch.ones(_SIZE, _SIZE, dtype=dtype)
            multiply = partial(torch.mm, matrix, matrix, out=torch.empty_like(matrix))
            # torch 2.0 raises for bf16 on processors without instructions for it.
            with suppress(RuntimeError):
                peaks[name] = 2 * _SIZE**3 / _fastest_ns(multiply) / 1e3
        source = torch.ones(_COPIED_BYTES, dtype=torch.uint8)
        target = torch.empty_like(source)
        peaks["memory_tb_s"] = 2 * _COPIED_BYTES / _fastest_ns(partial(target.copy_, source)) / 1e3
    return peaks


def _fastest_ns(run: Callable[[], object]) -> int:
    run()
    times = []
    for _ in range(_REPEATS):
        begin = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - begin)
    return max(min(times), 1)
