"""Why a program changed: planted changes of shapes, launches, rates and overlap."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from commands import checked
from kernel_programs import operator
from planted import Program

from stagespan.trace import Trace
from stagespan.trace.compare import TraceComparison, compare
from stagespan.trace.compare.reasons import LAUNCHES, OVERLAP, RATE, SHAPES

US = 1_000
SMALL, LARGE = [[64, 64], [64, 64]], [[256, 64], [64, 64]]


def recorded(folder: Path, name: str, step: Callable[[Program], None], steps: int = 4) -> Trace:
    program = Program()
    for number in range(steps):
        with program.within(f"ProfilerStep#{number}", "user_annotation"):
            step(program)
            program.wait()
    (folder / name).mkdir()
    return program.trace(folder / name)


def products(count: int, us: int, dims: list[list[int]]) -> Callable[[Program], None]:
    def step(program: Program) -> None:
        operator(program, "aten::relu", "relu", 30, [[64, 64]])
        for _ in range(count):
            operator(program, "aten::mm", "gemm", us, dims)

    return step


def compared(
    folder: Path,
    before: Callable[[Program], None],
    after: Callable[[Program], None],
    steps: int = 4,
) -> TraceComparison:
    one, other = recorded(folder, "before", before, steps), recorded(folder, "after", after, steps)
    found = checked(compare(one, other), TraceComparison)
    # The reasons of an operator sum to its change.
    sums: dict[str, int] = {}
    for each in found.why:
        sums[each.operator] = sums.get(each.operator, 0) + each.change_ns
    changes = {each.name: each.change_ns for each in found.operators if each.change_ns}
    # Communication is not divided by operator.
    changes.pop("(unknown operator)", None)
    assert {name: time for name, time in sums.items() if name in changes} == changes
    return found


def test_a_slower_launch_is_told_from_more_launches(tmp_path: Path) -> None:
    found = compared(tmp_path, products(4, 100, SMALL), products(6, 150, SMALL))
    reasons = {(each.operator, each.kind): each for each in found.why}
    assert set(reasons) == {("aten::mm", LAUNCHES), ("aten::mm", RATE)}
    launches, rate = reasons["aten::mm", LAUNCHES], reasons["aten::mm", RATE]
    assert (launches.change_ns, launches.before, launches.after) == (
        2 * 100 * US, "4 launches", "6 launches",
    )  # fmt: skip
    assert (rate.change_ns, rate.before, rate.after) == (
        6 * 50 * US, "100 µs", "150 µs",
    )  # fmt: skip
    (part,) = [each for each in found.findings() if each.code == "comparison.compute.matmul"]
    assert "each launch of aten::mm takes 150 µs, before 100 µs" in part.sentence


def test_other_shapes_are_the_reason_if_they_changed(tmp_path: Path) -> None:
    found = compared(tmp_path, products(4, 100, SMALL), products(4, 300, LARGE))
    (reason,) = found.why
    assert (reason.operator, reason.kind, reason.change_ns) == ("aten::mm", SHAPES, 800 * US)
    assert (reason.before, reason.after) == ("64x64, 64x64", "256x64, 64x64")


def test_new_and_removed_operators_are_named_so(tmp_path: Path) -> None:
    def more(program: Program) -> None:
        products(4, 100, SMALL)(program)
        operator(program, "aten::softmax", "softmax", 400, [[64, 64]])

    found = compared(tmp_path, products(4, 100, SMALL), more)
    (reason,) = found.why
    assert (reason.kind, reason.change_ns) == (LAUNCHES, 400 * US)
    assert reason.sentence == "aten::softmax is new, with 1 launch"
    (tmp_path / "back").mkdir()
    (reason,) = compared(tmp_path / "back", more, products(4, 100, SMALL)).why
    assert reason.sentence == "aten::softmax, which had 1 launch, is gone"


def test_shapes_that_only_one_trace_contains_are_not_compared(tmp_path: Path) -> None:
    def without(program: Program) -> None:
        operator(program, "aten::relu", "relu", 30)
        for _ in range(4):
            operator(program, "aten::mm", "gemm", 120)

    found = compared(tmp_path, products(4, 100, SMALL), without)
    (reason,) = found.why
    assert (reason.kind, reason.change_ns) == (RATE, 80 * US)


def test_communication_that_is_hidden_less_is_an_overlap(tmp_path: Path) -> None:
    def step(hidden: int) -> Callable[[Program], None]:
        def run(program: Program) -> None:
            program.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 500, stream=20)
            program.launch("gemm", hidden)
            program.wait()
            program.launch("gemm", 500 - hidden)
            program.wait()

        return run

    found = compared(tmp_path, step(400), step(100))
    (reason,) = [each for each in found.why if each.kind == OVERLAP]
    assert reason.change_ns == 300 * US
    assert not [each for each in found.why if (each.operator, each.kind) == ("communication", RATE)]
    (part,) = [
        each for each in found.findings() if each.code.startswith("comparison.communication")
    ]
    assert "computation hides" in part.sentence


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_few_samples_are_said_to_be_few(steps: int, tmp_path: Path) -> None:
    found = compared(tmp_path, products(4, 100, SMALL), products(4, 150, SMALL), steps)
    title, sentence = found.title()
    first = found.findings()[0]
    assert first.sentence.startswith(sentence)
    assert ("in one sample of each" in title) == (steps == 1)
    assert ("one sample of each" in sentence) == (steps == 1)
    assert ("too few to rule out chance" in sentence) == (steps == 2)
