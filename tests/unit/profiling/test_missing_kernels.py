"""Traces that contain launches of kernels, but no kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stagespan.device.table import CPU, CUDA
from stagespan.profiling.kernels import missing_kernels
from stagespan.trace import Trace, read_trace


def a_trace(folder: Path, *events: dict[str, Any]) -> Trace:
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": list(events)}))
    return read_trace(path)


LAUNCH = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1}
KERNEL = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7}


def test_launches_without_kernels_are_reported_with_the_likely_reason(tmp_path: Path) -> None:
    launches = [{**LAUNCH, "ts": at, "dur": 2} for at in (1, 5, 9)]
    sentence = missing_kernels(a_trace(tmp_path, *launches), CUDA)
    assert sentence is not None
    assert sentence.startswith("it contains 3 launches of kernels but no kernel; ")
    assert "CUPTI" in sentence


def test_a_whole_trace_and_one_of_a_cpu_are_fine(tmp_path: Path) -> None:
    whole = a_trace(tmp_path, {**LAUNCH, "ts": 1, "dur": 2}, {**KERNEL, "ts": 4, "dur": 9})
    assert missing_kernels(whole, CUDA) is None
    assert missing_kernels(a_trace(tmp_path, {**LAUNCH, "ts": 1, "dur": 2}), CPU) is None
