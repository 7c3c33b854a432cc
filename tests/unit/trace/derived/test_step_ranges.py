"""How steps are identified: marks, annotations, the optimizer, and sequences that repeat."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import checked
from planted import Program

from stagespan.pages.result import Unavailable
from stagespan.trace.analyses import steps
from stagespan.trace.analyses.steps import Steps
from stagespan.trace.derived.step_ranges import StepRanges, step_ranges

US = 1_000
NOTE = "user_annotation"


class HostProgram(Program):
    """A program whose operators run on the host."""

    def operator_on_host(self, name: str, us: int) -> None:
        """An operator that takes `us`."""
        with self.within(name):
            self.work(us)


def ranges_of(program: Program, folder: Path) -> StepRanges:
    trace = program.trace(folder)
    found = step_ranges(trace)
    assert found is not None
    split = checked(steps.analyze(trace), Steps)
    for step in split.steps:
        assert sum(step.parts.values()) == step.dur_ns
    return found


def test_an_annotation_that_repeats(tmp_path: Path) -> None:
    program = Program()
    with program.within("warm up", NOTE):
        program.operator()
    for number in range(5):
        with program.within(f"request {number}", NOTE):
            program.work(1)
            with program.within("model", NOTE):
                program.operator()
                program.wait()
    found = ranges_of(program, tmp_path)
    assert found.source == "annotation"
    assert found.names == [f"request {number}" for number in range(5)]
    assert "request 0" in found.how
    assert not found.inferred


def test_annotations_that_follow_each_other(tmp_path: Path) -> None:
    program = Program()
    begins = []
    with program.within("train", NOTE):
        for _ in range(4):
            begins.append(program.now * US)
            for part in ("load", "forward", "backward"):
                with program.within(part, NOTE):
                    program.operator()
                program.work(5)
        program.wait()
    # THEN one pass through the parts is a step
    found = ranges_of(program, tmp_path)
    assert found.begin_ns.tolist() == begins
    assert found.names == ["step 1", "step 2", "step 3", "step 4"]
    assert "load" in found.how
    assert "backward" in found.how
    # AND the parts are stages, not marks of steps
    assert found.marks.tolist() == []


def test_an_annotation_that_repeats_occasionally(tmp_path: Path) -> None:
    program = Program()
    for number in range(7):
        with program.within("train step", NOTE):
            program.operator()
            program.wait()
        if number in (0, 1, 3, 5):
            with program.within("checkpoint", NOTE):
                program.work(9 if number < 5 else 2)
            program.work(number)
            if number == 3:
                with program.within("log", NOTE):
                    program.work(2)
    found = ranges_of(program, tmp_path)
    assert (found.source, len(found)) == ("annotation", 7)
    marked = [program.events[row]["name"] for row in found.marks]
    assert marked == ["train step"] * 7


@pytest.mark.parametrize("name", [
    "nccl:all_reduce", "xccl:all_reduce", "FSDP::pre_forward (layers.0)", "DataParallel.forward",
    "DistributedDataParallel.forward", "FullyShardedDataParallel.forward",
    "FullyShardedDataParallel._pre_forward", "Torch-Compiled Region: 0/0", "Pregraph bytecode",
    "TorchDynamo Cache Lookup"])  # fmt: skip
def test_marks_of_the_framework_are_not_steps(name: str, tmp_path: Path) -> None:
    # GIVEN collectives that repeat, and two calls of a function
    program = Program()
    for _ in range(9):
        with program.within(name, NOTE):
            program.operator("aten::a")
        program.work(3)
    assert step_ranges(program.trace(tmp_path)) is None


def test_requests_that_overlap_on_several_threads_are_not_steps(tmp_path: Path) -> None:
    program = Program()
    for thread in (100, 101):
        program.thread, program.now = thread, 1_000 + thread % 100 * 30
        for _ in range(6):
            with program.within("serve", NOTE):
                program.operator()
                program.work(60)
    assert step_ranges(program.trace(tmp_path)) is None


def test_annotations_of_a_small_part_are_not_steps(tmp_path: Path) -> None:
    # GIVEN an annotated loop of 0.2 ms in a program of 10 ms
    program = Program()
    for _ in range(4):
        with program.within("small", NOTE):
            program.operator()
    program.operator(us=5_000)
    program.work(10_000)
    program.operator()
    assert step_ranges(program.trace(tmp_path)) is None


def test_from_one_end_of_the_optimizer_to_the_next(tmp_path: Path) -> None:
    # GIVEN a training whose only marks are the optimizer's
    program = Program()
    ends = []
    for number in range(4):
        program.operator(us=30 + number)
        with program.within("Optimizer.zero_grad#SGD.zero_grad", NOTE):
            program.work(4)
        with program.within("Optimizer.step#SGD.step", NOTE):
            program.operator("aten::add_")
        ends.append(program.now * US)
    found = ranges_of(program, tmp_path)
    assert (found.source, found.inferred) == ("optimizer", True)
    assert found.begin_ns.tolist() == ends[:-1]
    assert found.end_ns.tolist() == ends[1:]


def step_operators(program: Program, found: StepRanges) -> list[str]:
    """Return the first operator in each step."""
    operators = sorted((e["ts"] * US, e["name"]) for e in program.events if e["cat"] == "cpu_op")
    return [
        next(name for begin, name in operators if begin >= step) for step in found.begin_ns.tolist()
    ]


def decoding(program: Program, steps: int, with_item: bool) -> None:
    for _ in range(steps):
        program.operator("aten::embedding")
        for _ in range(3):
            for name in ("norm", "qkv", "attention", "mlp"):
                program.operator(f"aten::{name}")
        program.operator("aten::argmax")
        if with_item:
            with program.within("aten::item"):
                program.wait()


def test_operators_that_repeat_with_a_wait_in_each(tmp_path: Path) -> None:
    # GIVEN decoding without marks, in which the host reads each token
    program = Program()
    program.operator("aten::load")
    decoding(program, 5, with_item=True)
    # THEN a token is a step, and the result says how they were identified
    found = ranges_of(program, tmp_path)
    assert (found.source, found.inferred, len(found)) == ("operators", True, 5)
    assert step_operators(program, found) == ["aten::embedding"] * 5
    assert "aten::embedding" in found.how
    assert "15" in found.how


def test_a_trace_that_begins_in_a_step(tmp_path: Path) -> None:
    # GIVEN decoding in a trace with the end of one token, and five complete ones
    program = Program()
    program.operator("aten::mlp")
    program.operator("aten::argmax")
    with program.within("aten::item"):
        program.wait()
    begin = program.now
    decoding(program, 5, with_item=True)
    found = ranges_of(program, tmp_path)
    assert found.begin_ns[0] == begin * US
    assert step_operators(program, found) == ["aten::embedding"] * 4


def test_decoding_on_the_host_alone(tmp_path: Path) -> None:
    # GIVEN the same without a device, and one without a value that is read
    for reads in (True, False):
        program = Program()
        for _ in range(4):
            for name in ("embedding", "a", "b", "c", "d", "e", "f", "argmax"):
                with program.within(f"aten::{name}"):
                    program.work(10)
            if reads:
                with program.within("aten::item"):
                    program.work(1)
        found = step_ranges(program.trace(tmp_path))
        assert (found is not None and len(found) == 4) == reads


def trained_on_host(program: HostProgram, layers: int = 2) -> None:
    """A forward and a backward pass on one thread, without an exchange with the host."""
    program.operator_on_host("aten::embedding", 20)
    for _ in range(layers):
        for name in ("aten::linear", "aten::relu"):
            program.operator_on_host(name, 50)
    program.operator_on_host("aten::mean", 5)
    for _ in range(layers):
        for name in ("ReluBackward0", "AddmmBackward0"):
            program.operator_on_host(f"autograd::engine::evaluate_function: {name}", 60)


def test_forward_and_backward_passes_that_repeat(tmp_path: Path) -> None:
    program = HostProgram()
    begins = []
    for _ in range(6):
        begins.append(program.now * US)
        trained_on_host(program)
        program.work(5)
    found = ranges_of(program, tmp_path)
    assert found.source == "operators"
    assert found.begin_ns.tolist() == begins


@pytest.mark.parametrize("last", [10, 256])
def test_calls_of_a_model_that_repeat_on_the_host(last: int, tmp_path: Path) -> None:
    program = HostProgram()
    begins = []
    for _ in range(20):
        begins.append(program.now * US)
        for name, inputs, results in (
            ("aten::linear", 256, 512), ("aten::relu", 512, 512), ("aten::linear", 512, last),
            ("aten::softmax", last, last),
        ):  # fmt: skip
            dims = [[64, inputs], [results, inputs], []] if "linear" in name else [[64, inputs]]
            begin = program.now
            program.work(50)
            program.event(name, "cpu_op", begin, program.now, **{"Input Dims": dims})
        program.work(5)
    found = step_ranges(program.trace(tmp_path))
    # THEN each call is one if its result has another shape than all inputs
    if last == 10:
        assert found is not None
        assert found.begin_ns.tolist() == begins
    else:
        # AND the calls may be layers of one model otherwise
        assert found is None


def test_backward_passes_of_layers_are_not_steps(tmp_path: Path) -> None:
    # GIVEN one forward and one backward pass of a model with eight equal layers
    program = HostProgram()
    trained_on_host(program, layers=8)
    assert step_ranges(program.trace(tmp_path)) is None


def test_layers_that_repeat_are_not_steps(tmp_path: Path) -> None:
    # GIVEN one forward pass with many equal layers, and a loop that moves parameters
    program = Program()
    for _ in range(6):
        for name in "abcdefghij":
            program.operator(f"aten::{name}")
    assert step_ranges(program.trace(tmp_path)) is None
    program = Program()
    for _ in range(40):
        program.launch("Memcpy HtoD", 9, cat="gpu_memcpy", call="cudaMemcpyAsync")
    assert step_ranges(program.trace(tmp_path)) is None


def test_kernels_that_repeat_with_a_copy_in_each(tmp_path: Path) -> None:
    # GIVEN a trace of the device only: a copy to it, and ten kernels, four times
    program = Program()
    for _ in range(4):
        program.launch("Memcpy HtoD", 9, cat="gpu_memcpy", known=False)
        for name in "abcdefghij":
            program.launch(f"kernel_{name}", 20, known=False)
    found = ranges_of(program, tmp_path)
    # THEN they are the device's, and nothing is reported about the host
    assert (found.source, len(found)) == ("kernels", 4)
    split = checked(steps.analyze(program.trace(tmp_path)), Steps)
    assert [step.host_ns for step in split.steps] == [None] * 4
    assert {step.parts["computation"] for step in split.steps} == {200 * US}


@pytest.mark.parametrize("count", [1, 2])
def test_one_profiler_step_is_a_step(count: int, tmp_path: Path) -> None:
    program = Program()
    for number in range(count):
        with program.within(f"ProfilerStep#{number}", NOTE):
            program.operator()
    assert len(ranges_of(program, tmp_path)) == count


def test_marks_that_overlap_and_marks_of_two_threads(tmp_path: Path) -> None:
    program = Program()
    for number in range(3):
        begin = program.now
        with program.within(f"ProfilerStep#{number}", NOTE):
            program.operator()
        program.thread = 101
        program.event(f"ProfilerStep#{number}", NOTE, begin, program.now)
        program.thread = 100
    assert ranges_of(program, tmp_path).names == [f"ProfilerStep#{n}" for n in range(3)]


def test_a_trace_without_steps_says_how_to_mark_them(tmp_path: Path) -> None:
    program = Program()
    program.operator()
    found = steps.analyze(program.trace(tmp_path))
    assert isinstance(found, Unavailable)
    assert "give it a schedule" in found.reason
