"""What findings would win: exact on planted programs, and never counted twice."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from kernel_programs import operator
from planted import Program

from stagespan.trace import Trace, read_trace
from stagespan.trace.analysis import Analysis, analyze
from stagespan.trace.result import Finding, Gain, Spared, by_severity, together_ns

TWO = {"Input type": ["c10::BFloat16", "c10::BFloat16"]}
H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85018279936, "numSms": 132}


def analysed(program: Program, folder: Path) -> Analysis:
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": program.events, "deviceProperties": [H100]}))
    trace: Trace = read_trace(path)
    return analyze(trace)


def gains(analysis: Analysis) -> dict[str, Gain]:
    return {each.code: each.gain for each in analysis.findings() if each.gain is not None}


def test_idle_time_can_be_won_at_most_once(tmp_path: Path) -> None:
    # GIVEN three steps in which the host waits for the device and then works
    program = Program()
    for step in range(3):
        with program.within(f"ProfilerStep#{step}", "user_annotation"):
            for _ in range(4):
                operator(program, "aten::mm", "gemm", 400)
                program.wait()
                with program.within("aten::nonzero"):
                    program.work(200)
    analysis = analysed(program, tmp_path)
    # THEN each finding about idle time can win that time
    found = gains(analysis)
    idle = {code: gain for code, gain in found.items() if code.startswith("idle.")}
    assert idle
    for finding in analysis.findings():
        if finding.code in idle:
            assert idle[finding.code].time_ns == finding.numbers["time_ns"]
            assert str(idle[finding.code]) in finding.text
    # AND all together not more than the steps
    total = sum(gain.time_ns for gain in found.values())
    assert together_ns(found.values()) == total


def test_communication_wins_no_more_than_it_can_hide_behind(tmp_path: Path) -> None:
    # GIVEN 900 µs of communication on its own stream, and 100 µs of computation
    program = Program()
    program.launch("gemm", 100)
    program.launch("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 900, stream=20, after=7)
    program.wait()
    analysis = analysed(program, tmp_path)
    (finding,) = (
        each for each in analysis.findings() if each.code == "device_use.exposed_communication"
    )
    assert finding.gain is not None
    assert (finding.gain.time_ns, finding.gain.at_most) == (100_000, True)
    assert "Computation can hide it" not in finding.sentence
    assert "cannot hide all of it" in finding.sentence


def test_products_win_what_the_peak_allows(tmp_path: Path) -> None:
    program = Program()
    for _ in range(4):
        operator(program, "aten::bmm", "gemm", 500, [[16, 999, 512], [16, 512, 999]], **TWO)
        operator(program, "aten::mm", "nvjet", 1000, [[4096, 4096], [4096, 4096]], **TWO)
    gain = gains(analysed(program, tmp_path))["rates.unaligned"]
    # 60 % of 989.4 TFLOP/s, of 500 µs each
    least_ns = 2 * 16 * 999 * 512 * 999 / (0.6 * 989.4e12) * 1e9
    assert gain.time_ns == pytest.approx(4 * (500_000 - least_ns), rel=1e-6)


def test_kernels_are_not_made_shorter_twice() -> None:
    rows, times = np.array([3, 5, 9]), np.array([100.0, 50.0, 10.0])
    one = Gain(160, True, "one", Spared(rows, times))
    other = Gain(90, True, "other", Spared(np.array([5, 11]), np.array([80.0, 10.0])))
    idle = Gain(7, True, "idle")
    assert together_ns([one]) == 160
    assert together_ns([one, other, idle]) == 100 + 80 + 10 + 10 + 7
    assert together_ns([]) == 0


def test_findings_of_one_severity_are_sorted_by_gain() -> None:
    def finding(severity: str, ns: int | None) -> Finding:
        gain = None if ns is None else Gain(ns, True, "so")
        return Finding(severity, "", (), str(ns), gain=gain)  # type: ignore[arg-type]

    found = by_severity(
        [finding("low", 9), finding("high", None), finding("high", 3), finding("high", 5)]
    )
    assert [each.code for each in found] == ["5", "3", "None", "9"]
