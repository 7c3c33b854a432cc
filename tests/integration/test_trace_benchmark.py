"""The benchmark of reading traces runs; its figures are not checked."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

from running import ran
from stagespan.trace import read_trace

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]


def small_trace(folder: Path) -> Path:
    events = [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
         "ts": 1000 + 10 * i, "dur": 5.5, "args": {"correlation": i, "Ev Idx": i}}
        for i in range(40)
    ]  # fmt: skip
    events += [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1006.25 + 10 * i,
         "dur": 3, "args": {"correlation": i, "stream": 7, "device": 0}}
        for i in range(40)
    ]  # fmt: skip
    path = folder / "small.json.gz"
    data = {"schemaVersion": 1, "traceEvents": events, "traceName": "x"}
    path.write_bytes(gzip.compress(json.dumps(data).encode()))
    return path


def test_an_enlarged_trace_is_longer_and_its_ids_are_distinct(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.enlarge import enlarge

    source, target = small_trace(tmp_path), tmp_path / "large.json"
    copies = enlarge(source, target, 100_000)
    assert target.stat().st_size >= 100_000
    trace, small = read_trace(target), read_trace(source)
    assert (trace.incomplete, trace.left_out, trace.adjusted) == (None, {}, {})
    assert len(trace.events) == copies * 80
    assert len(set(trace.events.correlation.tolist())) == copies * 40
    assert len(set(trace.events.begin_ns.tolist())) == copies * 80
    assert trace.events.begin_ns[:80].tolist() == small.events.begin_ns.tolist()
    assert trace.events.begin_ns[80] > small.events.begin_ns.max()
    assert trace.metadata == small.metadata


@pytest.mark.slow
def test_the_quick_benchmark_of_traces_prints_a_row_for_each(tmp_path: Path) -> None:
    small_trace(tmp_path)
    target = tmp_path / "figures.json"
    # WHEN the benchmark runs on it for a few seconds (its figures are not checked)
    done = ran(
        [sys.executable, "-m", "benchmarks.traces", "--quick", "--json", target],
        cwd=ROOT,
        timeout_s=280,
        status=0,
        STAGESPAN_TRACES=str(tmp_path),
    )
    assert "small" in done.stdout
    assert " x small" in done.stdout
    assert "stagespan analyze of the large trace: " in done.stdout
    assert max(map(len, done.stdout.splitlines()[:-1])) <= 100
    found = json.loads(target.read_text())
    assert found["large"]["bytes"] >= 10_000_000
    assert found["large"]["readers"]["stagespan"]["entries"] >= 80
    for reader in ("orjson", "json", "HTA"):
        figures = found["large"]["readers"][reader]
        assert "skipped" in figures or figures["cpu_s"]


@pytest.mark.slow
def test_the_analysis_of_a_large_trace_is_measured_three_times(tmp_path: Path) -> None:
    small_trace(tmp_path)
    done = ran(
        [sys.executable, "-m", "benchmarks.traces", "--analyze", "small", "--gb", "0.0001"],
        cwd=ROOT,
        timeout_s=280,
        status=0,
        STAGESPAN_TRACES=str(tmp_path),
    )
    rows = [line.split(" entries, ") for line in done.stdout.splitlines()]
    assert len(rows) == 3
    assert len({row[0] for row in rows}) == 1
    assert " x small: " in rows[0][0]


@pytest.mark.slow
def test_the_memory_of_many_ranks_is_measured() -> None:
    # GIVEN a benchmark that makes its traces itself
    # WHEN it runs on few of them (its figures are not checked)
    done = ran([sys.executable, "-m", "benchmarks.ranks", "--quick"], cwd=ROOT, timeout_s=280)
    # THEN it has printed the figures of each folder
    assert done.returncode == 0, done.stderr
    rows = done.stdout.splitlines()
    assert [row.split(" ranks: ")[0].strip() for row in rows[:-1]] == ["2", "4", "8"]
    assert rows[-1].startswith("Each further rank: ")
