"""The operations and bytes of operators from their shapes, against counts by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagespan.trace import Call, Cost, register_cost
from stagespan.trace.rates.attention import pairs
from stagespan.trace.rates.calls import call_of
from stagespan.trace.rates.costs import Unknown, cost_of, formula_of
from stagespan.trace.rates.limits import limit_of, reason_of, unaligned_sizes

BF16, HALF, FLOAT, LONG = "c10::BFloat16", "c10::Half", "float", "long int"


def called(
    name: str,
    dims: list[Any],
    types: list[str] | str = BF16,
    values: list[str] | None = None,
    strides: list[Any] | None = None,
    kernels: tuple[str, ...] = (),
) -> Call:
    """Return the call that a trace with these arguments describes."""
    if isinstance(types, str):
        types = [types if each else "" for each in dims]
    written = [json.dumps(each) for each in (dims, types, strides or [], values or [])]
    found = call_of(name, *written, kernels)
    assert found is not None
    return found


def cost(*arguments: Any, **others: Any) -> Cost:
    found = cost_of(called(*arguments, **others))
    assert isinstance(found, Cost), found
    return found


def unknown(*arguments: Any, **others: Any) -> str:
    found = cost_of(called(*arguments, **others))
    assert isinstance(found, Unknown), found
    return found.reason


@pytest.mark.parametrize(
    ("name", "dims", "flops", "moved"),
    [
        ("aten::mm", [[3, 5], [5, 7]], 2 * 3 * 5 * 7, 2 * (15 + 35 + 21)),
        # The result of an operator with `out=` is the third argument.
        ("aten::mm", [[3, 5], [5, 7], [3, 7]], 2 * 3 * 5 * 7, 2 * (15 + 35 + 21)),
        ("aten::addmm", [[7], [3, 5], [5, 7]], 2 * 3 * 5 * 7, 2 * (7 + 15 + 35 + 21)),
        ("aten::bmm", [[2, 3, 5], [2, 5, 7]], 2 * 2 * 3 * 5 * 7, 4 * (15 + 35 + 21)),
        ("aten::baddbmm", [[2, 3, 7], [2, 3, 5], [2, 5, 7]], 420, 4 * (21 + 15 + 35 + 21)),
        ("aten::addbmm", [[3, 7], [2, 3, 5], [2, 5, 7]], 420, 2 * (21 + 30 + 70 + 21)),
        ("aten::linear", [[2, 3, 5], [7, 5], [7]], 420, 2 * (30 + 35 + 42 + 7)),
        ("aten::matmul", [[4, 2, 3, 5], [5, 7]], 8 * 210, 2 * (120 + 35 + 168)),
        ("aten::mv", [[3, 5], [5]], 30, 2 * (15 + 5 + 3)),
        ("aten::dot", [[5], [5]], 10, 2 * (5 + 5 + 1)),
        ("aten::_grouped_mm", [[6, 5], [2, 5, 7], [2]], 2 * 6 * 5 * 7, 2 * (30 + 70 + 42)),
    ],
)
def test_products(name: str, dims: list[Any], flops: int, moved: int) -> None:
    found = cost(name, dims)
    assert (found.flops, found.bytes, found.type) == (flops, moved, BF16)


def test_a_product_in_eight_bits_writes_two_bytes() -> None:
    found = cost("aten::_scaled_mm", [[4, 8], [8, 2]], "c10::Float8_e4m3fn")
    assert (found.flops, found.bytes) == (128, 32 + 16 + 2 * 8)


@pytest.mark.parametrize(
    ("name", "more"),
    [("vllm::inplace_fused_experts", []), ("sglang::outplace_fused_experts", [[3, 10, 1]]),
     ("aiter::fused_moe_", [[3]]), ("_moe_C::fused_moe_w8a8", [])],
)  # fmt: skip
def test_products_of_experts(name: str, more: list[Any]) -> None:
    # GIVEN 6 tokens of 4, 2 of 3 experts for each, 10 rows of gate and up, 5 inner values
    dims = [[6, 4], [3, 10, 4], [3, 4, 5], [6, 2], [6, 2], *more]
    found = cost(name, dims)
    assert found.flops == 2 * 12 * (10 * 4 + 4 * 5)
    assert found.bytes == 2 * (2 * 24 + 120 + 60)


def test_experts_without_their_weights_are_unknown() -> None:
    # GIVEN tokens and the router's values, as vLLM's operator has them
    why = unknown("vllm::moe_forward", [[888, 2880], [888, 128]])
    assert why == "the weights of the experts are not among its arguments"
    assert "do not fit" in unknown("aiter::fused_moe_", [[6, 4], [3, 10, 8], [3, 4, 5], [6, 2]])


def test_the_choice_of_experts_is_not_a_product() -> None:
    assert cost_of(called("_moe_C::topk_softmax", [[6, 2], [6, 2], [6, 2], [6, 3]])) is None


CONVOLUTION = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]


def test_convolutions() -> None:
    # GIVEN 3 channels of 9x9 to 8, filters of 3x3, stride 2, padding 1: 5x5 results
    dims = [[2, 3, 9, 9], [8, 3, 3, 3], [8], [], [], [], [], [], []]
    found = cost("aten::convolution", dims, FLOAT, CONVOLUTION)
    assert found.flops == 2 * 2 * 25 * 8 * 27
    assert found.bytes == 4 * (2 * 3 * 81 + 8 * 27 + 2 * 8 * 25)
    # cuDNN's operator has the same lists in another order
    other = ["", "", "[1, 1]", "[2, 2]", "[1, 1]", "1", "False", "False", "True"]
    assert cost("aten::cudnn_convolution", [*dims[:2], *[[]] * 7], FLOAT, other) == found
    other = ["", "", "", "[1, 1]", "[2, 2]", "[1, 1]", "1"]
    assert cost("aten::mkldnn_convolution", dims[:7], FLOAT, other) == found


def test_a_transposed_convolution_multiplies_each_input() -> None:
    values = [*CONVOLUTION[:6], "True", "[1, 1]", "1"]
    dims = [[2, 8, 5, 5], [8, 3, 3, 3], [], [], [], [], [], [], []]
    found = cost("aten::convolution", dims, FLOAT, values)
    assert found.flops == 2 * 2 * 25 * 8 * 27
    # (5 - 1) * 2 - 2 + 3 + 1 = 10
    assert found.bytes == 4 * (2 * 8 * 25 + 8 * 27 + 2 * 3 * 100)


@pytest.mark.parametrize(
    ("mask", "products"), [("[True, True, True]", 2), ("[False, True, True]", 1)]
)
def test_the_gradients_of_a_convolution(mask: str, products: int) -> None:
    dims = [[2, 8, 5, 5], [2, 3, 9, 9], [8, 3, 3, 3], *[[]] * 8]
    values = ["", "", "", "[8]", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", mask]
    found = cost("aten::convolution_backward", dims, FLOAT, values)
    assert found.flops == products * 2 * 2 * 25 * 8 * 27


def test_a_convolution_without_its_strides_is_unknown() -> None:
    assert "not in the trace" in unknown("aten::cudnn_convolution", [[2, 3, 9, 9], [8, 3, 3, 3]])


# --- attention ---


FLASH = ["", "", "", "", "", "9", "9", "0.", "False", "False", "0.125", "", "", "", ""]


def flash(dims: list[Any], causal: bool = False, **others: str) -> Cost:
    values = list(FLASH)
    values[8] = str(causal)
    for at, text in others.items():
        values[int(at[1:])] = text
    return cost("aten::_flash_attention_forward", [*dims, *[[]] * (15 - len(dims))], BF16, values)


def test_attention_counts_both_layouts() -> None:
    last = flash([[2, 9, 4, 8]] * 3)
    first = cost(
        "aten::_scaled_dot_product_flash_attention",
        [[2, 4, 9, 8]] * 3 + [[], [], []],
        BF16,
        ["", "", "", "0.", "False", "False"],
    )
    assert last.flops == first.flops == 4 * 2 * 4 * 81 * 8
    assert last.bytes == first.bytes == 2 * 4 * 2 * 9 * 4 * 8


def test_a_causal_mask_leaves_out_half_of_the_pairs() -> None:
    assert flash([[2, 9, 4, 8]] * 3, causal=True).flops == 4 * 2 * 4 * 45 * 8


def test_few_heads_of_keys_do_not_change_the_operations() -> None:
    found = flash([[2, 9, 4, 8], [2, 9, 1, 8], [2, 9, 1, 8]])
    assert found.flops == 4 * 2 * 4 * 81 * 8
    assert found.bytes == 2 * (2 * 2 * 9 * 4 * 8 + 2 * 2 * 9 * 8)


def test_sequences_of_equal_length_in_one_tensor() -> None:
    packed = flash([[18, 4, 8]] * 3 + [[3], [3]])
    assert packed.flops == flash([[2, 9, 4, 8]] * 3).flops


def test_sequences_of_unknown_lengths_are_unknown() -> None:
    dims = [[15, 4, 8]] * 3 + [[3], [3]] + [[]] * 10
    reason = unknown("aten::_flash_attention_forward", dims, BF16, FLASH)
    assert "lengths of the sequences" in reason
    served = [[888, 8, 64], [888, 1, 64], [888, 1, 64], [888, 8, 64]]
    assert "lengths of the sequences" in unknown("vllm::unified_attention_with_output", served)


@given(st.integers(0, 12), st.integers(0, 12), st.integers(-1, 5), st.integers(-1, 5), st.data())
def test_pairs_are_those_that_a_mask_lets_through(
    queries: int, keys: int, left: int, right: int, data: st.DataObject
) -> None:
    mask = data.draw(st.sampled_from(["none", "top_left", "bottom_right"]))
    moved = 0 if mask == "top_left" else keys - queries
    expected = sum(
        (mask == "none" or key <= query + moved)
        and (left < 0 or key >= query + moved - left)
        and (right < 0 or key <= query + moved + right or mask != "none")
        for query in range(queries)
        for key in range(keys)
    )
    assert pairs(queries, keys, mask, left, right) == expected


# --- memory ---


@pytest.mark.parametrize(
    ("name", "dims", "types", "values", "moved"),
    [
        ("aten::add", [[4, 8], [8], []], [BF16, BF16, "Scalar"], None, 2 * (32 + 8 + 32)),
        ("aten::add_", [[4, 8], [8], []], [BF16, BF16, "Scalar"], None, 2 * (32 + 8 + 32)),
        # A number is a tensor of type double without dimensions.
        ("aten::mul", [[4, 8], []], [BF16, "double"], None, 2 * 64 + 8),
        ("aten::mul", [[4, 8], [4, 1]], [BF16, FLOAT], None, 64 + 16 + 128),
        ("aten::eq", [[4, 8], []], [LONG, "Scalar"], None, 32 * 8 + 32),
        ("aten::where", [[4, 1], [], [4, 8]], ["bool", FLOAT, FLOAT], None, 4 + 4 + 128 + 128),
        ("aten::copy_", [[4, 8], [8]], [FLOAT, BF16], None, 128 + 16),
        ("aten::fill_", [[4, 8], []], [FLOAT, "Scalar"], None, 128),
        ("aten::_softmax", [[4, 8], [], []], [BF16, "", ""], ["", "-1", "False"], 128),
        ("aten::_softmax", [[4, 8], [], []], [BF16, "", ""], ["", "-1", "True"], 64 + 128),
        ("aten::sum", [[4, 8], [], []], [FLOAT, "", ""], ["", "[-1]", "False"], 128 + 16),
        ("aten::sum", [[4, 8], []], [FLOAT, ""], ["", ""], 128 + 4),
        ("aten::topk", [[4, 8], [], []], [FLOAT, "", ""], ["", "2", "-1"], 128 + 8 * 12),
        ("aten::embedding", [[90, 8], [5]], [FLOAT, LONG], None, 40 + 2 * 160),
        ("aten::index_select", [[4, 90], [], [5]], [FLOAT, "", LONG], ["", "1"], 40 + 2 * 80),
        ("aten::index", [[90, 8], [[5]]], [FLOAT, "TensorList"], None, 40 + 2 * 160),
        ("aten::gather", [[4, 8], [], [4, 2]], [FLOAT, "", LONG], None, 64 + 64),
        ("aten::native_layer_norm", [[4, 8], [], [8], [8], []], FLOAT, None, 2 * 128 + 64),
        ("_C::silu_and_mul", [[4, 8], [4, 16]], BF16, None, 64 + 128),
        ("_C::fused_add_rms_norm", [[4, 8], [4, 8], [8], []], BF16, None, 4 * 64 + 16),
    ],
)  # fmt: skip
def test_operators_that_move_data(
    name: str, dims: list[Any], types: Any, values: list[str] | None, moved: int
) -> None:
    found = cost(name, dims, types, values)
    assert (found.flops, found.bytes) == (None, moved)


def test_dimensions_that_are_only_repeated_are_read_once() -> None:
    found = cost("aten::add", [[4, 8], [4, 8]], FLOAT, None, [[8, 1], [0, 1]])
    assert found.bytes == 128 + 32 + 128


def test_copies_between_host_and_device_do_not_use_its_memory_twice() -> None:
    copied = ("Memcpy HtoD (Pageable -> Device)",)
    found = cost("aten::copy_", [[4, 8], [4, 8]], FLOAT, kernels=copied)
    assert (found.bytes, found.over_bus) == (128, True)


def test_lists_count_all_tensors() -> None:
    # GIVEN lists, whose types a trace does not contain
    lists = [[[4, 8], [3]], [[4, 8], [3]], []]
    kernels = ("multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOp<float>>",)
    found = cost(
        "aten::_foreach_add_", lists, ["TensorList", "TensorList", "Scalar"], None, None, kernels
    )
    assert found.bytes == 3 * 35 * 4
    copied = ("CatArrayBatchedCopy<OpaqueType<2u>, unsigned int>",)
    found = cost("aten::cat", [[[4, 8], [4, 2]], []], ["TensorList", ""], kernels=copied)
    assert found.bytes == 2 * 40 * 2
    assert "type" in unknown("aten::cat", [[[4, 8], [4, 2]], []], ["TensorList", ""])


def test_kernels_of_triton_have_at_least_the_bytes_of_their_arguments() -> None:
    # GIVEN a bias of 8 that is added in place, and a slice of a larger tensor
    dims = [[4, 8], [8], [40, 8], []]
    found = cost("triton_poi_fused_add_1", dims, [BF16, BF16, BF16, "Scalar"], ["", "", "", "32"])
    assert (found.flops, found.bytes, found.bytes_at_least) == (None, 2 * (32 + 8 + 32), True)


@pytest.mark.parametrize(
    ("name", "dims", "flops", "moved"),
    [
        ("triton_tem_fused_mm_0", [[3, 5], [5, 7], [3, 7]], 2 * 105, 2 * (15 + 35 + 21)),
        # A bias and an activation are fused with the product.
        ("triton_tem_fused_addmm_relu_4", [[7], [3, 5], [5, 7], [3, 7]], 210, 2 * (7 + 71)),
        ("triton_tem_fused_bmm_1", [[2, 3, 5], [2, 5, 7], [2, 3, 7]], 420, 4 * 71),
        ("triton_tem_fused__to_copy_mm_2", [[4, 4], [4, 4], [4, 4]], 128, 2 * 48),
    ],
)  # fmt: skip
def test_templates_of_products(name: str, dims: list[Any], flops: int, moved: int) -> None:
    found = cost(name, [*dims, []], [BF16] * len(dims) + ["Scalar"], ["" for _ in dims] + ["64"])
    assert (found.flops, found.bytes) == (flops, moved)


@pytest.mark.parametrize(
    "dims", [[[3, 5], [5, 7]], [[3, 5], [6, 7], [3, 7]], [[3, 5], [5, 7], [3, 9], [9, 7], [3, 7]]]
)
def test_templates_whose_product_is_not_clear_are_unknown(dims: list[Any]) -> None:
    assert "do not show its product" in unknown("triton_tem_fused_mm_0", dims)


def test_other_templates_have_no_formula() -> None:
    dims = [[2, 4, 16, 8]] * 4
    assert cost_of(called("triton_tem_fused_flex_attention_0", dims)) is None


def test_an_operator_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stagespan.trace.rates.costs._REGISTERED", {})
    assert formula_of("mine::mlp") is None
    register_cost("mine::mlp", lambda call: Cost(6 * call.tensor(0).numel, call.tensor(0).bytes))
    assert cost("mine::mlp", [[4, 8]]) == Cost(192, 64)
    with pytest.raises(TypeError, match="pass a function"):
        register_cost("mine::mlp", 3)  # type: ignore[arg-type]


# Arguments as no profiler writes them: every formula says that the cost is unknown, or counts.
_NUMBERS = st.one_of(
    st.integers(-2, 9), st.integers(2**40, 2**70), st.floats(), st.text(max_size=2)
)
_DIMS = st.recursive(
    st.lists(st.integers(0, 9), max_size=5), lambda inner: st.lists(inner, max_size=3), max_leaves=4
)


@given(
    name=st.sampled_from(
        ["aten::mm", "aten::convolution_backward", "aten::_flash_attention_forward", "aten::topk",
         "aten::index", "aten::sum", "aten::add", "aten::cat", "aten::max_pool2d_with_indices",
         "aten::_efficient_attention_backward", "aten::_grouped_mm", "_C::rotary_embedding",
         "aiter::mha_batch_prefill", "triton_poi_fused_add_1", "aten::upsample_nearest2d",
         "vllm::inplace_fused_experts", "aten::convolution", "aten::_foreach_add_",
         "sageattention_qattn::qk_int8_sv_f16", "aten::matmul", "aten::linear_backward"]
    ),
    dims=st.lists(st.one_of(_DIMS, st.lists(_NUMBERS, max_size=4)), max_size=9),
    types=st.lists(st.sampled_from([FLOAT, BF16, "Scalar", "", "c10::Odd"]), max_size=9),
    values=st.lists(
        st.sampled_from(["", "True", "False", "1", "-3", "2.5", "[1, 2]", "[", "[1, x]", "x"]),
        max_size=16,
    ),
)  # fmt: skip
def test_no_arguments_make_a_formula_fail(
    name: str, dims: list[Any], types: list[str], values: list[str]
) -> None:
    call = call_of(name, json.dumps(dims), json.dumps(types), "[]", json.dumps(values))
    assert call is not None
    found = cost_of(call)
    if isinstance(found, Cost):
        assert (found.flops or 0) >= 0
        assert (found.bytes or 0) >= 0


# --- limits ---


def test_what_limits_a_call() -> None:
    assert limit_of(75.0, 36.0, 1e6) == "compute"
    assert limit_of(7.0, 88.0, 1e6) == "memory"
    assert limit_of(7.0, 30.0, 1e6) == "neither"
    assert limit_of(7.0, 30.0, 4_000) == "latency"
    assert limit_of(None, None, 1e6) is None


def test_why_products_are_slow() -> None:
    odd = called(
        "aten::bmm", [[96, 3137, 64], [96, 64, 3137]], BF16, None,
        [[200768, 64, 1], [200768, 3137, 1]],
    )  # fmt: skip
    found = cost_of(odd)
    assert isinstance(found, Cost)
    assert unaligned_sizes(odd, found) == [3137]
    assert reason_of(odd, found, "neither", 1e6) == "3,137 is odd"
    even = called("aten::addmm", [[30522], [141, 512], [512, 30522]])
    found = cost_of(even)
    assert isinstance(found, Cost)
    assert reason_of(even, found, "neither", 1e6) == "30,522 is not a multiple of 8"
    vector = called("aten::mm", [[1, 2880], [2880, 25136]])
    found = cost_of(vector)
    assert isinstance(found, Cost)
    assert reason_of(vector, found, "memory", 1e6) == "m = 1"
