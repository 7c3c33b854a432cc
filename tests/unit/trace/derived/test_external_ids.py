"""Traces whose device events have external ids instead of correlations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import checked
from kernel_programs import operator
from planted import Program

from stagespan.trace import Trace, read_trace
from stagespan.trace.analyses import kernels, rates
from stagespan.trace.analyses.idle_time import PREPARATION, base_idle
from stagespan.trace.analyses.kernels import Kernels
from stagespan.trace.analyses.rates import Rates
from stagespan.trace.derived.device import device_work, launch_of
from stagespan.trace.read.joining import joined

H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85018279936, "numSms": 132}
PRODUCT = {"Input Dims": [[1024, 1024]] * 2, "Input type": ["c10::BFloat16"] * 2}


def program() -> list[dict[str, Any]]:
    """A product with two kernels, a copy, and a wait for both, in 20 µs each and long kernels."""
    found = Program()
    found.work(100)
    begin = found.now
    found.work(10)
    found.launch("first_part", 300)
    found.launch("second_part", 400)
    found.event("aten::mm", "cpu_op", begin, found.now, **PRODUCT)
    found.work(1_000)
    operator(found, "aten::copy_", "copy_kernel", 200)
    found.wait()
    return found.events


def without_correlations(events: list[dict[str, Any]], calls: bool) -> list[dict[str, Any]]:
    """Replace correlations by the number of the operator, and leave out the calls if asked to."""
    operators = [each for each in events if each["cat"] == "cpu_op"]
    number: dict[int, int] = {}
    for at, each in enumerate(operators):
        each.setdefault("args", {})["External id"] = at + 1
        for call in events:
            inside = each["ts"] <= call["ts"] < each["ts"] + each["dur"]
            if call["cat"] == "cuda_runtime" and inside:
                number[call["args"]["correlation"]] = at + 1
    for each in events:
        arguments = each.get("args", {})
        if "correlation" in arguments:
            arguments["External id"] = number[arguments.pop("correlation")]
        elif each["cat"] == "cuda_runtime":
            # A wait inside an operator has its id, too.
            each["args"] = {"External id": 2}
    return [each for each in events if calls or each["cat"] != "cuda_runtime"]


def written(events: list[dict[str, Any]], folder: Path, name: str = "trace.json") -> Trace:
    path = folder / name
    path.write_text(json.dumps({"traceEvents": events, "deviceProperties": [H100]}))
    return read_trace(path)


def operators_of(trace: Trace) -> dict[str, str | None]:
    found = checked(kernels.analyze(trace), Kernels)
    return {each.kernel: each.operator for each in found.figures().top}


def test_calls_and_work_are_joined_in_order(tmp_path: Path) -> None:
    # GIVEN a trace, and the same one with external ids alone
    folders = [tmp_path / "a", tmp_path / "b"]
    for each in folders:
        each.mkdir()
    known = written(program(), folders[0])
    other = written(without_correlations(program(), calls=True), folders[1])
    assert operators_of(other) == operators_of(known)
    assert operators_of(other)["second_part"] == "aten::mm"
    one, two = (base_idle(each) for each in (known, other))
    assert one is not None
    assert two is not None
    assert two.by_cause == one.by_cause
    assert PREPARATION in two.by_cause
    first, second = (rates.analyze(each) for each in (known, other))
    assert isinstance(first, Rates)
    assert isinstance(second, Rates)
    assert second.by_shape[0].flops == first.by_shape[0].flops == 2 * 1024**3


def test_operators_are_found_without_calls(tmp_path: Path) -> None:
    trace = written(without_correlations(program(), calls=False), tmp_path)
    assert operators_of(trace) == {
        "first_part": "aten::mm",
        "second_part": "aten::mm",
        "copy_kernel": "aten::copy_",
    }
    found = checked(rates.analyze(trace), Rates)
    assert found.by_shape[0].tflop_s == pytest.approx(2 * 1024**3 / 700e-6 / 1e12)


def test_different_numbers_of_calls_and_work_stay_unknown(tmp_path: Path) -> None:
    events = without_correlations(program(), calls=True)
    first = next(each for each in events if each["cat"] == "cuda_runtime")
    events.remove(first)
    found = operators_of(written(events, tmp_path))
    assert found["first_part"] is None
    assert found["copy_kernel"] == "aten::copy_"


def test_external_ids_of_two_files_are_different(tmp_path: Path) -> None:
    later = [{**each, "ts": each["ts"] + 5_000 * (each["cat"] == "kernel")} for each in program()]
    first, second = (
        written(without_correlations(events, calls=True), tmp_path, name)
        for events, name in ((program(), "first.json"), (later, "second.json"))
    )
    both = joined(first, [second])
    rows = device_work(both).rows
    assert len(rows) == len(device_work(first).rows) + len(device_work(second).rows)
    calls = launch_of(both, rows)
    assert (calls >= 0).all()
    assert (both.events.pid[calls] // 2**40 == both.events.pid[rows] // 2**40).all()
