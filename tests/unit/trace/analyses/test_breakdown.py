"""The breakdown: each kernel once, operators by self time, names unchanged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stagespan.trace import breakdown, device_use, read_trace
from stagespan.trace.analyses import kernels

Write = Callable[..., Path]


def event(cat: str, name: str, ts: float, dur: float, **others: Any) -> dict[str, Any]:
    made = {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": 1}
    correlation = others.pop("correlation", None)
    arguments = {} if correlation is None else {"correlation": correlation}
    return made | {"args": arguments | others.pop("args", {})} | others


def table_row(
    name: str, ms: float, *, cuda: float, device: float | None, cpu: float | None, count: int
) -> dict[str, Any]:
    return {
        "name": name,
        "ms": ms,
        "cuda_ms": cuda,
        "device_ms": device,
        "cpu_ms": cpu,
        "count": count,
    }


def test_kernels_by_time_with_their_launches(write_trace: Write) -> None:
    path = write_trace(
        [
            event("cuda_runtime", "cudaLaunchKernel", 0, 3, correlation=1),
            event("cuda_driver", "cuLaunchKernel", 5, 4, correlation=2),
            event("cpu_op", "aten::mm", 0, 50),
            event("kernel", "gemm", 10, 20.5, correlation=1),
            event("kernel", "gemm", 40, 30, correlation=2),
            event("kernel", "lost", 80, 60, correlation=99),
            event("gpu_memcpy", "Memcpy HtoD", 150, 500, correlation=3),
            event("gpu_memset", "Memset", 700, 5),
            event("gpu_user_annotation", "denoise", 10, 700),
        ]
    )
    table = breakdown(read_trace(path), "denoise").to_dict()
    assert table == {
        "name": "denoise",
        "total_kernel_time_ms": 0.1105,
        "num_kernels": 2,
        "num_launches": 3,
        "top_kernels": [
            table_row("lost", 0.06, cuda=0.06, device=0.06, cpu=None, count=1),
            table_row("gemm", 0.0505, cuda=0.0505, device=0.0505, cpu=0.007, count=2),
        ],
    }
    assert json.loads(json.dumps(table)) == table


def test_a_graph_launch_is_shared_by_its_kernels(write_trace: Write) -> None:
    kernels = [event("kernel", name, 10 + i, 1, correlation=5) for i, name in enumerate("aaab")]
    launch = event("cuda_runtime", "cudaGraphLaunch", 0, 8, correlation=5)
    inner = event("cuda_driver", "cuGraphLaunch", 1, 2, correlation=5)
    rows = breakdown(read_trace(write_trace([launch, inner, *kernels])), "s").rows
    assert [(row.name, row.count, row.launch_ns) for row in rows] == [
        ("a", 3, 6000),
        ("b", 1, 2000),
    ]


def test_operators_by_self_time(write_trace: Write) -> None:
    path = write_trace(
        [
            event("user_annotation", "ProfilerStep#3", 0, 200),
            event("cpu_op", "ProfilerStep#4", 0, 100),
            event("cpu_op", "aten::linear", 10, 50),
            event("user_annotation", "my stage", 12, 40),
            event("cpu_op", "aten::addmm", 20, 30),
            event("cpu_op", "aten::linear", 10, 5, tid=2),
            event("cpu_op", "aten::copy_", 65, 1),
            event("user_annotation", "compile (dynamo_timed)", 0, 500),
            event("cpu_op", "entire_frame (dynamo_timed)", 300, 9),
            event("trace", "PyTorch Profiler (0)", 0, 1000),
        ]
    )
    result = breakdown(read_trace(path), "s")
    assert not result.on_device
    assert result.to_dict() == {
        "name": "s",
        "total_kernel_time_ms": 0.056,
        "num_kernels": 3,
        "num_launches": 4,
        "top_kernels": [
            table_row("aten::addmm", 0.03, cuda=0.0, device=None, cpu=0.03, count=1),
            table_row("aten::linear", 0.025, cuda=0.0, device=None, cpu=0.025, count=2),
            table_row("aten::copy_", 0.001, cuda=0.0, device=None, cpu=0.001, count=1),
        ],
    }


def test_operators_are_those_of_the_kernels(write_trace: Write) -> None:
    path = write_trace(
        [
            event("cpu_op", "_compile (dynamo_timed)", 0, 1_000),
            event("cpu_op", "_compile", 0, 1_000),
            event("cpu_op", "aten::empty", 100, 600),
            event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 2_000, 60),
            event("cpu_op", "aten::mm", 2_010, 40),
            event("cpu_op", "Torch-Compiled Region: 0/0", 3_000, 90),
            event("user_annotation", "## Call CompiledFxGraph abc ##", 3_010, 70),
            event("cpu_op", "aten::addmm", 3_020, 30),
            event("cpu_op", "aten::mm", 3_200, 0),
        ]
    )
    trace = read_trace(path)
    rows = [(row.name, row.time_ns / 1e3, row.count) for row in breakdown(trace, "s").rows]
    found = kernels.analyze(trace)
    assert isinstance(found, kernels.Kernels)
    assert rows == [
        ("aten::mm", 40, 2), ("## Call CompiledFxGraph abc ##", 40, 1), ("aten::addmm", 30, 1),
    ]  # fmt: skip
    written = found.to_dict()
    assert [(each["name"], each["time_us"], each["count"]) for each in written["top"]] == rows
    assert written["breakdown"]["total_kernel_time_ms"] == 0.11


def test_only_the_top_is_listed_but_all_is_counted(write_trace: Write) -> None:
    path = write_trace([event("kernel", f"k{i}", i * 100, i + 1) for i in range(60)])
    table = breakdown(read_trace(path), "s").to_dict()
    assert [row["name"] for row in table["top_kernels"]] == [f"k{i}" for i in range(59, 9, -1)]
    assert table["num_kernels"] == table["num_launches"] == 60
    assert table["total_kernel_time_ms"] == sum(range(1, 61)) / 1000


def test_a_breakdown_without_kernels(write_trace: Write) -> None:
    trace = read_trace(write_trace([event("user_annotation", "a", 0, 1)]))
    assert breakdown(trace, "s").to_dict()["top_kernels"] == []
    assert device_use(trace).to_dict()["busy_us"] is None
    assert device_use(trace).idle_ns is None


@pytest.mark.parametrize("name", ["re", "Pi", "Sum", "λ", 'quote"', "a/b", "void f<int, 4>(T*)"])
def test_names_are_unchanged(write_trace: Write, name: str) -> None:
    trace = read_trace(write_trace([event("kernel", name, 0, 1)]))
    table = breakdown(trace, name).to_dict()
    assert (table["name"], table["top_kernels"][0]["name"]) == (name, name)


def test_sums_of_device_use_are_correct(write_trace: Write) -> None:
    # GIVEN computation, communication and copies that overlap on three streams of one device
    def on(cat: str, name: str, ts: float, dur: float, stream: int) -> dict[str, Any]:
        return event(cat, name, ts, dur, args={"device": 0, "stream": stream})

    path = write_trace(
        [
            on("kernel", "gemm", 0, 10, 7),
            on("kernel", "ncclDevKernel_AllReduce", 5, 10, 8),
            on("gpu_memcpy", "Memcpy", 12, 8, 9),
            on("gpu_memset", "Memset", 30, 1, 7),
            on("kernel", "triton_poi_fused_add_0", 40, 2, 7),
        ]
    )
    use = device_use(read_trace(path))
    assert use.span_ns == 42_000
    assert (use.busy_ns, use.idle_ns) == (23_000, 19_000)
    assert (use.compute_ns, use.communication_ns, use.copy_ns) == (13_000, 10_000, 8_000)
    assert (use.exposed_communication_ns, use.exposed_copy_ns) == (5_000, 5_000)
    assert use.kernel_sum_ns == 22_000
    assert use.stream_busy_ns == {"7": 13_000, "8": 10_000, "9": 8_000}
    assert (use.without_launch, use.triton_kernels) == (5, 1)
    parts = [use.compute_ns, use.exposed_communication_ns, use.exposed_copy_ns, use.idle_ns]
    assert sum(part or 0 for part in parts) == use.span_ns


def test_streams_of_several_devices_are_separate(write_trace: Write) -> None:
    kernels = [event("kernel", "k", 0, 5, args={"device": d, "stream": 7}) for d in (0, 1)]
    use = device_use(read_trace(write_trace(kernels))).to_dict()
    assert use["per_stream_busy_us"] == {"0/7": 5.0, "1/7": 5.0}
