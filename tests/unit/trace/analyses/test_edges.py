"""Time before and after the device's work in traces without steps: planted programs."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import unstated
from planted import Program

from stagespan.pages.result import Finding
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
    assert f"mostly in {host}" in finding.sentence
    assert "profiler.step()" in finding.sentence


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
    assert "4.940 ms of this passed before the device's first work" in finding.sentence
    assert "gap before" not in finding.sentence


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
    assert "after a warm-up" in finding.sentence
    assert unstated([finding]) == []
    assert all("device graph would help" not in each.sentence for each in found.findings())


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
    assert "the host captured a device graph" in finding.sentence


def test_compiling_before_the_first_work_is_told_once(tmp_path: Path) -> None:
    found = Program()
    with found.within("_compile.compile_inner (dynamo_timed)"):
        found.work(300_000)
    for _ in range(1_000):
        found.operator(us=100)
    findings = analyze(found.trace(tmp_path)).findings()
    said = [each for each in findings if "compil" in each.sentence]
    assert [each.code for each in said] == ["compiled.in_window"]
