"""Before and after: known changes of a program are reported exactly, to the nanosecond."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from commands import checked
from planted import Program
from training import training

from stagespan.pages.amounts import in_words
from stagespan.pages.result import Changes, Finding, Unavailable
from stagespan.trace import Trace, read_trace
from stagespan.trace.compare import TraceComparison, compare
from stagespan.trace.compare.alignment import likeness

US = 1_000
NOTE = "user_annotation"
LOADING = "idle: the host waited for the data loader"
LAUNCHING = "idle: the host could not launch work fast enough"
MATMUL = "computing: matrix products"


def against(before: Trace, after: Trace) -> TraceComparison:
    return checked(compare(before, after), TraceComparison)


def finding_in(found: TraceComparison, code: str) -> Finding:
    (finding,) = (each for each in found.findings() if each.code == code)
    return finding


def test_the_parts_explain_the_change(tmp_path: Path) -> None:
    # GIVEN a program that later loads 300 µs faster and multiplies 40 µs slower
    before = training(tmp_path, "before")
    after = training(tmp_path, "after", load=100, gemm=140)
    found = against(before, after)
    assert (found.before_ns, found.after_ns) == (570 * US, 310 * US)
    changes = {part.name: part.change_ns for part in found.parts if part.change_ns}
    assert changes == {LOADING: -300 * US, MATMUL: 40 * US}
    first, second, third = found.findings()
    assert (first.severity, first.code) == ("better", "comparison.step")
    assert first.sentence == (
        "A step takes 310 µs, 260 µs less than before (570 µs, -45.6 %). Largest parts:"
        f" {LOADING} (-300 µs). In the other direction: {MATMUL} (+40.0 µs)."
    )
    assert [str(each) for each in first.evidence][:2] == ["before: 4 steps", "after: 4 steps"]
    assert second.numbers == {
        "change_ns": -300 * US,
        "before_ns": 400 * US,
        "after_ns": 100 * US,
    }
    assert (second.severity, second.code) == ("better", "comparison.idle.data_loading")
    assert (third.severity, third.code) == ("medium", "comparison.compute.matmul")
    assert [str(each) for each in third.evidence] == ["kernel_gemm, more: 40.0 µs"]
    for finding in (first, second, third):
        assert not {400 * US, 100 * US, 140 * US, 570 * US, 310 * US} & {
            each.figure for each in finding.evidence if each.unit == "ns"
        }
    stages = {each.name: each.change_ns for each in found.stages}
    operators = {each.name: each.change_ns for each in found.operators}
    kernels = {(each.name, each.operator): each.change_ns for each in found.kernels}
    assert stages == {"forward": 40 * US}
    assert operators == {"aten::mm": 40 * US, "aten::add": 0}
    assert kernels == {("kernel_gemm", "aten::mm"): 40 * US, ("kernel_add", "aten::add"): 0}
    assert {each.before_count for each in found.kernels} == {1}
    assert {each.name: each.change_ns for each in found.host} == {
        "outside of operators": -260 * US,
        "aten::mm": 0,
        "aten::add": 0,
    }


def test_a_trace_against_itself(tmp_path: Path) -> None:
    trace = training(tmp_path, "one")
    found = against(trace, trace)
    assert found.change_ns == 0
    assert all(part.change_ns == 0 for part in found.parts)
    assert found.findings() == []
    assert in_words(found.after_ns, "ns") in found.tables()[0].note


def test_another_number_of_steps(tmp_path: Path) -> None:
    # GIVEN 4 steps before, and 6 steps after that compute 10 µs longer
    before = training(tmp_path, "before")
    after = training(tmp_path, "after", steps=6, gemm=110, first=7)
    found = against(before, after)
    assert found.change_ns == 10 * US
    assert sum(part.change_ns for part in found.parts) == 10 * US
    assert (found.before.windows.steps, found.after.windows.steps) == (4, 6)
    assert len(found.remarks) == 1
    assert {k.name: (k.before_count, k.after_count) for k in found.kernels} == {
        "kernel_gemm": (1, 1),
        "kernel_add": (1, 1),
    }


def test_new_and_vanished_kernels(tmp_path: Path) -> None:
    # GIVEN a program that later launches one additional kernel
    before = training(tmp_path, "before")
    after = training(tmp_path, "after", extra=True)
    found, back = against(before, after), against(after, before)
    (new,) = found.new_kernels
    assert (new.name, new.change_ns, new.after_count) == ("kernel_relu", 30 * US, 1)
    assert found.vanished_kernels == []
    (gone,) = back.vanished_kernels
    assert (gone.name, gone.change_ns) == ("kernel_relu", -30 * US)
    numbers = finding_in(found, "comparison.new_kernels").numbers
    assert numbers == {"kernels": 1, "change_ns": 30 * US}
    vanished = finding_in(back, "comparison.vanished_kernels")
    assert vanished.numbers == {"kernels": 1, "change_ns": -30 * US}
    assert [each.event for each in vanished.evidence] == ["kernel_relu"]


def test_a_kernel_under_another_name(tmp_path: Path) -> None:
    # GIVEN the same program with another library's matrix product
    before = training(tmp_path, "before")
    after = training(tmp_path, "after", gemm=160, kernel="cutlass_gemm_128x64")
    found = against(before, after)
    (renamed,) = found.renamed_kernels
    assert (renamed.name, renamed.old_name) == ("cutlass_gemm_128x64", "kernel_gemm")
    assert (renamed.before_ns, renamed.after_ns) == (100 * US, 160 * US)
    assert found.new_kernels == found.vanished_kernels == []
    finding = finding_in(found, "comparison.renamed_kernel")
    assert renamed.name in finding.text
    assert renamed.old_name in finding.text
    assert finding.numbers == {"change_ns": 60 * US}
    assert [each.figure for each in finding.evidence] == [100 * US, 160 * US]


def test_a_kernel_of_another_kind_does_not_replace_the_old_one(tmp_path: Path) -> None:
    # GIVEN a kernel that is not a matrix product, instead of one
    before = training(tmp_path, "before")
    after = training(tmp_path, "after", kernel="layer_norm_kernel")
    found = against(before, after)
    assert found.renamed_kernels == []
    assert [each.name for each in found.new_kernels] == ["layer_norm_kernel"]
    assert [each.name for each in found.vanished_kernels] == ["kernel_gemm"]


@pytest.mark.parametrize(
    ("cat", "old", "new"),
    [
        ("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        (
            "kernel",
            "ncclKernel_AllReduce_RING_LL_Sum_float",
            "ncclDevKernel_AllReduce_Sum_f32_RING",
        ),
    ],
    ids=["copy", "collective"],
)
def test_only_computing_kernels_are_renamed(cat: str, old: str, new: str, tmp_path: Path) -> None:
    def launched(name: str) -> Trace:
        program = Program()
        for step in range(2):
            with program.within(f"ProfilerStep#{step}", NOTE):
                with program.within("aten::copy_"):
                    program.launch(name, 100, cat=cat)
                program.wait()
        (tmp_path / name[-8:]).mkdir(exist_ok=True)
        return program.trace(tmp_path / name[-8:])

    found = against(launched(old), launched(new))
    assert found.renamed_kernels == []


@pytest.mark.parametrize(
    "shapes",
    [
        (("[[2, 2]]", "[[2, 2]]"), ("[[2, 2]]", "[[2, 2]]")),
        (("[[2, 2]]", "[[2, 2]]"), ("[[4, 4]]", "[[4, 4]]")),
        (("[[2, 2]]", "[[4, 4]]"), ("[[2, 2]]", "[[2, 2]]")),
        (("[[2, 2]]", "[[2, 2]]"), ("[[2, 2]]", "[[4, 4]]")),
    ],
)
def test_a_kernel_for_the_same_shapes(
    shapes: tuple[tuple[str, str], tuple[str, str]], tmp_path: Path
) -> None:
    before, after = (
        shaped(tmp_path, name, kernel, shape)
        for name, kernel, shape in zip(
            ("before", "after"), ("gemm_64", "gemm_128"), shapes, strict=True
        )
    )
    found = against(before, after)
    names = {each.name: each.old_name for each in found.renamed_kernels}
    assert names == ({"gemm_128": "gemm_64"} if shapes[0] == shapes[1] else {})


def shaped(folder: Path, name: str, kernel: str, shapes: tuple[str, str]) -> Trace:
    """A trace of two steps, each with a matrix product of inputs of a given shape."""
    program = Program()
    for step in range(2):
        with program.within(f"ProfilerStep#{step}", "user_annotation"):
            with program.within("aten::mm"):
                program.launch(kernel, 100)
            program.wait()
    products = [event for event in program.events if event["name"] == "aten::mm"]
    for event, shape in zip(products, shapes, strict=True):
        event["args"] = {"Input Dims": json.loads(shape)}
    (folder / name).mkdir(exist_ok=True)
    return program.trace(folder / name)


def test_calls_that_wait(tmp_path: Path) -> None:
    # GIVEN a step that later waits 200 µs longer after the device has finished
    def waiting(name: str, tail: int) -> Trace:
        program = Program()
        for step in range(4):
            with program.within(f"ProfilerStep#{step}", "user_annotation"):
                program.operator("aten::mm", 100)
                with program.within("aten::item"):
                    program.wait(tail=tail)
        (tmp_path / name).mkdir(exist_ok=True)
        return program.trace(tmp_path / name)

    found = against(waiting("before", 12), waiting("after", 212))
    # THEN the call is named: of four steps three waits are between work of the device
    (wait,) = found.waits
    assert wait.name == "aten::item (cudaStreamSynchronize)"
    assert wait.change_ns == 3 * 200 * US // 4
    assert (wait.before_count, wait.after_count) == (0.75, 0.75)
    finding = finding_in(found, "comparison.idle.synchronisation")
    (shown,) = finding.evidence
    assert shown.event.startswith(wait.name)
    assert shown.figure == wait.change_ns
    titles = [table.title for table in found.tables()]
    assert "Idle time by calls that wait or allocate" in titles
    assert found.tables()[1].title == "Steps, in their order"
    assert [row[3] for row in found.tables()[1].rows] == [200 * US] * 4


def test_calls_that_wait_are_counted_per_step_of_each_trace(tmp_path: Path) -> None:
    def waiting(steps: int) -> Trace:
        program = Program()
        for step in range(steps):
            with program.within(f"ProfilerStep#{step}", NOTE):
                program.operator("aten::mm", 100)
                with program.within("aten::item"):
                    program.wait(tail=100)
        (tmp_path / str(steps)).mkdir()
        return program.trace(tmp_path / str(steps))

    (wait,) = against(waiting(5), waiting(3)).waits
    # THEN four of five, and two of three waits are between work of the device
    assert (wait.before_count, wait.after_count) == (4 / 5, 2 / 3)
    assert wait.before_ns / wait.after_ns == pytest.approx((4 / 5) / (2 / 3), rel=1e-4)


def test_other_devices_are_reported(tmp_path: Path) -> None:
    paths = []
    for name, device in (("before", "Tesla V100"), ("after", "H100")):
        training(tmp_path, name)
        path = tmp_path / name / "planted.json"
        events = json.loads(path.read_text())["traceEvents"]
        path.write_text(
            json.dumps({"traceEvents": events, "deviceProperties": [{"id": 0, "name": device}]})
        )
        paths.append(path)
    found = against(*map(read_trace, paths))
    assert found.remarks == ["The devices are not the same: Tesla V100 before, H100 after."]


def test_layers_and_stages_are_paths(tmp_path: Path) -> None:
    def model(name: str, us: int, batch: int) -> Trace:
        program = Program()
        for step in range(2):
            with program.within(f"ProfilerStep#{step}", "user_annotation"):
                with program.within(f"batch {batch + step}", "user_annotation"):
                    program.work(1)
                    with (
                        program.within("layer 1", "user_annotation"),
                        program.within("nn.Module: Net_0", "python_function"),
                    ):
                        for layer, time in enumerate((100, us)):
                            program.work(1)
                            with program.within(f"nn.Module: Linear_{layer}", "python_function"):
                                program.operator("aten::addmm", time)
                program.wait()
        (tmp_path / name).mkdir(exist_ok=True)
        return program.trace(tmp_path / name)

    found = against(model("before", 100, 1), model("after", 150, 40))
    assert {each.name: each.change_ns for each in found.layers} == {
        "Net_0 / Linear_1": 50 * US,
        "Net_0 / Linear_0": 0,
    }
    assert {each.name: each.change_ns for each in found.stages} == {"batch # / layer 1": 50 * US}


@pytest.mark.parametrize(
    ("outer", "stage"),
    [
        # The annotation that repeats is the step itself ...
        ("train {}", "forward"),
        # ... and if several repeat, they are the stages of the step.
        (None, "forward"),
    ],
)
def test_stages_of_steps_given_by_annotations(
    outer: str | None, stage: str, tmp_path: Path
) -> None:
    # GIVEN three steps of a program without the profiler's marks, which later computes longer
    def model(name: str, us: int) -> Trace:
        program = Program()
        for step in range(3):
            with program.within(outer.format(step), NOTE) if outer else nullcontext():
                with program.within("forward", NOTE):
                    program.operator("aten::addmm", us)
                    program.work(300)
                with program.within("wait", NOTE):
                    program.wait()
        (tmp_path / name).mkdir(exist_ok=True)
        return program.trace(tmp_path / name)

    found = against(model("before", 100), model("after", 150))
    assert {each.name: each.change_ns for each in found.stages} == {stage: 50 * US}


def test_one_kernel_of_two_operators(tmp_path: Path) -> None:
    def launched(name: str, times: int) -> Trace:
        program = Program()
        for step in range(2):
            with program.within(f"ProfilerStep#{step}", "user_annotation"):
                for operator in ["aten::mul"] * times + ["aten::add"]:
                    with program.within(operator):
                        program.launch("vectorized_elementwise", 100)
                program.wait()
        (tmp_path / name).mkdir(exist_ok=True)
        return program.trace(tmp_path / name)

    found = against(launched("before", 1), launched("after", 2))
    assert {(k.operator, k.change_ns, k.before_count, k.after_count) for k in found.kernels} == {
        ("aten::mul", 100 * US, 1, 2),
        ("aten::add", 0, 1, 1),
    }
    assert found.change_ns == 100 * US


def test_a_kernel_has_one_row_whatever_launches_it(tmp_path: Path) -> None:
    # GIVEN a kernel that operators launch, and later a device graph
    def trace(name: str, graph: bool) -> Trace:
        program = Program()
        for step in range(3):
            with program.within(f"ProfilerStep#{step}", NOTE):
                if graph:
                    program.graph([100, 100], gap=1)
                else:
                    for _ in range(2):
                        with program.within("aten::mm"):
                            program.launch("graph_0", 100)
                program.wait()
        for event in program.events:
            if event.get("cat") == "kernel":
                event["name"] = "gemm"
        (tmp_path / name).mkdir()
        return program.trace(tmp_path / name)

    found = against(trace("before", False), trace("after", True))
    # THEN the first screen does not call it gone and new
    assert "kernel" not in [block.heading for block in found.head() if isinstance(block, Changes)]
    (table,) = (each for each in found.tables() if each.title == "Change by kernel")
    assert [row[:4] for row in table.rows] == [("gemm", 200 * US, 200 * US, 0)]


def batches(folder: Path, name: str, batch: int, us: int, inner: int = 512) -> Trace:
    """Three steps with a product of a layer, and one with the gradient of its weights."""
    program = Program()
    for step in range(3):
        with program.within(f"ProfilerStep#{step}", NOTE):
            for dims in ([[batch, inner], [inner, 256]], [[batch, 256], [256, inner]],
                         [[inner, batch], [batch, 256]]):  # fmt: skip
                with program.within("aten::mm"):
                    program.launch("gemm", us)
                program.events[-1]["args"] = {"Input Dims": dims}
            program.wait()
    (folder / name).mkdir()
    return program.trace(folder / name)


def test_the_time_of_a_sample_if_the_batch_changed(tmp_path: Path) -> None:
    before = batches(tmp_path, "before", 64, 1_000)
    found = against(before, batches(tmp_path, "after", 256, 2_000))
    # THEN a step takes twice as long, for four times as many samples, which is better
    assert found.batch is not None
    assert found.batch.times == 4
    assert found.batch.as_many_ns == round(found.after_ns / 4)
    assert finding_in(found, "comparison.step").severity == "better"
    assert "throughput is 2" in finding_in(found, "comparison.step").sentence
    assert {each.severity for each in found.findings()[1:]} == {"low"}


@pytest.mark.parametrize(("batch", "inner"), [(64, 512), (64, 1_024)])
def test_a_batch_as_large_as_before(batch: int, inner: int, tmp_path: Path) -> None:
    # GIVEN the same shapes, or a larger layer
    before = batches(tmp_path, "before", 64, 1_000)
    found = against(before, batches(tmp_path, "after", batch, 2_000, inner))
    assert found.batch is None
    assert finding_in(found, "comparison.step").severity == "high"


def test_a_change_within_the_variation_of_the_steps(tmp_path: Path) -> None:
    # GIVEN steps of 470 to 770 µs, and later the same except for the last one
    def varied(name: str, last: int) -> Trace:
        program = Program()
        for step, load in enumerate((300, 500, 400, last)):
            with program.within(f"ProfilerStep#{step}", "user_annotation"):
                with program.within("enumerate(DataLoader)#x", "user_annotation"):
                    program.work(load)
                program.operator("aten::mm", 100)
                program.operator("aten::add", 50)
                program.wait()
        (tmp_path / name).mkdir(exist_ok=True)
        return program.trace(tmp_path / name)

    found = against(varied("before", 600), varied("after", 400))
    assert found.change_ns == -50 * US
    assert found.within_variation
    assert {finding.severity for finding in found.findings()} == {"low"}
    # THEN the page names the test
    _, sentence = found.title()
    error = in_words(found.error_ns(), "ns")
    assert sentence.endswith(f" two standard errors of the steps' means are {error}.")


def test_without_a_device_operators_are_compared(tmp_path: Path) -> None:
    def hosted(name: str, us: int) -> Trace:
        program = Program()
        for step in range(3):
            with program.within(f"ProfilerStep#{step}", "user_annotation"):
                with program.within("aten::linear"):
                    program.work(5)
                    with program.within("aten::addmm"):
                        program.work(us)
                program.work(20)
            # Another thread, with little work.
            program.thread += 1
            program.event("aten::copy_", "cpu_op", program.now - 40, program.now - 30)
            program.thread -= 1
        (tmp_path / name).mkdir(exist_ok=True)
        return program.trace(tmp_path / name)

    found = against(hosted("before", 100), hosted("after", 130))
    # THEN its self time explains the change
    assert (found.before_ns, found.after_ns) == (125 * US, 155 * US)
    assert {each.name: each.change_ns for each in found.operators} == {
        "aten::addmm": 30 * US,
        "aten::linear": 0,
    }
    assert {part.name: part.change_ns for part in found.parts if part.change_ns} == {
        "operators: matrix products": 30 * US
    }
    assert found.kernels == []


def test_a_device_on_one_side_only(tmp_path: Path) -> None:
    program = Program()
    with program.within("aten::mm"):
        program.work(10)
    host, device = program.trace(tmp_path), training(tmp_path, "device")
    found = compare(host, device)
    # THEN nothing is compared, and a sentence says why
    assert isinstance(found, Unavailable)
    assert "Only the second trace has device events" in found.reason


def test_windows_without_steps_and_with_different_work(tmp_path: Path) -> None:
    def launched(name: str, times: int, us: int = 20) -> Trace:
        program = Program()
        for number in range(times):
            program.operator(f"aten::op{number % 7}", us)
        (tmp_path / name).mkdir(exist_ok=True)
        return program.trace(tmp_path / name)

    found = compare(launched("before", 7), launched("after", 21))
    assert isinstance(found, Unavailable)
    assert "7 launches of kernels and copies before, 21 after, 33 % of them" in found.reason
    same = against(launched("fast", 7), launched("slow", 7, us=30))
    assert same.per == "trace"
    assert same.change_ns == 70 * US
    assert len(same.remarks) == 1
    assert same.tables()[0].title == "What explains the change"
    assert same.findings()[1].numbers["change_ns"] > 0


def test_steps_in_one_trace_only(tmp_path: Path) -> None:
    def recorded(name: str, has_steps: bool) -> Trace:
        program = Program()
        for step in range(2):
            mark = program.within(f"ProfilerStep#{step}", NOTE) if has_steps else nullcontext()
            with mark:
                for number in range(3):
                    program.operator(f"aten::op{step}{number}", 20)
                if step == 0:
                    program.wait()
        (tmp_path / name).mkdir()
        return program.trace(tmp_path / name)

    found = against(recorded("before", True), recorded("after", False))
    assert (found.per, found.change_ns) == ("trace", 0)
    assert "The whole traces are compared" in found.remarks[0]
    (wait,) = found.waits
    assert (wait.before_count, wait.after_count, wait.change_ns) == (1, 1, 0)


def launching(folder: Path, *kernels: tuple[str, int], with_shapes: int = 0) -> Trace:
    """Operators of one kernel each, by name and number; the first `with_shapes` have shapes."""
    program = Program()
    for name, count in kernels:
        for _ in range(count):
            program.operator(name, 20)
    operators = [each for each in program.events if each["cat"] == "cpu_op"]
    for each in operators[:with_shapes]:
        each["args"] = {"Input Dims": [[2, 2]]}
    folder.mkdir(exist_ok=True)
    return program.trace(folder)


def test_likeness_is_the_smaller_share_of_each_name(tmp_path: Path) -> None:
    # GIVEN two traces that have half, and a quarter, of their work in common
    before = launching(tmp_path / "a", ("aten::mm", 2), ("aten::add", 2))
    after = launching(tmp_path / "b", ("aten::mm", 6), ("aten::add", 2))
    found = likeness(before, after)
    # THEN half and a quarter are common
    assert (found.kernels, found.operators, found.shapes) == (0.75, 0.75, None)


def test_likeness_if_the_last_operators_have_no_shapes(tmp_path: Path) -> None:
    # GIVEN traces of four operators, of which the first two, or only one, have input shapes
    two, one = (
        launching(tmp_path / str(count), ("aten::mm", 4), with_shapes=count) for count in (2, 1)
    )
    # WHEN they are compared THEN half of all shapes is enough
    assert likeness(two, two).shapes == 1
    assert likeness(two, one).shapes is None


def test_likeness_needs_the_operators_of_half_of_the_kernels(tmp_path: Path) -> None:
    def launched(by_operators: int) -> Trace:
        program = Program()
        for number in range(3):
            with program.within("aten::mm") if number < by_operators else nullcontext():
                program.launch("gemm", 20)
            with program.within(f"aten::view{by_operators}"):
                program.work(5)
        (tmp_path / str(by_operators)).mkdir(exist_ok=True)
        return program.trace(tmp_path / str(by_operators))

    # WHEN they are compared THEN only the operators of kernels count, if enough are known
    two, one, three = launched(2), launched(1), launched(3)
    assert (likeness(two, three).kernels, likeness(two, three).operators) == (1, 1)
    assert (likeness(two, one).kernels, likeness(two, one).operators) == (1, None)


def test_likeness_counts_the_first_event_of_a_trace(tmp_path: Path) -> None:
    program = Program()
    program.operator()
    program.events.reverse()
    trace = program.trace(tmp_path)
    assert trace.names[trace.events.name[0]] == "aten::mm"
    assert likeness(trace, trace).operators == 1


def test_likeness_is_of_pairs_of_operators_and_shapes(tmp_path: Path) -> None:
    operators, shapes = ("aten::mm", "aten::bmm", "aten::add"), ([2, 2], [4, 4], [8, 8])

    def shifted(by: int, *changed: int) -> Trace:
        program = Program()
        for name in operators:
            program.operator(name)
        mine = [each for each in program.events if each["cat"] == "cpu_op"]
        for number, each in enumerate(mine):
            each["args"] = {"Input Dims": [shapes[(number + by * (number in changed)) % 3]]}
        folder = tmp_path / f"{by}{len(changed)}"
        folder.mkdir()
        return program.trace(folder)

    first, one, all_one, all_two = (
        shifted(0), shifted(1, 0), shifted(1, 0, 1, 2), shifted(2, 0, 1, 2)
    )  # fmt: skip
    # WHEN some, or all of them have other inputs THEN only the same pairs are common
    assert likeness(first, one).shapes == pytest.approx(2 / 3)
    assert likeness(first, all_one).shapes == 0
    assert likeness(first, all_two).shapes == 0
    assert likeness(all_one, all_two).shapes == 0


@pytest.mark.parametrize(("stages", "parts"), [("ab", None), ("abc", 1), ("abcd", 0.75)])
def test_likeness_of_three_stages_or_more(stages: str, parts: float | None, tmp_path: Path) -> None:
    def staged(names: str) -> Trace:
        program = Program()
        for name in names:
            with program.within(name, NOTE):
                program.operator(us=20)
        (tmp_path / names).mkdir(exist_ok=True)
        return program.trace(tmp_path / names)

    assert likeness(staged("abc"), staged(stages)).parts == parts


def test_different_programs_are_reported(tmp_path: Path) -> None:
    program = Program()
    for step in range(4):
        with program.within(f"ProfilerStep#{step}", "user_annotation"):
            program.operator("aten::conv2d", 300)
            program.wait()
    (tmp_path / "other").mkdir(exist_ok=True)
    other = program.trace(tmp_path / "other")
    found = against(training(tmp_path, "one", steps=6), other)
    assert "6 and 4 steps" in found.remarks[1]
    assert not found.alike
    assert found.findings()[0].sentence.endswith(found.remarks[0])
    assert {finding.severity for finding in found.findings()} == {"low"}


def test_the_known_pair(traces: Path) -> None:
    # GIVEN a training without and with four workers that load data
    before = read_trace(traces / "old_v100_resnet_workers0.json.gz")
    after = read_trace(traces / "old_v100_resnet_workers4.json.gz")
    found = against(before, after)
    assert found.before_ns == pytest.approx(177_592.167 * US, abs=US)
    assert found.after_ns == 141_068 * US
    assert found.parts[0].name == LOADING
    assert found.parts[0].change_ns < -57e6
    # THEN the figures are those in docs/compare.md, to the microsecond
    launching = next(part for part in found.parts if part.name == LAUNCHING)
    assert [round(each / US) for each in (found.change_ns, found.parts[0].change_ns)] == [
        -36_524,
        -57_556,
    ]
    assert round(launching.change_ns / US) == 9_662
    assert sum(part.change_ns for part in found.parts) == found.change_ns
    # AND cudnn chose other kernels, which is not a change of the program
    assert len(found.vanished_kernels) == 6
    assert not found.within_variation


_UNLIKE = (
    ("cuda_h100_bert", "cuda_h100_vit"),
    ("cuda_h100_vit", "cuda_h100_timesformer"),
    ("cuda_h100_bert", "cuda_h100_timesformer"),
    ("cuda_h100_bert", "old_v100_resnet_workers4"),
    ("cuda_v100_nccl_train", "cuda_v100_train_ns"),
    ("rocm_mi300_owlv2", "cuda_h100_timesformer"),
    ("rocm_mi300_sglang_decode", "rocm_mi300_vllm_piecewise"),
    ("cuda_v100_nccl_train", "old_v100_resnet_workers0"),
)


@pytest.mark.parametrize(("first", "second"), _UNLIKE)
def test_programs_that_only_share_operators_are_different(
    first: str, second: str, traces: Path
) -> None:
    trace, other = (read_trace(traces / f"{name}.json.gz") for name in (first, second))
    for found in (compare(trace, other), compare(other, trace)):
        assert isinstance(found, TraceComparison)
        assert not found.alike
        assert {finding.severity for finding in found.findings()} <= {"low"}


def test_a_changed_program_is_recognised_as_the_same(tmp_path: Path) -> None:
    before = training(tmp_path, "before")
    for name, after in (
        ("other kernels", training(tmp_path, "k", kernel="cutlass_gemm_128x64")),
        ("one more", training(tmp_path, "e", extra=True)),
        ("longer", training(tmp_path, "l", gemm=900, steps=9)),
    ):
        assert against(before, after).alike, name
