"""``analyze_ncu_report``: one verdict about the kernels of an Nsight Compute report."""

from __future__ import annotations

from typing import Any

from stagespan.trace.nsight import ADVICE, read_ncu

NCU_KEY_METRICS = [
    "gpu__time_duration.avg",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
]


def analyze_ncu_report(report_path: str) -> dict[str, Any]:
    """Return means over the kernels of a ``.ncu-rep`` file, weighted by time, with a verdict.

    ``stagespan show`` shows them for each kernel. Raises TraceError if ncu is missing or cannot
    read the file.
    """
    launches = [kernel.metrics for kernel in read_ncu(report_path).kernels]
    metrics = {}
    for name in NCU_KEY_METRICS:
        values = [(at[name], at.get(NCU_KEY_METRICS[0]) or 1e-9) for at in launches if name in at]
        if values:
            weight = sum(time for _, time in values)
            metrics[name] = sum(value * time for value, time in values) / weight
    compute, memory = (metrics.get(name, 0.0) for name in NCU_KEY_METRICS[1:3])
    bound = "memory_bound" if memory > 80 else "compute_bound" if compute > 60 else "latency_bound"
    return {
        "metrics": metrics,
        "dram_throughput_pct": memory,
        "sm_throughput_pct": compute,
        "bottleneck": bound,
        "recommendation": f"{ADVICE[bound.replace('_', '-')]}.",
    }
