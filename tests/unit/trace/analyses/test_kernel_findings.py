"""Findings about kernels: each fault is named with its figure; clean programs have none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import unstated
from kernel_programs import kernels_of
from planted import Program

from stagespan.pages.result import Finding
from stagespan.trace import Trace, read_trace
from stagespan.trace.analyses import kernels

GEMMS = [f"sm90_xmma_gemm_bf16bf16_tile{number}" for number in range(10)]


def findings_of(trace: Trace) -> list[Finding]:
    found = kernels.analyze(trace).findings()
    assert unstated(found) == []
    return found


def run(program: Program, kernel: str, us: int, times: int, operator: str = "aten::mm") -> None:
    for _ in range(times):
        with program.within(operator):
            program.launch(kernel, us)


def products(program: Program) -> None:
    """Ten kernels of matrix products: 20 ms in 200 launches."""
    for gemm in GEMMS:
        run(program, gemm, 100, 20)


def test_products_alone_have_no_finding(tmp_path: Path) -> None:
    program = Program()
    products(program)
    run(program, "vectorized_elementwise_kernel", 10, 200, "aten::add")
    assert findings_of(program.trace(tmp_path)) == []


def test_a_kernel_that_takes_more_than_half(tmp_path: Path) -> None:
    # GIVEN 20 ms of products, and 30 ms of one kernel
    program = Program()
    products(program)
    run(program, "my_scan_kernel", 300, 100, "my::scan")
    (finding,) = findings_of(program.trace(tmp_path))
    # THEN it is named with its share, its launches and its operator
    assert finding.code == "kernels.dominant"
    assert "my_scan_kernel (launched by my::scan)" in finding.text
    assert finding.numbers == {"time_ns": 30_000_000, "percent": 60, "launches": 100}
    assert (finding.evidence[0].event, finding.evidence[0].figure) == ("my_scan_kernel", 300_000)


def test_a_kernel_hidden_by_other_streams_does_not_take_half_of_the_time(tmp_path: Path) -> None:
    # GIVEN a kernel with 60 % of the sum of durations, on two streams at once
    program = Program()
    for _ in range(50):
        with program.within("my::scan"):
            program.launch("my_scan_kernel", 300, stream=7)
            program.launch("my_scan_kernel", 300, stream=8)
        program.now = max(program.free.values())
    for gemm in GEMMS:
        run(program, gemm, 100, 20)
    assert findings_of(program.trace(tmp_path)) == []


def fusible(program: Program) -> None:
    products(program)
    run(program, "vectorized_elementwise_kernel_add", 50, 200, "aten::add")
    run(program, "vectorized_layer_norm_kernel", 50, 200, "aten::native_layer_norm")


def test_much_elementwise_work_that_is_not_fused(tmp_path: Path) -> None:
    # GIVEN as much time in elementwise and norm kernels as in products
    program = Program()
    fusible(program)
    (finding,) = findings_of(program.trace(tmp_path))
    assert (finding.code, finding.severity) == ("kernels.memory_bound", "medium")
    assert finding.numbers == {"time_ns": 20_000_000, "percent": 50, "kernels": 400}
    assert "torch.compile" in finding.text


def test_kernels_alone_can_only_be_fused_with_each_other(tmp_path: Path) -> None:
    # GIVEN two steps of nothing but elementwise kernels, and later only one of them
    program = Program()
    for step in range(2):
        with program.within(f"ProfilerStep#{step}", "user_annotation"):
            run(program, "vectorized_elementwise_kernel_add", 10, 200, "aten::add")
            run(program, "vectorized_elementwise_kernel_mul", 10, 100, "aten::mul")
            program.wait()
    found = {each.code: each for each in findings_of(program.trace(tmp_path))}
    gain = found["kernels.memory_bound"].gain
    # THEN the longest of each step remains
    assert gain is not None
    assert gain.spared is not None
    assert int(gain.spared.time_ns.sum()) == 2 * (10 * 300 - 10) * 1000
    program = Program()
    run(program, "vectorized_elementwise_kernel_add", 50, 200, "aten::add")
    alone = findings_of(program.trace(tmp_path))
    assert "kernels.memory_bound" not in [each.code for each in alone]


@pytest.mark.parametrize("mark", ["Torch-Compiled Region: 0/0", "triton_poi_fused_add_0"])
def test_a_compiled_program_is_not_told_to_compile(mark: str, tmp_path: Path) -> None:
    program = Program()
    with program.within(mark):
        program.launch("triton_poi_fused_add_0" if "triton" in mark else "gemm", 10)
        fusible(program)
    assert findings_of(program.trace(tmp_path)) == []


def test_changes_of_layout(tmp_path: Path) -> None:
    # GIVEN 2 ms of 22 in kernels that convert tensors to the layout of a convolution
    program = Program()
    products(program)
    run(program, "void cudnn::ops::nchwToNhwcKernel<float>", 20, 100, "aten::cudnn_convolution")
    (finding,) = findings_of(program.trace(tmp_path))
    assert finding.code == "kernels.layout"
    assert finding.numbers == {
        "time_ns": 2_000_000,
        "percent": pytest.approx(100 * 2 / 22),
        "kernels": 100,
    }
    assert "torch.channels_last" in finding.text
    assert "PYTORCH_MIOPEN_SUGGEST_NHWC" not in finding.text


def test_attention_in_three_parts(tmp_path: Path) -> None:
    program = Program()
    products(program)
    for _ in range(10):
        run(program, "bmm_gemm_kernel", 100, 1, "aten::bmm")
        run(program, "void softmax_warp_forward<float>", 400, 1, "aten::_softmax")
        run(program, "bmm_gemm_kernel", 100, 1, "aten::bmm")
    (finding,) = findings_of(program.trace(tmp_path))
    # THEN the fused operator is named
    assert finding.code == "kernels.attention_in_parts"
    assert finding.numbers == {
        "time_ns": 4_000_000,
        "percent": pytest.approx(100 * 4 / 26),
        "kernels": 10,
        "products_ns": 2_000_000,
        "products_percent": pytest.approx(100 * 2 / 26),
    }
    assert "torch.nn.functional.scaled_dot_product_attention" in finding.text


def test_products_in_single_precision(tmp_path: Path) -> None:
    program = Program()
    run(program, "ampere_sgemm_128x64_tn", 90, 50)
    run(program, "ampere_sgemm_64x64_nn", 100, 50)
    run(program, "my_kernel", 250, 20)
    (finding,) = findings_of(program.trace(tmp_path))
    assert (finding.code, finding.severity) == ("kernels.single_precision", "medium")
    assert finding.numbers == {"time_ns": 9_500_000, "percent": pytest.approx(100 * 9.5 / 14.5)}
    assert "torch.set_float32_matmul_precision('high')" in finding.text


@pytest.mark.parametrize(
    ("device", "helps"),
    [("NVIDIA GeForce RTX 3090", False), ("NVIDIA RTX A6000", True), ("Foo 9000", True)],
)
def test_tf32_is_not_advised_where_it_is_no_faster(
    device: str, helps: bool, tmp_path: Path
) -> None:
    program = Program()
    run(program, "ampere_sgemm_128x64_tn", 90, 50)
    path = tmp_path / "trace.json"
    devices = [{"id": 0, "name": device}]
    path.write_text(json.dumps({"traceEvents": program.events, "deviceProperties": devices}))
    (finding,) = findings_of(read_trace(path))
    assert finding.code == "kernels.single_precision"
    assert ("set_float32_matmul_precision" in finding.text) == helps
    assert "autocast to bfloat16" in finding.text


def test_convolutions_in_single_precision_on_a_device_for_half(tmp_path: Path) -> None:
    program = Program()
    for size in (32, 64, 128):
        run(program, f"cudnn_infer_volta_scudnn_128x{size}_relu_nn_v1", 90, 20, "aten::conv")
    products(program)
    (finding,) = findings_of(program.trace(tmp_path))
    assert (finding.code, finding.severity) == ("kernels.single_precision", "low")
    assert "float16" in finding.text.replace("bfloat16", "")
    assert "set_float32_matmul_precision" not in finding.text


@pytest.mark.parametrize(
    "kernel",
    ["void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int)",
     "void wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int, int, int)",
     "void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false>(int, int)"],
)  # fmt: skip
def test_convolutions_of_floats_are_in_single_precision(kernel: str, tmp_path: Path) -> None:
    # GIVEN kernels of cuDNN that name the type of their operands, in floats and in halves
    program = Program()
    run(program, kernel, 90, 40, "aten::cudnn_convolution")
    run(program, kernel.replace("float", "__half"), 90, 30, "aten::cudnn_convolution")
    found = findings_of(program.trace(tmp_path))
    (finding,) = [each for each in found if each.code == "kernels.single_precision"]
    assert finding.numbers["time_ns"] == 40 * 90_000


def test_tens_of_thousands_of_tiny_kernels(tmp_path: Path) -> None:
    # GIVEN 12,000 kernels of 2 µs, launched one by one
    program = Program()
    products(program)
    run(program, "index_kernel", 2, 8_000, "aten::index")
    run(program, "gather_kernel", 2, 4_000, "aten::gather")
    (finding,) = findings_of(program.trace(tmp_path))
    assert finding.code == "kernels.tiny"
    assert finding.numbers == {
        "kernels": 12_000,
        "percent": pytest.approx(100 * 12_000 / 12_200),
        "time_ns": 24_000_000,
    }
    assert finding.gain is not None
    assert (finding.gain.time_ns, finding.gain.at_most) == (24_000_000, True)


@pytest.mark.parametrize(
    ("kernel", "us", "blocks", "found"),
    [
        ("gemm", 400, 0.25, ["kernels.few_blocks"]),
        ("gemm", 400, 1.0, []),
        ("gemm", 9, 0.25, []),  # its length is the time of a launch
        ("ncclDevKernel_AllReduce", 400, 0.25, []),
    ],
)
def test_long_kernels_with_fewer_blocks_than_multiprocessors(
    kernel: str, us: int, blocks: float, found: list[str], tmp_path: Path
) -> None:
    program = Program()
    products(program)
    run(program, kernel, us, 4_000 // us)
    for event in program.events:
        if event["name"] == kernel:
            event["args"]["blocks per SM"] = blocks
    findings = findings_of(program.trace(tmp_path))
    assert [each.code for each in findings] == found
    if found:
        (finding,) = findings
        assert finding.numbers == {
            "kernels": 10, "time_ns": 4_000_000, "multiprocessors_percent": 25.0,
            "percent": pytest.approx(100 * 4 / 24),
        }  # fmt: skip
        assert finding.gain is not None
        assert finding.gain.time_ns == 3_000_000


def test_findings_on_real_traces(traces: Path) -> None:
    expected = {
        # Space-time attention by bmm and softmax over 3137 tokens.
        "cuda_h100_timesformer": ["kernels.attention_in_parts"],
        "rocm_mi300_owlv2": ["kernels.attention_in_parts"],
        # All of it in float32 on a V100; a third of the time in ReLU, batch norm and sums.
        "cuda_v100_train_ns": ["kernels.memory_bound", "kernels.single_precision"],
        # The kernels take 9 % of the steps: other time is to be saved first.
        "rocm_mi300_ddp_resnet": [],
        # MIOpen converts every tensor of the NCHW model.
        "rocm_mi210_gpu_only": ["kernels.memory_bound", "kernels.layout"],
        # Compiled, or with fused attention.
        "rocm_mi300_triton_compile": [],
        "rocm_mi300_sglang_decode": [],
        "cuda_b200_vllm_eager": [],
        # 37 kernels of batch 1, which fill two thirds of the multiprocessors.
        "cuda_h100_vit": ["kernels.few_blocks"],
        "cuda_a100_cudagraph_triton_nccl": [],
    }
    found = {name: findings_of(read_trace(traces / f"{name}.json.gz")) for name in expected}
    assert {name: [each.code for each in mine] for name, mine in found.items()} == expected
    # THEN the advice fits the device's libraries
    assert "autocast to float16" in found["cuda_v100_train_ns"][1].text
    assert "PYTORCH_MIOPEN_SUGGEST_NHWC=1" in found["rocm_mi210_gpu_only"][1].text


@pytest.mark.parametrize(
    ("device", "call", "tool"),
    [
        ({"name": "NVIDIA H100 80GB HBM3"}, "cudaLaunchKernel", "Nsight Compute shows"),
        ({"name": "AMD Instinct MI300X"}, "hipLaunchKernel", "rocprof-compute shows"),
        ({"name": "Foo"}, "hipLaunchKernel", "rocprof-compute shows"),
        ({"name": "Foo"}, "fooLaunchKernel", "A kernel profiler shows"),
    ],
)
def test_a_kernel_that_dominates_a_short_trace_names_the_vendors_tool(
    tmp_path: Path, device: dict[str, str], call: str, tool: str
) -> None:
    # GIVEN six launches of a kernel that takes most of a trace of 12 kernels
    program = Program()
    for _ in range(6):
        program.launch("vectorized_gather_kernel", 140, call=call)
        program.launch("gemm", 20, call=call)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": program.events, "deviceProperties": [device]}))
    found = kernels_of(read_trace(path))
    (finding,) = (each for each in found.findings() if each.code == "kernels.dominant")
    assert (finding.severity, finding.numbers["launches"]) == ("medium", 6)
    assert tool in finding.text
    assert found.work.kinds(1) == [f"gather, scatter, index {100 * 140 / 160:.1f} %"]


def test_kernels_that_take_little_of_the_time_are_no_finding(tmp_path: Path) -> None:
    program = Program()
    for _ in range(6):
        program.launch("gemm", 20)
        program.work(2_000)
    assert kernels_of(program.trace(tmp_path)).findings() == []
