"""Traces written by torch.profiler, compared with torch's own figures."""

from __future__ import annotations

import gzip
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from running import in_threads
from stagespan.trace import breakdown, read_trace

torch = pytest.importorskip("torch", reason="torch is not installed")


def profiled(work: Any, path: Path, **options: Any) -> Any:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], **options) as profiler:
        work()
    profiler.export_chrome_trace(str(path))
    return profiler


def load_names(path: Path) -> Counter[str]:
    data = path.read_bytes()
    entries = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]
    return Counter(entry["name"] for entry in entries if entry.get("cat") == "cpu_op")


@pytest.mark.parametrize("options", [{}, {"record_shapes": True, "with_stack": True}])
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_self_times_equal_those_of_torch(tmp_path: Path, options: Any, suffix: str) -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten()
    )
    path = tmp_path / f"trace{suffix}"
    profiler = profiled(lambda: model(torch.randn(2, 3, 16, 16)).sum().backward(), path, **options)
    trace = read_trace(path)
    rows = {row.name: row for row in breakdown(trace, "model").rows}
    theirs = {row.key: row for row in profiler.key_averages()}
    assert {"aten::conv2d", "aten::convolution", "aten::sum", "aten::relu"} <= set(rows)
    written = load_names(path)
    for name, row in rows.items():
        # torch's table counts an operator that only calls another one of the same name as one call.
        assert row.count == written[name] >= theirs[name].count
        # A thousandth of a microsecond for each end of each event, rounded twice.
        assert row.time_ns / 1000 == pytest.approx(
            theirs[name].self_cpu_time_total, abs=0.004 * row.count
        )
    assert trace.incomplete is None
    assert trace.base_ns is not None


def test_times_are_unix_times(tmp_path: Path) -> None:
    before = time.time_ns()
    path = tmp_path / "trace.json"
    profiled(lambda: torch.ones(4) + 1, path)
    after = time.time_ns()
    events = read_trace(path).events
    operators = events.begin_ns[read_trace(path).rows_of(["cpu_op"])]
    assert before <= operators.min() <= operators.max() <= after


def test_names_of_annotations_are_unchanged(tmp_path: Path) -> None:
    # GIVEN annotations that other tools mangle, on two threads
    # Kineto itself writes "unknown" for names that are not ASCII, and leaves quotes bare.
    names = ["re", "Pi", "stage [1]", 'a "quoted" stage', "{", '["']
    path = tmp_path / "trace.json"

    def work() -> None:
        for name in names:
            with torch.profiler.record_function(name):
                torch.ones(4) + 1
        in_threads(lambda: torch.ones(4) + 1)

    profiled(work, path)
    trace = read_trace(path)
    marks = trace.rows_of(["user_annotation"])
    # THEN they are there, and none is mistaken for an operator
    assert [trace.names[code] for code in trace.events.name[marks]] == names
    assert {row.name for row in breakdown(trace, "s").rows}.isdisjoint(names)


@pytest.mark.usefixtures("compiler")
def test_a_compiled_graph_is_one_operator_with_and_without_shapes(tmp_path: Path) -> None:
    # GIVEN a compiled function of one fused loop
    @torch.compile
    def compiled(x: Any) -> Any:
        return (x.sin() + 1).cos()

    x = torch.randn(64, 64)
    compiled(x)
    tables = {}
    for shapes in (False, True):
        path = tmp_path / f"{shapes}.json"
        profiled(lambda: compiled(x), path, record_shapes=shapes)
        tables[shapes] = {row.name: row.count for row in breakdown(read_trace(path), "s").rows}
    assert tables[False] == tables[True]
    assert [
        count for name, count in tables[True].items() if name.startswith("## Call CompiledFxGraph")
    ] == [1]
