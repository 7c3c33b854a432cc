"""Damaged and hostile traces: partial results of kernels and torch.compile, with correct sums."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from commands import fits
from compiled_programs import PARTS, backward, compilation, inductor_graph, region
from kernel_programs import operator
from planted import Program

from stagespan.errors import TraceError
from stagespan.trace import read_trace
from stagespan.trace.analyses.kernels import Kernels
from stagespan.trace.analysis import analyze
from stagespan.trace.json_schema import json_schema

NAMES = (
    "Torch-Compiled Region",
    "Torch-Compiled Region: a/b",
    "Torch-Compiled Region: 99999999999999999999/3",
    "CompiledFunctionBackward",
    "dynamo_data: compile_id=x",
    "dynamo_data: compile_id=1/99999999999999999999",
    "_compile.compile_inner (dynamo_timed)",
    "autograd::engine::evaluate_function: X",
    "triton_",
    "",
    "\x00\n\u202e",
    " (dynamo_timed)",
)
VALUES: tuple[Any, ...] = (0, -1, 2**62, 2**63, 1e18, -1e15, 0.5, None, "x", "12.5", [], {})
DIMS: tuple[Any, ...] = ("[", "[[1,2],[[3]]]", [[1], [2, 3]], [[[1, 2], [3]]], [None], 7, {"a": 1})
KEYS = ("ts", "dur", "pid", "tid", "name", "cat", "args", "ph", "id")


def events() -> list[dict[str, Any]]:
    program = Program()
    with program.within("stage", "user_annotation"):
        for variant in (0, 1):
            compilation(program, f"0/{variant}", PARTS)
            with region(program, f": 0/{variant}"), region(program, ": 1/0"):
                operator(program, "aten::mm", "gemm", 10, [[8, 4], [4, 2]])
        inductor_graph(program)
        program.graph([10, 20], gap=1)
        backward(program)
    return program.events


@pytest.mark.parametrize("seed", range(60))
def test_damage_gives_no_traceback_and_no_wrong_sum(seed: int, tmp_path: Path) -> None:
    # GIVEN a trace in which entries are missing, out of order, or have other values
    source = random.Random(seed)
    found = [dict(event) for event in events()]
    found = source.sample(found, source.randint(len(found) // 2, len(found)))
    for _ in range(source.randint(1, 40)):
        event, key = source.choice(found), source.choice(KEYS)
        if key == "name":
            event[key] = source.choice(NAMES)
        elif key == "args":
            name = source.choice(("correlation", "stream", "device", "Sequence number"))
            event[key] = {name: source.choice(VALUES), "Input Dims": source.choice(DIMS)}
        else:
            event[key] = source.choice(VALUES)
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps({"traceEvents": found}))
    try:
        trace = read_trace(path)
    except TraceError:
        return
    analysis = analyze(trace, ["kernels", "compiled"])
    written = json.loads(json.dumps(analysis.to_dict(), allow_nan=False))
    schema = json_schema()["properties"]
    for name, result in analysis.results.items():
        fits(written[name], schema[name])
        assert all(finding.evidence for finding in result.findings())
        assert all(len(row) == len(t.columns) for t in result.tables() for row in t.rows)
    kernels = analysis.results["kernels"]
    if isinstance(kernels, Kernels):
        assert sum(row.time_ns for row in kernels.figures().by_kind) == kernels.work.total_ns
