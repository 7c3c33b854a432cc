"""Findings about slow work: planted programs on known devices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import checked
from kernel_programs import operator
from planted import Program

from stagespan.pages.result import Finding
from stagespan.trace import Trace, read_trace
from stagespan.trace.analyses import rates
from stagespan.trace.analyses.rates import Rates
from stagespan.trace.analysis import analyze

BF16 = "c10::BFloat16"
TWO = {"Input type": [BF16, BF16]}
H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85018279936, "numSms": 132}
MI300 = {"id": 0, "name": "AMD Instinct MI300X", "totalGlobalMem": 206141652992, "numSms": 304}
LARGE = [[8192, 4096], [4096, 8192]]
LARGE_FLOPS = 2 * 8192 * 4096 * 8192
HEADS = [[4, 16, 4096, 128]] * 3
OF_ATTENTION = {"Input type": [BF16] * 3, "Concrete Inputs": ["", "", "", "0.0", "False"]}


def written(program: Program, folder: Path, device: dict[str, Any] | None) -> Trace:
    path = folder / "trace.json"
    about = {} if device is None else {"deviceProperties": [device]}
    path.write_text(json.dumps({"traceEvents": program.events, **about}))
    return read_trace(path)


def rates_of(trace: Trace) -> Rates:
    return checked(rates.analyze(trace), Rates)


def findings_of(program: Program, folder: Path, device: dict[str, Any] | None) -> list[Finding]:
    return rates_of(written(program, folder, device)).findings()


def product(program: Program, us: int, dims: list[list[int]], times: int = 4) -> None:
    for _ in range(times):
        operator(program, "aten::mm", "nvjet_tst", us, dims, **TWO)


@pytest.mark.parametrize(
    ("device", "peak", "advice"),
    [
        (H100, 989.4, ("max-autotune", "Nsight Compute")),
        (MI300, 1307.4, ("PYTORCH_TUNABLEOP_ENABLED", "rocprof-compute")),
    ],
)
def test_slow_products_say_what_reaching_the_peak_wins(
    device: dict[str, Any], peak: float, advice: tuple[str, str], tmp_path: Path
) -> None:
    us = round(3 * LARGE_FLOPS / peak / 1e6)
    program = Program()
    product(program, us, LARGE)
    found = analyze(written(program, tmp_path, device))
    # THEN a finding names the rate, the peak and the gain at 60 % of it, and the device's tools. It
    # replaces the one about the longest kernel
    codes = [each.code for each in found.findings()]
    assert "rates.products" in codes
    assert "kernels.dominant" not in codes
    finding = found.findings()[codes.index("rates.products")]
    assert finding.numbers["time_ns"] == 4 * us * 1000
    assert "33.3 % of the peak of bf16" in finding.text
    assert all(each in finding.text for each in advice)
    assert finding.gain is not None
    least_us = LARGE_FLOPS / (0.6 * peak) / 1e6
    assert finding.gain.time_ns == pytest.approx(4 * (us - least_us) * 1000, abs=2)


def test_work_of_each_kind_has_its_own_finding(tmp_path: Path) -> None:
    program = Program()
    product(program, 3000, LARGE)
    for _ in range(4):
        name = "aten::_scaled_dot_product_flash_attention"
        operator(program, name, "flash_fwd", 5000, HEADS, **OF_ATTENTION)
    found = findings_of(program, tmp_path, H100)
    assert [each.code for each in found] == ["rates.products", "rates.attention"]


def test_products_that_reach_the_peak_have_none(tmp_path: Path) -> None:
    program = Program()
    product(program, round(LARGE_FLOPS / (0.7 * 989.4) / 1e6), LARGE)
    assert findings_of(program, tmp_path, H100) == []


@pytest.mark.parametrize(
    ("dims", "reason"),
    [
        ([[8, 4096], [4096, 65536]], "m = 8"),
        ([[512, 4096], [4096, 1024]], "32 tiles of 128 x 128 for 132 units"),
        # Another size of a small product would not be faster.
        ([[141, 512], [512, 1001]], "16 tiles of 128 x 128 for 132 units"),
    ],
)
def test_products_whose_sizes_are_the_reason_have_none(
    dims: list[list[int]], reason: str, tmp_path: Path
) -> None:
    # GIVEN products that no kernel computes at the peak, because of their sizes
    program = Program()
    product(program, 1000, dims)
    found = rates_of(written(program, tmp_path, H100))
    assert found.by_shape[0].reason == reason
    assert found.findings() == []


def test_an_unknown_device_has_none(tmp_path: Path) -> None:
    program = Program()
    product(program, 3000, LARGE)
    assert findings_of(program, tmp_path, H100 | {"name": "Foo 9000"}) == []


def test_rates_of_a_part_of_the_products_are_a_bound(tmp_path: Path) -> None:
    # GIVEN a step that also spends time in products of a device graph, without shapes
    program = Program()
    product(program, 300, LARGE, times=3)
    operator(program, "aten::mm", "gemm_of_a_graph", 100)
    line = rates_of(written(program, tmp_path, H100)).line()
    assert line.startswith("at least ")
    assert line.endswith(". 10.0 % of device work is matrix products without a rate")
    # THEN the rate of the step is unknown if these take most of the time
    operator(program, "aten::mm", "gemm_of_a_graph", 2000)
    operator(program, "aten::convolution", "convolve_sgemm", 1000)
    assert rates_of(written(program, tmp_path, H100)).line() == (
        "unknown: 77.5 % of device work is matrix products, convolutions without a rate"
    )
    program = Program()
    product(program, 300, LARGE, times=2)
    assert "at least" not in rates_of(written(program, tmp_path, H100)).line()


@pytest.mark.parametrize("on_device", [True, False])
def test_tensors_that_grow_by_cat_are_found(on_device: bool, tmp_path: Path) -> None:
    # GIVEN a decoding of five tokens that appends each of them to a tensor of keys
    program = Program()
    for step in range(5):
        dims = [[[1, 16, 512 + step, 128], [1, 16, 1, 128]], []]
        if on_device:
            operator(program, "aten::cat", "CatArrayBatchedCopy", 300, dims)
            product(program, 300, LARGE, times=1)
        else:
            begin = program.now
            program.work(300)
            program.event("aten::cat", "cpu_op", begin, program.now, **{"Input Dims": dims})
            with program.within("aten::relu"):
                program.work(300)
    found = findings_of(program, tmp_path, H100 if on_device else None)
    # THEN a finding has their time, and what writing only the new part wins
    (finding,) = [each for each in found if each.code == "rates.appended"]
    assert finding.numbers["calls"] == 5
    assert finding.numbers["time_ns"] == 1_500_000
    assert finding.numbers["percent"] == pytest.approx(50)
    assert finding.gain is not None
    # A host also becomes faster beside them.
    assert finding.gain.time_ns - finding.gain.others_ns == 1_500_000
    assert finding.gain.others_ns == (0 if on_device else 500_000)


@pytest.mark.parametrize(
    "dims",
    [
        # Skip connections and the halves of rotary embeddings join tensors of about one size.
        [[[1, 64, 512, 128], [1, 64, 512, 128]], []],
        # The same call in each step is no growing tensor.
        [[[1, 16, 512, 128], [1, 16, 1, 128]], []],
    ],
)
def test_other_calls_of_cat_are_not(dims: list[Any], tmp_path: Path) -> None:
    program = Program()
    for _ in range(5):
        operator(program, "aten::cat", "CatArrayBatchedCopy", 300, dims)
    assert findings_of(program, tmp_path, H100) == []


@pytest.mark.parametrize(("us", "is_slow"), [(240, True), (140, False)])
def test_an_operator_that_moves_data_slowly(us: int, is_slow: bool, tmp_path: Path) -> None:
    # GIVEN ten sums of two tensors of 128 MiB: 402.7 MB take 120 us at the peak of the memory
    program = Program()
    for _ in range(10):
        operator(program, "aten::add", "vectorized_add", us, [[8192, 8192]] * 2, **TWO)
    found = {each.code: each for each in analyze(written(program, tmp_path, H100)).findings()}
    assert ("rates.memory" in found) == is_slow
    if is_slow:
        finding = found["rates.memory"]
        assert "kernels.dominant" not in found
        assert finding.numbers["time_ns"] == 2_400_000
        assert finding.numbers["memory_percent"] == pytest.approx(50.05, abs=0.01)
        assert "1,678 GB/s" in finding.text
        assert finding.gain is not None
        least = 10 * 3 * 2 * 8192**2 / 3.352e12 / 0.6 * 1e9
        assert finding.gain.time_ns == pytest.approx(2_400_000 - least, rel=1e-3)


def test_an_operator_near_the_memorys_peak_is_told_what_helps(tmp_path: Path) -> None:
    # GIVEN additions at 90 % of the memory's peak, which allows 120 us, and a few products
    program = Program()
    for _ in range(5):
        operator(program, "aten::add", "vectorized_add", 133, [[8192, 8192]] * 2, **TWO)
        product(program, 10, [[64, 64], [64, 64]], times=1)
    found = {each.code: each for each in analyze(written(program, tmp_path, H100)).findings()}
    # THEN no profiler of kernels is advised, and the gain is what remains up to the peak
    assert "kernels.dominant" not in found
    assert "less data" in found["rates.at_peak"].action
    assert found["rates.at_peak"].numbers["peak_percent"] == pytest.approx(90, abs=1)
    assert found["rates.at_peak"].gain is not None
    assert found["rates.at_peak"].gain.time_ns == pytest.approx(5 * 12_900, rel=0.05)


def test_rates_above_the_peak_are_those_of_another_device(tmp_path: Path) -> None:
    program = Program()
    product(program, round(LARGE_FLOPS / (1.5 * 989.4) / 1e6), LARGE)
    found = rates_of(written(program, tmp_path, H100))
    assert found.findings() == []
    assert "more than its peak: the device is another one" in found.line()


@pytest.mark.parametrize(("slow_us", "is_uneven"), [(2_600, True), (1_200, False)])
def test_equal_calls_that_take_differently_long(
    slow_us: int, is_uneven: bool, tmp_path: Path
) -> None:
    program = Program()
    for us in (1_100, 1_100, slow_us) * 3:
        product(program, us, LARGE, times=1)
    trace = written(program, tmp_path, H100)
    (shape,) = rates_of(trace).by_shape
    assert (shape.shortest_ns, shape.longest_ns) == (1_100_000, slow_us * 1000)
    (finding,) = rates_of(trace).findings()
    assert ("1.10 ms to 2.60 ms (2.36 x)" in finding.text) == is_uneven


def test_calls_that_mostly_start_and_end_are_not_slow_in_memory(tmp_path: Path) -> None:
    # GIVEN fills of 4 KiB, each of 5 us
    program = Program()
    for _ in range(10):
        operator(program, "aten::fill_", "fill", 5, [[2048], []], **TWO)
    assert findings_of(program, tmp_path, H100) == []


def test_the_largest_operator_of_a_host_is_named(tmp_path: Path) -> None:
    # GIVEN a program on the host that spends most of its time in a product of ten rows
    program = Program()
    for us, dims in ((9_000, [[10, 1024], [1024, 1_000_000]]), (500, [[512, 512], [512, 512]])):
        begin = program.now
        program.work(us)
        types = {"Input Dims": dims, "Input type": ["float", "float"]}
        program.event("aten::mm", "cpu_op", begin, program.now, **types)
    (finding,) = findings_of(program, tmp_path, None)
    assert finding.code == "rates.dominant"
    assert finding.numbers["percent"] == pytest.approx(100 * 9_000 / 9_500)
    assert "1 call of aten::mm with inputs 10x1024, 1024x1000000" in finding.text
    assert "2.28 TFLOP/s and 460 GB/s, because m = 10" in finding.text


@pytest.mark.parametrize(("size", "named"), [(4_097, True), (4_096, False), (999, False)])
def test_odd_sizes_are_told_without_a_peak(size: int, named: bool, tmp_path: Path) -> None:
    # GIVEN a device that the trace does not name; small products may be limited by the memory
    program = Program()
    product(program, 900, [[size, size], [size, size]])
    found = [
        each for each in findings_of(program, tmp_path, None) if each.code == "rates.unaligned"
    ]
    assert len(found) == named
    for finding in found:
        assert "4,097 is not a multiple of 8" in finding.text
        assert "Pad 4,097 to 4,104." in finding.text
        assert "peak" not in finding.sentence
        assert "because the peaks of the device are not known" in finding.text
