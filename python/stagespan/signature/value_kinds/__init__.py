"""The kinds of values that signatures describe, with one class for each kind.

To add a kind, write its class in one of these modules, add it to the ``KINDS`` of that module, and
add an example to the test of all kinds. The first kind that matches a value captures it. The
``$type`` of a node names its kind. Files are not trusted: `Kind.describe` and `Kind.parts` accept
any content, and `Kind.make` raises an exception if the content is wrong. Does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stagespan.pages.escaping import one_line
from stagespan.signature.model import TYPE, is_tensor
from stagespan.signature.value_kinds import callables, containers, objects, scalars, tensors
from stagespan.signature.value_kinds.base import LOST, Kind, Node, kind_of, register

KINDS = (
    *tensors.KINDS,
    *objects.KINDS,
    *containers.KINDS,
    *scalars.KINDS,
    *callables.KINDS,
    *objects.LAST,
)
"""All kinds. The first one that matches a value captures it."""

register(KINDS, tensors.TENSOR)

__all__ = ["KINDS", "Kind", "contains_text", "kind_for", "kind_of", "losses", "tensors_of"]


def kind_for(value: Any) -> Kind | None:
    """Return the kind that captures a value; None if no kind can create the value again."""
    if tensors.is_plain(value):  # at once, because most are
        return tensors.TENSOR
    return next((kind for kind in KINDS if kind.matches(value)), None)


def contains_text(node: Any) -> bool:
    """Whether a node contains the content of strings, bytes or paths; keys do not count."""
    if isinstance(node, str):
        return bool(node)
    kind = kind_of(node)
    if kind.user_text is not None and contains_text(node.get(kind.user_text)):
        return True
    return any(contains_text(part) for _, part in kind.parts(node, ""))


def tensors_of(arguments: dict[str, Any]) -> Iterator[tuple[str, Node]]:
    """Yield (path, node) of each tensor and numpy array, in the order of the arguments."""
    for path, node in arguments.items():
        yield from _tensors_below(node, path)


def losses(arguments: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence for each value that a replay makes without a part of the captured one."""
    for path, node in arguments.items():
        yield from _losses_below(node, path)


def _losses_below(node: Any, path: str) -> Iterator[str]:
    if isinstance(node, dict) and LOST in node and (TYPE in node or is_tensor(node)):
        yield f"Input {path!r} is replayed without {one_line(str(node[LOST]))}."
    for inner, part in kind_of(node).parts(node, path):
        yield from _losses_below(part, inner)


def _tensors_below(node: Any, path: str) -> Iterator[tuple[str, Node]]:
    kind = kind_of(node)
    if kind is tensors.TENSOR or (kind.name == "ndarray" and "shape" in node and "dtype" in node):
        yield path, node
    for inner, part in kind.parts(node, path):
        yield from _tensors_below(part, inner)
