"""For any trace, the causes of idle time sum to the idle time, and every page can be written."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_traces import read_real
from rich.console import Console

from stagespan.pages.markdown import markdown
from stagespan.pages.terminal import print_page
from stagespan.trace import Trace, device_use, read_trace
from stagespan.trace.analyses.idle import Idle
from stagespan.trace.analyses.verdict import Verdict
from stagespan.trace.analysis import analyze
from stagespan.trace.derived.device import device_work
from stagespan.trace.derived.gaps import NAMES, gaps, split_idle
from stagespan.trace.derived.step_ranges import step_begins
from stagespan.trace.read.view import TraceView

HOST = {
    "cpu_op": ["aten::item", "aten::mm", "enumerate(DataLoader)#x", "ProfilerStep#1", "aten::to"],
    "cuda_runtime": [
        "cudaLaunchKernel", "cudaStreamSynchronize", "cudaMalloc", "cudaGraphLaunch",
        "cudaMemcpyAsync", "hipMemcpyWithStream", "cudaEventQuery",
    ],
    "user_annotation": ["step 1", "step 2", "x (dynamo_timed)", "| `a` <b>"],
    "python_function": ["train.py(3): main", "<built-in function sleep>"],
    "overhead": ["Lazy Function Loading", "Buffer Flush"],
}  # fmt: skip
DEVICE = {
    "kernel": ["gemm", "ncclKernel", "triton_poi"],
    "gpu_memcpy": ["Memcpy DtoH"],
    "gpu_memset": ["Memset"],
}
times = st.integers(0, 3_000)


@st.composite
def events(draw: st.DrawFn) -> dict[str, Any]:
    on_device = draw(st.booleans())
    table = DEVICE if on_device else HOST
    cat = draw(st.sampled_from(sorted(table)))
    args: dict[str, Any] = {}
    if cat in {"kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime"}:
        args["correlation"] = draw(st.integers(1, 6))
    if on_device:
        args |= {"device": draw(st.integers(0, 1)), "stream": draw(st.sampled_from([7, 20]))}
    return {
        "ph": "X",
        "name": draw(st.sampled_from(table[cat])),
        "cat": cat,
        "ts": draw(times),
        "dur": draw(st.sampled_from([0, 1, 5, 60, 250, 1_200])),
        "pid": 0 if on_device else 1,
        "tid": draw(st.sampled_from([1, 2])),
        "args": args,
    }


def check(trace: Trace) -> None:
    """Check everything that is true of any trace, without what cannot be true in it."""
    trace = TraceView.of(trace)
    use = device_use(trace)
    found = gaps(trace)
    parts = split_idle(trace, found, step_begins(trace)).parts
    assert parts.shape == (len(found.begin_ns), len(NAMES))
    assert (parts >= 0).all()
    assert np.array_equal(parts.sum(axis=1), found.dur_ns)
    assert (found.dur_ns > 0).all()
    assert int(parts.sum()) == (use.idle_ns or 0)
    assert (found.begin_ns[1:] >= found.end_ns[:-1]).all()
    analysis = analyze(trace)
    idle, verdict = analysis.results["idle"], analysis.results["verdict"]
    assert isinstance(idle, Idle) == (use.span_ns is not None)
    # Without any duration there is nothing to assess.
    on_device = isinstance(verdict, Verdict) and verdict.on_device
    assert on_device == bool(use.busy_ns)
    if isinstance(idle, Idle):
        assert sum(idle.by_cause.values()) == idle.idle_ns == use.idle_ns
        assert all(sum(gap.parts.values()) == gap.dur_ns for gap in idle.largest)
        assert list(idle.by_cause.values()) == sorted(idle.by_cause.values(), reverse=True)
    if isinstance(verdict, Verdict):
        assert sum(verdict.times_ns.values()) == verdict.whole_ns
        assert sum(verdict.parts_ns.values()) == verdict.whole_ns
        assert verdict.bar().whole_ns == verdict.whole_ns
        if on_device:
            assert verdict.span_ns == weighed_span(trace)
    for finding in analysis.findings():
        assert finding.evidence
        assert finding.text.endswith(".")
        assert all(each.unit for each in finding.evidence)
    for result in analysis.results.values():
        for table in result.tables():
            assert all(len(row) == len(table.columns) for row in table.rows)
    assert json.loads(json.dumps(analysis.to_dict()))["schema_version"] == 1
    assert markdown(analysis).startswith("# Trace analysis\n")
    page = io.StringIO()
    print_page(analysis, Console(file=page))
    assert max(map(len, page.getvalue().splitlines())) <= 100
    assert len(page.getvalue().splitlines()) <= 60


def weighed_span(trace: Trace) -> int:
    """Return the spans of all devices plus the time between them once; for one device its span."""
    found, rows = gaps(trace), device_work(trace).rows
    begin, end = trace.events.begin_ns[rows], trace.events.end_ns[rows]
    device = trace.events.device[rows]
    spans = [(begin[device == d].min(), end[device == d].max()) for d in np.unique(device)]
    between = [
        stop - start
        for start, stop in zip(found.begin_ns, found.end_ns, strict=True)
        if not any(first <= start and stop <= last for first, last in spans)
    ]
    return int(sum(last - first for first, last in spans) + sum(between))


@given(st.lists(events(), min_size=1, max_size=40))
def test_sums_of_any_trace_are_correct(
    tmp_path_factory: pytest.TempPathFactory, some: list[Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps({"traceEvents": some}))
    check(read_trace(path))


@pytest.mark.parametrize("far", [2**62 // 1000 - 1, 10**15])
def test_times_that_are_far_apart(far: int, tmp_path: Path) -> None:
    # GIVEN two kernels as far apart as 64 bits allow, launched by two threads
    path = tmp_path / "far.json"
    some = []
    for number, ts in enumerate((-far, far)):
        base = {"ph": "X", "ts": ts, "dur": 1, "args": {"correlation": number, "stream": 7}}
        some.append(base | {"name": "gemm", "cat": "kernel", "pid": 0, "tid": 7})
        call = {"name": "cudaLaunchKernel", "cat": "cuda_runtime", "pid": 1, "tid": number}
        some.append(base | call)
    path.write_text(json.dumps(some))
    # THEN the sums are correct nevertheless
    check(read_trace(path))


REAL = [
    "cuda_a100_alexnet", "cuda_a100_cudagraph_triton_nccl", "cuda_a100_sync_multi_stream",
    "cuda_b200_vllm_eager", "cuda_h100_bert", "cuda_h100_timesformer", "cuda_v100_nccl_train",
    "mtia_inference", "cpu_only", "old_v100_resnet_workers0", "old_v100_resnet_workers4",
    "rocm_mi210_gpu_only", "rocm_mi250_toy", "rocm_mi300_ddp_resnet", "rocm_mi300_owlv2",
    "rocm_mi300_sglang_decode", "rocm_mi300_triton_compile", "rocm_mi300_vllm_piecewise",
    "nccl_dlrm_8rank/rank0", "ascend_level1/rank0_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view",
]  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_sums_of_real_traces_are_correct(name: str, traces: Path) -> None:
    check(read_real(traces / f"{name}.json.gz"))
