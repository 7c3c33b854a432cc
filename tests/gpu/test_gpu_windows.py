"""Bounded windows of torch.profiler in a running CUDA loop: events, and what the end costs."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import stagespan


class Pauses(threading.Thread):
    """Finds the longest time for which another Python thread could not run."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.longest_s = 0.0
        self._is_over = threading.Event()

    def run(self) -> None:
        last_s = time.monotonic()
        while not self._is_over.wait(0.001):
            now_s = time.monotonic()
            self.longest_s = max(self.longest_s, now_s - last_s)
            last_s = now_s

    def end(self) -> float:
        self._is_over.set()
        self.join()
        return self.longest_s


def test_a_window_ends_after_its_events(cuda: Any, tmp_path: Path, figures: Any) -> None:
    import torch

    layer = torch.nn.TransformerEncoderLayer(256, 4, 512, batch_first=True).cuda().eval()
    x = torch.randn(8, 64, 256, device="cuda")
    most = 5_000
    pauses = Pauses()
    pauses.start()
    window = stagespan.profile_window("loop", max_events=most, trace_only=True)
    began_s = time.perf_counter()
    with torch.inference_mode(), window:
        for _ in range(2_000):
            layer(x)
        cuda.synchronize()
    ran_s = time.perf_counter() - began_s
    path = window.export(tmp_path / "loop_trace.json.gz")
    longest_s = pauses.end()
    trace = stagespan.trace.read_trace(path)
    operators, kernels = (int(trace.rows_of([name]).sum()) for name in ("cpu_op", "kernel"))
    assert most / 2 <= operators <= 3 * most
    assert kernels > 0
    figures(
        operators=operators,
        kernels=kernels,
        bytes=path.stat().st_size,
        loop_s=ran_s,
        longest_pause_s=longest_s,
    )
