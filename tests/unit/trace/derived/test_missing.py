"""Traces of programs that used a device whose work was not recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted import Program

from stagespan.pages.result import Unavailable
from stagespan.trace import Trace, read_trace
from stagespan.trace.analyses import rates
from stagespan.trace.analysis import analyze
from stagespan.trace.derived.missing import unrecorded_device

PRODUCT = {"Input Dims": [[512, 512], [512, 512]], "Input type": ["float", "float"]}


def program_with(*inner: tuple[str, str]) -> Program:
    """Ten large products, in each of which the host makes the given events (name, category)."""
    program = Program()
    for _ in range(10):
        begin = program.now
        program.work(5)
        for name, category in inner:
            program.event(name, category, program.now, program.now + 4)
            program.work(4)
        program.work(200)
        program.event("aten::mm", "cpu_op", begin, program.now, **PRODUCT)
    return program


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("cudaLaunchKernel", "cuda_runtime"),
        ("hipMemcpyWithStream", "cuda_runtime"),
        ("urEnqueueKernelLaunch", "xpu_runtime"),
        ("cudaGraphLaunch", "cuda_runtime"),
        ("aten::cudnn_convolution", "cpu_op"),
        ("aten::_scaled_dot_product_flash_attention", "cpu_op"),
        ("nccl:all_reduce", "cpu_op"),
    ],
)
def test_a_device_without_events_is_noticed(name: str, category: str, tmp_path: Path) -> None:
    trace = program_with((name, category)).trace(tmp_path)
    found = analyze(trace)
    assert unrecorded_device(trace) == name
    title, sentence = found.results["verdict"].title()
    assert title == "Host only"
    assert name in sentence
    assert [each.code for each in found.findings()] == ["operators.device_not_recorded"]
    no_rates = rates.analyze(trace)
    assert isinstance(no_rates, Unavailable)
    assert no_rates.code == "device_not_recorded"


def test_a_file_that_is_cut_off_gets_no_advice_on_the_profiler(tmp_path: Path) -> None:
    whole = Path(program_with(("cudaLaunchKernel", "cuda_runtime")).trace(tmp_path).path)
    text = whole.read_bytes()
    whole.write_bytes(text[: 9 * len(text) // 10])
    (found,) = analyze(read_trace(whole)).findings()
    assert found.code == "operators.device_not_recorded"
    assert "cut off" in found.text
    assert "activities" not in found.text


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("cudaGetDeviceCount", "cuda_runtime"),
        ("cudaDeviceSynchronize", "cuda_runtime"),
        ("aten::cudnn_is_acceptable", "cpu_op"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "cpu_op"),
        ("gloo:all_reduce", "user_annotation"),
    ],
)
def test_a_program_on_the_host_has_its_rates(name: str, category: str, tmp_path: Path) -> None:
    # GIVEN a program that only asks for devices, or whose operators run on the host
    trace = program_with((name, category)).trace(tmp_path)
    # THEN its operators are the work itself
    assert unrecorded_device(trace) is None
    assert not isinstance(rates.analyze(trace), Unavailable)


def test_memory_of_a_device_shows_it(tmp_path: Path) -> None:
    def allocated(kind: int) -> Trace:
        program = program_with()
        place = {"Device Type": kind, "Device Id": 0, "Bytes": 1024, "Addr": 1}
        program.events.append(
            {"ph": "i", "name": "[memory]", "pid": 100, "tid": 100, "ts": 1_100, "args": place}
        )
        folder = tmp_path / str(kind)
        folder.mkdir()
        return program.trace(folder)

    assert unrecorded_device(allocated(1)) == "its memory"
    assert unrecorded_device(allocated(0)) is None
