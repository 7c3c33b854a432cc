"""For any device work, every nanosecond of the steps has one owner, and the parts sum."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from real_traces import read_real

from properties import examples
from stagespan.pages.result import Unavailable
from stagespan.trace import Trace, read_trace
from stagespan.trace.analyses.device_use import analyze as use_of
from stagespan.trace.compare import TraceComparison, compare
from stagespan.trace.compare.cost_table import apportioned, attribute, device_cells, host_cells
from stagespan.trace.derived.device import COMMUNICATION, COMPUTE, COPY, device_work
from stagespan.trace.derived.windows import Windows, steps_of, whole

_KINDS = {
    COMPUTE: ("gemm", "kernel"),
    COMMUNICATION: ("ncclDevKernel_AllReduce", "kernel"),
    COPY: ("Memcpy DtoD", "gpu_memcpy"),
}
WORK = st.lists(
    st.tuples(
        st.sampled_from(sorted(_KINDS)),
        st.integers(0, 3),  # stream
        st.integers(0, 200),  # begin
        st.integers(1, 60),  # duration
        st.booleans(),  # whether its launch is in the trace
    ),
    min_size=1,
    max_size=30,
)
STEPS = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 20)), max_size=5)


def trace_of(folder: Path, work: list[Any], steps: list[tuple[int, int]]) -> Trace:
    """Device work, each launched 5 µs before it begins, and steps (length, gap after it)."""
    events: list[dict[str, Any]] = []

    def event(name: str, cat: str, begin: int, dur: int, pid: int, tid: int, **args: Any) -> None:
        entry = {"ph": "X", "name": name, "cat": cat, "ts": begin, "dur": dur}
        events.append(entry | {"pid": pid, "tid": tid, "args": args})

    for number, (kind, stream, begin, dur, launched) in enumerate(work):
        name, cat = _KINDS[kind]
        event(name, cat, begin + 5, dur, 0, stream, device=0, stream=stream, correlation=number)
        if launched:
            event("aten::mm", "cpu_op", begin - 1, 4, 1, 1)
            event("cudaLaunchKernel", "cuda_runtime", begin, 2, 1, 1, correlation=number)
    at = 0
    for number, (length, gap) in enumerate(steps):
        event(f"ProfilerStep#{number}", "user_annotation", at, length, 1, 1)
        at += length + gap
    path = folder / "random.json"
    path.write_text(json.dumps(events))
    return read_trace(path)


def owners(trace: Trace, windows: Windows) -> dict[int, int]:
    """Return the time of the windows by kind, microsecond by microsecond; 0 is idle."""
    events, kind = trace.events, device_work(trace).kind
    time = dict.fromkeys((0, COMPUTE, COMMUNICATION, COPY), 0)
    for begin, end in zip(windows.begin_ns.tolist(), windows.end_ns.tolist(), strict=True):
        for at in range(begin, end, 1_000):
            running = kind[(events.begin_ns <= at) & (events.end_ns > at) & (kind > 0)]
            time[int(running.min()) if len(running) else 0] += 1_000
    return time


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(work=WORK, steps=STEPS)
def test_every_moment_has_one_owner(work: Any, steps: Any, tmp_path: Path) -> None:
    trace = trace_of(tmp_path, work, steps)
    windows = steps_of(trace) or whole(trace)
    assert windows is not None
    found = attribute(trace, windows)
    expected = owners(trace, windows)
    for kind in _KINDS:
        assert int(found.time_ns[found.kind == kind].sum()) == expected[kind]
    assert sum(found.idle_ns.values()) == expected[0]
    assert min([0, *found.time_ns.tolist(), *found.idle_ns.values()]) == 0
    assert int(found.time_ns.sum()) + sum(found.idle_ns.values()) == windows.total_ns


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=WORK, second=WORK, steps=STEPS, others=STEPS)
def test_all_parts_sum_to_the_change(
    first: Any, second: Any, steps: Any, others: Any, tmp_path: Path
) -> None:
    before = trace_of(tmp_path, first, steps)
    after = trace_of(tmp_path, second, others)
    found = compare(before, after)
    # THEN a sentence says why not, or every list of changes sums to its total
    if isinstance(found, Unavailable):
        assert found.reason.endswith(".")
        return
    check_sums(found)


def check_sums(found: TraceComparison) -> None:
    assert sum(part.change_ns for part in found.parts) == found.change_ns
    assert sum(part.before_ns for part in found.parts) == found.before_ns
    idle = sum(part.change_ns for part in found.parts if part.name.startswith("idle"))
    outside = sum(p.change_ns for p in found.parts if p.name.startswith("outside"))
    for each in (found.stages, found.layers, found.operators):
        assert sum(change.change_ns for change in each) == found.change_ns - idle - outside
    assert sum(change.change_ns for change in found.host) == found.change_ns
    if found.on_device:
        assert sum(k.change_ns for k in found.kernels) == found.change_ns - idle
    for side in (found.before, found.after):
        steps = max(side.windows.steps, 1)
        # Rounded once, half up.
        assert side.cells.total_ns == (2 * side.windows.total_ns + steps) // (2 * steps)


@given(
    parts=st.lists(st.integers(0, 10**15), max_size=20),
    numerator=st.integers(0, 10**6),
    denominator=st.integers(1, 10**6),
)
def test_apportioned_parts_sum_to_the_total(
    parts: list[int], numerator: int, denominator: int
) -> None:
    # GIVEN any parts and any fraction up to 1
    numerator = min(numerator, denominator)
    got = apportioned(np.array(parts, dtype=np.int64), numerator, denominator).tolist()
    # THEN they sum to the rounded total, and none is off by a whole nanosecond
    exact = sum(parts) * numerator
    assert sum(got) == (2 * exact + denominator) // (2 * denominator)
    assert all(
        abs(each * denominator - part * numerator) < denominator
        for each, part in zip(got, parts, strict=True)
    )


def test_sums_of_all_traces_are_correct(traces: Path) -> None:
    for path in sorted(traces.glob("*.json.gz")):
        trace = read_real(path)
        found, stretch = steps_of(trace), whole(trace)
        for windows in (found, stretch):
            if windows is None:
                continue
            on_device = len(device_work(trace).rows) > 0
            cells = (device_cells if on_device else host_cells)(trace, windows, trace.names)
            assert cells.total_ns == pytest.approx(windows.total_ns / cells.per, abs=0.5), path.name
        use = use_of(trace)
        if isinstance(use, Unavailable) or stretch is None:
            continue
        account = attribute(trace, stretch)
        assert sum(account.idle_ns.values()) == use.idle_ns
        # For several devices, the sum over the devices differs from the union.
        if len(use.devices) > 1:
            continue
        assert account.time_ns[account.kind == COMPUTE].sum() == use.compute_ns
        exposed = account.time_ns[account.kind == COMMUNICATION].sum()
        assert exposed == use.exposed_communication_ns
        assert account.time_ns[account.kind == COPY].sum() == use.exposed_copy_ns
