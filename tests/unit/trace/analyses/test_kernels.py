"""Kernels by name, kind, shape, operator and stage: synthetic programs, exact to the nanosecond."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import checked
from kernel_programs import json_of, kernels_of, operator
from planted import HOST, Program

from stagespan.pages.result import Unavailable
from stagespan.trace import Trace, read_trace
from stagespan.trace.analyses import kernels
from stagespan.trace.analyses.kernels import Kernels
from stagespan.trace.derived.device_time import device_use
from stagespan.trace.derived.kernel_kinds import inductor_kind, kind_of

AUTOGRAD = 300


def arrow(program: Program, number: int, begin: int, thread: int, end: int, other: int) -> None:
    common = {"id": number, "pid": HOST, "cat": "fwdbwd", "name": "fwdbwd"}
    program.events += [
        {"ph": "s", "ts": begin, "tid": thread, **common},
        {"ph": "f", "ts": end, "tid": other, "bp": "e", **common},
    ]


def test_names_kinds_operators_stages_and_shapes(tmp_path: Path) -> None:
    # GIVEN two stages within a step: products of two shapes, a pointwise kernel, a copy
    program = Program()
    with program.within("ProfilerStep#1", "user_annotation"):
        with program.within("denoise", "user_annotation"):
            operator(program, "aten::mm", "ampere_sgemm_128x64_nn", 100, [[8, 4], [4, 2]])
            operator(program, "aten::mm", "ampere_sgemm_128x64_nn", 300, [[8, 4], [4, 64]])
            operator(program, "aten::mm", "ampere_sgemm_128x64_nn", 100, [[8, 4], [4, 2]])
        with program.within("decode", "user_annotation"):
            operator(program, "aten::add", "vectorized_elementwise_kernel", 40, [[8, 4], [], []])
        with program.within("aten::copy_"):
            program.launch("Memcpy DtoH (Device -> Pinned)", 10, cat="gpu_memcpy")
    trace = program.trace(tmp_path)
    found = json_of(trace)
    # THEN every figure has its known value
    assert (found["time_us"], found["kernel_time_us"]) == (550, 540)
    assert (found["count"], found["kernels"], found["names"]) == (5, 4, 3)
    first, second = found["top"]
    assert first == {
        "name": "ampere_sgemm_128x64_nn",
        "kind": "matmul",
        "time_us": 500,
        "percent": pytest.approx(100 * 500 / 550),
        "count": 3,
        "min_us": 100,
        "max_us": 300,
        "operator": "aten::mm",
        "stage": "denoise",
    }
    assert (second["kind"], second["operator"], second["stage"]) == (
        "elementwise",
        "aten::add",
        "decode",
    )
    assert [(row["kind"], row["time_us"]) for row in found["by_kind"]] == [
        ("matmul", 500),
        ("elementwise", 40),
        ("copy", 10),
    ]
    assert [(row["stage"], row["time_us"]) for row in found["by_stage"]] == [
        ("denoise", 500),
        ("decode", 40),
        (None, 10),
    ]
    assert [
        (row["operator"], row["shape"], row["kernel"], row["time_us"], row["count"])
        for row in found["by_shape"]
    ] == [
        ("aten::mm", "8x4, 4x64", "ampere_sgemm_128x64_nn", 300, 1),
        ("aten::mm", "8x4, 4x2", "ampere_sgemm_128x64_nn", 200, 2),
        ("aten::add", "8x4", "vectorized_elementwise_kernel", 40, 1),
    ]
    assert [row["device_events"] for row in found["by_shape"]] == [1, 2, 1]
    assert [(row["kind"], row["count"]) for row in found["by_kind"]] == [
        ("matmul", 3),
        ("elementwise", 1),
        ("copy", 1),
    ]
    assert found["operators_by_device_time"][0] == {
        "operator": "aten::mm",
        "time_us": 500,
        "percent": pytest.approx(100 * 500 / 550),
        "count": 3,
        "calls": 3,
    }
    # The host's self time: three products of 20 µs.
    assert found["operators_by_host_time"][0]["self_us"] == 60
    assert found["breakdown"]["top_kernels"][0]["ms"] == 0.5
    assert found["breakdown"]["total_kernel_time_ms"] == 0.54
    # Shares decide, so a short trace has findings too.
    codes = [finding.code for finding in kernels_of(trace).findings()]
    assert codes == ["kernels.single_precision"]


def test_shapes_count_calls_of_the_operator(tmp_path: Path) -> None:
    # GIVEN a product that fills its result and then computes it with two kernels, three times
    program = Program()
    for _ in range(3):
        begin = program.now
        program.launch("Memset (Device)", 2, cat="gpu_memset", call="cudaMemsetAsync")
        program.launch("splitK_gemm", 60)
        program.launch("splitKreduce_kernel", 10)
        dims = {"Input Dims": [[8, 4], [4, 2]]}
        program.event("aten::mm", "cpu_op", begin, program.now, **dims)
    found = kernels_of(program.trace(tmp_path))
    written = found.to_dict()
    assert isinstance(written["by_shape"], list)
    (row,) = written["by_shape"]
    assert (row["count"], row["device_events"], row["time_us"]) == (3, 9, 3 * 72)
    (table,) = (table for table in found.tables() if table.title == "Shapes")
    assert table.rows == [("aten::mm", "8x4, 4x2", 216_000, 3, 72_000)]
    assert isinstance(written["operators_by_device_time"], list)
    assert written["operators_by_device_time"][0]["calls"] == 3


def test_the_same_figure_has_one_share(traces: Path) -> None:
    found = checked(kernels.analyze(read_trace(traces / "cuda_v100_nccl_train.json.gz")), Kernels)
    tables = {table.title: table for table in found.tables()}
    kinds = {row[0]: row for row in tables["Kinds of work"].rows}
    time, percent = kinds["communication"][1:3]
    # THEN the same quantity has the same share in each, and the heading names it
    (nccl,) = (row for row in tables["Kernels"].rows if str(row[0]).startswith("nccl"))
    assert nccl[1:3] == (time, percent)
    for title in ("Kinds of work", "Kernels", "Operators by device time"):
        assert tables[title].columns[2] == ("of device work", "%")
    assert sum(float(row[2] or 0) for row in tables["Kinds of work"].rows) == pytest.approx(100)


def test_launches_of_an_optimizer_are_a_separate_kind(tmp_path: Path) -> None:
    program = Program()
    operator(program, "aten::add", "vectorized_elementwise_kernel", 40, [[8]])
    with program.within("Optimizer.step#SGD.step", "user_annotation"):
        operator(program, "aten::add_", "vectorized_elementwise_kernel", 30, [[8]])
        program.launch("ncclDevKernel_AllGather", 7)
    with program.within("Optimizer.zero_grad#SGD.zero_grad", "user_annotation"):
        operator(program, "aten::zero_", "vectorized_elementwise_kernel", 5, [[8]])
    # THEN its work is distinguished from the model's
    found = json_of(program.trace(tmp_path))
    assert {row["kind"]: row["time_us"] for row in found["by_kind"]} == {
        "elementwise": 40,
        "optimizer": 35,
        "communication": 7,
    }


def test_work_of_real_traces_has_its_kind(real: Callable[[str], Trace]) -> None:
    # GIVEN servers of mixture-of-experts models, and the training of a recommender
    kinds = {}
    for name in ("rocm_mi300_vllm_piecewise", "cuda_b200_vllm_eager", "cuda_v100_trace_diff"):
        found = json_of(real(name))
        kinds[name] = {row["kind"]: row["percent"] for row in found["by_kind"]}
    assert kinds["rocm_mi300_vllm_piecewise"]["moe"] == pytest.approx(78.7, abs=0.1)
    assert kinds["cuda_b200_vllm_eager"]["moe"] > 50
    assert kinds["cuda_v100_trace_diff"]["embedding"] == pytest.approx(11.7, abs=0.1)
    assert kinds["cuda_v100_trace_diff"]["other"] < 1


def test_products_of_qwen_are_counted_by_call(real: Callable[[str], Trace]) -> None:
    # GIVEN 24 layers with two products of one shape, each of which fills its result first
    found = json_of(real("cuda_h100_qwen"))
    rows = {(row["operator"], row["shape"]): row for row in found["by_shape"]}
    product = rows["aten::mm", "8944x1024, 1024x2816"]
    assert (product["count"], product["device_events"]) == (48, 96)
    assert product["time_us"] / product["count"] == pytest.approx(84.5, abs=0.1)
    linear = rows["aten::addmm", "1024, 8944x1024, 1024x1024"]
    assert (linear["count"], linear["device_events"]) == (72, 144)


def test_self_time_excludes_nested_operators(tmp_path: Path) -> None:
    # GIVEN operators on the host only: linear calls t and addmm, and addmm calls copy_
    program = Program()
    with program.within("encode", "user_annotation"), program.within("aten::linear"):
        program.work(3)
        with program.within("aten::t"):
            program.work(2)
        with program.within("aten::addmm"):
            program.work(50)
            with program.within("aten::copy_"):
                program.work(7)
            program.work(1)
        program.work(1)
    found = json_of(program.trace(tmp_path))
    assert {row["name"]: row["time_us"] for row in found["top"]} == {
        "aten::linear": 4,
        "aten::t": 2,
        "aten::addmm": 51,
        "aten::copy_": 7,
    }
    assert found["time_us"] == 64
    assert {row["operator"]: row["duration_us"] for row in found["operators_by_host_time"]} == {
        "aten::linear": 64,
        "aten::t": 2,
        "aten::addmm": 58,
        "aten::copy_": 7,
    }
    assert found["by_stage"] == [{"stage": "encode", "time_us": 64, "percent": 100, "count": 4}]
    assert not found["on_device"]
    assert found["kernel_time_us"] is found["kernels"] is found["without_launch"] is None
    assert found["operators_by_device_time"] is None
    assert {row["kind"]: row["time_us"] for row in found["by_kind"]} == {
        "matmul": 55,
        "copy": 7,
        "view": 2,
    }


def test_a_graph_has_its_kernels_and_kernels_without_launch_are_counted(tmp_path: Path) -> None:
    program = Program()
    with program.within("replay", "user_annotation"), program.within("my::replay"):
        program.graph([10, 20, 30], gap=1)
    program.launch("early_gemm", 5, known=False)
    found = json_of(program.trace(tmp_path))
    assert found["of_graphs"] == {"count": 3, "time_us": 60}
    assert found["without_launch"] == {"count": 1, "time_us": 5}
    assert {row["name"]: (row["operator"], row["stage"]) for row in found["top"]} == {
        "graph_kernel_0": ("cudaGraphLaunch", "replay"),
        "graph_kernel_1": ("cudaGraphLaunch", "replay"),
        "graph_kernel_2": ("cudaGraphLaunch", "replay"),
        "early_gemm": (None, None),
    }


def test_a_kernel_of_two_operators(tmp_path: Path) -> None:
    program = Program()
    with program.within("first", "user_annotation"):
        operator(program, "aten::add", "my_gemm", 30)
        operator(program, "aten::add", "my_gemm", 30)
    with program.within("second", "user_annotation"):
        operator(program, "aten::relu", "my_gemm", 70)
        operator(program, "aten::gelu", "unknown", 20)
    first, second = json_of(program.trace(tmp_path))["top"]
    assert (first["time_us"], first["operator"], first["stage"]) == (130, "aten::relu", "second")
    assert (first["kind"], second["kind"]) == ("matmul", "elementwise")


def backward(program: Program, sequence: bool) -> dict[str, Any]:
    """linear and relu forward; their backward in another thread, linear's with two kernels."""
    args = {"Sequence number": 1} if sequence else {}
    linear = operator(program, "aten::addmm", "gemm_forward", 10, **args)
    args = {"Sequence number": 2} if sequence else {}
    relu = operator(program, "aten::relu", "relu_forward", 11, **args)
    program.thread = AUTOGRAD
    for number, name, kernel, us in (
        (2, "ReluBackward0", "relu_backward", 12),
        (1, "AddmmBackward0", "gemm_backward", 40),
    ):
        begin = program.now
        program.work(2)
        with program.within("aten::inner"):
            program.launch(kernel, us)
            if number == 1:
                program.launch(f"{kernel}_2", us)
        args = {"Sequence number": number} if sequence else {}
        program.event(name, "cpu_op", begin, program.now, **args)
        program.event(
            f"autograd::engine::evaluate_function: {name}", "cpu_op", begin, program.now, **args
        )
        if not sequence:
            arrow(program, number, linear if number == 1 else relu, 100, begin, AUTOGRAD)
    return {"aten::addmm": (80, 2), "aten::relu": (12, 1)}


@pytest.mark.parametrize("sequence", [False, True], ids=["arrows", "sequence numbers"])
def test_work_of_the_backward_pass_belongs_to_its_forward_operator(
    sequence: bool, tmp_path: Path
) -> None:
    program = Program()
    begin = program.now
    expected = backward(program, sequence)
    program.thread = 100
    program.event("train", "user_annotation", begin, program.now)
    found = json_of(program.trace(tmp_path))
    assert {
        row["operator"]: (row["time_us"], row["count"])
        for row in found["by_forward_operator"] or ()
    } == expected
    assert [(row["stage"], row["count"]) for row in found["by_stage"]] == [("train", 5)]
    operators = {row["name"]: row["operator"] for row in found["top"]}
    assert operators["gemm_backward_2"] == "aten::inner"


def test_spans_of_stages_are_stages(tmp_path: Path) -> None:
    program = Program()
    begin = program.now
    operator(program, "aten::mm", "gemm", 10)
    span = {"ph": "X", "cat": "user_annotation", "name": "vae_decode", "pid": "stagespan"}
    program.events += [
        span | {"tid": 100, "ts": begin, "dur": program.now - begin},
        {"ph": "M", "name": "process_name", "pid": "stagespan", "args": {"name": "stagespan"}},
    ]
    found = json_of(program.trace(tmp_path))
    assert found["top"][0]["stage"] == "vae_decode"


def test_without_kernels_and_operators_it_has_no_result(tmp_path: Path) -> None:
    program = Program()
    with program.within("step", "user_annotation"):
        program.work(10)
    found = kernels.analyze(program.trace(tmp_path))
    assert isinstance(found, Unavailable)
    assert "neither kernels nor operators" in found.reason


def test_times_that_are_years_apart_have_a_sentence(tmp_path: Path) -> None:
    program = Program()
    operator(program, "aten::mm", "gemm", 10)
    program.now = 4_000_000_000_000_000
    for thread in range(2):
        program.thread = thread
        operator(program, "aten::mm", "gemm", 10)
    found = kernels.analyze(program.trace(tmp_path))
    assert isinstance(found, Unavailable)
    assert "span several years" in found.reason


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("void flash_fwd_kernel<Flash_fwd_traits<64, cutlass::bfloat16_t>>(params)", "attention"),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32", "convolution"),
        ("aclnnAdaptiveAvgPool2dBackward_AdaptiveAvgPool3dGrad", "reduction"),
        ("void at::native::reduce_kernel<512, 1, ReduceOp<float, NormTwoOps<float>>>", "reduction"),
        ("void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda>", "copy"),
        ("void splitKreduce_kernel<32, 16, int, float>(cublasSplitKParams<float>)", "matmul"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT64x64x64", "matmul"),
        ("void fbgemm_gpu::bounds_check_indices_kernel<long>(long)", "other"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "communication"),
        ("triton_per_fused_layer_norm_0", "triton"),
        ("cpp_fused_add_relu_0", "inductor_cpp"),
        ("aclnnAddmm_MatMulCommon_MatMulV2", "matmul"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512>", "norm"),
        ("aten::native_layer_norm_backward", "norm"),
        ("", "other"),
        ("void flash::FlashAttnFwdSm90<CollectiveMainloop>", "attention"),
        (
            "void cutlass::device_kernel<flash::enable_sm90<FlashAttnFwdSm90<A>>>",
            "attention",
        ),
        ("sage_fwd_kernel_sm90", "attention"),
        ("void qk_int8_sv_f16_accum_f32_attn_kernel<128, 64>(signed char*)", "attention"),
        ("_fwd_grouped_kernel_stage1", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_knob_7", "attention"),
        ("void split_embedding_codegen_forward_unweighted_kernel<float>", "embedding"),
        ("void split_embedding_backward_codegen_rowwise_adagrad_kernel<float>", "embedding"),
        ("void at::native::embedding_backward_feature_kernel<float>", "embedding"),
        ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>", "elementwise"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>", "optimizer"),
        ("aten::_fused_adamw_", "optimizer"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, LpNormFunctor>", "elementwise"),
        ("at::native::elementwise_kernel<gpu_kernel_impl<Lambda>>", "elementwise"),
        ("fused_moe_kernel", "moe"),
        ("void moe::dev::routing::routingIndicesHistogramKernel<KernelParams>", "moe"),
        ("void vllm::moe::topkGatingSoftmax<8, 64>(float const*)", "moe"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1", "moe"),
        ("triton_poi_fused_constant_pad_nd_moe_forward_0", "triton"),
        ("quantized::linear_dynamic", "matmul"),
        ("quantized::conv2d_relu", "convolution"),
        ("aten::mkldnn_linear", "matmul"),
        ("aten::addmv_", "matmul"),
        ("aten::mkldnn_rnn_layer", "recurrent"),
        ("aten::_cudnn_rnn_backward", "recurrent"),
        ("void LSTM_elementWise_fp<float, float, float>(int, int)", "recurrent"),
        ("void RNN_blockPersist_fp_GRU<float, 16>(float*)", "recurrent"),
        ("aten::gru_cell", "recurrent"),
        ("aten::transpose", "view"),
        ("aten::empty_strided", "view"),
        ("void transpose_readWrite_alignment_kernel<float>(float*)", "copy"),
    ],
)
def test_kinds(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_other_work_has_its_longest_name(tmp_path: Path) -> None:
    program = Program()
    for name, us in (("mylib::one", 20), ("mylib::two", 70), ("aten::mm", 10)):
        with program.within(name):
            program.work(us)
    # THEN the line names the operator that takes most of it
    assert kernels_of(program.trace(tmp_path)).work.kinds(2) == [
        "other (mostly mylib::two) 90.0 %",
        "matrix products 10.0 %",
    ]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("triton_poi_fused_add_relu_0", "poi"),
        ("triton_red_fused_mean_1", "red"),
        ("triton_tem_fused_mm_3", "tem"),
        ("triton_mm", None),
        ("triton__0d1d2d3d", "unnamed"),
        ("_fwd_kernel", None),
    ],
)
def test_triton_kernels_of_inductor(name: str, kind: str | None) -> None:
    assert inductor_kind(name) == kind


def test_sums_of_real_traces_are_correct(traces: Path) -> None:
    for name in (
        "cuda_a100_cudagraph_triton_nccl",
        "rocm_mi300_sglang_decode",
        "cuda_v100_train_ns",
    ):
        trace = read_trace(traces / f"{name}.json.gz")
        found = json_of(trace)
        use = device_use(trace)
        assert found["kernel_time_us"] == (use.kernel_sum_ns or 0) / 1000
        assert found["count"] == sum(use.device_events.values())
        assert found["without_launch"]["count"] == use.without_launch
        for rows in (found["by_kind"], found["by_stage"]):
            assert sum(row["time_us"] for row in rows) == pytest.approx(found["time_us"], abs=1e-3)


def test_a_real_training_step(traces: Path) -> None:
    # GIVEN five steps of a ResNet
    found = json_of(read_trace(traces / "cuda_v100_train_ns.json.gz"))
    stages = {row["stage"]: row["percent"] for row in found["by_stage"]}
    assert 66 < stages["## backward ##"] < 68
    assert found["by_forward_operator"][0]["operator"] == "aten::convolution"
    assert found["by_kind"][0]["kind"] == "convolution"
