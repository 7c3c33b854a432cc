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
