"""Public traces of many backends, compared with figures that were computed without this reader."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from plain_json import entries_of

from stagespan.trace import Trace, breakdown, device_use, read_trace
from stagespan.trace.read.columns import category_today

pytestmark = pytest.mark.slow

CHROME = [
    "cpu_only", "cuda_a100_alexnet", "cuda_a100_cudagraph_triton_nccl", "cuda_a100_simple_add",
    "cuda_a100_sync_multi_stream", "cuda_b200_vllm_eager", "cuda_h100_bert",
    "cuda_h100_timesformer", "cuda_h100_vit", "cuda_v100_nccl_train", "cuda_v100_train_ns",
    "mtia_inference", "old_v100_resnet_workers0", "old_v100_resnet_workers4",
    "rocm_mi210_gpu_only", "rocm_mi250_toy", "rocm_mi300_ddp_resnet", "rocm_mi300_owlv2",
    "rocm_mi300_sglang_decode", "rocm_mi300_triton_compile", "rocm_mi300_vllm_piecewise",
    *(f"nccl_dlrm_8rank/rank{rank}" for rank in range(8)),
]  # fmt: skip
ASCEND = "ascend_level1/rank{}_ascend_pt/ASCEND_PROFILER_OUTPUT"
DEVICE = {
    "kernel": "compute", "gpu_memset": "compute", "gpu_memcpy": "copy",
    "mtia_ccp_events": "compute",
}  # fmt: skip
WITHOUT_KERNELS = {"cpu_only"}
# The work of MTIA's streams in addition to kernels.
NO_KERNELS = {"dma_request", "event_wait", "event_record"}
# Doubles cannot represent these nanoseconds, and truth.json was computed with doubles. The exact
# figures are checked by brute force with decimals, and brute force with doubles gives those of
# truth.json
BEYOND_DOUBLES = {"cuda_v100_train_ns", "rocm_mi210_gpu_only", "rocm_mi300_vllm_piecewise"}


def load(path: Path) -> list[dict[str, Any]]:
    """Return the file's entries, read with Python's json module and exact numbers."""
    return entries_of(path, Decimal)


def union(intervals: list[tuple[Any, Any]]) -> Any:
    """Return the time that intervals cover, in the arithmetic of their numbers."""
    total: Any = 0
    first = last = None
    for begin, end in sorted(intervals):
        if last is None or begin > last:
            total += 0 if last is None else last - first
            first, last = begin, end
        elif end > last:
            last = end
    return total if last is None else total + (last - first)


def device_intervals(
    entries: list[dict[str, Any]], number: Callable[[Any], Any]
) -> dict[str, list[tuple[Any, Any]]]:
    """Return begin and end in us of the device's events by kind, as `number`s."""
    by_kind: dict[str, list[tuple[Any, Any]]] = {"compute": [], "comm": [], "copy": []}
    for entry in entries:
        kind = DEVICE.get(category_today(entry.get("cat", "")))
        is_idle = entry["name"] in ("event_wait", "event_record")
        if kind is not None and entry["ph"] == "X" and not is_idle:
            if category_today(entry["cat"]) == "kernel" and any(
                word in entry["name"].lower() for word in ("nccl", "rccl")
            ):
                kind = "comm"
            if entry["name"] == "dma_request":
                kind = "copy"
            begin = number(entry["ts"])
            by_kind[kind].append((begin, begin + number(entry["dur"])))
    return by_kind


class Loaded(NamedTuple):
    """A trace, read twice."""

    name: str
    entries: list[dict[str, Any]]
    trace: Trace


@pytest.fixture(scope="module", params=CHROME)
def loaded(request: pytest.FixtureRequest, traces: Path) -> Loaded:
    """Return each Chrome trace in turn, read by json and by the reader once for all tests."""
    path = traces / f"{request.param}.json.gz"
    return Loaded(request.param, load(path), read_trace(path))


def test_every_entry_is_in_a_table_or_counted(loaded: Loaded) -> None:
    # GIVEN a trace, also read with Python's json module
    _, entries, trace = loaded
    complete = [entry for entry in entries if entry["ph"] == "X"]
    assert trace.total == len(entries)
    assert trace.incomplete is None
    assert trace.adjusted == {}
    assert set(trace.left_out) <= {"metadata entry"}
    events = trace.events
    assert [trace.names[code] for code in events.name] == [entry["name"] for entry in complete]
    assert [trace.categories[code] for code in events.category] == [
        category_today(entry.get("cat", "")) for entry in complete
    ]
    base = trace.base_ns or 0
    assert (events.begin_ns - base).tolist() == [int(e["ts"] * 1000) for e in complete]
    assert events.dur_ns.tolist() == [int(entry["dur"] * 1000) for entry in complete]
    phases = Counter(entry["ph"] for entry in entries)
    assert len(trace.instants) == phases["i"]
    assert len(trace.flows) == phases["s"] + phases["f"]
    ids = [int(entry["id"]) for entry in entries if entry["ph"] in "sf"]
    assert trace.flows.id.tolist() == ids


def test_device_use_equals_brute_force(loaded: Loaded) -> None:
    by_kind = device_intervals(loaded.entries, Decimal)
    everything = [each for kind in by_kind.values() for each in kind]
    use = device_use(loaded.trace)
    if not everything:
        assert use.busy_ns is None
        return
    span = max(end for _, end in everything) - min(begin for begin, _ in everything)
    busy, compute = union(everything), union(by_kind["compute"])
    with_comm = union(by_kind["compute"] + by_kind["comm"])
    assert use.span_ns == span * 1000
    assert use.busy_ns == busy * 1000
    assert use.idle_ns == (span - busy) * 1000
    assert use.nccl_ns == union(by_kind["comm"]) * 1000
    assert use.copy_ns == union(by_kind["copy"]) * 1000
    assert use.compute_ns is not None
    assert use.exposed_communication_ns is not None
    assert use.compute_ns + use.exposed_communication_ns == with_comm * 1000
    if use.nccl_ns == use.communication_ns:
        assert use.compute_ns == compute * 1000
    assert use.exposed_copy_ns == (busy - with_comm) * 1000


def with_doubles(entries: list[dict[str, Any]], found: dict[str, Any]) -> dict[str, Any]:
    """Return the figures that depend on the arithmetic, by brute force with doubles."""
    by_kind = device_intervals(entries, float)
    everything = [each for kind in by_kind.values() for each in kind]
    busy, compute = union(everything), union(by_kind["compute"])
    span = max(end for _, end in everything) - min(begin for begin, _ in everything)
    (stream,) = found["per_stream_busy_us"]
    return {
        "span_us": span,
        "busy_us": busy,
        "idle_us": span - busy,
        "compute_union_us": compute,
        "nccl_union_us": union(by_kind["comm"]),
        "exposed_comm_us": union(by_kind["compute"] + by_kind["comm"]) - compute,
        "memcpy_union_us": union(by_kind["copy"]),
        "per_stream_busy_us": {stream: busy},
    }


def test_device_use_equals_the_truth_file(traces: Path) -> None:
    truth = json.loads((traces / "truth.json").read_text())
    compared = set()
    for file, expected in truth.items():
        trace = read_trace(traces / file)
        found = device_use(trace).to_dict()
        has_custom = found["nccl_union_us"] != found["comm_union_us"]
        # THEN they agree within 0.001 µs, or 1e-6 of the figure
        counts = expected.pop("gpu_events")
        today = {category_today(category): count for category, count in counts.items()}
        assert found["gpu_events"] == today, file
        if file.removesuffix(".json.gz") in BEYOND_DOUBLES:
            found |= with_doubles(load(traces / file), found)
        streams = expected.pop("per_stream_busy_us")
        assert set(streams) == set(found["per_stream_busy_us"]), file
        # There, communication is only that of NCCL and RCCL, and the rest computes.
        found["compute and comm"] = found["compute_union_us"] + found["exposed_comm_us"]
        expected["compute and comm"] = expected["compute_union_us"] + expected["exposed_comm_us"]
        if has_custom:
            del expected["compute_union_us"], expected["exposed_comm_us"]
        expected["nccl_union_us"] = expected.pop("comm_union_us")
        pairs = [(key, value, found[key]) for key, value in expected.items()]
        pairs += [(key, streams[key], found["per_stream_busy_us"][key]) for key in streams]
        for key, theirs, ours in pairs:
            tolerance = max(0.0011, 1e-6 * abs(theirs))
            assert abs(ours - theirs) <= tolerance, (file, key, theirs, ours)
            compared.add((file, key))
    assert {file for file, _ in compared} == set(truth)
    assert len(compared) > 12 * len(truth)


def test_each_kernel_counts_once(loaded: Loaded) -> None:
    # GIVEN a trace's kernels, read with Python's json module
    totals: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for entry in loaded.entries:
        category = category_today(entry.get("cat", ""))
        if category in ("kernel", "mtia_ccp_events") and entry["name"] not in NO_KERNELS:
            totals[entry["name"]] += int(entry["dur"] * 1000)
            counts[entry["name"]] += 1
    result = breakdown(loaded.trace, "stage")
    assert result.on_device == bool(counts) == (loaded.name not in WITHOUT_KERNELS)
    if not counts:
        return
    assert {row.name: row.time_ns for row in result.rows} == dict(totals)
    assert {row.name: row.count for row in result.rows} == dict(counts)
    times = [row.time_ns for row in result.rows]
    assert times == sorted(times, reverse=True)
    table = result.to_dict()
    assert table["num_launches"] == sum(counts.values())
    assert table["total_kernel_time_ms"] * 1e6 == pytest.approx(sum(totals.values()), rel=1e-12)


def test_operators_of_a_trace_without_a_device(traces: Path) -> None:
    trace = read_trace(traces / "cpu_only.json.gz")
    result = breakdown(trace, "stage")
    # THEN operators' self times sum to the time in which any operator ran, thread by thread
    entries = [e for e in load(traces / "cpu_only.json.gz") if e.get("cat") == "cpu_op"]
    entries = [e for e in entries if not e["name"].startswith("autograd::engine::")]
    threads: dict[Any, list[tuple[Any, Any]]] = {}
    for entry in entries:
        thread = threads.setdefault(entry["tid"], [])
        thread.append((entry["ts"], entry["ts"] + entry["dur"]))
    assert not result.on_device
    assert result.total_ns == sum(union(thread) for thread in threads.values()) * 1000
    assert result.launches == len(entries)


@pytest.mark.parametrize("rank", [0, 1])
def test_ascend(traces: Path, rank: int) -> None:
    # GIVEN a trace of an NPU: a list at the top level, times as texts, kernels without a category
    folder = traces / ASCEND.format(rank)
    path = folder / "trace_view.json.gz"
    entries = load(path)
    trace = read_trace(path)
    complete = [entry for entry in entries if entry["ph"] == "X"]
    assert trace.total == len(entries)
    assert trace.events.begin_ns.tolist() == [int(Decimal(e["ts"]) * 1000) for e in complete]
    assert set(trace.left_out) == {"metadata entry"}
    assert len(trace.counters) == sum(entry["ph"] == "C" for entry in entries)
    assert "Ascend Hardware" in trace.process_names.values()
    with open(folder / "step_trace_time.csv", newline="") as file:
        steps = list(csv.DictReader(file))
    use = device_use(trace)
    kernels = len(breakdown(trace, "step").rows)
    assert kernels > 0
    assert use.compute_ns is not None
    assert use.communication_ns is not None
    computing = sum(Decimal(step["Computing"]) for step in steps) * 1000
    communication = sum(Decimal(step["Communication"]) for step in steps) * 1000
    # Each kernel is rounded down by up to a nanosecond, because its duration there has more digits.
    count = breakdown(trace, "step").launches
    assert abs(use.compute_ns - computing) <= count
    assert abs(use.communication_ns - communication) <= count
