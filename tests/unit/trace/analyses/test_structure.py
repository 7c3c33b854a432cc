"""What repeats within a step: calls, layers, and the phases of an inference server."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import checked
from planted import CALL, LATENCY, Program

from stagespan.pages.result import Unavailable
from stagespan.trace.analyses import layers, steps, structure
from stagespan.trace.analyses.layers import Layers
from stagespan.trace.analyses.steps import Steps
from stagespan.trace.analyses.structure import RepeatedCall, Structure
from stagespan.trace.derived.phases import DECODE, MIXED, PREFILL, phase_of
from stagespan.trace.read.model import Trace

US = 1_000


def calls_of(trace: Trace) -> list[RepeatedCall]:
    found = checked(structure.analyze(trace), Structure)
    return found.calls


@pytest.mark.parametrize(
    ("name", "category", "told"),
    [
        ("Torch-Compiled Region: 0/1", "cpu_op", "Torch-Compiled Region: 0/1"),
        ("denoise {}", "user_annotation", "denoise #"),
        ("nn.Module: Transformer_0", "python_function", "Transformer"),
    ],
)
def test_a_call_that_takes_most_of_a_step(
    name: str, category: str, told: str, tmp_path: Path
) -> None:
    # GIVEN a step with work before and after four calls of two kernels each
    program = Program()
    with program.within("ProfilerStep#1", "user_annotation"):
        program.launch("first", 100)
        for number in range(4):
            with program.within(name.format(number), category):
                program.launch("gemm", 1_000)
                program.launch("relu", 200)
        program.launch("last", 100)
    (call,) = calls_of(program.trace(tmp_path))
    # THEN it is these calls, by the time of their work on the device and not of the call
    assert (call.name, call.calls, call.per_step) == (told, 4, 4)
    assert (call.call_ns, call.total_ns) == (1_200 * US, 4_800 * US)
    assert call.percent == pytest.approx(100 * 4_800 / 5_000)


def test_launches_of_one_graph_repeat(tmp_path: Path) -> None:
    program = Program()
    for number in range(2):
        with program.within(f"ProfilerStep#{number}", "user_annotation"):
            for _ in range(3):
                program.graph([50, 60], gap=2)
            program.wait()
    (call,) = calls_of(program.trace(tmp_path))
    assert (call.name, call.calls, call.per_step) == ("cudaGraphLaunch", 6, 3)
    assert call.call_ns == 112 * US


def test_a_call_once_in_a_step_does_not_repeat(tmp_path: Path) -> None:
    program = Program()
    for number in range(3):
        with program.within(f"ProfilerStep#{number}", "user_annotation"):
            with program.within("forward", "user_annotation"):
                program.operator()
            program.wait()
    found = structure.analyze(program.trace(tmp_path))
    assert isinstance(found, Unavailable)
    assert found.code == "nothing_repeats"


def test_repeated_calls_without_a_device(tmp_path: Path) -> None:
    program = Program()
    for _ in range(2):
        with program.within("encode", "user_annotation"), program.within("aten::mm"):
            program.work(400)
    (call,) = calls_of(program.trace(tmp_path))
    assert (call.name, call.calls, call.call_ns, call.percent) == ("encode", 2, 400 * US, 100)


@pytest.mark.parametrize("attention", ["flash_fwd_kernel", "softmax_warp_forward"])
def test_layers_are_counted_by_their_attention(attention: str, tmp_path: Path) -> None:
    # GIVEN ten layers: six alike, two whose other kernels differ before them, and two behind them,
    # and an encoder whose attention is much shorter
    program = Program()

    def layer(us: int, *others: str) -> None:
        for other in others:
            program.launch(other, 20)
        program.launch(attention, us)

    for number in range(2):
        layer(10, f"embed_{number}", "encode", "mix")
    for number in range(2):
        layer(100, f"first_{number}", f"before_{number}")
    for _ in range(6):
        layer(100, "norm", "gemm", "gate")
    for number in range(2):
        layer(100, f"last_{number}", f"behind_{number}", f"out_{number}")
    found = checked(layers.analyze(program.trace(tmp_path)), Layers)
    (block,) = found.repeated
    assert block.times <= 7
    assert block.layers == 10


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("execute_context_1(888_788544)_generation_0(0)", PREFILL),
        ("execute_32_context_0(sq0sk0)_generation_32(sq32sk32785)", DECODE),
        ("execute_8192_context_9(sq8155sk8430)_generation_37(sq37sk34489)", MIXED),
        ("step[DECODE bs=32]", DECODE),
        ("step[EXTEND bs=2 toks=812]", PREFILL),
        ("step[IDLE bs=0]", None),
        ("ProfilerStep#4", None),
    ],
)
def test_the_phase_of_a_step(name: str, phase: str | None) -> None:
    assert phase_of(name) == phase


def test_steps_of_a_server_by_phase(tmp_path: Path) -> None:
    program = Program()
    for name, us in [("EXTEND", 900)] * 2 + [("DECODE", 100)] * 6:
        with program.within(f"step[{name} bs=4]", "user_annotation"):
            program.operator(us=us, before=0)
            program.wait()
    found = checked(steps.analyze(program.trace(tmp_path)), Steps)
    extra = CALL + LATENCY + 2
    assert [(each.phase, each.steps, each.median_ns) for each in found.phases] == [
        (PREFILL, 2, (900 + extra) * US),
        (DECODE, 6, (100 + extra) * US),
    ]
    assert "2 of prefill" in found.line()
    assert "6 of decode" in found.line()
    assert "Prefill and decode" in [table.title for table in found.tables()]
