"""The costs of matrix products and convolutions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial

from stagespan.trace.rates.calls import Call, Cost, CostUnknownError, Tensor


def _product(
    call: Call, first: int, second: int, *, added: int | None = None, transposed: bool = False
) -> Cost:
    """[m, k] x [k, n]; `added` is the argument that is added to the result.

    If `transposed`, the second argument is [n, k].
    """
    (m, k), (a, b) = call.dims(first, 2), call.dims(second, 2)
    inner, n = (b, a) if transposed else (a, b)
    return _checked(call, first, second, added, (1, m, n, k), inner)


def _batched(call: Call, first: int, second: int, *, added: int | None = None) -> Cost:
    """[b, m, k] x [b, k, n]."""
    (batch, m, k), (other, inner, n) = call.dims(first, 3), call.dims(second, 3)
    if batch != other:
        raise CostUnknownError(f"the batches {batch} and {other} differ")
    return _checked(call, first, second, added, (batch, m, n, k), inner)


def _checked(
    call: Call,
    first: int,
    second: int,
    added: int | None,
    product: tuple[int, int, int, int],
    inner: int,
    summed: bool = False,
) -> Cost:
    batch, m, n, k = product
    if k != inner:
        raise CostUnknownError(f"the inner dimensions {k} and {inner} of the product differ")
    left, right = call.tensor(first), call.tensor(second)
    moved = None
    if left.is_typed and right.is_typed:
        # The result has the type of the operands, but at least two bytes.
        result = (1 if summed else batch) * m * n * max(left.element_bytes, 2)
        more = call.tensor(added).bytes if added is not None and call.has(added) else 0
        moved = left.bytes + right.bytes + result + more
    return Cost(2 * batch * m * n * k, moved, left.type, product)


def _linear(call: Call, bias: int = 2) -> Cost:
    """[..., k] x [n, k]."""
    *outer, k = call.dims(0) or (1,)
    n, inner = call.dims(1, 2)
    return _checked(call, 0, 1, bias, (1, math.prod(outer), n, k), inner)


def _matmul(call: Call) -> Cost:
    """torch.matmul: vectors, matrices, and batches that are broadcast."""
    left, right = call.dims(0), call.dims(1)
    if not left or not right:
        raise CostUnknownError("an operand of the product has no dimensions")
    left, right = (1, *left) if len(left) == 1 else left, (*right, 1) if len(right) == 1 else right
    batch = math.prod(broadcast(left[:-2], right[:-2]))
    return _checked(call, 0, 1, None, (batch, left[-2], right[-1], left[-1]), right[-2])


def _vector(call: Call, first: int, second: int, *, added: int | None = None) -> Cost:
    (m, k), (inner,) = call.dims(first, 2), call.dims(second, 1)
    return _checked(call, first, second, added, (1, m, 1, k), inner)


def _dot(call: Call) -> Cost:
    (k,), (inner,) = call.dims(0, 1), call.dims(1, 1)
    return _checked(call, 0, 1, None, (1, 1, 1, k), inner)


def _summed(call: Call) -> Cost:
    """addbmm: the sum of all products of a batch."""
    (batch, m, k), (_, inner, n) = call.dims(1, 3), call.dims(2, 3)
    return _checked(call, 1, 2, 0, (batch, m, n, k), inner, summed=True)


def _grouped(call: Call) -> Cost:
    """_grouped_mm: each row, or each part of the inner dimension, belongs to one group."""
    left, right = call.dims(0), call.dims(1)
    sizes = {
        # Rows of the first belong to groups of the second, columns the other way round.
        (2, 3): (1, left[0], right[-1], left[-1]),
        (3, 2): (1, left[-2], right[-1], left[-1]),
        (2, 2): (1, left[0], right[-1], left[-1]),
        (3, 3): (left[0], left[-2], right[-1], left[-1]),
    }.get((len(left), len(right)))
    if sizes is None:
        raise CostUnknownError("the operands of the grouped product are not matrices")
    return _checked(call, 0, 1, None, sizes, right[-2])


def _linear_backward(call: Call) -> Cost:
    """linear_backward(input, gradient, weight, mask): a product for each of the first two."""
    n, k = call.dims(2, 2)
    rows = call.tensor(1).numel // max(n, 1)
    mask = call.value(3)
    wanted = [True, True] if not isinstance(mask, list) else [bool(each) for each in mask[:2]]
    inputs, gradient, weight = call.tensor(0), call.tensor(1), call.tensor(2)
    moved = gradient.bytes + (weight.bytes + inputs.bytes) * 2
    return Cost(2 * rows * n * k * sum(wanted), moved, weight.type, (1, rows, n, k))


# Operators of inference servers that run all chosen experts of a mixture.
_EXPERTS = re.compile(
    r"^(?:_?vllm\w*|sgl_kernel|sglang|aiter|_moe_C|_C|flashinfer)::\w*"
    r"(?:fused_?moe|fused_experts|moe_forward|fmoe|ck_moe|moe_fused)"
)
_NO_EXPERTS = "the weights of the experts are not among its arguments"


def formula_of(operator: str) -> Callable[[Call], Cost] | None:
    """Return the formula for operators that are known by a part of their name."""
    return _experts if _EXPERTS.search(operator) else None


def _experts(call: Call) -> Cost:
    """Products of each token with the experts that are chosen for it.

    The arguments are found by their shapes: tokens [t, h], the first weights [e, n, h] (gate and
    up), the second ones [e, h, i], and the weights or numbers of the chosen experts [t, k].
    """
    tensors = call.all_tensors()
    weights = [each for each in tensors if len(each.dims) == 3]
    flat = [each for each in tensors if len(each.dims) == 2]
    if len(weights) < 2 or not flat:
        raise CostUnknownError(_NO_EXPERTS)
    tokens, first, second = flat[0], weights[0], weights[1]
    (count, hidden), (experts, wide, _), (_, _, inner) = tokens.dims, first.dims, second.dims
    if first.dims[2] != hidden or second.dims[:2] != (experts, hidden):
        raise CostUnknownError("the weights of the experts do not fit the tokens")
    chosen = [each.dims[1] for each in flat[1:] if each.dims[0] == count]
    if not chosen or min(chosen) > experts:
        raise CostUnknownError("the number of experts of a token is not in the trace")
    pairs = count * min(chosen)
    read = min(experts, pairs) / max(experts, 1) * (first.bytes + second.bytes)
    return Cost(
        2 * pairs * (wide * hidden + hidden * inner),
        2 * tokens.bytes + read,
        first.type,
        (1, pairs, wide, hidden),
    )


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape to which shapes are broadcast. Raises CostUnknownError if they differ."""
    most = max(map(len, shapes), default=0)
    padded = [(1,) * (most - len(shape)) + shape for shape in shapes]
    result = []
    for sizes in zip(*padded, strict=True):
        different = set(sizes) - {1}
        if len(different) > 1:
            raise CostUnknownError(f"the dimensions {sorted(different)} cannot be broadcast")
        result.append(different.pop() if different else 1)
    return tuple(result)


# --- convolutions ---


def _convolved(out: int, spatial: tuple[int, ...], weight: Tensor, image: Tensor) -> Cost:
    """The products of a convolution: one for each output position and each element of a filter."""
    batch = image.dims[0]
    result = batch * out * math.prod(spatial)
    flops = 2 * batch * math.prod(spatial) * math.prod(weight.dims)
    return Cost(flops, _moved(image, weight, result), image.type)


def _moved(image: Tensor, weight: Tensor, result: int) -> float | None:
    """Return the bytes of a convolution whose result has so many elements."""
    if not image.is_typed or not weight.is_typed:
        return None
    return image.bytes + weight.bytes + result * image.element_bytes


def _convolution(
    call: Call,
    *,
    padding: int,
    stride: int,
    dilation: int | None,
    transposed: bool = False,
    transposed_at: int | None = None,
    extra: int | None = None,
    groups: int | None = None,
) -> Cost:
    """A forward convolution; the arguments are the positions of its lists and of the flag."""
    image, weight = call.tensor(0), call.tensor(1)
    if len(image.dims) < 3 or len(weight.dims) != len(image.dims):
        raise CostUnknownError("the arguments are not a batch of images and filters")
    back = transposed if transposed_at is None else call.flag(transposed_at)
    count = len(image.dims) - 2
    pads, steps = _spread(call.integers(padding), count), _spread(call.integers(stride), count)
    apart = [1] * count if dilation is None else _spread(call.integers(dilation), count)
    sizes = zip(image.dims[2:], weight.dims[2:], pads, steps, apart, strict=True)
    if back:
        # Each element of the input is multiplied with each filter.
        more = [0] * count if extra is None else _spread(call.integers(extra), count)
        spatial = tuple(
            (size - 1) * step - 2 * pad + gap * (width - 1) + 1 + add
            for (size, width, pad, step, gap), add in zip(sizes, more, strict=True)
        )
        flops = 2 * image.numel // max(image.dims[1], 1) * math.prod(weight.dims)
        parts = None if groups is None else call.integer(groups)
        out = weight.dims[1] * max(parts or 1, 1)
        result = image.dims[0] * out * math.prod(spatial)
        return Cost(flops, _moved(image, weight, result), image.type)
    spatial = tuple(
        (size + 2 * pad - gap * (width - 1) - 1) // max(step, 1) + 1
        for size, width, pad, step, gap in sizes
    )
    if any(size <= 0 for size in spatial):
        raise CostUnknownError("the filters of the convolution are larger than its input")
    return _convolved(weight.dims[0], spatial, weight, image)


def _spread(values: list[int], count: int) -> list[int]:
    """One number counts for all dimensions."""
    spread = values * count if len(values) == 1 else values
    if len(spread) != count:
        raise CostUnknownError(f"a list of the convolution has {len(values)} numbers, not {count}")
    return spread


def _convolution_backward(call: Call) -> Cost:
    """convolution_backward(gradient, input, weight, ..., transposed, ..., groups, mask)."""
    gradient, image, weight = call.tensor(0), call.tensor(1), call.tensor(2)
    return _backward(gradient, image, weight, call.flag(7), call.value(10))


def _library_backward(call: Call) -> Cost:
    """cudnn_convolution_backward(input, gradient, weight, ..., mask) of torch before 1.11."""
    masks = [each for each in call.values if isinstance(each, list) and _is_mask(each)]
    image, gradient, weight = call.tensor(0), call.tensor(1), call.tensor(2)
    return _backward(gradient, image, weight, False, masks[-1] if masks else None)


def _is_mask(values: Sequence[object]) -> bool:
    return bool(values) and all(isinstance(each, bool) for each in values)


def _backward(
    gradient: Tensor,
    image: Tensor,
    weight: Tensor,
    transposed: bool,
    mask: object,
) -> Cost:
    if len(gradient.dims) < 3 or len(image.dims) < 3:
        raise CostUnknownError("the arguments are not batches of images")
    wanted = [bool(each) for each in mask[:2]] if isinstance(mask, list) else [True, True]
    over = image if transposed else gradient
    once = 2 * over.numel // max(over.dims[1], 1) * math.prod(weight.dims)
    moved = None
    if gradient.is_typed and image.is_typed and weight.is_typed:
        # For each gradient: it is written, and the other two are read.
        all_bytes = gradient.bytes + weight.bytes + image.bytes
        moved = all_bytes * sum(wanted)
    return Cost(once * sum(wanted), moved, image.type)


_AT_TWO = partial(_convolution, padding=2, stride=3, dilation=4)
_AT_THREE = partial(_convolution, padding=3, stride=4, dilation=5)
_ATEN = partial(_convolution, stride=3, padding=4, dilation=5, transposed_at=6, extra=7, groups=8)
_HIGH_LEVEL = partial(_convolution, stride=3, padding=4, dilation=5)
_BACK = partial(_convolution, transposed=True)
_TRANSPOSED = partial(_BACK, stride=3, padding=4, extra=5, groups=6, dilation=7)


def _named(formula: Callable[[Call], Cost], *names: str) -> dict[str, Callable[[Call], Cost]]:
    return dict.fromkeys(names, formula)


FORMULAS: dict[str, Callable[[Call], Cost]] = {
    **_named(
        partial(_product, first=0, second=1),
        *("aten::mm", "aten::_int_mm", "aten::_scaled_mm", "aten::_scaled_mm_v2"),
    ),
    **_named(
        partial(_product, first=1, second=2, added=0), "aten::addmm", "aten::_addmm_activation"
    ),
    **_named(
        partial(_product, first=1, second=2),
        *("_C::cutlass_scaled_mm", "_C::cutlass_scaled_mm_azp", "_C::cutlass_scaled_fp4_mm"),
    ),
    "aten::mv": partial(_vector, first=0, second=1),
    "aten::addmv": partial(_vector, first=1, second=2, added=0),
    **_named(_dot, "aten::dot", "aten::vdot"),
    "aten::bmm": partial(_batched, first=0, second=1),
    "aten::baddbmm": partial(_batched, first=1, second=2, added=0),
    "aten::addbmm": _summed,
    "aten::_grouped_mm": _grouped,
    "aten::_scaled_grouped_mm": _grouped,
    "aten::matmul": _matmul,
    **_named(
        _linear,
        *("aten::linear", "aten::mkldnn_linear", "aten::_mkldnn_linear"),
        *("mkldnn::_linear_pointwise", "aten::_mixed_dtypes_linear"),
    ),
    "aten::linear_backward": _linear_backward,
    **_named(_ATEN, "aten::convolution", "aten::_convolution", "aten::convolution_overrideable"),
    **_named(_HIGH_LEVEL, "aten::conv1d", "aten::conv2d", "aten::conv3d"),
    **_named(
        _TRANSPOSED,
        *("aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d"),
    ),
    "aten::cudnn_convolution": _AT_TWO,
    **_named(
        _AT_THREE,
        *("aten::mkldnn_convolution", "aten::miopen_convolution"),
        *("aten::miopen_depthwise_convolution", "mkldnn::_convolution_pointwise"),
    ),
    **_named(
        partial(_convolution, stride=3, padding=4, dilation=5),
        *("aten::cudnn_convolution_relu", "aten::miopen_convolution_relu"),
    ),
    **_named(
        partial(_convolution, stride=5, padding=6, dilation=7),
        *("aten::cudnn_convolution_add_relu", "aten::miopen_convolution_add_relu"),
    ),
    **_named(
        partial(_BACK, padding=2, extra=3, stride=4, dilation=5, groups=6),
        "aten::cudnn_convolution_transpose",
    ),
    **_named(
        partial(_BACK, padding=3, extra=4, stride=5, dilation=6, groups=7),
        *("aten::miopen_convolution_transpose", "mkldnn::_convolution_transpose_pointwise"),
    ),
    **_named(
        partial(_convolution, stride=4, padding=5, dilation=None),
        *("aten::_slow_conv2d_forward", "aten::thnn_conv2d", "aten::slow_conv3d_forward"),
    ),
    **_named(
        partial(_convolution, stride=4, padding=5, dilation=6),
        *("aten::_conv_depthwise2d", "aten::conv_depthwise3d", "aten::slow_conv_dilated2d"),
    ),
    **_named(
        partial(_BACK, stride=4, padding=5, extra=6, dilation=7),
        *("aten::slow_conv_transpose2d", "aten::slow_conv_transpose3d"),
    ),
    "aten::convolution_backward": _convolution_backward,
    "aten::convolution_backward_overrideable": _convolution_backward,
    **_named(
        _library_backward,
        *("aten::cudnn_convolution_backward", "aten::miopen_convolution_backward"),
        *("aten::mkldnn_convolution_backward", "aten::thnn_conv2d_backward"),
    ),
}
