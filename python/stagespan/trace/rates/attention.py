"""The costs of attention: two products for each pair of a query and a key that is not masked."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Literal

import msgspec
import numpy as np

from stagespan.trace.rates.calls import Call, Cost, CostUnknownError, Tensor

_NO_LENGTHS = "the lengths of the sequences are not in the trace"
_LONGEST = 2**24

Mask = Literal["none", "top_left", "bottom_right"]
"""How a causal mask is aligned if there are more keys than queries, or fewer."""
Layout = Literal["heads_first", "heads_last"]
"""[b, h, s, d], or [b, s, h, d]."""


def pairs(queries: int, keys: int, mask: Mask, left: int = -1, right: int = -1) -> int:
    """Return the number of pairs of a query and a key that a mask lets through.

    `left` and `right` are the sizes of a window around the diagonal; -1 is unlimited. The diagonal
    is that of the mask; without a mask, it ends at the last query and key.
    """
    if mask == "none" and left < 0 and right < 0:
        return queries * keys
    if max(queries, keys) > _LONGEST:
        raise CostUnknownError(f"a sequence of {max(queries, keys):,} is not plausible")
    right = 0 if mask != "none" else right
    # The key on the diagonal of each query.
    centre = np.arange(queries) + (0 if mask == "top_left" else keys - queries)
    first = np.maximum(centre - left, 0) if left >= 0 else np.zeros(queries, dtype=np.int64)
    last = np.minimum(centre + right, keys - 1) if right >= 0 else np.full(queries, keys - 1)
    return int(np.maximum(last - first + 1, 0).sum())


class _Attention(msgspec.Struct, frozen=True):
    """Where an operator has its arguments; all are positions, -1 for those that it has not."""

    layout: Layout
    causal: int = -1
    """A boolean."""
    mask_type: int = -1
    """An integer: 1 is a causal mask from the top left, 2 from the bottom right."""
    query: int = 0
    """The first of three tensors: queries, keys, values."""
    lengths: int = -1
    """The ends of sequences that follow one another in one tensor; the next argument has those of
    the keys. If they are given, the tensors have no dimension of a batch."""
    longest: int = -1
    """The length of the longest sequence; the next argument has that of the keys."""
    window: int = -1
    """The sizes of a window to the left and, in the next argument, to the right."""
    aligned: Mask = "top_left"
    backward: bool = False
    pages: bool = False
    """Whether keys and values are pages of a cache, so that only `longest` tells their number."""

    def __call__(self, call: Call) -> Cost:
        query, key, value = (call.tensor(self.query + at) for at in range(3))
        if self.pages or (self.lengths >= 0 and call.has(self.lengths)):
            return self._of_lengths(call, query, key, value)
        (batch, heads, queries, depth), (_, _, keys, _) = self._four(query), self._four(key)
        return self._cost(batch, heads, queries, keys, depth, (query, key, value), call)

    def _four(self, tensor: Tensor) -> tuple[int, int, int, int]:
        """Return batch, heads, length and depth."""
        if len(tensor.dims) == 3:
            # Without heads, the first dimension is the batch in either layout.
            return tensor.dims[0], 1, tensor.dims[1], tensor.dims[2]
        if len(tensor.dims) != 4:
            raise CostUnknownError(f"a tensor of attention has {len(tensor.dims)} dimensions")
        one, two, three, four = tensor.dims
        return (one, two, three, four) if self.layout == "heads_first" else (one, three, two, four)

    def _of_lengths(self, call: Call, query: Tensor, key: Tensor, value: Tensor) -> Cost:
        """Sequences in one tensor: known if all are as long as the longest."""
        total, heads, depth = _three(query)
        count = max(call.tensor(self.lengths, 1).numel - 1, 0)
        queries, keys = call.integer(self.longest), call.integer(self.longest + 1)
        if queries is None or keys is None or count * queries != total:
            raise CostUnknownError(_NO_LENGTHS)
        if count != 1 and (self.pages or count * keys != _three(key)[0]):
            raise CostUnknownError(_NO_LENGTHS)
        if not self.pages:
            return self._cost(count, heads, queries, keys, depth, (query, key, value), call)
        of_keys = 2 * count * keys * key.dims[-1] * key.dims[-2] * key.element_bytes
        found = self._cost(count, heads, queries, keys, depth, (query, query, query), call)
        return Cost(found.flops, 2 * query.bytes + of_keys, query.type)

    def _cost(
        self,
        batch: int,
        heads: int,
        queries: int,
        keys: int,
        depth: int,
        tensors: tuple[Tensor, Tensor, Tensor],
        call: Call,
    ) -> Cost:
        query, key, value = tensors
        wide = value.dims[-1]
        count = pairs(queries, keys, self._mask(call), *self._window(call))
        result = math.prod(query.dims[:-1]) * wide * query.element_bytes
        moved = query.bytes + key.bytes + value.bytes + result
        if not self.backward:
            return Cost(2 * batch * heads * count * (depth + wide), moved, query.type)
        # Recomputes the weights and has two products for each of the two; torch counts the same.
        flops = 2 * batch * heads * count * (3 * depth + 2 * wide)
        return Cost(flops, 2 * moved, query.type)

    def _mask(self, call: Call) -> Mask:
        if self.causal >= 0:
            return self.aligned if call.flag(self.causal) else "none"
        if self.mask_type >= 0:
            kind = call.integer(self.mask_type)
            if kind not in (0, 1, 2):
                raise CostUnknownError("the mask of the attention is not in the trace")
            return ("none", "top_left", "bottom_right")[kind]
        return "none"

    def _window(self, call: Call) -> tuple[int, int]:
        if self.window < 0:
            return -1, -1
        left, right = call.integer(self.window), call.integer(self.window + 1)
        return -1 if left is None else left, -1 if right is None else right


def _three(tensor: Tensor) -> tuple[int, int, int]:
    """Return the number of elements of all sequences, the heads and the depth."""
    dims = tensor.dims[1:] if len(tensor.dims) == 4 and tensor.dims[0] == 1 else tensor.dims
    if len(dims) != 3:
        raise CostUnknownError(f"a tensor of attention has {len(tensor.dims)} dimensions")
    return dims[0], dims[1], dims[2]


FORMULAS: dict[str, Callable[[Call], Cost]] = {
    "aten::scaled_dot_product_attention": _Attention("heads_first", causal=5),
    "aten::_scaled_dot_product_flash_attention": _Attention("heads_first", causal=4),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _Attention("heads_first", causal=4),
    "aten::_scaled_dot_product_efficient_attention": _Attention("heads_first", causal=6),
    "aten::_scaled_dot_product_cudnn_attention": _Attention("heads_first", causal=6),
    "aten::_scaled_dot_product_fused_attention_overrideable": _Attention("heads_first", causal=5),
    "aten::_flash_attention_forward": _Attention(
        "heads_last", causal=8, lengths=3, longest=5, window=11, aligned="bottom_right"
    ),
    "aten::_efficient_attention_forward": _Attention(
        "heads_last", mask_type=9, lengths=4, longest=6
    ),
    "aten::_scaled_dot_product_flash_attention_backward": _Attention(
        "heads_first", causal=11, query=1, backward=True
    ),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _Attention(
        "heads_first", causal=7, query=1, backward=True
    ),
    "aten::_scaled_dot_product_efficient_attention_backward": _Attention(
        "heads_first", causal=11, query=1, backward=True
    ),
    "aten::_scaled_dot_product_cudnn_attention_backward": _Attention(
        "heads_first", causal=14, query=1, backward=True
    ),
    "aten::_flash_attention_backward": _Attention(
        "heads_last",
        causal=11,
        query=1,
        lengths=6,
        longest=8,
        window=15,
        aligned="bottom_right",
        backward=True,
    ),
    "aten::_efficient_attention_backward": _Attention(
        "heads_last", mask_type=14, query=1, lengths=6, longest=8, backward=True
    ),
    "flash_attn::_flash_attn_forward": _Attention(
        "heads_last", causal=5, window=6, aligned="bottom_right"
    ),
    "flash_attn::_flash_attn_backward": _Attention(
        "heads_last", causal=11, query=1, window=12, aligned="bottom_right", backward=True
    ),
    "flash_attn::_flash_attn_varlen_forward": _Attention(
        "heads_last", causal=9, lengths=3, longest=5, window=10, aligned="bottom_right"
    ),
    "aiter::mha_fwd": _Attention("heads_last", causal=5, window=6, aligned="bottom_right"),
    "aiter::fmha_v3_fwd": _Attention("heads_last", causal=5, window=6, aligned="bottom_right"),
    "aiter::mha_batch_prefill": _Attention(
        "heads_last", causal=12, lengths=3, longest=6, aligned="bottom_right", pages=True
    ),
}
# Operators of inference servers, which read keys of sequences of unknown lengths from a cache.
_SERVED = re.compile(
    r"^(?:_?vllm\w*|sgl_kernel|sglang|aiter|_C|torch_ipex|flashinfer)::\w*"
    r"(?:unified_attention|paged_attention|mla_|mha_|fmha|attn|attention|decode)"
)
_SAGE = re.compile(r"^sageattention\w*::qk_int8_sv_")


def formula_of(operator: str) -> Callable[[Call], Cost] | None:
    """Return the formula for operators that are known by a part of their name."""
    if _SAGE.search(operator):
        return _sage
    return _unknown_lengths if _SERVED.search(operator) else None


def _unknown_lengths(call: Call) -> Cost:
    raise CostUnknownError(_NO_LENGTHS)


def _sage(call: Call) -> Cost:
    """SageAttention: queries, keys, values, result, scales, then the layout and the causal flag."""
    first = next((at for at in range(4, len(call.arguments)) if call.integer(at) is not None), -1)
    layout, causal = call.integer(first), call.integer(first + 1)
    if layout not in (0, 1) or causal not in (0, 1):
        raise CostUnknownError("the layout of the attention is not in the trace")
    placed: Layout = "heads_first" if layout else "heads_last"
    found = _Attention(placed)
    query, key, result = call.tensor(0), call.tensor(1), call.tensor(3)
    (batch, heads, queries, depth), (_, _, keys, _) = found._four(query), found._four(key)
    count = pairs(queries, keys, "bottom_right" if causal else "none")
    moved = query.bytes + key.bytes + call.tensor(2).bytes + result.bytes
    return Cost(4 * batch * heads * count * depth, moved, query.type)
