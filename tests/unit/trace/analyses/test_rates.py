"""Rates of operators: planted programs, exact. Claims compare those of real traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import checked, fits
from kernel_programs import operator
from planted import Program

from stagespan.pages.result import Unavailable
from stagespan.trace import Trace, read_trace
from stagespan.trace.analyses import rates
from stagespan.trace.analyses.rates import Rates
from stagespan.trace.json_schema import json_schema

BF16 = "c10::BFloat16"
H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85018279936, "numSms": 132}
TWO = {"Input type": [BF16, BF16]}
ONE = {"Input type": [BF16]}


def rates_of(trace: Trace) -> Rates:
    return checked(rates.analyze(trace), Rates)


def written(program: Program, folder: Path, device: dict[str, Any] = H100) -> Trace:
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": program.events, "deviceProperties": [device]}))
    return read_trace(path)


def test_rates_by_shape_operator_stage_and_step(tmp_path: Path) -> None:
    program = Program()
    for step in (1, 2):
        with (
            program.within(f"ProfilerStep#{step}", "user_annotation"),
            program.within("denoise", "user_annotation"),
        ):
            for _ in range(2):
                operator(program, "aten::mm", "nvjet_tst", 100, [[512, 1024], [1024, 2048]], **TWO)
            operator(program, "aten::_softmax", "softmax", 50, [[1024, 1024]], **ONE)
            program.wait()
    trace = written(program, tmp_path)
    found = rates_of(trace)
    # THEN they are those of the four calls of 100 µs and the two of 50
    products, softmax = found.by_shape
    flops = 2 * 512 * 1024 * 2048
    assert (products.calls, products.flops) == (4, 4 * flops)
    assert products.tflop_s == pytest.approx(flops / 100e-6 / 1e12)
    assert products.peak_percent == pytest.approx(100 * products.tflop_s / 989.4)
    moved = 2 * (512 * 1024 + 1024 * 2048 + 512 * 2048)
    assert products.tb_s == pytest.approx(moved / 100e-6 / 1e12)
    assert products.memory_percent == pytest.approx(100 * products.tb_s / 3.352)
    assert (softmax.calls, softmax.flops, softmax.bytes) == (2, None, 2 * 2**22)
    assert softmax.limit == "neither"
    assert found.rated.percent == 100
    assert [(part.name, part.calls) for part in found.by_operator] == [
        ("aten::mm", 4),
        ("aten::_softmax", 2),
    ]
    assert [part.name for part in found.by_kernel] == ["nvjet_tst", "softmax"]
    assert found.by_stage is not None
    assert [(part.name, part.flops) for part in found.by_stage] == [("denoise", 4 * flops)]
    assert found.by_step is not None
    assert [(part.name, part.flops) for part in found.by_step] == [
        ("ProfilerStep#1", 2 * flops),
        ("ProfilerStep#2", 2 * flops),
    ]
    # The share of what the device can compute refers to the whole time of the steps.
    ideal_ns = 4 * flops / 989.4e12 * 1e9
    assert found.mfu_percent == pytest.approx(100 * ideal_ns / found.base.whole_ns)
    fits(found.to_dict(), json_schema()["properties"]["rates"])


def test_rates_by_layer(tmp_path: Path) -> None:
    # GIVEN two blocks of a linear layer, a product outside of them, and one of the backward pass
    program = Program()

    def product() -> None:
        operator(program, "aten::mm", "nvjet_tst", 100, [[512, 1024], [1024, 2048]], **TWO)

    with program.within("nn.Module: Model_0", "python_function"):
        for number in range(2):
            with program.within(f"nn.Module: Block_{number}", "python_function"):
                program.work(1)
                with program.within(f"nn.Module: Linear_{number}", "python_function"):
                    product()
                program.work(1)
        product()
    program.thread = 200
    product()
    found = rates_of(written(program, tmp_path))
    # THEN they are summed up by the classes of the modules
    flops = 2 * 512 * 1024 * 2048
    assert found.by_layer is not None
    rows = {row.name: (row.calls, row.flops, row.tflop_s) for row in found.by_layer}
    rate = pytest.approx(flops / 100e-6 / 1e12)
    assert rows == {
        "Block > Linear": (2, 2 * flops, rate),
        "Model": (1, flops, rate),
        None: (1, flops, rate),
    }
    assert "Rates by layer" in [table.title for table in found.tables()]


def test_a_step_that_begins_late_does_not_change_rates(tmp_path: Path) -> None:
    # GIVEN a step whose device is at first busy with work that the trace does not contain
    program = Program()
    with program.within("ProfilerStep#1", "user_annotation"):
        program.free[7] = program.now + 5_000
        operator(program, "aten::mm", "nvjet_tst", 100, [[512, 1024], [1024, 2048]], **TWO)
        program.wait()
    found = rates_of(written(program, tmp_path))
    # THEN they are those of the call, not of the time since the step's mark began
    flops = 2 * 512 * 1024 * 2048
    rate = pytest.approx(flops / 100e-6 / 1e12)
    assert found.base.unrecorded_ns > 4_000_000
    assert found.by_shape[0].tflop_s == rate
    assert found.by_step is not None
    assert [part.tflop_s for part in found.by_step] == [rate]
    assert found.rated.tflop_s == rate


def test_the_roofline_has_the_peaks_and_the_products(tmp_path: Path) -> None:
    program = Program()
    operator(program, "aten::mm", "nvjet_tst", 100, [[512, 1024], [1024, 2048]], **TWO)
    operator(program, "aten::_softmax", "softmax", 50, [[1024, 1024]], **ONE)
    found = rates_of(written(program, tmp_path))
    chart = found.chart()
    assert chart is not None
    assert (chart["device"], chart["roofs"]) == ("H100 SXM", [("bf16", 989.4e12)])
    assert chart["bytes_s"] == pytest.approx(3.352e12)
    ((name, per_byte, per_s, percent, text),) = chart["points"]
    flops, moved = 2 * 512 * 1024 * 2048, 2 * (512 * 1024 + 1024 * 2048 + 512 * 2048)
    assert (name, percent) == ("aten::mm", pytest.approx(100 * 100 / 150))
    assert (per_byte, per_s) == (pytest.approx(flops / moved), pytest.approx(flops / 100e-6))
    assert text[-1] == "100 µs in 1 call"
    # THEN without a known device, it has no roofs
    unknown = rates_of(written(program, tmp_path, {"id": 0, "name": "Mystery 9"})).chart()
    assert unknown is not None
    assert (unknown["bytes_s"], unknown["roofs"]) == (None, [])
    assert [point[:3] for point in unknown["points"]] == [point[:3] for point in chart["points"]]


def test_an_operator_with_several_kernels_is_counted_once(tmp_path: Path) -> None:
    # GIVEN a product that fills its result, and sums up parts
    program = Program()
    begin = program.now
    program.launch("Memset (Device)", 10, cat="gpu_memset", call="cudaMemsetAsync")
    program.launch("splitK_gemm", 60)
    program.launch("splitKreduce_kernel", 30)
    program.event(
        "aten::mm", "cpu_op", begin, program.now, **{"Input Dims": [[64, 64], [64, 64]], **TWO}
    )
    (found,) = rates_of(written(program, tmp_path)).by_shape
    assert (found.calls, found.flops, found.time_ns) == (1, 2 * 64**3, 100_000)


def test_outer_operators_do_not_count_again(tmp_path: Path) -> None:
    # GIVEN a linear layer whose product is known, and one whose product is not
    program = Program()
    dims = {"Input Dims": [[8, 64], [32, 64]], **TWO}
    for inner in ("aten::mm", "vendor::mm"):
        begin = program.now
        operator(program, inner, "gemm", 10, [[8, 64], [64, 32]], **TWO)
        operator(program, "vendor::epilogue", "other", 5, [[8, 32]], **ONE)
        program.event("aten::linear", "cpu_op", begin, program.now, **dims)
    found = rates_of(written(program, tmp_path))
    counted = {row.operator: (row.calls, row.flops, row.time_ns) for row in found.by_shape}
    assert counted == {
        "aten::mm": (1, 2 * 8 * 64 * 32, 10_000),
        "aten::linear": (1, 2 * 8 * 64 * 32, 15_000),
    }
    assert [(row.operator, row.reason) for row in found.left_out] == [
        ("vendor::epilogue", "no_formula")
    ]


def test_what_has_no_rate_is_counted_by_reason(tmp_path: Path) -> None:
    program = Program()
    operator(program, "aten::mm", "gemm", 100, [[8, 64], [64, 32]], **TWO)
    operator(program, "aten::mm", "gemm", 20)
    operator(program, "mine::thing", "thing", 30, [[8]], **ONE)
    operator(program, "vllm::unified_attention", "attention", 40, [[8, 2, 4]] * 3, **ONE)
    operator(program, "record_param_comms", "ncclDevKernel_AllReduce", 50, [[8]], **ONE)
    program.launch("lonely", 60, known=False)
    program.graph([70], 0)
    found = rates_of(written(program, tmp_path))
    assert {(row.operator, row.reason): row.time_ns for row in found.left_out} == {
        ("cudaGraphLaunch", "device_graph"): 70_000,
        (None, "no_operator"): 60_000,
        ("record_param_comms", "communication"): 50_000,
        ("vllm::unified_attention", "unknown"): 40_000,
        ("mine::thing", "no_formula"): 30_000,
        ("aten::mm", "no_shapes"): 20_000,
    }
    assert found.rated.time_ns == 100_000


def test_an_unknown_device_has_rates_without_percentages(tmp_path: Path) -> None:
    program = Program()
    operator(program, "aten::mm", "gemm", 100, [[8, 64], [64, 32]], **TWO)
    found = rates_of(written(program, tmp_path, {"id": 0, "name": "Foo 9000"}))
    (row,) = found.by_shape
    assert row.tflop_s is not None
    assert (row.peak_percent, row.memory_percent, row.limit) == (None, None, None)
    assert found.mfu_percent is None
    assert "Foo 9000" in found.tables()[0].note


def test_a_trace_without_shapes_says_how_to_record_them(tmp_path: Path) -> None:
    program = Program()
    operator(program, "aten::mm", "gemm", 100)
    found = rates.analyze(written(program, tmp_path))
    assert isinstance(found, Unavailable)
    assert found.code == "no_shapes"
    assert "record_shapes=True" in found.reason


def test_products_with_odd_sizes_are_a_finding(tmp_path: Path) -> None:
    program = Program()
    for _ in range(4):
        operator(program, "aten::bmm", "s1688gemm", 500, [[16, 999, 64], [16, 64, 999]], **TWO)
        operator(program, "aten::mm", "nvjet", 200, [[4096, 4096], [4096, 4096]], **TWO)
    (finding,) = rates_of(written(program, tmp_path)).findings()
    assert finding.code == "rates.unaligned"
    assert (finding.severity, finding.numbers["time_ns"]) == ("high", 2_000_000)
    assert "because 999 is not a multiple of 8" in finding.text
    assert "Pad 999 to 1,000" in finding.text
