"""Small programs, each with one planted reason why it is slow, as torch.profiler records them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

STEPS = 6
Step = Callable[[], object]


def many_small_kernels(device: str) -> Step:
    x = torch.randn(64, device=device)

    def step() -> object:
        y = x
        for _ in range(300):
            y = y * 1.01 + 0.1
        return y

    return step


def large_products(device: str, size: int = 4096, dtype: torch.dtype = torch.bfloat16) -> Step:
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return lambda: [a @ b for _ in range(20)]


def single_precision(device: str, size: int = 4096) -> Step:
    """Products of float32 without TensorFloat-32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    return large_products(device, size, torch.float32)


def item_in_a_loop(device: str) -> Step:
    x = torch.randn(1 << 16, device=device)

    def step() -> object:
        total = 0.0
        for i in range(200):
            total += x[i].item()
        return total

    return step


def copy_that_blocks(device: str, mib: int = 256) -> Step:
    """A batch in pageable memory, copied before a little work."""
    batch = torch.empty(mib << 18)

    def step() -> object:
        x = batch.to(device)
        return (x * 2).sum()

    return step


def two_streams(device: str, size: int = 2048) -> Step:
    a, b = (torch.randn(size, size, device=device) for _ in range(2))
    side = torch.cuda.Stream()

    def step() -> object:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(10):
                a @ b
        for _ in range(10):
            b @ a
        torch.cuda.current_stream().wait_stream(side)
        return None

    return step


def compiled(device: str) -> Step:
    model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU()).to(device)
    x = torch.randn(512, 1024, device=device)
    function = torch.compile(lambda x: model(x).softmax(-1).sum())
    return lambda: function(x)


def graph_replay(device: str) -> Step:
    """A replay of what `capture_step` captures."""
    graph, _ = capture(device)
    return lambda: [graph.replay() for _ in range(20)]


def capture(device: str) -> tuple[Any, Any]:
    """Capture a small model; returns the graph and its output."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    model.to(device)
    x = torch.randn(32, 256, device=device)
    with torch.no_grad():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            model(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
    return graph, y


def record(step: Step, path: Path) -> Path:
    """Record some steps after a warm-up, and return the trace."""
    for _ in range(3):
        step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    # A cycle that only begins would replace the events of the one before.
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=STEPS, repeat=1)
    with torch.profiler.profile(
        schedule=schedule,
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
        record_shapes=True,
    ) as profiler:
        for _ in range(STEPS + 1):
            step()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            profiler.step()
    return path
