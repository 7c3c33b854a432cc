"""The kinds of values that signatures describe: one class a kind, with all that is done with it.

To add a kind, write its class in one of these modules, add it to the ``KINDS`` of that module, and
give the test of all kinds an example. The first kind that holds a value captures it; a kind is
found again by the ``$type`` of its node. Files are not trusted: `Kind.describe` and `Kind.parts`
accept any content, and `Kind.build` raises an exception for a wrong one. Does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stagespan.signature.kinds import containers, objects, scalars, tensors
from stagespan.signature.kinds.base import Kind, Node, kind_of, register

KINDS = (
    *tensors.KINDS,
    *objects.KINDS,
    *containers.KINDS,
    *scalars.KINDS,
    *objects.LAST,
)
"""All kinds. The first one that holds a value captures it."""

register(KINDS, tensors.TENSOR)

__all__ = ["KINDS", "Kind", "holds_text", "kind_for", "kind_of", "tensors_of"]


def kind_for(value: Any) -> Kind | None:
    """The kind that captures a value; None if the value cannot be made again."""
    return next((kind for kind in KINDS if kind.holds(value)), None)


def holds_text(node: Any) -> bool:
    """Whether a node has the content of strings, bytes or paths in it; keys do not count."""
    if isinstance(node, str):
        return bool(node)
    kind = kind_of(node)
    if kind.text is not None and holds_text(node.get(kind.text)):
        return True
    return any(holds_text(part) for _, part in kind.parts(node, ""))


def tensors_of(arguments: dict[str, Any]) -> Iterator[tuple[str, Node]]:
    """Pairs of path and node, of tensors and numpy arrays, in the order of the arguments."""
    for path, node in arguments.items():
        yield from _tensors_below(node, path)


def _tensors_below(node: Any, path: str) -> Iterator[tuple[str, Node]]:
    kind = kind_of(node)
    if kind is tensors.TENSOR or (kind.name == "ndarray" and "shape" in node and "dtype" in node):
        yield path, node
    for inner, part in kind.parts(node, path):
        yield from _tensors_below(part, inner)
