"""What programs on the host would win: planted programs whose gain is known to the nanosecond."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import unstated
from planted import Program

from stagespan.pages.result import Finding
from stagespan.trace.analysis import Analysis, analyze

US = 1_000
STEPS = 4
DOUBLE = {"Input Dims": [[8, 8], [8, 8]], "Input type": ["double", "double"]}
FLOAT = {"Input Dims": [[8, 8], [8, 8]], "Input type": ["float", "float"]}


def operator(program: Program, name: str, us: int, pause: int = 0, **args: Any) -> None:
    begin = program.now
    program.work(us)
    program.event(name, "cpu_op", begin, program.now, **args)
    program.work(pause)


def in_steps(step: Callable[[Program], None], folder: Path) -> Analysis:
    """Analyse a program that does work before and after its steps, which no gain includes."""
    program = Program()
    operator(program, "aten::mm", 100)
    for number in range(STEPS):
        with program.within(f"ProfilerStep#{number}", "user_annotation"):
            step(program)
    operator(program, "aten::mm", 100)
    return analyze(program.trace(folder))


def gain_of(analysis: Analysis, code: str) -> tuple[int, bool]:
    (found,) = [each for each in analysis.findings() if each.code == code]
    assert unstated([found]) == []
    assert found.gain is not None
    return found.gain.time_ns, found.gain.at_most


def without(time_us: int, rest_us: int = 10_000) -> int:
    """Return what each run of the steps wins in ns without work that also slows down the rest."""
    return STEPS * US * time_us + min(STEPS * US * time_us // 3, STEPS * US * rest_us // 2)


def of_operators(analysis: Analysis) -> list[Finding]:
    return [each for each in analysis.findings() if each.code.startswith("operators.")]


def test_products_of_single_precision_have_no_findings(tmp_path: Path) -> None:
    analysis = in_steps(lambda program: operator(program, "aten::mm", 500, **FLOAT), tmp_path)
    assert of_operators(analysis) == []


def test_copies_in_other_operators_can_all_be_spared(tmp_path: Path) -> None:
    def step(program: Program) -> None:
        operator(program, "aten::mm", 500)
        with program.within("aten::layer_norm"):
            with program.within("aten::contiguous"):
                program.work(5)
                with program.within("aten::clone"):
                    program.work(15)
                    operator(program, "aten::copy_", 300)
            operator(program, "aten::native_layer_norm", 100)

    analysis = in_steps(step, tmp_path)
    assert gain_of(analysis, "operators.copies") == (without(5 + 15 + 300), True)
    (finding,) = of_operators(analysis)
    assert finding.numbers["time_ns"] == STEPS * 320 * US
    assert "aten::contiguous" in finding.text
    assert "aten::layer_norm" in finding.text


def test_operators_in_double_precision_can_take_half(tmp_path: Path) -> None:
    def step(program: Program) -> None:
        with program.within("aten::matmul"):
            program.work(4)
            operator(program, "aten::mm", 400, **DOUBLE)
        operator(program, "aten::mm", 300, **FLOAT)
        # A number in double precision does not make a tensor so.
        mixed = {"Input Dims": [[8], []], "Input type": ["float", "double"]}
        operator(program, "aten::mul", 200, **mixed)

    # Of each 404 µs, 4 µs are aten::matmul's own, whose inputs are not recorded.
    assert gain_of(in_steps(step, tmp_path), "operators.float64") == (STEPS * 200 * US, True)


@pytest.mark.parametrize("count", [4, 50])
def test_many_small_operators_can_be_one(count: int, tmp_path: Path) -> None:
    def step(program: Program) -> None:
        operator(program, "aten::mm", 100)
        for _ in range(count):
            operator(program, "aten::mul_", 3, pause=2)

    analysis = in_steps(step, tmp_path)
    if count == 4:
        assert of_operators(analysis) == []
    else:
        # The pause after the last belongs to the end of the step.
        assert gain_of(analysis, "operators.small") == (without(count * 5, rest_us=100), True)


def test_values_that_are_read_one_by_one_can_be_read_at_once(tmp_path: Path) -> None:
    def step(program: Program) -> None:
        operator(program, "aten::mm", 100)
        for _ in range(30):
            operator(program, "aten::select", 2, pause=1)
            with program.within("aten::item"):
                program.work(1)
                operator(program, "aten::_local_scalar_dense", 1)
            program.work(4)

    analysis = in_steps(step, tmp_path)
    assert gain_of(analysis, "operators.read_one_by_one") == (without(30 * 9, rest_us=100), True)
    (finding,) = of_operators(analysis)
    assert finding.numbers["values"] == STEPS * 30


def test_a_run_of_elementwise_operators_can_be_as_long_as_its_longest(tmp_path: Path) -> None:
    def step(program: Program) -> None:
        operator(program, "aten::mul", 100)
        operator(program, "aten::add", 150)
        operator(program, "aten::view", 1)
        operator(program, "aten::relu", 80)
        operator(program, "aten::mm", 500)
        operator(program, "aten::mul", 90)
        operator(program, "aten::mm", 500)

    analysis = in_steps(step, tmp_path)
    assert gain_of(analysis, "operators.not_fused")[0] == without(180)


def test_compiled_programs_are_not_advised_to_compile(tmp_path: Path) -> None:
    def step(program: Program) -> None:
        with program.within("Torch-Compiled Region: 0/0"):
            operator(program, "aten::mul", 100)
            operator(program, "aten::add", 150)

    found = of_operators(in_steps(step, tmp_path))
    assert "operators.not_fused" not in {each.code for each in found}


def test_loading_data_wins_its_time_and_its_operators_nothing(tmp_path: Path) -> None:
    def step(program: Program) -> None:
        with program.within(
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation"
        ):
            operator(program, "aten::copy_", 200)
            program.work(50)
        operator(program, "aten::mm", 300)

    analysis = in_steps(step, tmp_path)
    assert gain_of(analysis, "host.data_loader") == (STEPS * 250 * US, True)
    assert of_operators(analysis) == []


def test_communication_wins_what_operators_can_hide(tmp_path: Path) -> None:
    def step(program: Program) -> None:
        operator(program, "aten::mm", 100)
        with program.within("gloo:all_reduce", "user_annotation"):
            program.work(400)

    # 400 µs of communication in each step, and 100 µs of operators to run beside it
    found = gain_of(in_steps(step, tmp_path), "host.communication")
    assert found == (STEPS * 100 * US, True)


@pytest.mark.parametrize(
    ("dims", "strides"),
    [
        ([[64, 64], []], [[64, 1], []]),
        ([[64, 64], [64, 64]], [[64, 1], [0, 1]]),
    ],
)
def test_a_number_or_a_bias_is_not_a_copy_of_a_tensor(
    dims: list[list[int]], strides: list[list[int]], tmp_path: Path
) -> None:
    def step(program: Program) -> None:
        operator(
            program, "aten::copy_", 400,
            **{"Input Dims": dims, "Input Strides": strides, "Input type": ["float", "float"]},
        )  # fmt: skip
        operator(program, "aten::mm", 600)

    assert of_operators(in_steps(step, tmp_path)) == []


@pytest.mark.parametrize(("before", "copies"), [("aten::expand", 0), ("aten::mm", STEPS)])
def test_a_bias_is_recognised_without_strides(before: str, copies: int, tmp_path: Path) -> None:
    def step(program: Program) -> None:
        operator(program, before, 5)
        with program.within("aten::addmm", "cpu_op"):
            operator(program, before, 5)
            operator(program, "aten::copy_", 400, **FLOAT)
            program.work(600)

    found = {
        finding.code: finding.numbers["copies"]
        for finding in of_operators(in_steps(step, tmp_path))
        if finding.code == "operators.copies"
    }
    assert found == ({"operators.copies": copies} if copies else {})


def test_the_same_time_is_not_won_twice(tmp_path: Path) -> None:
    def step(program: Program) -> None:
        # Copies in double precision: half of their time, or all of it.
        operator(program, "aten::copy_", 400, **DOUBLE)
        operator(program, "aten::mm", 600, **DOUBLE)

    analysis = in_steps(step, tmp_path)
    assert gain_of(analysis, "operators.copies")[0] == without(400)
    assert gain_of(analysis, "operators.float64")[0] == STEPS * 500 * US
    together = analysis.together()
    assert together is not None
    assert "3.33 ms" in together


def test_an_interrupted_call_of_a_small_operator_counts_too(tmp_path: Path) -> None:
    def step(program: Program) -> None:
        operator(program, "aten::mm", 100)
        for number in range(50):
            operator(program, "aten::mul_", 30 if number == 7 else 3, pause=2)

    analysis = in_steps(step, tmp_path)
    assert gain_of(analysis, "operators.small") == (without(50 * 5 + 27, rest_us=100), True)


def test_taking_a_batch_apart_for_small_operators_can_be_spared_too(tmp_path: Path) -> None:
    def step(program: Program) -> None:
        operator(program, "aten::cat", 70)
        operator(program, "aten::mm", 500)
        operator(program, "aten::unbind", 90)
        for _ in range(50):
            operator(program, "aten::mul_", 3, pause=2)
        operator(program, "aten::stack", 40)

    analysis = in_steps(step, tmp_path)
    assert gain_of(analysis, "operators.small") == (without(50 * 5 + 90 + 40), True)


@pytest.mark.parametrize("sizes", [[[16]], [[4096, 4096]], None])
def test_a_long_call_counts_only_with_the_sizes_of_small_ones(
    sizes: list[list[int]] | None, tmp_path: Path
) -> None:
    def step(program: Program) -> None:
        operator(program, "aten::mm", 1_000)
        for number in range(50):
            args = {"Input Dims": [[16]] if number != 7 else sizes} if sizes else {}
            operator(program, "aten::mul_", 400 if number == 7 else 3, pause=2, **args)

    # The pause before another operator is between a small one and a large one.
    small = 50 * 5 + 397 if sizes == [[16]] else 49 * 5
    analysis = in_steps(step, tmp_path)
    assert gain_of(analysis, "operators.small") == (without(small), True)


def test_copies_win_the_time_in_which_their_memory_is_freed(tmp_path: Path) -> None:
    def step(program: Program) -> None:
        # Freed after the operator that reads the copy, in less than half of the copy's time.
        operator(program, "aten::contiguous", 10)
        with program.within("aten::clone"):
            operator(program, "aten::copy_", 300)
        operator(program, "aten::view", 1, pause=2)
        operator(program, "aten::layer_norm", 600, pause=100)
        operator(program, "aten::mm", 600, pause=400)
        operator(program, "aten::mm", 600)

    analysis = in_steps(step, tmp_path)
    assert gain_of(analysis, "operators.copies") == (without(300 + 100), True)


@pytest.mark.parametrize(("pause", "counted"), [(40, 40), (2_000, 50 + 150)])
def test_a_long_pause_after_a_copy_is_not_all_because_of_it(
    pause: int, counted: int, tmp_path: Path
) -> None:
    def step(program: Program) -> None:
        operator(program, "aten::copy_", 300, pause=pause)
        operator(program, "aten::mm", 600)

    analysis = in_steps(step, tmp_path)
    assert gain_of(analysis, "operators.copies") == (without(300 + counted), True)


def test_runs_of_elementwise_operators_win_the_pauses_that_free_their_results(
    tmp_path: Path,
) -> None:
    def step(program: Program) -> None:
        operator(program, "aten::mul", 900, pause=20)
        operator(program, "aten::add", 1_000, pause=400)
        operator(program, "aten::relu", 800, pause=300)
        operator(program, "aten::mm", 500)

    analysis = in_steps(step, tmp_path)
    # The pause after the longest operator also ends the run's second result.
    assert gain_of(analysis, "operators.not_fused")[0] == without(900 + 20 + 800 + 300)


def test_a_gain_is_never_more_than_the_steps(tmp_path: Path) -> None:
    def step(program: Program) -> None:
        for _ in range(50):
            operator(program, "aten::mul_", 3, pause=2)

    assert gain_of(in_steps(step, tmp_path), "operators.small")[0] <= STEPS * 50 * 5 * US
