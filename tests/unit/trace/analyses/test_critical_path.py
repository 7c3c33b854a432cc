"""Critical paths of programs whose times follow from rules, and predictions of changed programs."""

from __future__ import annotations

import gzip
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from commands import checked
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import LATENCY, Program
from real_traces import read_real

from properties import examples
from stagespan.cli import command
from stagespan.pages.result import Unavailable
from stagespan.trace import Trace
from stagespan.trace.analyses import critical_path
from stagespan.trace.analyses.critical_path import CriticalPath

US = 1_000


def found(trace: Trace) -> CriticalPath:
    return checked(critical_path.analyze(trace), CriticalPath)


def times(result: CriticalPath) -> dict[tuple[str, str], float]:
    """The times of the parts in us."""
    return {(part.kind, part.name): part.time_ns / US for part in result.parts}


def test_the_device_determines_a_step_in_which_the_host_is_ahead(tmp_path: Path) -> None:
    program = Program()
    program.operator("aten::mm", us=500, before=10)
    program.operator("aten::relu", us=100, before=10)
    program.wait(tail=2)

    result = found(program.trace(tmp_path))

    assert times(result) == {
        ("host", "aten::mm"): 10,
        ("call", "cudaLaunchKernel"): 5,
        ("launch", "kernel_mm"): LATENCY,
        ("work", "kernel_mm"): 500,
        ("work", "kernel_relu"): 100,
        ("wait", "cudaStreamSynchronize"): 2,
    }
    gains = {part.name: part.gain_ns for part in result.parts if part.kind == "work"}
    assert gains == {"kernel_mm": 250 * US, "kernel_relu": 50 * US}
    assert result.off_path == []


def test_the_host_goes_on_after_the_last_work(tmp_path: Path) -> None:
    program = Program()
    with program.within("ProfilerStep#0", "user_annotation"):
        program.operator("aten::mm", us=50)
        program.wait(tail=2)
        program.work(700)
        program.launch("fill", 100)
        program.work(900)
    result = found(program.trace(tmp_path))
    assert times(result)["host", "after the last call or work"] == 900 - LATENCY - 100
    assert {part.kind for part in result.parts} == {"host", "call", "launch", "work", "wait"}


def test_work_beside_longer_work_has_slack(tmp_path: Path) -> None:
    program = Program()
    with program.within("aten::mm"):
        program.launch("long", 400, stream=7)
        program.launch("short", 100, stream=8)
    program.wait("cudaDeviceSynchronize")

    result = found(program.trace(tmp_path))

    # THEN the shorter work, which begins 5 us later, can take 295 us more
    (off,) = result.off_path
    assert (off.name, off.count, off.time_ns, off.slack_ns) == ("short", 1, 100 * US, 295 * US)


def test_a_shorter_part_gains_only_until_another_chain_is_the_longest(tmp_path: Path) -> None:
    program = Program()
    with program.within("aten::mm"):
        program.launch("long", 400, stream=7)
        program.launch("nearly", 375, stream=8)  # ends 20 us earlier
    program.wait("cudaDeviceSynchronize")

    result = found(program.trace(tmp_path))

    assert {part.name: part.gain_ns for part in result.parts if part.kind == "work"} == {
        "long": 20 * US
    }


def test_clocks_that_differ_make_no_circle(tmp_path: Path) -> None:
    # GIVEN a copy that seems to begin after the call that waits for it, and one before it that
    # seems to end only after the next launch
    program = Program()
    program.operator(us=50)
    begin = program.now
    program.event("cudaMemcpy", "cuda_runtime", begin, begin + 30, correlation=90)
    program.event(
        "Memcpy DtoD", "gpu_memcpy", begin + 30.4, begin + 31.2, device=0, stream=7, correlation=90
    )
    program.now = begin + 33
    program.free[7] = program.now
    for _ in range(3):
        program.operator(us=50)
    program.wait()
    # THEN the parts of the path sum to its length
    result = found(program.trace(tmp_path))
    assert sum(part.time_ns for part in result.parts) == result.whole_ns


def test_the_path_goes_through_work_of_another_stream(tmp_path: Path) -> None:
    program = Program()
    with program.within("aten::mm"):
        program.launch("first", 300, stream=7)
        program.launch("second", 50, stream=8, after=7)
    program.wait()

    result = times(found(program.trace(tmp_path)))

    assert result["work", "first"] == 300
    assert result["dependency", "second"] == LATENCY
    assert result["work", "second"] == 50


@pytest.mark.parametrize(("call", "us"), [("hipFree", 20), ("cudaGetDeviceProperties", 900)])
def test_calls_that_allocate_or_take_long_are_on_the_path(
    call: str, us: int, tmp_path: Path
) -> None:
    program = Program()
    for _ in range(3):
        with program.within("aten::mm"):
            program.call(call, us)
            program.launch("kernel", 10)

    result = times(found(program.trace(tmp_path)))

    assert result["call", call] == 3 * us


def test_a_thread_that_begins_to_wait_for_another_one(tmp_path: Path) -> None:
    program = Program()
    program.operator("aten::mm", us=5)
    begin = program.now
    program.work(1)
    program.event("enter", "python_function", program.now - 1, program.now)
    program.thread = 200
    for _ in range(4):
        program.work(10)
        program.call("cudaMalloc", 300)
    program.thread = 100
    program.work(2)
    program.event("run_backward", "python_function", begin, program.now)
    program.operator("aten::relu", us=5)

    result = times(found(program.trace(tmp_path)))

    assert result["call", "cudaMalloc"] == 4 * 300


def test_threads_that_work_side_by_side_do_not_wait(tmp_path: Path) -> None:
    program = Program()
    program.operator("aten::mm", us=5)
    begin = program.now
    program.thread = 200
    for _ in range(4):
        program.call("cudaMalloc", 300)
    program.thread = 100
    end = program.now
    for time in range(begin, end, 50):
        program.event("aten::reshape", "cpu_op", time, time + 20)
    program.work(40)
    program.operator("aten::relu", us=5)

    result = times(found(program.trace(tmp_path)))

    assert ("call", "cudaMalloc") not in result


def test_the_host_determines_a_step_with_short_kernels(tmp_path: Path) -> None:
    program = Program()
    for _ in range(10):
        program.operator("aten::add", us=2, before=40)
    program.wait()

    result = times(found(program.trace(tmp_path)))

    assert result["host", "aten::add"] == 400
    assert result["work", "kernel_add"] == 2


def test_two_threads_that_take_turns(tmp_path: Path) -> None:
    program = Program()
    program.operator("aten::mm", us=10, before=20)
    program.thread = 200
    program.work(30)
    program.operator("MmBackward0", us=10, before=20)
    program.thread = 100
    program.operator("aten::add_", us=10, before=20)
    program.wait()

    result = times(found(program.trace(tmp_path)))

    # THEN it follows the threads: no time is unexplained
    assert result["host", "MmBackward0"] == 50
    assert result["host", "aten::add_"] == 20
    assert result["host", "aten::mm"] == 20


def test_each_step_has_a_path(tmp_path: Path) -> None:
    program = Program()
    for number in range(3):
        with program.within(f"ProfilerStep#{number}", "user_annotation"):
            program.operator("aten::mm", us=100 * (number + 1))
            program.wait()

    result = found(program.trace(tmp_path))

    assert result.step == "ProfilerStep#1"
    assert [step.name for step in result.steps] == [f"ProfilerStep#{n}" for n in range(3)]
    assert [step.kinds["work"] for step in result.steps] == [100 * US, 200 * US, 300 * US]
    assert all(sum(step.kinds.values()) == step.whole_ns for step in result.steps)


def test_a_trace_without_a_device_has_no_path(tmp_path: Path) -> None:
    program = Program()
    with program.within("aten::mm"):
        program.work(100)

    result = critical_path.analyze(program.trace(tmp_path))

    assert isinstance(result, Unavailable)
    assert result.code == "no_device"


_EVEN = st.integers(0, 60).map(lambda n: 2 * n)
_THINGS = st.lists(
    st.one_of(
        st.tuples(st.just("operator"), st.sampled_from(["mm", "relu", "add"]), _EVEN, _EVEN),
        st.tuples(st.just("work"), _EVEN),
        st.tuples(st.just("wait")),
    ),
    max_size=25,
)


def run(things: list[Any], half_of: str = "", half_host: bool = False) -> Program:
    """Run a program, with half of the times of one kernel or of the host."""
    program = Program()
    share = 2 if half_host else 1
    program.operator("aten::first", us=10, before=20 // share)
    for kind, *rest in things:
        if kind == "operator":
            name, us, before = rest
            us = us // 2 if name == half_of else us
            program.operator(f"aten::{name}", us=us + 2, before=(before + 2) // share)
        elif kind == "work":
            program.work(rest[0] // share)
        else:
            program.wait()
    program.wait()
    return program


@settings(max_examples=examples(300))
@given(things=_THINGS)
def test_predictions_are_the_times_of_the_changed_program(things: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = run(things)
        result = found(program.trace(Path(folder)))

    assert sum(part.time_ns for part in result.parts) == result.whole_ns
    assert result.gains["host"] == (program.now - run(things, half_host=True).now) * US


@settings(max_examples=examples(300))
@given(things=_THINGS)
def test_a_kernel_with_half_its_time_gains_as_predicted(things: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = run(things)
        result = found(program.trace(Path(folder)))
    for part in result.parts:
        if part.kind == "work" and part.name == "kernel_mm" and part.gain_ns is not None:
            # Each kernel takes 2 us more than what is halved.
            changed = run(things, half_of="mm")
            at_least, more = (program.now - changed.now) * US, US * part.count
            assert at_least <= part.gain_ns <= at_least + more


def test_the_parts_of_real_traces_sum_to_their_steps(every_trace: list[Path]) -> None:
    for path in every_trace:
        result = critical_path.analyze(read_real(path))
        if isinstance(result, Unavailable):
            continue

        assert sum(part.time_ns for part in result.parts) == result.whole_ns, path
        for step in result.steps:
            assert sum(step.kinds.values()) == step.whole_ns, path
        assert all(0 <= gain <= result.whole_ns for gain in result.gains.values()), path


def test_the_path_is_marked_in_a_copy_of_the_trace(tmp_path: Path) -> None:
    program = Program()
    program.operator("aten::mm", us=500, before=10)
    program.wait()
    program.trace(tmp_path)
    source = tmp_path / "planted.json"
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(source.read_bytes()))

    for path in (source, packed):
        target = tmp_path / "marked.json.gz"
        done = CliRunner().invoke(
            command, ["analyze", str(path), "--critical-path", str(target)], catch_exceptions=False
        )

        assert done.exit_code == 0, done.output
        events = json.loads(gzip.decompress(target.read_bytes()))["traceEvents"]
        path_events = [each for each in events if each.get("cat") == "critical_path"]
        assert len([each for each in events if each["ph"] == "X"]) == len(program.events) + len(
            path_events
        )
        assert [each["name"] for each in path_events][3] == "device work: kernel_mm"
        for before, after in itertools.pairwise(path_events):
            assert before["ts"] + before["dur"] == pytest.approx(after["ts"])


def test_without_a_path_the_command_says_why(tmp_path: Path) -> None:
    program = Program()
    with program.within("aten::mm"):
        program.work(100)
    program.trace(tmp_path)

    done = CliRunner().invoke(
        command,
        ["analyze", str(tmp_path / "planted.json"), "--critical-path", str(tmp_path / "m.json.gz")],
    )

    assert done.exit_code != 0
    assert "has no critical path to mark. The trace has no device events." in done.output
