"""Operators in a trace written by torch itself, with the spans of stages in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel_programs import json_of

from stagespan import ProfilingContext
from stagespan.profiling.controller import profile_window
from stagespan.trace import read_trace

torch = pytest.importorskip("torch")


def test_operators_stages_shapes_and_backward_of_a_real_program(tmp_path: Path) -> None:
    weight = torch.ones(4, 2, requires_grad=True)
    value = torch.ones(8, 4)
    with profile_window("step", record_shapes=True) as window:
        with ProfilingContext("project"):
            projected = value @ weight
        with ProfilingContext("normalise"), torch.profiler.record_function("softmax_only"):
            result = projected.softmax(-1)
        with ProfilingContext("backward"):
            result.sum().backward()
    path = window.export(tmp_path / "step_trace.json.gz")
    trace = read_trace(path)
    found = json_of(trace)
    stages = {row["name"]: row["stage"] for row in found["top"]}
    assert stages["aten::_softmax"] == "softmax_only"
    assert stages["aten::_softmax_backward_data"] == "backward"
    assert {"project", "softmax_only", "backward"} <= {row["stage"] for row in found["by_stage"]}
    shapes = {(row["operator"], row["shape"]) for row in found["by_shape"]}
    assert {("aten::mm", "8x4, 4x2"), ("aten::mm", "4x8, 8x2")} <= shapes
    forward = {row["operator"]: row["count"] for row in found["by_forward_operator"]}
    assert forward.keys() == {"aten::mm", "aten::_softmax", "aten::sum"}
    assert not found["on_device"]
    own = sum(row["self_us"] for row in found["operators_by_host_time"])
    assert own == pytest.approx(found["time_us"])
    assert found["breakdown"]["name"] == "step"
