"""The costs of operators that are limited by memory: each tensor is read and written once."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial

from stagespan.trace.derived.kernel_kinds import ELEMENTWISE, kind_of
from stagespan.trace.rates.calls import Call, Cost, CostUnknownError, Tensor
from stagespan.trace.rates.products import broadcast

_Formula = Callable[[Call], Cost]
_COMPARES = re.compile(
    r"::(?:eq|ne|lt|le|gt|ge|isnan|isinf|isfinite|isneginf|isposinf|logical_\w+|signbit)$"
)
_OVER_BUS = re.compile(r"HtoD|DtoH|HostToDevice|DeviceToHost|PtoP", re.IGNORECASE)
_FLOATING = re.compile(r"double|float|c10::(?:Half|BFloat16|Float|complex)")


def _moved(bytes_: float, call: Call) -> Cost:
    tensors = call.all_tensors()
    return Cost(None, bytes_, tensors[0].type if tensors else "")


def _read(call: Call, *at: int) -> float:
    """Return the bytes of the tensors among these arguments; those that are absent are left out."""
    return sum(call.tensor(each).bytes for each in at if call.has(each))


def _elementwise(call: Call) -> Cost:
    """Reads all tensors and writes the result, which is broadcast; in place, the first tensor."""
    tensors = call.all_tensors()
    if not tensors:
        raise CostUnknownError("the call has no tensors in the trace")
    read = sum(tensor.bytes for tensor in tensors)
    if call.name.endswith("_") and not call.name.endswith("__"):
        return _moved(read + tensors[0].bytes, call)
    size = 1.0 if _COMPARES.search(call.name) else _promoted(tensors).element_bytes
    written = math.prod(broadcast(*(tensor.dims for tensor in tensors))) * size
    return _moved(read + written, call)


def _promoted(tensors: list[Tensor]) -> Tensor:
    """Return the tensor whose type the result has. Numbers do not change the type of a tensor."""
    shaped = [tensor for tensor in tensors if tensor.dims] or tensors
    return max(shaped, key=lambda each: (bool(_FLOATING.match(each.type)), each.element_bytes))


def _reads_and_writes(call: Call, *, read: tuple[int, ...], written: tuple[int, ...]) -> Cost:
    """Reads some arguments and writes tensors of the size of some arguments."""
    call.tensor(written[0] if written else read[0])
    return _moved(_read(call, *read) + _read(call, *written), call)


def _softmax(call: Call) -> Cost:
    """_softmax(input, dim, half_to_float)."""
    tensor = call.tensor(0)
    size = 4 if call.value(2) is True else tensor.element_bytes
    return _moved(tensor.bytes + tensor.numel * size, call)


def _normalised(call: Call) -> Cost:
    """Reads the input and all parameters, and writes a tensor like the input."""
    return _moved(sum(each.bytes for each in call.all_tensors()) + call.tensor(0).bytes, call)


def _normalised_backward(call: Call) -> Cost:
    """Reads everything, and writes a gradient of the input and one of each parameter."""
    call.tensor(1)
    first = call.tensor(0)
    tensors = call.all_tensors()
    parameters = [each for each in tensors[2:] if len(each.dims) < len(first.dims)]
    # Means and deviations are as long as the batch; the weight is the smallest.
    weight = min((each.bytes for each in parameters), default=0.0)
    return _moved(sum(each.bytes for each in tensors) + first.bytes + 2 * weight, call)


def _reduced(call: Call) -> Cost:
    """Reads the input and writes what is left of it: (input, dims, ...)."""
    tensor = call.tensor(0)
    found = call.value(1)
    dims = found if isinstance(found, list) else [found]
    rank = len(tensor.dims)
    at = [each for each in dims if type(each) is int and -rank <= each < rank]
    gone = math.prod({each % rank: tensor.dims[each] for each in at}.values())
    left = tensor.numel // max(gone, 1) if at else 1
    return _moved(tensor.bytes + left * tensor.element_bytes, call)


def _chosen(call: Call) -> Cost:
    """topk(input, k, dim): reads the input, writes k values and their places for each row."""
    tensor, count = call.tensor(0), call.integer(1)
    found = call.integer(2)
    dim = -1 if found is None else found
    if count is None or not -len(tensor.dims) <= dim < len(tensor.dims):
        raise CostUnknownError("the number of values is not in the trace")
    written = tensor.numel // max(tensor.dims[dim], 1) * count
    return _moved(tensor.bytes + written * (tensor.element_bytes + 8), call)


def _sorted(call: Call) -> Cost:
    tensor = call.tensor(0)
    return _moved(tensor.bytes + tensor.numel * (tensor.element_bytes + 8), call)


def _gathered(call: Call, *, source: int, index: int, dim: int | None = None) -> Cost:
    """Reads an index and writes, for each of its elements, a slice of the source.

    `dim` is the argument that says which dimension the index replaces; by default it is the first.
    """
    table, places = call.tensor(source), call.tensor(index)
    at = 0 if dim is None else call.integer(dim)
    if at is None or not -len(table.dims) <= at < len(table.dims):
        raise CostUnknownError("the dimension of the index is not in the trace")
    written = places.numel * (table.numel // max(table.dims[at], 1)) * table.element_bytes
    return _moved(places.bytes + 2 * written, call)


def _gather(call: Call) -> Cost:
    """gather(input, dim, index): one element for each of the index."""
    places = call.tensor(2)
    return _moved(places.bytes + 2 * places.numel * call.tensor(0).element_bytes, call)


def _indexed(call: Call) -> Cost:
    """index(input, [indices]): the leading dimensions are replaced by those of the indices."""
    source, indices = call.tensor(0), call.tensors(1)
    if not indices or len(indices) > len(source.dims):
        raise CostUnknownError("the shapes of the indices are not in the trace")
    picked = math.prod(broadcast(*(each.dims for each in indices)))
    written = picked * math.prod(source.dims[len(indices) :]) * source.element_bytes
    # Indices are integers of 8 bytes, whatever the kernel's type.
    return _moved(8 * sum(each.stored for each in indices) + 2 * written, call)


def _scattered(call: Call, *, index: int, values: int, adds: bool = False) -> Cost:
    """Reads an index and the values, and writes an element for each of the index."""
    places, target = call.tensor(index), call.tensor(0)
    read = call.tensor(values).bytes if call.has(values) else 0.0
    written = places.numel * target.element_bytes * (2 if adds else 1)
    return _moved(places.bytes + read + written, call)


def _embedded_backward(call: Call) -> Cost:
    """embedding_dense_backward(gradient, indices, number of rows): writes all rows."""
    gradient, rows = call.tensor(0), call.integer(2)
    if rows is None or not gradient.dims:
        raise CostUnknownError("the number of embeddings is not in the trace")
    written = rows * gradient.dims[-1] * gradient.element_bytes
    return _moved(gradient.bytes + call.tensor(1).bytes + written, call)


def _joined(call: Call) -> Cost:
    """cat(tensors): reads and writes all of them."""
    tensors = call.tensors(0)
    if not tensors:
        raise CostUnknownError("the shapes of the tensors are not in the trace")
    read = sum(each.bytes for each in tensors)
    written = sum(each.numel * each.element_bytes for each in tensors)
    return Cost(None, read + written, tensors[0].type)


def _of_lists(call: Call, *, written: tuple[int, ...] = (0,), read: bool = True) -> Cost:
    """Reads all lists of tensors, and writes some of them."""
    lists = [call.tensors(at) for at in range(len(call.arguments))]
    if not any(lists):
        raise CostUnknownError("the shapes of the tensors are not in the trace")
    total = sum(each.bytes for tensors in lists for each in tensors) if read else 0.0
    total += sum(each.bytes for at in written if at < len(lists) for each in lists[at])
    kinds = [each.type for tensors in lists for each in tensors]
    return Cost(None, total, kinds[0])


def _copied_lists(call: Call) -> Cost:
    """_foreach_copy_(targets, sources)."""
    if not call.tensors(0) or not call.tensors(1):
        raise CostUnknownError("the shapes of the tensors are not in the trace")
    moved = sum(each.bytes for at in (0, 1) for each in call.tensors(at))
    return Cost(None, moved, call.tensors(0)[0].type)


def _copied(call: Call) -> Cost:
    """copy_(target, source)."""
    source, target = call.tensor(1), call.tensor(0)
    if call.kernels and _OVER_BUS.search(call.kernels[0]):
        return Cost(None, source.bytes, source.type, over_bus=True)
    return _moved(source.bytes + target.bytes, call)


def _resized(call: Call) -> Cost:
    """upsample_*(input, size): the size is a list, or else factors that are not looked at."""
    tensor = call.tensor(0)
    size = call.integers(1)
    if len(tensor.dims) != len(size) + 2:
        raise CostUnknownError("the size of the result is not in the trace")
    written = tensor.dims[0] * tensor.dims[1] * math.prod(size) * tensor.element_bytes
    return _moved(tensor.bytes + written, call)


def _pooled(call: Call, *, places: int) -> Cost:
    """(input, size, stride, padding, ...): `places` are bytes of an index for each result."""
    tensor = call.tensor(0)
    size = call.integers(1)
    count = len(tensor.dims) - 2
    strides, pads = call.value(2), call.value(3)
    steps = strides if isinstance(strides, list) and strides else size
    around = pads if isinstance(pads, list) else [0]
    lists = [list(each) * count if len(each) == 1 else list(each) for each in (size, steps, around)]
    if count < 1 or any(len(each) != count for each in lists):
        raise CostUnknownError("the size of the pooling is not in the trace")
    spatial = [
        (each + 2 * int(pad) - int(width)) // max(int(step), 1) + 1
        for each, width, step, pad in zip(tensor.dims[2:], *lists, strict=True)
    ]
    result = math.prod(tensor.dims[:2]) * math.prod(max(each, 0) for each in spatial)
    return _moved(tensor.bytes + result * (tensor.element_bytes + places), call)


def _rotated(call: Call) -> Cost:
    """rotary_embedding(positions, queries, keys, size, table, ...): in place."""
    moved = 2 * _read(call, 1, 2) + _read(call, 0)
    table = call.tensor(4, 2)
    return _moved(moved + call.tensor(0).numel * table.dims[1] * table.element_bytes, call)


def _cached(call: Call) -> Cost:
    """reshape_and_cache(keys, values, cache of keys, cache of values, places, ...)."""
    written = sum(
        call.tensor(at).numel * call.tensor(to).element_bytes for at, to in ((0, 2), (1, 3))
    )
    return _moved(_read(call, 0, 1, 4) + written, call)


def _every(call: Call, *, twice: tuple[int, ...] = ()) -> Cost:
    """Reads or writes each tensor once; those in `twice` are read and written."""
    if not call.all_tensors():
        raise CostUnknownError("the call has no tensors in the trace")
    return _moved(sum(each.bytes for each in call.all_tensors()) + _read(call, *twice), call)


def _as(formula: _Formula, *names: str) -> dict[str, _Formula]:
    return dict.fromkeys(names, formula)


def _aten(formula: _Formula, *names: str) -> dict[str, _Formula]:
    return {f"aten::{name}": formula for name in names}


_SAME_SIZE = partial(_reads_and_writes, read=(0,), written=(0,))

FORMULAS: dict[str, _Formula] = {
    **_aten(_copied, "copy_"),
    **_aten(partial(_reads_and_writes, read=(), written=(0,)), "fill_", "zero_"),
    **_aten(
        partial(_reads_and_writes, read=(), written=(0,)),
        *("bernoulli_", "normal_", "uniform_", "random_", "exponential_"),
    ),
    **_aten(_SAME_SIZE, "cumsum", "cumprod", "flip", "roll", "clone", "contiguous", "_to_copy"),
    **_aten(_joined, "cat", "stack", "_cat"),
    **_aten(_softmax, "_softmax", "_log_softmax", "softmax", "log_softmax"),
    **_aten(
        partial(_reads_and_writes, read=(0, 1), written=(0,)),
        *("_softmax_backward_data", "_log_softmax_backward_data"),
    ),
    **_aten(
        _normalised,
        *("native_layer_norm", "layer_norm", "native_group_norm", "native_batch_norm"),
        *("cudnn_batch_norm", "miopen_batch_norm", "_batch_norm_with_update", "batch_norm"),
        *("_fused_rms_norm", "rms_norm", "_batch_norm_no_update", "batch_norm_elemt"),
    ),
    **_aten(
        _normalised_backward,
        *("native_layer_norm_backward", "native_group_norm_backward", "batch_norm_backward"),
        *("native_batch_norm_backward", "cudnn_batch_norm_backward"),
        *("miopen_batch_norm_backward", "_fused_rms_norm_backward"),
    ),
    **_aten(
        _reduced,
        *("sum", "mean", "amax", "amin", "prod", "any", "all", "logsumexp", "nansum"),
        *("argmax", "argmin", "max", "min", "std", "var", "var_mean"),
    ),
    **_aten(partial(_reads_and_writes, read=(0,), written=()), "linalg_vector_norm", "norm"),
    **_aten(_chosen, "topk"),
    **_aten(_sorted, "sort", "argsort"),
    **_aten(partial(_gathered, source=0, index=1), "embedding"),
    **_aten(partial(_gathered, source=0, index=2, dim=1), "index_select"),
    **_aten(_gather, "gather"),
    **_aten(_indexed, "index"),
    **_aten(partial(_scattered, index=2, values=3), "scatter_", "scatter"),
    **_aten(partial(_scattered, index=2, values=3, adds=True), "scatter_add_", "scatter_add"),
    **_aten(_embedded_backward, "embedding_dense_backward"),
    **_aten(_resized, "upsample_nearest2d", "upsample_nearest1d", "upsample_nearest3d"),
    **_aten(_resized, "upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bicubic2d_aa"),
    **_aten(partial(_pooled, places=8), "max_pool2d_with_indices", "max_pool3d_with_indices"),
    **_aten(partial(_pooled, places=0), "avg_pool2d", "avg_pool3d", "max_pool2d"),
    # Parameters, gradients and moments are read; all but the gradients are written.
    **_aten(
        partial(_of_lists, written=(0, 2, 3)),
        *("_fused_adam_", "_fused_adamw_", "_fused_adam", "_fused_adamw"),
    ),
    **_aten(partial(_of_lists, written=(0, 2)), "_fused_sgd_", "_fused_sgd", "_fused_adagrad_"),
    **_aten(partial(_of_lists, written=()), "_foreach_norm", "_foreach_max"),
    **_aten(partial(_of_lists, read=False), "_foreach_zero_"),
    **_aten(_copied_lists, "_foreach_copy_"),
    # Operators of inference servers: the result is the first argument, or one is changed in place.
    **_as(
        _every,
        *("_C::rms_norm", "_C::silu_and_mul", "_C::gelu_and_mul", "_C::gelu_tanh_and_mul"),
        *("_C::static_scaled_fp8_quant", "_C::dynamic_scaled_fp8_quant", "_C::mul_and_silu"),
        *("_C::dynamic_per_token_scaled_fp8_quant", "_C::static_scaled_int8_quant"),
        *("sgl_kernel::silu_and_mul", "sgl_kernel::rmsnorm", "sgl_kernel::gelu_and_mul"),
        *("aiter::silu_and_mul", "aiter::gelu_and_mul", "aiter::rms_norm", "aiter::rmsnorm"),
        *("sgl_kernel::gelu_tanh_and_mul", "_C::rms_norm_static_fp8_quant"),
    ),
    **_as(
        partial(_every, twice=(0, 1)),
        *("_C::fused_add_rms_norm", "sgl_kernel::fused_add_rmsnorm"),
    ),
    **_as(_normalised, "aiter::_groupnorm_run", "aiter::rmsnorm2d_fwd", "aiter::layernorm2d_fwd"),
    **_as(_rotated, "_C::rotary_embedding"),
    **_as(_cached, "_C_cache_ops::reshape_and_cache_flash", "_C_cache_ops::reshape_and_cache"),
}


def formula_of(operator: str) -> _Formula | None:
    """Return the formula for lists of tensors and for elementwise operators, by their name."""
    if operator.startswith("aten::_foreach_"):
        return _of_lists  # in place or not, as many elements are written as are in the first
    if operator.startswith("aten::") and (
        kind_of(operator) == ELEMENTWISE or _COMPARES.search(operator)
    ):
        return _elementwise
    return None
