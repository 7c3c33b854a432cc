"""Events without a duration are in no forest of nested events, and stop no analysis."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted import Program

from stagespan.trace.analysis import analyze

KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
NAMES = (
    "aten::mm",
    "aten::copy_",
    "aten::item",
    "nccl:all_reduce",
    "DistributedDataParallel.forward",
    "Optimizer.step#SGD.step",
    "autograd::engine::evaluate_function: AddmmBackward0",
)


@pytest.mark.parametrize("on_device", [True, False])
@pytest.mark.parametrize("cat", ["cpu_op", "user_annotation"])
def test_events_without_duration(cat: str, on_device: bool, tmp_path: Path) -> None:
    program = Program()
    arguments = {"Input Dims": [[4, 4], [4, 4]], "Input type": ["double", "double"]}
    for name in NAMES:
        program.event(name, cat, program.now, program.now, **arguments)
        if on_device:
            program.launch(KERNEL, 10, stream=20)
            program.launch("gemm", 10)
        program.event("aten::add", "cpu_op", program.now, program.now)
    analysis = analyze(program.trace(tmp_path))
    written = analysis.to_dict()
    assert {"communication", "training", "rates"} <= written.keys()
    assert all(each.gain is None or each.gain.time_ns > 0 for each in analysis.findings())
