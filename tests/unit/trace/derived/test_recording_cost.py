"""What recording Python's stacks costs, by estimate: made traces with known times."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from planted import Program

from stagespan.trace.analysis import analyze
from stagespan.trace.derived.recording_cost import stack_cost
from stagespan.trace.read.view import TraceView

CALLS = 500


def recorded(folder: Path, holes_us: Sequence[float]) -> tuple[float, int]:
    """Return the estimated cost in ns, and the number of edges, of a function of short calls.

    There are the given times before each call, which takes 0.4 µs.
    """
    program = Program()
    at = begin = 1_000.0
    for hole in holes_us:
        at += hole
        program.event("<built-in function assert_size_stride>", "python_function", at, at + 0.4)
        at += 0.4
    program.event("generated.py(12): call", "python_function", begin, at)
    program.event("aten::mm", "cpu_op", begin, at)
    found = stack_cost(TraceView.of(program.trace(folder)))
    assert found is not None
    edges = found.edges_ns
    cost = found.recorded_ns(edges[:1], edges[-1:] + 1)
    return float(cost[0]), len(edges)


def test_looking_up_lines_of_a_long_function_is_the_cost_of_recording(tmp_path: Path) -> None:
    # GIVEN calls in a function before which the time grows from 0.5 to 20.46 µs
    holes = [0.5 + 0.04 * number for number in range(CALLS)]
    cost, edges = recorded(tmp_path, holes)
    # THEN the times before the calls count, at the shortest tenth of each fifth of them; the first
    # call follows the start of the function
    parts = np.array_split(np.array(holes[1:]) * 1_000, 5)
    expected = sum(np.quantile(part, 0.1) * len(part) for part in parts)
    assert expected <= cost <= expected + (edges - CALLS + 1) * 1_000
    assert cost > 0.8 * sum(holes) * 1_000


@pytest.mark.parametrize(
    "holes",
    [
        [20.0] * CALLS,  # the program computes for 20 µs between two calls
        [20.0 - 0.03 * number for number in range(CALLS)],  # less and less
        [0.5 + 0.2 * number for number in range(90)],  # too few to say
    ],
)
def test_time_of_the_program_between_calls_is_not_the_cost_of_recording(
    holes: list[float], tmp_path: Path
) -> None:
    cost, edges = recorded(tmp_path, holes)
    assert cost <= edges * 1_000


@pytest.mark.parametrize(("idle_us", "is_told"), [(0, True), (20_000, False)])
def test_a_trace_of_which_recording_took_a_fifth_says_so_first(
    idle_us: int, is_told: bool, tmp_path: Path
) -> None:
    program = Program()
    with program.within("ProfilerStep#1", "user_annotation"):
        at = float(program.now)
        for _ in range(CALLS):
            program.event("<built-in function add>", "python_function", at + 1, at + 2)
            at += 2
        program.event("aten::mm", "cpu_op", program.now, at)
        program.now = int(at) + idle_us
    caveat = analyze(program.trace(tmp_path)).caveat()
    assert (caveat is not None) == is_told
    assert not is_told or (caveat or "").startswith("Record again without stacks (with_stack=")
