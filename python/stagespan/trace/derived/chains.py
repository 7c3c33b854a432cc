"""Tells by shapes whether the result of a block of operators can be the input of the next one."""

from __future__ import annotations

import json
import re

import numpy as np

from stagespan.trace.read.intervals import Rows
from stagespan.trace.read.model import Trace

_Shape = list[int]
# Operators whose result has the shape of their first input.
_KEEPS_SHAPE = re.compile(
    r"^aten::(?:relu|gelu|silu|tanh|sigmoid|softmax|log_softmax|dropout|layer_norm)_?$"
)


def passes_nothing_on(trace: Trace, block: Rows) -> bool:
    """Whether no operator of a block can use what the block before it, an equal one, has computed.

    Layers of a model pass tensors on, so such blocks are calls of a whole model. `block` has the
    rows of its outermost operators in order. False if the shapes are not in the trace, or if the
    block does not end with a linear layer or a matrix product.
    """
    written = trace.argument("Input Dims")
    if written is None or written.numbers is not None:
        return False
    at = np.minimum(np.searchsorted(written.rows, block), len(written.rows) - 1)
    if (written.rows[at] != block).any():
        return False
    shapes = [_shapes(written.texts[code]) for code in written.codes[at].tolist()]
    names = [trace.names[code] for code in trace.events.name[block].tolist()]
    while names and _KEEPS_SHAPE.match(names[-1]):
        del names[-1], shapes[-1]
    result = _result(names[-1], shapes[-1]) if names else None
    return result is not None and not any(result in each for each in shapes)


def _shapes(written: str) -> list[_Shape]:
    """Return the shapes of an operator's inputs, those of lists of tensors among them."""
    try:
        inputs = json.loads(written)
    except ValueError:
        return []
    shapes: list[_Shape] = []
    for entry in inputs if isinstance(inputs, list) else []:
        if isinstance(entry, list):
            inside = [shape for shape in entry if isinstance(shape, list)]
            shapes += inside or [entry]
    return shapes


def _result(name: str, shapes: list[_Shape]) -> _Shape | None:
    """Return the shape of a product's result; None for other operators."""
    if name == "aten::addmm":
        shapes = shapes[1:]
    if len(shapes) < 2 or min(map(len, shapes[:2])) < 2:
        return None
    first, second = shapes[:2]
    if name == "aten::linear":
        return [*first[:-1], second[0]]
    if name in ("aten::mm", "aten::addmm", "aten::matmul") and len(second) == 2:
        return [*first[:-1], second[1]]
    return None
