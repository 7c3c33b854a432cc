"""Files as ncu writes them, with known figures."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

HEAD = (
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream",
    "Block Size", "Grid Size", "Device", "CC",
)  # fmt: skip
UNITS = {
    "gpu__time_duration.sum": "nsecond",
    "dram__bytes.sum": "byte",
}
Figures = Mapping[str, float | int | str]


def unit_of(metric: str) -> str:
    return UNITS.get(metric, "%" if "pct" in metric else "inst" if "inst" in metric else "")


def thousands(value: float | int | str, decimal: str = ".", parted_by: str = ",") -> str:
    """Return the number as a locale prints it."""
    if isinstance(value, str):
        return value
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
    return text.replace(",", "\0").replace(".", decimal).replace("\0", parted_by)


def place(number: int, name: str) -> list[str]:
    return [
        str(number), "17333", "python", "127.0.0.1", name, "1", "7", "(256, 1, 1)", "(64, 2, 1)",
        "0", "9.0",
    ]  # fmt: skip


def _written(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return text.getvalue()


def long_file(
    kernels: Sequence[tuple[str, Figures]], decimal: str = ".", parted_by: str = ","
) -> str:
    """One row per metric."""
    rows = [[*HEAD, "Section Name", "Metric Name", "Metric Unit", "Metric Value"]]
    for number, (name, figures) in enumerate(kernels):
        for metric, value in figures.items():
            text = thousands(value, decimal, parted_by)
            section = "Command line profiler metrics"
            rows.append([*place(number, name), section, metric, unit_of(metric), text])
    return _written(rows)


def wide_file(
    kernels: Sequence[tuple[str, Figures]], decimal: str = ".", parted_by: str = ","
) -> str:
    """`--page raw`: one row per kernel, with the units in the second row."""
    metrics = list(dict.fromkeys(metric for _, figures in kernels for metric in figures))
    rows = [[*HEAD, *metrics], [""] * len(HEAD) + [unit_of(metric) for metric in metrics]]
    for number, (name, figures) in enumerate(kernels):
        values = [thousands(figures.get(m, ""), decimal, parted_by) for m in metrics]
        rows.append([*place(number, name), *values])
    return _written(rows)


COMPUTE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
L2 = "lts__throughput.avg.pct_of_peak_sustained_elapsed"
ACHIEVED = "sm__warps_active.avg.pct_of_peak_sustained_active"
THEORETICAL = "sm__maximum_warps_per_active_cycle_pct"
WAVES = "launch__waves_per_multiprocessor"
WHOLE = "smsp__average_warp_latency_per_inst_issued.ratio"
LONG = "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio"
BARRIER = "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio"
FFMA = "sm__sass_thread_inst_executed_op_ffma_pred_on.sum"

# A copy-like kernel, a matrix product, a small one that waits, and one that uses all.
STREAMS: dict[str, float | int | str] = {
    "gpu__time_duration.sum": 1_000_000,
    "dram__bytes.sum": 3_200_000_000,
    FFMA: 400_000_000,
    COMPUTE: 20.5,
    MEMORY: 91.25,
    DRAM: 91.25,
    L2: 40.0,
    ACHIEVED: 85.0,
}
MULTIPLIES: dict[str, float | int | str] = {
    "gpu__time_duration.sum": 2_000_000,
    "dram__bytes.sum": 100_000_000,
    FFMA: 50_000_000_000,
    COMPUTE: 88.0,
    MEMORY: 45.0,
    DRAM: 10.0,
    L2: 45.0,
}
WAITS: dict[str, float | int | str] = {
    "gpu__time_duration.sum": 12_345,
    "dram__bytes.sum": 1_000,
    COMPUTE: 12.0,
    MEMORY: 31.0,
    DRAM: 31.0,
    ACHIEVED: 22.0,
    THEORETICAL: 50.0,
    WAVES: 0.12,
    WHOLE: 20.0,
    LONG: 14.0,
    BARRIER: 2.0,
}
BALANCED: dict[str, float | int | str] = {
    "gpu__time_duration.sum": 5_000,
    COMPUTE: 72.0,
    MEMORY: 66.0,
    DRAM: 66.0,
}
KERNELS: list[tuple[str, Figures]] = [
    ("void at::native::copy<float, (int)4>(float *, float *)", STREAMS),
    ("sm90_xmma_gemm", MULTIPLIES),
    ("void ns::tiny<(bool)1>(int)", WAITS),
    ("triton_poi_fused_add_0", BALANCED),
]
