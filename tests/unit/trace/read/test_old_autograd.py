"""Traces of torch's profiler before Kineto, which have two processes and no categories."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stagespan.trace import read_trace
from stagespan.trace.analysis import analyze
from stagespan.trace.remarks import ignored

Write = Callable[..., Path]


def event(name: str, pid: str, ts: float, dur: float, tid: int = 0) -> dict[str, Any]:
    return {"name": name, "ph": "X", "ts": ts, "dur": dur, "tid": tid, "pid": pid, "args": {}}


def call(name: str, at: float, on_device: list[tuple[str, float, float]]) -> list[dict[str, Any]]:
    """Return an operator, and its parts on the device, to which arrows point."""
    events = [event(name, "CPU functions", at, 10, tid=1)]
    for kernel, begin, length in on_device:
        place = {"tid": 0, "pid": "CUDA functions", "id": at, "cat": "cpu_to_cuda", "args": {}}
        events.append({"name": name, "ph": "s", "ts": at} | place | {"pid": "CPU functions"})
        events.append({"name": kernel, "ph": "f", "ts": begin} | place)
        events.append(event(kernel, "CUDA functions", begin, length))
    return events


def test_operators_and_their_device_times_are_read(write_trace: Write) -> None:
    events: list[dict[str, Any]] = []
    for at in range(50):
        begin = 100 + at * 40
        parts = [("aten::linear", begin + 5, 30), ("aten::t", begin + 5, 2)]
        events += call("aten::linear", begin, [*parts, ("aten::addmm", begin + 8, 25)])
    path = write_trace(b"[]")
    path.write_text(json.dumps(events))
    analysis = analyze(read_trace(path))
    found = analysis.to_dict()
    # THEN the operators are known, and the innermost ones are the device's work
    assert found["device_use"]["busy_us"] == 50 * 27
    assert found["verdict"]["verdict"] == "device-busy"
    assert found["kernels"]["kernels"] == 100
    assert found["trace"]["left_out"] == {}
    assert "old autograd profiler, taken as an operator (50)" in " ".join(ignored(analysis.trace))


def test_a_trace_without_a_device(write_trace: Write) -> None:
    # GIVEN operators of the old profiler on the host only
    path = write_trace(b"[]")
    path.write_text(
        json.dumps([event("aten::mm", "CPU functions", 10.0 * at, 8) for at in range(9)])
    )
    found = analyze(read_trace(path)).to_dict()
    assert found["kernels"]["on_device"] is False
    assert found["kernels"]["time_us"] == 72
