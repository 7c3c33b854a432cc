"""The costs of Triton kernels that torch.compile generates, from the shapes of their arguments."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable

from stagespan.trace.derived.kernel_kinds import inductor_kind
from stagespan.trace.rates.calls import Call, Cost, CostUnknownError

_GENERATED = frozenset({"poi", "red", "per", "unnamed"})
# A template's kernel computes one product, whose operator is in its name.
_PRODUCT = re.compile(r"^triton_tem_fused_(?:\w*_)?(?:add|badd)?b?mm(?:_|$)|^triton_b?mm_")


def formula_of(operator: str) -> Callable[[Call], Cost] | None:
    """Return the formula of a kernel of Inductor, by its name.

    It is known for pointwise kernels, reductions, and templates of matrix products.
    """
    kind = inductor_kind(operator)
    if kind in _GENERATED:
        return _moved
    return _product if kind == "tem" and _PRODUCT.search(operator) else None


def _product(call: Call) -> Cost:
    """[..., m, k] x [..., k, n] to the last tensor, [..., m, n], which fit only in one way.

    Other tensors are read by what Inductor has fused with the product.
    """
    tensors = call.all_tensors()
    products = set()
    if tensors and len(tensors[-1].dims) in (2, 3):
        *batch, m, n = tensors[-1].dims
        for one, two in itertools.permutations(tensors[:-1], 2):
            k = one.dims[-1] if one.dims else 0
            if one.dims == (*batch, m, k) and two.dims == (*batch, k, n):
                products.add((math.prod(batch), m, n, k))
    if len(products) != 1:
        raise CostUnknownError("the shapes of the kernel's arguments do not show its product")
    ((count, m, n, k),) = products
    moved = sum(each.bytes for each in tensors)
    return Cost(2 * count * m * n * k, moved, tensors[0].type, (count, m, n, k))


def _moved(call: Call) -> Cost:
    """Reads or writes each tensor, then the numbers of elements: once, or less of a larger one.

    Arguments that are read and then written count once, because the trace does not show which these
    are. So the bytes are a lower bound, unless a kernel reads only a part of a tensor.
    """
    tensors = call.all_tensors()
    sizes = [value for at in range(len(call.values)) if (value := call.integer(at)) is not None]
    if not tensors or not sizes:
        raise CostUnknownError("the number of elements of the kernel is not in the trace")
    elements = math.prod(size for size in sizes if size > 0)
    moved = sum(min(each.stored, elements) * each.element_bytes for each in tensors)
    return Cost(None, moved, tensors[0].type, bytes_at_least=True)
