"""Time before and after the device's work in traces without steps: planted programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from commands import checked, unstated
from planted import Program

from stagespan.pages.amounts import in_words
from stagespan.pages.result import Finding
from stagespan.trace.analyses.steps import Steps
from stagespan.trace.analyses.verdict import Verdict
from stagespan.trace.analysis import analyze

US = 1_000


def program(before: int, after: int, marks: int = 0) -> Program:
    """Ten kernels of 100 us, after and before some time of the host."""
    found = Program()
    begin = found.now
    with found.within("load_model", "user_annotation"):
        found.work(before)
    for _ in range(10):
        found.operator(us=100)
    found.wait()
    with found.within("save_image", "user_annotation"):
        found.work(after)
    for number in range(marks):
        found.event(f"ProfilerStep#{number}", "user_annotation", begin, found.now)
    return found


def edges(found: list[Finding]) -> list[Finding]:
    codes = ("idle.preparation", "idle.finishing")
    return [each for each in found if each.code in codes]


@pytest.mark.parametrize(
    ("before", "after", "code", "host"),
    [(5_000, 10, "preparation", "load_model"), (10, 5_000, "finishing", "save_image")],
)
def test_long_time_at_an_edge_is_a_finding(
    before: int, after: int, code: str, host: str, tmp_path: Path
) -> None:
    # GIVEN a trace without steps, in most of which the host works before or after the device
    trace = program(before, after).trace(tmp_path)
    found = analyze(trace)
    parts = found.results["verdict"].to_dict()["parts_us"]
    (finding,) = edges(found.findings())
    assert finding.code == f"idle.{code}"
    assert unstated([finding]) == []
    assert finding.numbers["time_ns"] == parts[code] * US
    assert finding.gain is not None
    assert finding.gain.time_ns == parts[code] * US >= 5_000 * US
    assert finding.gain.at_most
    assert f"mostly in {host}" in finding.text
    assert "a profiler with a schedule=... marks them" in finding.action


def test_short_time_and_time_of_steps_are_none(tmp_path: Path) -> None:
    assert edges(analyze(program(5, 50).trace(tmp_path)).findings()) == []
    marked = analyze(program(5_000, 10, marks=1).trace(tmp_path)).findings()
    # THEN only the finding of the steps is about them
    assert edges(marked) == []
    assert "steps.before_device" in [each.code for each in marked]


def test_the_time_before_a_first_launch_that_is_unknown(tmp_path: Path) -> None:
    found = program(0, 0)
    with_launch = [each for each in found.events if each["cat"] == "kernel"]
    begin = min(each["ts"] for each in with_launch)
    found.event("first", "kernel", begin - 60, begin - 20, stream=7, device=0)
    found.event("aten::empty", "cpu_op", begin - 5_000, begin - 4_990)
    (finding,) = [
        each
        for each in analyze(found.trace(tmp_path)).findings()
        if each.code == "idle.unexplained"
    ]
    assert "4.94 ms of this passed before the device's first work" in finding.text
    assert "gap before" not in finding.text


# --- What a program does once ---


def cold(first_us: int, busy: int = 3_000, capture: int = 0) -> Program:
    """The first launch takes long, then the device is busy; at last, a graph may be captured."""
    found = Program()
    with found.within("aten::mm"):
        found.work(10)
        found.launch("kernel_mm", 100, call_us=first_us)
    for _ in range(busy):
        found.operator(us=100)
    found.wait()
    if capture:
        found.call("cudaStreamBeginCapture", 5)
        for _ in range(100):
            with found.within("aten::mm"):
                found.work(capture // 100 - 5)
                found.call("cudaLaunchKernel", 5)
        found.call("cudaStreamEndCapture", 50)
        found.call("cudaGraphInstantiate", 500)
    return found


def test_a_cold_first_launch_is_neither_the_verdict_nor_a_gain(tmp_path: Path) -> None:
    # GIVEN a first launch of 500 ms, which loads modules, and 300 ms of a busy device
    found = analyze(cold(500_000).trace(tmp_path))
    verdict = found.results["verdict"].to_dict()
    assert verdict["verdict"] == "device-busy"
    assert verdict["parts_us"]["start_up"] == pytest.approx(500_000, abs=10)
    assert verdict["times_us"]["once"] == verdict["parts_us"]["start_up"]
    assert "the program did what it does once" in verdict["sentence"]
    # THEN one finding tells of it, and what to do
    (finding,) = [each for each in found.findings() if each.code.startswith("idle.")]
    assert finding.code == "idle.start_up"
    assert finding.gain is None
    assert finding.evidence[0].event == "cudaLaunchKernel"
    assert "after a warm-up" in finding.text
    assert unstated([finding]) == []
    assert all("device graph would help" not in each.text for each in found.findings())


@pytest.mark.parametrize("evidence", ["steps", "graph"])
def test_a_program_that_ran_before_does_not_start_up(evidence: str, tmp_path: Path) -> None:
    # GIVEN the same launch in a later step, or before the launch of a graph of before the trace
    program = cold(500_000)
    if evidence == "steps":
        program.event("ProfilerStep#3", "user_annotation", 0, program.now)
    else:
        program.graph([50, 50], 100)
    found = analyze(program.trace(tmp_path))
    parts = found.results["verdict"].to_dict()["parts_us"]
    assert "start_up" not in parts
    assert parts["runtime_call"] == pytest.approx(500_000, abs=30)
    # THEN no gap is named for a time before all gaps
    (said,) = [each.text for each in found.findings() if "calls of the runtime" in each.text]
    assert "longest gap" not in said


def test_a_short_first_launch_is_only_a_launch(tmp_path: Path) -> None:
    found = analyze(cold(20, busy=100).trace(tmp_path))
    assert "start_up" not in found.results["verdict"].to_dict()["parts_us"]


def test_calls_before_the_first_work_create_the_context(tmp_path: Path) -> None:
    found = Program()
    with found.within("aten::empty_strided"):
        found.call("cudaMalloc", 400_000)
    with found.within("load_model", "user_annotation"):
        found.work(5_000)
    for _ in range(1_000):
        found.operator(us=100)
    parts = analyze(found.trace(tmp_path)).results["verdict"].to_dict()["parts_us"]
    assert parts["start_up"] == 400_000
    assert parts["preparation"] == pytest.approx(5_000, abs=20)


@pytest.mark.parametrize("is_first", [False, True])
def test_the_first_collective_of_a_program_is_told_once(is_first: bool, tmp_path: Path) -> None:
    # GIVEN a first collective in which the host makes connections for 400 ms, after some work or
    # before any other work of the device
    found = Program()
    for step in range(6):
        if step or not is_first:
            for _ in range(200):
                found.operator(us=200)
            found.wait()
        with found.within("c10d::allreduce_"):
            found.work(10 if step else 400_000)
            found.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)", 500)
        found.wait()
    result = analyze(found.trace(tmp_path))
    verdict = result.results["verdict"].to_dict()
    assert verdict["parts_us"]["start_up"] == pytest.approx(400_000, rel=0.001)
    assert verdict["verdict"] == "device-busy"
    # THEN one finding without a gain tells of it, and names the collective
    (finding,) = [each for each in result.findings() if each.code.startswith("idle.")]
    assert (finding.code, finding.gain) == ("idle.start_up", None)
    assert "c10d::allreduce_" in [each.event for each in finding.evidence]
    assert "after a warm-up" in finding.text


@pytest.mark.parametrize("again", [False, True])
def test_capturing_a_graph_is_told_as_such(again: bool, tmp_path: Path) -> None:
    # GIVEN a capture of 20 ms after all work of the device, or between its work
    program = cold(20, busy=200, capture=20_000)
    if again:
        program.operator()
    found = analyze(program.trace(tmp_path))
    parts = found.results["verdict"].to_dict()["parts_us"]
    assert parts["graph_capture"] == pytest.approx(20_555, abs=100)
    assert found.results["verdict"].to_dict()["verdict"] == "device-busy"
    (finding,) = [each for each in found.findings() if each.code == "idle.start_up"]
    assert "the host captured a device graph" in finding.text


def test_a_capture_at_the_end_of_a_step_is_not_its_end_as_well(tmp_path: Path) -> None:
    # GIVEN a step of 5 ms of work, in which the host then captures a graph for 20 ms
    program = cold(20, busy=40, capture=20_000)
    program.event("ProfilerStep#1", "user_annotation", 1_000, program.now)
    found = analyze(program.trace(tmp_path))
    parts = found.results["verdict"].to_dict()["parts_us"]
    assert parts["graph_capture"] == pytest.approx(20_555, abs=100)
    # THEN the time after the last work has one finding, and is no gain
    codes = [each.code for each in found.findings()]
    assert "idle.start_up" in codes
    assert "steps.after_device" not in codes
    assert found.won_together_ns() < 5_000 * US
    (edge,) = [each for each in checked(found.results["steps"], Steps).edges if not each.first]
    assert edge.dur_ns == parts["finishing"] * US


def test_compiling_before_the_first_work_is_told_once(tmp_path: Path) -> None:
    found = Program()
    with found.within("_compile.compile_inner (dynamo_timed)"):
        found.work(300_000)
    for _ in range(1_000):
        found.operator(us=100)
    findings = analyze(found.trace(tmp_path)).findings()
    said = [each for each in findings if "compil" in each.text]
    assert [each.code for each in said] == ["compiled.in_window"]


def compiling(variant: int, us: int = 300_000) -> Program:
    """A busy device, and a frame that is compiled for `us` between its work."""
    found = Program()
    for _ in range(1_000):
        found.operator(us=100)
    found.wait()
    frame, part = (f"{name} (dynamo_timed)" for name in ("_compile.compile_inner", "GraphLowering"))
    with found.within(frame), found.within(part):
        found.work(us)
    with found.within(f"Torch-Compiled Region: 0/{variant}"):
        found.operator(us=100)
    for _ in range(1_000):
        found.operator(us=100)
    return found


def test_a_first_compilation_is_neither_the_verdict_nor_a_gain(tmp_path: Path) -> None:
    found = analyze(compiling(0).trace(tmp_path))
    verdict = found.results["verdict"].to_dict()
    assert verdict["verdict"] == "device-busy"
    assert verdict["parts_us"]["first_compilation"] == pytest.approx(300_000, abs=100)
    assert verdict["times_us"]["once"] == verdict["parts_us"]["first_compilation"]
    # THEN one finding tells of it, without a gain, and what to do
    (finding,) = [each for each in found.findings() if "compil" in each.text]
    assert finding.code == "compiled.in_window"
    assert finding.gain is None
    assert "Begin the trace after a warm-up" in finding.text
    assert found.won_together_ns() < 10_000 * US


@pytest.mark.parametrize("at_begin", [True, False])
@pytest.mark.parametrize(("loader", "us", "once"), [
    ("_MultiProcessingDataLoaderIter", 50, True), ("_MultiProcessingDataLoaderIter", 80_000, False),
    ("_SingleProcessDataLoaderIter", 50, False)])  # fmt: skip
def test_starting_the_workers_of_a_loader_is_done_once(
    loader: str, us: int, once: bool, at_begin: bool, tmp_path: Path
) -> None:
    # GIVEN a first batch of 300 ms and others of `us`, before the device's first work or in a gap
    found = Program()
    if not at_begin:
        found.operator("aten::copy_", us=100)
        found.wait()
    for number in range(20):
        with found.within(f"enumerate(DataLoader)#{loader}.__next__", "user_annotation"):
            found.work(us if number else 300_000)
        found.operator(us=5_000)
        found.wait()
    page = analyze(found.trace(tmp_path))
    parts = page.results["verdict"].to_dict()["parts_us"]
    assert parts.get("loader_start", 0) == pytest.approx(299_950 if once else 0, abs=200)
    codes = [each.code for each in page.findings()]
    assert ("idle.start_up" in codes, "idle.data_loader" in codes) == (once, not once)


def test_a_recompilation_is_a_loss_with_a_gain(tmp_path: Path) -> None:
    found = analyze(compiling(1).trace(tmp_path))
    verdict = found.results["verdict"].to_dict()
    assert verdict["verdict"] == "host-bound"
    assert verdict["parts_us"]["compilation"] == pytest.approx(300_000, abs=100)
    (finding,) = [each for each in found.findings() if "compil" in each.text]
    assert finding.code == "compiled.recompiled"
    assert finding.gain is not None
    assert finding.gain.time_ns == pytest.approx(300_000 * US, rel=0.01)


@pytest.mark.parametrize(
    "frame", ["triton/compiler/compiler.py(245): compile", "torch/utils/cpp_extension.py(9): load"]
)
def test_other_compilers_are_seen_by_their_frames(frame: str, tmp_path: Path) -> None:
    found = Program()
    found.operator(us=100)
    found.wait()
    with found.within(frame, "python_function"):
        found.work(50_000)
    for _ in range(1_000):
        found.operator(us=100)
    parts = analyze(found.trace(tmp_path)).results["verdict"].to_dict()["parts_us"]
    assert parts["first_compilation"] == pytest.approx(50_000, abs=100)


def test_loading_kernels_and_compiling_are_told_together(tmp_path: Path) -> None:
    found = compiling(0, us=40_000)
    found.wait()
    with found.within("Runtime Triggered Module Loading", "overhead"):
        found.work(10)
    with found.within("Lazy Function Loading", "overhead"):
        found.work(60_000)
    found.operator(us=100)
    analysis = analyze(found.trace(tmp_path))
    (finding,) = [each for each in analysis.findings() if "warm-up" in each.text]
    assert finding.code == "idle.start_up"
    assert finding.gain is None
    assert "because the host compiled for the first time" in finding.text
    assert "because the host loaded kernels at their first use" in finding.text


def test_a_first_collective_that_connects_the_ranks_is_no_gain(tmp_path: Path) -> None:
    found = Program()
    for at in range(40):
        found.operator(us=500)
        with found.within("c10d::allreduce_"):
            found.work(10 if at else 300_000)
            found.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 100)
        found.wait()
    analysis = analyze(found.trace(tmp_path))
    parts = analysis.results["verdict"].to_dict()["parts_us"]
    assert parts["start_up"] == pytest.approx(300_000, rel=0.01)
    assert analysis.won_together_ns() < 30_000 * US


def test_work_that_waits_for_modules_does_not_wait_for_earlier_work(tmp_path: Path) -> None:
    # GIVEN a program that creates its context, and whose first kernel begins 4 ms after its launch
    found = Program()
    with found.within("aten::rand"):
        found.call("cudaDeviceGetStreamPriorityRange", 900_000)
        found.free[7] = found.now + 4_000
        found.launch("kernel_rand", 5)
    found.wait()
    for _ in range(200):
        found.operator(us=500)
    verdict = analyze(found.trace(tmp_path)).results["verdict"].to_dict()
    assert verdict["base"]["unrecorded_work_us"] == 0
    assert verdict["parts_us"]["start_up"] == 900_000
    assert "earlier work" not in verdict["sentence"]


def test_a_thread_that_only_waits_is_not_what_the_host_did(tmp_path: Path) -> None:
    found = program(5_000, 10)
    begin, found.thread = 100, 0
    found.event("subproc_pool.py(61): _recv_msg", "python_function", begin, begin + 4_990)
    found.thread = 100
    (finding,) = edges(analyze(found.trace(tmp_path)).findings())
    assert "mostly in load_model" in finding.text


@pytest.mark.parametrize("steps", [0, 1])
def test_a_wait_before_the_first_work_is_for_work_outside_of_the_trace(
    steps: int, tmp_path: Path
) -> None:
    # GIVEN a trace that begins in a wait of 80 ms, and 10 ms in which the host prepares work
    found = Program()
    found.call("hipDeviceSynchronize", 80_000)
    with found.within("load_model", "user_annotation"):
        found.work(10_000)
    for _ in range(500):
        found.operator(us=100)
    found.wait()
    for number in range(steps):
        found.event(f"ProfilerStep#{number}", "user_annotation", 1_000, found.now)
    analysis = analyze(found.trace(tmp_path))
    # THEN the wait is not the host's preparation, and has a cause of its own
    verdict = analysis.results["verdict"].to_dict()
    assert verdict["parts_us"]["earlier_work"] == 80_000
    assert verdict["parts_us"]["preparation"] == pytest.approx(10_000, abs=50)
    assert verdict["verdict"] == "device-busy"
    # AND its finding has no gain, and no other finding wins that time
    (finding,) = [each for each in analysis.findings() if each.code == "idle.earlier_work"]
    assert (finding.gain, finding.evidence[0].event) == (None, "hipDeviceSynchronize")
    assert finding.no_gain
    assert unstated([finding]) == []
    assert analysis.won_together_ns() < 20_000 * US
    assert all("hipDeviceSynchronize" not in each.text for each in analysis.findings()[1:])


def test_a_short_wait_before_the_first_work_is_none(tmp_path: Path) -> None:
    found = Program()
    found.call("cudaDeviceSynchronize", 10)
    found.work(5_000)
    for _ in range(10):
        found.operator(us=100)
    parts = analyze(found.trace(tmp_path)).results["verdict"].to_dict()["parts_us"]
    assert "earlier_work" not in parts


def cold_and_short(first_us: int) -> Program:
    return cold(first_us, busy=100)


def wait_then_work(wait_us: int) -> Program:
    found = Program()
    found.call("cudaDeviceSynchronize", wait_us)
    for _ in range(100):
        found.operator(us=100)
    return found


@pytest.mark.parametrize(
    ("make", "word", "did", "action"),
    [
        (cold_and_short, "once-only", "the program did what it does once", "warm-up"),
        (
            wait_then_work,
            "earlier work",
            "the host waited for work that the trace does not contain",
            "Synchronise the device before the trace begins",
        ),
    ],
)
def test_the_headline_begins_with_the_largest_part(
    make: Callable[[int], Program], word: str, did: str, action: str, tmp_path: Path
) -> None:
    # GIVEN 10 ms of a busy device after 200 ms that are never the verdict
    found = analyze(make(200_000).trace(tmp_path))
    verdict = checked(found.verdict, Verdict)
    assert verdict.verdict == "device-busy"
    # THEN the page begins with these, and what to do
    first, _, rest = verdict.sentence.partition(" Device-busy: ")
    assert verdict.title()[0] == word
    assert first.startswith(f"{word[0].upper()}{word[1:]}: for ")
    assert did in first
    assert action in first
    # AND the verdict has the other time as its base
    lost = verdict.times_ns["once" if word == "once-only" else "earlier work"]
    other = verdict.whole_ns - lost
    computed = verdict.times_ns["device-busy"]
    assert rest.startswith(
        f"for {in_words(computed, 'ns')} of the other {in_words(other, 'ns')}"
        f" ({in_words(100 * computed / other, '%')}) the device computed."
    )
    assert [part.time_ns for part in verdict.bar().parts if part.name == word] == [lost]
    # AND a shorter one comes after the verdict
    later = checked(analyze(make(3_000).trace(tmp_path)).verdict, Verdict)
    assert later.title()[0] == "device-busy"
    assert later.sentence.startswith("Device-busy: for ")
    assert did in later.sentence
