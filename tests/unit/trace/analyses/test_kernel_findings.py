"""Findings about kernels: each fault planted is named with its figure, clean programs get none."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted import Program

from stagespan.trace import Trace, read_trace
from stagespan.trace.analyses import kernels
from stagespan.trace.result import Finding

GEMMS = [f"sm90_xmma_gemm_bf16bf16_tile{number}" for number in range(10)]


def findings_of(trace: Trace) -> list[Finding]:
    return kernels.analyze(trace).findings()


def run(program: Program, kernel: str, us: int, times: int, operator: str = "aten::mm") -> None:
    for _ in range(times):
        with program.within(operator):
            program.launch(kernel, us)


def products(program: Program) -> None:
    """Ten kernels of matrix products, 20 ms in 200 launches."""
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
    # WHEN the kernels are looked at
    (finding,) = findings_of(program.trace(tmp_path))
    # THEN that one is named with its share, its launches and its operator
    assert "my_scan_kernel (launched by my::scan) takes 30.000 ms (60.0 %" in finding.sentence
    assert "in 100 launches" in finding.sentence
    assert finding.evidence[0].figure == 300_000


def test_half_of_a_sum_that_other_streams_hide_is_not_half_of_the_time(tmp_path: Path) -> None:
    # GIVEN a kernel with 60 % of the sum of durations, on two streams at once
    program = Program()
    for _ in range(50):
        with program.within("my::scan"):
            program.launch("my_scan_kernel", 300, stream=7)
            program.launch("my_scan_kernel", 300, stream=8)
        program.now = max(program.free.values())
    for gemm in GEMMS:
        run(program, gemm, 100, 20)
    # WHEN the kernels are looked at
    # THEN it is not said to take most of the time
    assert findings_of(program.trace(tmp_path)) == []


def fusible(program: Program) -> None:
    products(program)
    run(program, "vectorized_elementwise_kernel_add", 50, 200, "aten::add")
    run(program, "vectorized_layer_norm_kernel", 50, 200, "aten::native_layer_norm")


def test_much_elementwise_work_that_nothing_fused(tmp_path: Path) -> None:
    # GIVEN as much time in elementwise and norm kernels as in products
    program = Program()
    fusible(program)
    # WHEN the kernels are looked at
    (finding,) = findings_of(program.trace(tmp_path))
    # THEN torch.compile is advised, with the figures
    assert finding.severity == "medium"
    assert finding.sentence.startswith("20.000 ms (50.0 % of device work) went into 400")
    assert "torch.compile would fuse" in finding.sentence


@pytest.mark.parametrize("mark", ["Torch-Compiled Region: 0/0", "triton_poi_fused_add_0"])
def test_a_compiled_program_is_not_told_to_compile(mark: str, tmp_path: Path) -> None:
    program = Program()
    with program.within(mark):
        program.launch("triton_poi_fused_add_0" if "triton" in mark else "gemm", 10)
        fusible(program)
    assert findings_of(program.trace(tmp_path)) == []


def test_changes_of_layout(tmp_path: Path) -> None:
    # GIVEN 2 ms of 22 in kernels that turn tensors to the layout of a convolution
    program = Program()
    products(program)
    run(program, "void cudnn::ops::nchwToNhwcKernel<float>", 20, 100, "aten::cudnn_convolution")
    # WHEN the kernels are looked at
    (finding,) = findings_of(program.trace(tmp_path))
    # THEN they are counted, and how to avoid them is reported
    assert finding.sentence.startswith("2.000 ms (9.1 % of device work) went into 100 kernels")
    assert "channels_last" in finding.sentence


def test_attention_in_three_parts(tmp_path: Path) -> None:
    # GIVEN ten layers of attention as product, softmax and product
    program = Program()
    products(program)
    for _ in range(10):
        run(program, "bmm_gemm_kernel", 100, 1, "aten::bmm")
        run(program, "void softmax_warp_forward<float>", 400, 1, "aten::_softmax")
        run(program, "bmm_gemm_kernel", 100, 1, "aten::bmm")
    # WHEN the kernels are looked at
    (finding,) = findings_of(program.trace(tmp_path))
    # THEN the fused operator is named
    assert "4.000 ms (15.4 % of device work) went into 10 softmax" in finding.sentence
    assert "scaled_dot_product_attention" in finding.sentence


def test_products_in_single_precision(tmp_path: Path) -> None:
    program = Program()
    run(program, "ampere_sgemm_128x64_tn", 90, 50)
    run(program, "ampere_sgemm_64x64_nn", 100, 50)
    run(program, "my_kernel", 250, 20)
    (finding,) = findings_of(program.trace(tmp_path))
    assert finding.severity == "medium"
    assert "set_float32_matmul_precision('high')" in finding.sentence
    assert "9.500 ms (65.5 %" in finding.sentence


def test_convolutions_in_single_precision_on_a_device_for_half(tmp_path: Path) -> None:
    program = Program()
    for size in (32, 64, 128):
        run(program, f"cudnn_infer_volta_scudnn_128x{size}_relu_nn_v1", 90, 20, "aten::conv")
    products(program)
    (finding,) = findings_of(program.trace(tmp_path))
    assert finding.severity == "low"
    assert "autocast to float16 uses" in finding.sentence


def test_tens_of_thousands_of_tiny_kernels(tmp_path: Path) -> None:
    # GIVEN 12,000 kernels of 2 µs, launched one by one
    program = Program()
    products(program)
    run(program, "index_kernel", 2, 8_000, "aten::index")
    run(program, "gather_kernel", 2, 4_000, "aten::gather")
    # WHEN the kernels are looked at
    (finding,) = findings_of(program.trace(tmp_path))
    # THEN they are counted
    assert finding.sentence.startswith("12,000 kernels (98.4 % of those launched one by one)")
    assert "24.000 ms in total" in finding.sentence


def test_findings_on_real_traces(traces: Path) -> None:
    # GIVEN traces whose timelines were looked at
    expected = {
        # Space-time attention by bmm and softmax over 3137 tokens.
        "cuda_h100_timesformer": ["scaled_dot_product_attention"],
        "rocm_mi300_owlv2": ["scaled_dot_product_attention"],
        # All of it in float32 on a V100; a third of the time in ReLU, batch norm and sums.
        "cuda_v100_train_ns": ["torch.compile", "autocast to float16"],
        # MIOpen turns every tensor of the NCHW model around.
        "rocm_mi300_ddp_resnet": ["PYTORCH_MIOPEN_SUGGEST_NHWC=1"],
        # Compiled, or with fused attention.
        "rocm_mi300_triton_compile": [],
        "rocm_mi300_sglang_decode": [],
        "cuda_b200_vllm_eager": [],
        "cuda_h100_vit": [],
        "cuda_a100_cudagraph_triton_nccl": [],
    }
    for name, words in expected.items():
        # WHEN their kernels are looked at
        found = findings_of(read_trace(traces / f"{name}.json.gz"))
        # THEN that is what is found
        assert len(found) == len(words), name
        assert all(w in f.sentence for f, w in zip(found, words, strict=True)), name
