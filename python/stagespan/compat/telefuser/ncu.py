"""``analyze_ncu_report``: one verdict about the kernels of an Nsight Compute report."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from stagespan.errors import TraceError
from stagespan.trace.ncu.command import exporting
from stagespan.trace.ncu.reading import parse

NCU_KEY_METRICS = [
    "gpu__time_duration.avg",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
]
_TIME, _COMPUTE, _MEMORY, _ = NCU_KEY_METRICS
_TIMEOUT_S = 600
_MEMORY_BOUND_PERCENT = 80
_COMPUTE_BOUND_PERCENT = 60
_ADVICE = {
    "memory_bound": "The kernels use most of the memory bandwidth: fuse kernels that run one after "
    "the other.",
    "compute_bound": "The kernels use most of the arithmetic units: compute less, or with a "
    "smaller data type.",
    "latency_bound": "The kernels use neither: check their occupancy, size and memory accesses.",
}


def analyze_ncu_report(report_path: str) -> dict[str, Any]:
    """Return means over the kernels of a ``.ncu-rep`` file, weighted by time, with a verdict.

    ``stagespan ncu`` shows them for each kernel. Raises TraceError if ncu is missing or cannot read
    the file.
    """
    try:
        done = subprocess.run(
            exporting(Path(report_path)),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise TraceError(
            "ncu is not installed here: install Nsight Compute, or export the CSV elsewhere and"
            " use `stagespan ncu --csv`."
        ) from None
    except subprocess.TimeoutExpired:
        raise TraceError(f"ncu did not read {report_path} within {_TIMEOUT_S} s.") from None
    kernels = parse(done.stdout or done.stderr, report_path).kernels
    metrics = {name: _mean(name, kernels) for name in NCU_KEY_METRICS}
    compute, memory = metrics[_COMPUTE] or 0.0, metrics[_MEMORY] or 0.0
    bound = "latency_bound"
    if memory > _MEMORY_BOUND_PERCENT:
        bound = "memory_bound"
    elif compute > _COMPUTE_BOUND_PERCENT:
        bound = "compute_bound"
    return {
        "metrics": {name: value for name, value in metrics.items() if value is not None},
        "dram_throughput_pct": memory,
        "sm_throughput_pct": compute,
        "bottleneck": bound,
        "recommendation": _ADVICE[bound],
    }


def _mean(metric: str, kernels: list[Any]) -> float | None:
    known = [
        (kernel.metrics[metric], kernel.metrics.get(_TIME) or 1e-9)
        for kernel in kernels
        if metric in kernel.metrics
    ]
    weight = sum(time for _, time in known)
    return sum(value * time for value, time in known) / weight if known else None
