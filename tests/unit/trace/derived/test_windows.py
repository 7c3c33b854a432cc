"""The windows of verdict and steps: all steps, without work from before the trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from commands import checked
from device_programs import judged
from planted import CALL, LATENCY, Program
from real_traces import read_real

from stagespan.pages.amounts import in_words
from stagespan.trace import Trace
from stagespan.trace.analyses import device_use, steps, verdict
from stagespan.trace.analyses.device_use import Use
from stagespan.trace.analyses.steps import Steps
from stagespan.trace.analyses.verdict import Verdict
from stagespan.trace.analysis import analyze
from stagespan.trace.derived.windows import steps_of

US = 1_000


def split(trace: Trace) -> Steps:
    return checked(steps.analyze(trace), Steps)


def test_the_verdict_is_for_the_step_with_time_before_and_after_it(tmp_path: Path) -> None:
    # GIVEN a step: 2 ms of preparation, a kernel of 1 ms, 0.4 ms of Python after it
    program = Program()
    with program.within("ProfilerStep#1", "user_annotation"):
        with program.within("preprocess.py(3): resize", "python_function"):
            program.work(2_000)
        program.operator(us=1_000)
        program.wait()
        program.work(400)
    found = judged(program.trace(tmp_path))
    whole = 2_000 + 10 + CALL + LATENCY + 1_000 + 2 + 400
    assert (found.base.steps, found.whole_ns) == (1, whole * US)
    assert found.parts_ns == {
        "preparation": 2_010 * US,
        "computing": 1_000 * US,
        "finishing": 402 * US,
        "launch": (CALL + LATENCY) * US,
    }
    assert (found.verdict, found.cause) == ("host-bound", "preparation")
    assert found.preparing == "preprocess.py(3): resize"
    # THEN the device's own span is reported as before
    written = found.to_dict()
    assert written["span_us"] == 1_000
    assert written["whole_us"] == whole
    assert written["percent"] == pytest.approx(100 * (2_412 + CALL + LATENCY) / whole)
    assert [part.name for part in found.bar().parts] == [
        "computing",
        "idle",
        "preparing",
        "finishing",
    ]


def test_without_steps_the_verdict_is_for_the_trace(tmp_path: Path) -> None:
    # GIVEN one operator, whose kernel begins after 18 µs of host time
    program = Program()
    program.operator(us=50)
    found = judged(program.trace(tmp_path))
    assert (found.base.steps, found.whole_ns) == (0, (10 + CALL + LATENCY + 50) * US)
    assert found.to_dict()["base"]["of"] == "trace"
    assert found.verdict == "device-busy"


def test_the_verdict_is_not_for_steps_with_little_of_the_work(tmp_path: Path) -> None:
    program = Program()
    with program.within("ProfilerStep#1", "user_annotation"):
        program.operator(us=10)
        program.wait()
    for _ in range(20):
        program.operator(us=10)
    assert judged(program.trace(tmp_path)).base.steps == 0


def test_time_between_steps_is_part_of_the_verdict(tmp_path: Path) -> None:
    # GIVEN annotated steps of 70 µs with 5 ms between them
    program = Program()
    for _ in range(6):
        with program.within("step", "user_annotation"):
            program.operator(us=50)
            program.wait()
        program.work(5_000)
    found = judged(program.trace(tmp_path))
    assert (found.base.steps, found.verdict, found.cause) == (6, "host-bound", "between_steps")
    assert found.parts_ns["computing"] == 300 * US


def test_the_first_step_begins_after_work_launched_before_the_trace(tmp_path: Path) -> None:
    program = Program()
    program.launch("before", 400, known=False)
    program.launch("before", 90, stream=20, known=False)
    for number in range(2):
        with program.within(f"ProfilerStep#{number}", "user_annotation"):
            program.operator(us=100)
    trace = program.trace(tmp_path)
    found = split(trace)
    assert [step.dur_ns for step in found.steps] == [100 * US, 100 * US]
    assert [step.parts["computation"] for step in found.steps] == [100 * US, 100 * US]
    assert (found.outside, found.outside_ns) == (2, 490 * US)
    written = found.to_dict()
    assert written["earlier_work_us"] == LATENCY + 400 - CALL
    assert written["earlier_work_recorded"] is True
    # THEN the verdict and a comparison use the same steps
    assert judged(trace).whole_ns == 200 * US
    windows = steps_of(trace)
    assert windows is not None
    assert windows.dur_ns.tolist() == [100 * US, 100 * US]


def test_work_without_a_launch_within_the_trace_cuts_nothing(tmp_path: Path) -> None:
    program = Program()
    for number in range(2):
        with program.within(f"ProfilerStep#{number}", "user_annotation"):
            program.operator(us=100)
            program.launch("unknown", 30, known=False)
            program.wait()
    found = split(program.trace(tmp_path))
    assert found.steps[0].begin_ns == 0
    assert found.to_dict()["earlier_work_us"] is None


def test_a_first_kernel_that_waited_for_work_from_before_the_trace(tmp_path: Path) -> None:
    # GIVEN a step whose first kernel begins 20 ms after its launch, on a device without events
    program = Program()
    program.free[7] = program.now + 20_000
    with program.within("ProfilerStep#1", "user_annotation"):
        program.work(30)
        for _ in range(3):
            program.operator(us=1_000)
    trace = program.trace(tmp_path)
    found = split(trace)
    # THEN the device does not count as idle: it was busy with work that is not in the trace
    (step,) = found.steps
    assert (step.begin_ns, step.dur_ns) == (20_000 * US, 3_000 * US)
    assert step.parts["computation"] == step.dur_ns
    assert found.to_dict()["earlier_work_recorded"] is False
    assert found.findings() == []
    said = judged(trace)
    assert (said.verdict, said.whole_ns) == ("device-busy", 3_000 * US)
    assert said.base.unrecorded_ns == 20_000 * US
    assert said.to_dict()["base"]["unrecorded_work_us"] == 20_000


def test_a_first_kernel_that_waited_without_steps(tmp_path: Path) -> None:
    # GIVEN the same without a step, and without earlier events
    program = Program()
    program.free[7] = program.now + 20_000
    program.operator(us=1_000)
    # THEN that time is not the device's idle time
    found = judged(program.trace(tmp_path))
    assert (found.whole_ns, found.base.unrecorded_ns) == (1_000 * US, 20_000 * US)


@pytest.mark.parametrize("waits", [True, False])
def test_a_stream_that_waited_behind_a_short_kernel_of_another(waits: bool, tmp_path: Path) -> None:
    # GIVEN a step whose first kernel runs at once on a stream of its own, and whose other work is
    # launched early but begins after 20 ms, because of work from before the trace or of the step
    program = Program()
    with program.within("ProfilerStep#1", "user_annotation"):
        program.operator(us=4)
        if not waits:
            program.launch("long", 19_900)
        program.free[8] = program.now + 20_000
        for _ in range(3):
            program.launch("gemm", 1_000, stream=8)
    found = judged(program.trace(tmp_path))
    # THEN the wait is that for earlier work, unless the step's own work explains it
    assert found.verdict == "device-busy"
    if waits:
        assert found.base.unrecorded_ns == pytest.approx(20_000 * US, rel=0.01)
        assert found.whole_ns == 3_000 * US
    else:
        assert found.base.unrecorded_ns == 0
        assert found.whole_ns > 22_000 * US


@pytest.mark.parametrize("marked", [True, False])
def test_a_short_trace_has_no_severe_finding(marked: bool, tmp_path: Path) -> None:
    # GIVEN one kernel of 50 µs after 200 µs of Python, and a copy
    program = Program()

    def run() -> None:
        with program.within("main.py(1): main", "python_function"):
            program.work(200)
            program.operator(us=50)
            program.launch("Memcpy DtoH", 60, cat="gpu_memcpy", call="cudaMemcpyAsync")
            program.wait()

    if marked:
        with program.within("ProfilerStep#1", "user_annotation"):
            run()
    else:
        run()
    found = analyze(program.trace(tmp_path), ["device_use", "steps", "kernels"]).findings()
    # THEN their findings have little weight, because the time is short
    assert {finding.severity for finding in found} <= {"low"}


def test_the_advice_on_copies_fits_their_kind(tmp_path: Path) -> None:
    # GIVEN devices that mostly copy: within the device, from pageable memory, from pinned memory
    said = {}
    for number, name in enumerate(
        (
            "Memcpy DtoD (Device -> Device)",
            "Memcpy HtoD (Pageable -> Device)",
            "Memcpy HtoD (Pinned -> Device)",
        )
    ):
        program = Program()
        program.operator(us=500)
        program.launch(name, 2_000, stream=20, cat="gpu_memcpy", call="cudaMemcpyAsync", after=7)
        folder = tmp_path / str(number)
        folder.mkdir()
        use = device_use.analyze(program.trace(folder))
        assert isinstance(use, Use)
        (finding,) = use.findings()
        assert finding.code == "device_use.exposed_copies"
        assert finding.evidence[1].event == name
        said[name] = "pinned memory" in finding.text
    # THEN pinned memory is advised only for the second one
    assert list(said.values()) == [False, True, False]


def test_every_finding_has_a_code_and_evidence(every_trace: list[Path]) -> None:
    names = ("device_use", "kernels", "compiled", "steps", "layers")
    codes = set()
    for path in every_trace:
        found = analyze(read_real(path), names)
        for name, result in found.results.items():
            for finding in result.findings():
                assert finding.code.startswith(f"{name}."), (path.name, finding)
                assert finding.evidence, (path.name, finding)
                codes.add(finding.code)
    assert {"steps.before_device", "device_use.exposed_copies", "kernels.memory_bound"} <= codes


@pytest.mark.parametrize(
    ("name", "first_us", "second_us"),
    [
        # The end of the step's own work, minus the end of the last kernel without a launch.
        ("cuda_h100_qwen", 35_183.5, None),
        ("cuda_v100_trace_diff", 118_128, 117_128),
        ("cuda_a100_cudagraph_triton_nccl", 216_286, 215_570),
    ],
)
def test_the_first_step_of_real_traces(
    name: str, first_us: float, second_us: float | None, real: Callable[[str], Trace]
) -> None:
    # GIVEN a trace that begins while the device is busy with earlier work
    trace = real(name)
    written = split(trace).to_dict()
    # THEN the first one is as long as the work that it launched, like the others
    assert written["steps"][0]["step_us"] == pytest.approx(first_us, abs=1)
    if second_us is not None:
        assert written["steps"][1]["step_us"] == pytest.approx(second_us, abs=1)
    windows = steps_of(trace)
    assert windows is not None
    assert [int(each) / 1000 for each in windows.dur_ns] == [
        step["step_us"] for step in written["steps"]
    ]


def test_qwen_is_computing_in_its_own_time(real: Callable[[str], Trace]) -> None:
    written = split(real("cuda_h100_qwen")).to_dict()
    assert sum(written["parts_us"][part] for part in ("computation", "copies")) == pytest.approx(
        31_905, abs=1
    )


def test_a_video_is_prepared_for_most_of_the_step(real: Callable[[str], Trace]) -> None:
    # GIVEN a step that prepares a video for 218 of its 382.5 ms
    found = judged(real("cuda_h100_timesformer"))
    # THEN the preparation is the bound, with the function; computing has its share of the step
    written = found.to_dict()
    assert (found.verdict, found.cause) == ("host-bound", "preparation")
    assert found.preparing is not None
    assert found.preparing.endswith("preprocess")
    whole = written["whole_us"]
    assert whole == pytest.approx(382_536, abs=1)
    assert 100 * written["parts_us"]["preparation"] / whole == pytest.approx(57.0, abs=0.05)
    assert 100 * written["parts_us"]["computing"] / whole == pytest.approx(40.5, abs=0.05)


def test_a_server_whose_device_was_busy_before(real: Callable[[str], Trace]) -> None:
    # GIVEN a prefill whose first copy began 149 ms after its launch
    trace = real("rocm_mi300_vllm_piecewise")
    # THEN the device is never idle for a long time
    (step,) = split(trace).steps
    assert step.dur_ns == pytest.approx(156_466_000, abs=1_000)
    assert step.parts["computation"] > 0.99 * step.dur_ns
    found = judged(trace)
    assert (found.verdict, found.base.steps) == ("device-busy", 1)
    assert found.base.unrecorded_ns == pytest.approx(151_231_000, abs=1_000)


def test_sums_of_all_real_verdicts_are_correct(every_trace: list[Path]) -> None:
    for path in every_trace:
        trace = read_real(path)
        found = verdict.analyze(trace)
        if isinstance(found, Verdict) and found.on_device:
            judged(trace)
            use = device_use.analyze(trace)
            assert isinstance(use, Use)
            computing = found.times_ns.get("device-busy", 0)
            assert sum(each.compute_ns for each in use.by_device.values()) == computing, path.name


@pytest.mark.parametrize("on_device", [True, False])
@pytest.mark.parametrize("between_us", [0, 20_000])
def test_time_between_steps_is_told_beside_the_verdict(
    on_device: bool, between_us: int, tmp_path: Path
) -> None:
    # GIVEN four steps of 10 ms, and perhaps 20 ms between each two of them
    found = Program()
    for step in range(4):
        begin = found.now
        for _ in range(20):
            with found.within("aten::mm"):
                found.work(500)
                if on_device:
                    found.launch("kernel_mm", 400)
        found.event(f"ProfilerStep#{step}", "user_annotation", begin, found.now)
        found.work(between_us)
    verdict = analyze(found.trace(tmp_path)).results["verdict"].to_dict()
    # THEN the base has it, and the sentence tells its parts if there are two
    base, sentence = verdict["base"], verdict["sentence"]
    after_us = 403 if on_device else 0  # the last work of a step ends after its mark
    assert base["between_steps_us"] == (3 * (between_us - after_us) if between_us else 0)
    inside, between = (
        in_words(time, "ns")
        for time in (
            (base["whole_us"] - base["between_steps_us"]) * 1_000,
            base["between_steps_us"] * 1_000,
        )
    )
    told = f"{inside} are inside the steps and {between} between them."
    assert (told in sentence) is (between_us > 0)
