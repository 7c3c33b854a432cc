"""Comparisons, ranks and merged timelines of unusual traces: a result or a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from properties import examples
from stagespan.errors import StagespanError
from stagespan.trace import read_trace
from stagespan.trace.compare import TraceComparison, compare
from stagespan.trace.paths import analyze_ranks
from stagespan.trace.ranks.merge import merge

pytestmark = pytest.mark.full

TIMES = st.sampled_from([0, 1, 5, 5.5, 100, 10**6, 10**15, 2**52, -3, "7.125", None])
LENGTHS = st.sampled_from([0, 1, 10, 1_000, 10**12, -1, None])
NAMES = st.sampled_from(
    [
        "ProfilerStep#1", "ProfilerStep#2", "aten::mm", "aten::item", "cudaLaunchKernel", "forward",
        "cudaStreamSynchronize", "gemm", "ncclDevKernel_AllReduce", "nccl:all_reduce", "gloo:send",
        "gloo:all_reduce", "nn.Module: Net_0", "Memcpy HtoD (Pageable -> Device)", "", "\x1b[31m",
        "hcom_allReduce__1_2_3", "enumerate(DataLoader)#x",
    ]
)  # fmt: skip
CATEGORIES = st.sampled_from(
    [
        "kernel",
        "gpu_memcpy",
        "cpu_op",
        "user_annotation",
        "cuda_runtime",
        "python_function",
        "",
        "x",
    ]
)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "correlation": st.sampled_from([0, 1, 2, 2**63 + 1, "0x1", None]),
        "External id": st.sampled_from([1, "1", None]),
        "stream": st.sampled_from([7, 20, "a", None]),
        "device": st.sampled_from([0, 1]),
        "Process Group Name": st.sampled_from(["0", "tp", 3, None]),
        "In msg nelems": st.sampled_from([4, 10**12, 1.5, "x"]),
        "dtype": st.sampled_from(["Float", "?"]),
        "Group size": st.sampled_from([2, 1, None]),
        "Input Dims": st.sampled_from([[[2, 2]], [], "x"]),
        "nested": st.just({"correlation": 5, "text": '"correlation": 7'}),
    },
)
EVENT = st.fixed_dictionaries(
    {"ph": st.sampled_from(["X", "X", "X", "X", "i", "s", "f", "M", "C", "b"]), "name": NAMES},
    optional={
        "cat": CATEGORIES,
        "ts": TIMES,
        "dur": LENGTHS,
        "pid": st.sampled_from([0, 1, "Spans", -1, None]),
        "tid": st.sampled_from([1, 7, "7", "a b", None]),
        "id": st.sampled_from([1, "0x10", 2**64, None, "word"]),
        "args": ARGUMENTS,
    },
)
EVENTS = st.lists(EVENT, min_size=1, max_size=14)
INFO = st.one_of(
    st.none(),
    st.fixed_dictionaries({"rank": st.sampled_from([0, 1, 5, -1, "2", None])}),
    st.just({"rank": 1, "world_size": 2}),
    st.just("{'rank': 1, 'world_size': 3}"),
)
QUIET = settings(
    max_examples=examples(120),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def write(path: Path, events: list[Any], info: Any = None, base: Any = None) -> Path:
    top: dict[str, Any] = {"traceEvents": events}
    if info is not None:
        top["distributedInfo"] = info
    if base is not None:
        top["baseTimeNanoseconds"] = base
    path.write_text(json.dumps(top))
    return path


@QUIET
@given(first=EVENTS, second=EVENTS)
def test_any_two_traces(first: Any, second: Any, tmp_path: Path) -> None:
    try:
        traces = [
            read_trace(write(tmp_path / f"{number}.json", events))
            for number, events in enumerate((first, second))
        ]
    except StagespanError:
        return
    for pair in (traces, traces[::-1], traces[:1] * 2):
        found = compare(*pair)
        json.dumps(found.to_dict())
        for table in found.tables():
            assert all(len(row) == len(table.columns) for row in table.rows)
        for finding in found.findings():
            assert finding.evidence
        if isinstance(found, TraceComparison):
            assert sum(part.change_ns for part in found.parts) == found.change_ns


@QUIET
@given(
    traces=st.lists(st.tuples(EVENTS, INFO, st.sampled_from([None, 10**18, -5])), max_size=4),
    same=st.booleans(),
)
def test_any_ranks(traces: Any, same: bool, tmp_path: Path) -> None:
    for old in tmp_path.iterdir():
        old.unlink()
    for number, (events, info, base) in enumerate(traces):
        write(tmp_path / f"rank{number}.json", traces[0][0] if same else events, info, base)
    try:
        analysis = analyze_ranks(tmp_path, 1)
    except StagespanError:
        return
    json.dumps(analysis.to_dict())
    result = analysis.results["ranks"]
    for table in result.tables():
        assert all(len(row) == len(table.columns) for row in table.rows)
    merge(result, tmp_path / "merged.txt")  # type: ignore[arg-type]
    whole = json.loads((tmp_path / "merged.txt").read_text())
    kept = [e for e in whole["traceEvents"] if "nested" in e.get("args", {})]
    assert all(e["args"]["nested"]["text"] == '"correlation": 7' for e in kept)
