"""Steps of synthetic programs, compared with figures by hand and a count of every microsecond."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commands import checked
from planted import CALL, LATENCY, Program
from real_traces import read_real

from stagespan.pages.amounts import in_words
from stagespan.pages.result import Unavailable
from stagespan.trace import Trace, read_trace
from stagespan.trace.analyses import steps
from stagespan.trace.analyses.steps import Quartiles, Steps

US = 1_000


def steps_of(trace: Trace) -> Steps:
    found = checked(steps.analyze(trace), Steps)
    for step in found.steps:
        assert sum(step.parts.values()) == step.dur_ns
    for gap in found.gaps.largest:
        assert sum(gap.parts.values()) == gap.dur_ns
    return found


def by_microsecond(program: Program, begin: int, end: int) -> dict[str, int]:
    """Return what each microsecond belongs to, in ns: the slow way."""

    def kind(event: dict[str, Any]) -> str | None:
        if event["cat"] == "kernel":
            return "communication" if "nccl" in event["name"] else "computation"
        if event["name"].startswith("enumerate(DataLoader)"):
            return "data_loading"
        return {
            "gpu_memcpy": "copies",
            "cuda_runtime": "runtime_calls",
            "cpu_op": "operators",
        }.get(event["cat"])

    order = (
        "computation", "communication", "copies", "runtime_calls", "data_loading", "operators",
    )  # fmt: skip
    found = dict.fromkeys((*order, "other"), 0)
    for us in range(begin, end):
        kinds = {kind(e) for e in program.events if e["ts"] <= us < e["ts"] + e["dur"]}
        found[next((name for name in order if name in kinds), "other")] += US
    return found


@pytest.mark.parametrize("count", [1, 5])
def test_the_line_says_what_a_step_is_if_the_profiler_did_not_mark_it(
    count: int, tmp_path: Path
) -> None:
    # GIVEN a repeated annotation of a part of the loop, or one step of an inference server
    name = "evaluate" if count > 1 else "step[DECODE bs=32]"
    program = Program()
    for _ in range(count):
        program.work(200)
        with program.within(name, "user_annotation"):
            program.operator(us=20)
    line = steps_of(program.trace(tmp_path)).line()
    assert line.startswith(f"{count}, " if count > 1 else "1 of decode, ")
    assert line.endswith(
        ". The annotation evaluate repeats and is taken as the step."
        if count > 1
        else ". The annotations of an inference server mark its steps."
    )


def test_the_line_does_not_explain_marks_of_the_profiler(tmp_path: Path) -> None:
    program = Program()
    for number in range(2):
        with program.within(f"ProfilerStep#{number}", "user_annotation"):
            program.work(100)
            program.operator("aten::add", us=7)
            program.wait()
    assert steps_of(program.trace(tmp_path)).line().endswith(")")


def test_parts_equal_the_count_of_every_microsecond(tmp_path: Path) -> None:
    program = Program()
    for number in range(4):
        with program.within(f"ProfilerStep#{number}", "user_annotation"):
            with program.within("enumerate(DataLoader)#x", "user_annotation"):
                program.work(30)
                program.operator("aten::stack", us=5)
            program.launch("Memcpy HtoD", 20, stream=9, cat="gpu_memcpy", call="cudaMemcpyAsync")
            program.operator(us=70)
            program.launch("ncclKernel", 60, stream=20, after=7)
            program.operator("aten::add", us=40 + 10 * number)
            program.work(25)
        program.work(12)
    found = steps_of(program.trace(tmp_path))
    assert [step.name for step in found.steps] == [f"ProfilerStep#{n}" for n in range(4)]
    for step in found.steps:
        begin = step.begin_ns // US + 1_000
        assert step.parts == by_microsecond(program, begin, begin + step.dur_ns // US)
    assert found.outliers == []
    assert found.findings() == []


def test_one_step_by_hand(tmp_path: Path) -> None:
    # GIVEN two steps: 10 µs of Python in an operator, a launch, a kernel, a wait, 20 µs of Python
    program = Program()
    for number in range(2):
        with program.within(f"ProfilerStep#{number}", "user_annotation"):
            program.operator(us=50)
            program.wait(tail=2)
            program.work(20)
    found = steps_of(program.trace(tmp_path))
    # THEN the sums follow the rules; the wait beyond the kernel is 2 µs, its latency 3
    expected = {
        "computation": 50 * US,
        "communication": 0,
        "copies": 0,
        "runtime_calls": (CALL + LATENCY + 2) * US,
        "data_loading": 0,
        "operators": 10 * US,
        "other": 20 * US,
    }
    assert [step.parts for step in found.steps] == [expected, expected]
    assert found.step_ns == Quartiles(90 * US, *(90 * US,) * 5)
    assert [step.after_host_ns for step in found.steps] == [0, 0]
    # AND between the kernels are the end of the wait, Python, and the time before the next kernel
    (gap,) = found.gaps.largest
    assert gap.dur_ns == (2 + 20 + 10 + CALL + LATENCY) * US == found.gaps.total_ns
    assert gap.parts["other"] == 20 * US
    assert (found.outside, found.outside_ns) == (0, 0)


def test_work_after_the_mark_belongs_to_the_step_that_launched_it(tmp_path: Path) -> None:
    # GIVEN a host that marks 5 steps of 15 µs, each with a kernel of 100 µs, and one kernel before
    program = Program()
    program.launch("before", 40, known=False)
    for number in range(5):
        with program.within(f"ProfilerStep#{number}", "user_annotation"):
            program.operator(us=100)
    found = steps_of(program.trace(tmp_path))
    # THEN each extends to its kernel's end, and none overlaps another; the first begins when the
    # earlier kernel is finished
    first, second, third, *_ = found.steps
    assert (second.dur_ns, third.dur_ns) == (100 * US, 100 * US)
    assert first.dur_ns == 100 * US
    assert [step.host_ns for step in found.steps] == [15 * US] * 5
    assert second.parts["computation"] == 100 * US
    assert third.after_host_ns == 100 * US
    assert second.begin_ns == first.begin_ns + first.dur_ns
    assert (found.outside, found.outside_ns) == (1, 40 * US)
    assert in_words(found.outside_ns, "ns") in found.tables()[0].note
    # AND no step is called slow because of the time that the first one had to wait
    assert found.findings() == []


@pytest.mark.parametrize("us", [400, 10])
def test_work_outside_of_the_steps_is_told_with_its_longest_part(us: int, tmp_path: Path) -> None:
    # GIVEN five steps of 100 us, and before them one kernel, launched in the trace
    program = Program()
    program.operator("aten::prepare", us=us)
    program.wait()
    for number in range(5):
        with program.within(f"ProfilerStep#{number}", "user_annotation"):
            program.operator(us=100)
    line = steps_of(program.trace(tmp_path)).line()
    # THEN little work is not worth a sentence
    outside = "44.4 % of device work (400 µs) is not in them: the longest is kernel_prepare"
    assert (outside in line) == (us == 400)
    assert line.count("is not in them") == (us == 400)


def test_a_slow_step_is_reported_with_its_difference(tmp_path: Path) -> None:
    program = Program()
    for number in range(10):
        with program.within(f"ProfilerStep#{number}", "user_annotation"):
            program.operator(us=300)
            program.call("cudaMalloc", 5_000 if number == 6 else 10)
            program.operator(us=300)
            program.wait()
    found = steps_of(program.trace(tmp_path))
    (slow,) = found.outliers
    assert (slow.name, slow.part, slow.culprit) == ("ProfilerStep#6", "runtime_calls", "cudaMalloc")
    assert (slow.culprit_ns, slow.culprit_usual_ns) == (5_000 * US, 10 * US)
    (finding,) = found.findings()
    assert finding.severity == "high"
    assert finding.evidence[1].figure == 5_000 * US


def test_a_step_in_which_python_slept(tmp_path: Path) -> None:
    program = Program()
    for number in range(6):
        with (
            program.within(f"ProfilerStep#{number}", "user_annotation"),
            program.within("train.py(1): step", "python_function"),
        ):
            program.operator(us=100)
            program.work(8)
            if number == 4:
                with program.within("<built-in function sleep>", "python_function"):
                    program.work(700)
            program.operator(us=100)
            program.wait()
    found = steps_of(program.trace(tmp_path))
    (slow,) = found.outliers
    assert (slow.name, slow.part) == ("ProfilerStep#4", "other")
    assert (slow.culprit, slow.culprit_ns) == ("<built-in function sleep>", 700 * US)
    assert slow.culprit_usual_ns == 0


def test_steps_of_two_lengths_are_not_outliers(tmp_path: Path) -> None:
    # GIVEN steps of which every second one takes twice as long
    program = Program()
    for number in range(8):
        with program.within(f"ProfilerStep#{number}", "user_annotation"):
            program.operator(us=400 if number % 2 else 200)
            program.wait()
    # WHEN they are compared THEN none is called slow
    assert steps_of(program.trace(tmp_path)).outliers == []


def test_a_very_long_step_among_steps_of_many_lengths(tmp_path: Path) -> None:
    # GIVEN eight steps on a busy machine, three of which are long, and one of these far longer
    program = Program()
    for number, time_us in enumerate((200, 205, 210, 600, 200, 40_000, 650, 205)):
        with program.within(f"ProfilerStep#{number}", "user_annotation"):
            program.operator(us=time_us)
            program.wait()
    (slow,) = steps_of(program.trace(tmp_path)).outliers
    assert slow.name == "ProfilerStep#5"


def test_a_step_whose_kernels_are_slow(tmp_path: Path) -> None:
    # GIVEN six steps, one with a kernel that takes four times as long
    program = Program()
    for number in range(6):
        with program.within(f"ProfilerStep#{number}", "user_annotation"):
            program.operator("aten::mm", us=800 if number == 4 else 200)
            program.operator("aten::add", us=200)
            program.wait()
    (slow,) = steps_of(program.trace(tmp_path)).outliers
    assert (slow.name, slow.part, slow.culprit) == ("ProfilerStep#4", "computation", "kernel_mm")


def test_a_long_preparation_before_the_first_launch(tmp_path: Path) -> None:
    # GIVEN a step in which the host prepares inputs for two thirds of the time
    program = Program()
    with (
        program.within("ProfilerStep#1", "user_annotation"),
        program.within("main.py(1): main", "python_function"),
    ):
        with program.within("preprocess.py(3): resize", "python_function"):
            program.work(2_000)
        program.operator(us=1_000)
        program.wait()
    found = steps_of(program.trace(tmp_path))
    # THEN this is reported, with the function; it is not in the causes of idle time
    (finding,) = found.findings()
    assert (finding.code, finding.severity) == ("steps.before_device", "high")
    assert "preprocess.py(3): resize" in [each.event for each in finding.evidence]
    assert finding.numbers["time_ns"] == 2_010 * US
    assert found.to_dict()["before_device_us"] == 2_000 + 10


def test_a_profiler_mark_without_work_is_left_out(tmp_path: Path) -> None:
    program = Program()
    for number in range(2):
        with program.within(f"ProfilerStep#{number}", "user_annotation"):
            program.operator()
            program.wait()
    with program.within("ProfilerStep#2", "user_annotation"):
        program.work(3)
    found = steps_of(program.trace(tmp_path))
    assert [step.name for step in found.steps] == ["ProfilerStep#0", "ProfilerStep#1"]


def test_the_host_alone(tmp_path: Path) -> None:
    program = Program()
    for number in range(4):
        with program.within(f"ProfilerStep#{number}", "user_annotation"):
            with program.within("aten::mm"):
                program.work(100)
            with program.within("gloo:all_reduce", "user_annotation"):
                program.work(50)
        program.work(30)
    found = steps_of(program.trace(tmp_path))
    # THEN nothing is reported about a device
    assert found.steps[1].parts == {
        "data_loading": 0,
        "operators": 100 * US,
        "communication": 50 * US,
        "other": 0,
    }
    assert (found.steps[1].device_ns, found.steps[1].launched) == (None, None)
    assert found.gaps.median_ns == (50 + 30) * US


def test_the_real_resnets_have_the_known_steps(traces: Path) -> None:
    # GIVEN two trainings whose mean step is 177,592 and 141,068 µs according to another tool
    for name, mean in (("workers0", 177_592), ("workers4", 141_068)):
        found = steps_of(read_real(traces / f"old_v100_resnet_{name}.json.gz"))
        assert round(found.to_dict()["step_us"]["mean"]) == mean
    # THEN two of the second one's steps are slow: a copy that waited 40 ms, and a slow host
    assert [each.name for each in found.outliers] == ["ProfilerStep#5", "ProfilerStep#9"]
    assert found.outliers[0].culprit == "cudaMemcpyAsync"
    assert [finding.severity for finding in found.findings()] == ["low", "low"]


def test_real_traces_have_correct_sums_and_the_expected_findings(traces: Path) -> None:
    seen = {}
    for path in sorted(traces.glob("*.json.gz")):
        trace = read_real(path)
        if not isinstance(steps.analyze(trace), Unavailable):
            seen[path.name.split(".")[0]] = steps_of(trace)
    # THEN those with marks have steps, those of one forward pass do not
    assert len(seen["cuda_v100_train_ns"].steps) == 5
    assert seen["rocm_mi300_ddp_resnet"].ranges.source == "optimizer"
    assert seen["rocm_mi300_sglang_decode"].ranges.source == "annotation"
    assert {"rocm_mi210_gpu_only", "cuda_a100_simple_add"}.isdisjoint(seen)
    # AND the findings are those visible on the timelines: a collective that waited, a host that
    # read a video, and slow steps of one training
    findings = {name: each.findings() for name, each in seen.items()}
    codes = {name: [f.code for f in mine] for name, mine in findings.items() if mine}
    assert codes == {
        "cpu_only": ["steps.outlier"],
        "cuda_h100_timesformer": ["steps.before_device"],
        "old_v100_resnet_workers4": ["steps.outlier"] * 2,
    }
    assert "gloo:all_reduce" in [each.event for each in findings["cpu_only"][0].evidence]


def test_torch_marks_its_steps(tmp_path: Path) -> None:
    # GIVEN six steps of a real program, the third of which sleeps
    torch = pytest.importorskip("torch")
    import time

    value = torch.ones(64, 64)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=6, repeat=1),
    ) as profile:
        profile.step()
        for number in range(6):
            value = (value @ value).tanh()
            time.sleep(0.5 if number == 2 else 0.05)
            profile.step()
    path = tmp_path / "torch.json"
    profile.export_chrome_trace(str(path))
    found = steps_of(read_trace(path))
    assert [step.name for step in found.steps] == [f"ProfilerStep#{n}" for n in range(1, 7)]
    # Others can be slow too, if the machine paused.
    parts = {each.name: each.part for each in found.outliers}
    assert parts["ProfilerStep#3"] == "other"
