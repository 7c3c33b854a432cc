"""The costs of Triton kernels that torch.compile generates, from the shapes of their arguments."""

from __future__ import annotations

import math
from collections.abc import Callable

from stagespan.trace.derived.kernel_kinds import inductor_kind
from stagespan.trace.rates.calls import Call, Cost, CostUnknownError

_GENERATED = frozenset({"poi", "red", "per", "unnamed"})


def formula_of(operator: str) -> Callable[[Call], Cost] | None:
    """Return the formula of a pointwise kernel or a reduction of Inductor, by its name."""
    return _moved if inductor_kind(operator) in _GENERATED else None


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
