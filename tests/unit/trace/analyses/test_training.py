"""Recomputation and optimizers: planted programs with known times, and programs of torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commands import checked, fits
from kernel_programs import operator as launching
from planted import Program

from stagespan.pages.result import Finding, Unavailable
from stagespan.trace import Trace, read_trace
from stagespan.trace.analyses import training
from stagespan.trace.analyses.training import Training
from stagespan.trace.json_schema import json_schema

US = 1_000
RECORDED: dict[str, Any] = {"Sequence number": 7, "Fwd thread id": 0}
NODE: dict[str, Any] = {"Sequence number": 3, "Fwd thread id": 1}


def found_in(trace: Trace) -> Training:
    found = checked(training.analyze(trace), Training)
    fits(found.to_dict(), json_schema()["properties"]["training"])
    return found


def finding_of(found: Training, code: str) -> Finding:
    (finding,) = [each for each in found.findings() if each.code == code]
    return finding


def operator(program: Program, name: str, us: int, **args: Any) -> None:
    begin = program.now
    program.work(us)
    program.event(name, "cpu_op", begin, program.now, **args)


def node(program: Program, name: str, us: int, recomputed: int = 0) -> None:
    """A node of a backward pass, which may first recompute an operator of some µs."""
    begin = program.now
    if recomputed:
        inner = program.now
        operator(program, "aten::addmm", recomputed, **RECORDED)
        program.work(10)
        program.event("aten::linear", "cpu_op", inner, program.now, **RECORDED)
    operator(program, "aten::mm", us)
    program.event(name, "cpu_op", begin, program.now, **NODE)
    evaluated = f"autograd::engine::evaluate_function: {name}"
    program.event(evaluated, "cpu_op", begin, program.now, **NODE)


def test_recomputed_operators_are_those_that_autograd_records_again(tmp_path: Path) -> None:
    program = Program()
    for step in range(2):
        with program.within(f"ProfilerStep#{step}", "user_annotation"):
            operator(program, "aten::linear", 100, **RECORDED)
            node(program, "CheckpointBackward", 100, recomputed=300)
            node(program, "AddmmBackward0", 200)
            node(program, "AddmmBackward0", 200)
    found = found_in(program.trace(tmp_path))
    assert (found.recomputed, found.recomputed_ns) == (2, 2 * 310 * US)
    finding = finding_of(found, "training.recomputation")
    assert finding.gain is not None
    assert (finding.gain.time_ns, finding.gain.at_most) == (2 * 310 * US * 4 // 3, True)


def test_a_differentiated_backward_pass_recomputes_nothing(tmp_path: Path) -> None:
    # GIVEN a backward pass all of whose nodes record operators, as with create_graph=True
    program = Program()
    for _ in range(4):
        node(program, "AddmmBackward0", 100, recomputed=300)
    found = found_in(program.trace(tmp_path))
    assert found.recomputed == 0
    assert found.findings() == []


@pytest.mark.parametrize("many", [False, True])
def test_an_optimizer_that_updates_tensor_by_tensor(many: bool, tmp_path: Path) -> None:
    program = Program()
    for step in range(3):
        with program.within(f"ProfilerStep#{step}", "user_annotation"):
            operator(program, "aten::mm", 500)
            with program.within("Optimizer.step#SGD.step", "user_annotation"):
                for _ in range(20):
                    operator(program, "aten::_foreach_add_" if many else "aten::add_", 10)
    found = found_in(program.trace(tmp_path))
    (calls,) = found.optimizers
    assert (calls.calls, calls.time_ns, calls.parts) == (3, 3 * 200 * US, 60)
    assert calls.by_tensor is not many
    if not many:
        finding = finding_of(found, "training.optimizer_by_tensor")
        assert finding.gain is not None
        assert finding.gain.time_ns == 3 * 200 * US


@pytest.mark.parametrize(
    ("optimizer", "on_host", "on_device"),
    [
        ("AdamW", "fused=True updates", "foreach=True or fused=True updates"),
        ("RMSprop", None, "foreach=True updates"),
        ("SparseAdam", None, None),
        ("LBFGS", None, None),
        ("MyOptimizer", None, None),
    ],
)
def test_advice_is_what_the_optimizer_can_do(
    optimizer: str, on_host: str | None, on_device: str | None, tmp_path: Path
) -> None:
    for device, advice in ((False, on_host), (True, on_device)):
        program = Program()
        launching(program, "aten::mm", "gemm", 100) if device else operator(
            program, "aten::mm", 100
        )
        with program.within(f"Optimizer.step#{optimizer}.step", "user_annotation"):
            for _ in range(20):
                if device:
                    launching(program, "aten::add_", "add_kernel", 10)
                else:
                    operator(program, "aten::add_", 10)
        folder = tmp_path / str(device)
        folder.mkdir()
        found = found_in(program.trace(folder))
        sentences = [each.text for each in found.findings()]
        assert len(sentences) == (advice is not None)
        assert advice is None or advice in sentences[0]


def test_on_a_device_it_takes_from_the_first_kernel_to_the_last(tmp_path: Path) -> None:
    program = Program()
    launching(program, "aten::mm", "gemm", 100)
    with program.within("Optimizer.zero_grad#SGD.zero_grad", "user_annotation"):
        for _ in range(10):
            launching(program, "aten::zero_", "fill_kernel", 2)
    trace = program.trace(tmp_path)
    found = found_in(trace)
    events = trace.events
    fills = [at for at, code in enumerate(events.name) if trace.names[code] == "fill_kernel"]
    span = max(int(events.end_ns[at]) for at in fills) - min(
        int(events.begin_ns[at]) for at in fills
    )
    finding = finding_of(found, "training.zero_grad")
    assert "set_to_none" in finding.text
    assert finding.gain is not None
    assert finding.gain.time_ns == span


@pytest.mark.parametrize("batches", [1, 3])
def test_gradients_are_added_to_those_that_were_cleared(batches: int, tmp_path: Path) -> None:
    # GIVEN steps that clear ten gradients, and add those of one batch or of several
    program = Program()
    for step in range(3):
        with program.within(f"ProfilerStep#{step}", "user_annotation"):
            with program.within("Optimizer.zero_grad#SGD.zero_grad", "user_annotation"):
                for _ in range(10):
                    with program.within("aten::zero_"):
                        operator(program, "aten::fill_", 20)
            for _ in range(batches):
                operator(program, "aten::linear", 500, **RECORDED)
                for _ in range(10):
                    with program.within("torch::autograd::AccumulateGrad"):
                        operator(program, "aten::add_", 30)
                        program.work(5)
    finding = finding_of(found_in(program.trace(tmp_path)), "training.zero_grad")
    # THEN only the first batch's gradients are added to zeros
    assert finding.numbers["time_ns"] == 3 * 10 * 20 * US
    assert finding.numbers["added_ns"] == 3 * 10 * 35 * US
    assert finding.gain is not None
    assert finding.gain.time_ns == 3 * 10 * (20 + 35) * US * 4 // 3
    assert finding.gain.others_ns == 3 * 10 * (20 + 35) * US // 3


def test_inference_has_no_result(tmp_path: Path) -> None:
    program = Program()
    operator(program, "aten::mm", 100)
    found = training.analyze(program.trace(tmp_path))
    assert isinstance(found, Unavailable)
    assert found.code == "no_training"


@pytest.mark.parametrize("mode", ["reentrant", "non-reentrant", "none"])
def test_checkpoints_of_torch_are_recognised(mode: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile
    from torch.utils.checkpoint import checkpoint

    # GIVEN three blocks of three modules, with a checkpoint around each or none
    blocks = [
        torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8))
        for _ in range(3)
    ]
    x = torch.randn(4, 8, requires_grad=True)

    def step() -> None:
        out = x
        for block in blocks:
            if mode == "none":
                out = block(out)
            else:
                out = checkpoint(block, out, use_reentrant=mode == "reentrant")
        out.sum().backward()

    step()
    with profile(activities=[ProfilerActivity.CPU]) as running:
        step()
    path = tmp_path / "trace.json"
    running.export_chrome_trace(str(path))
    found = found_in(read_trace(path))
    if mode == "none":
        assert found.recomputed == 0
    else:
        # Torch stops when the last tensor that it needs is there, before the last module's result.
        assert 6 <= found.recomputed <= 9
