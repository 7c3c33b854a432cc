"""Every tensor among the nodes of a stage's arguments, with its path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stagespan.signature.model import TYPE, UNREPLAYABLE, is_tensor


def tensors_of(arguments: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Pairs of path and node, of tensors and numpy arrays, in the order of the arguments."""
    for name, node in arguments.items():
        yield from _below(node, name)


def _below(node: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield from _below(item, f"{path}[{index}]")
    elif not isinstance(node, dict) or UNREPLAYABLE in node:
        return
    elif is_tensor(node) or (node.get(TYPE) == "ndarray" and "shape" in node and "dtype" in node):
        yield path, node
    elif TYPE not in node:
        for key, item in node.items():
            yield from _below(item, f"{path}.{key}")
    else:
        yield from _below_special(node, path)


def _below_special(node: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    items, fields = node.get("items"), node.get("fields")
    if node[TYPE] == "dict" and isinstance(items, list):
        for pair in items:
            if isinstance(pair, list) and len(pair) == 2:
                yield from _below(pair[1], f"{path}.{pair[0]}")
    elif isinstance(items, list):
        yield from _below(items, path)
    elif isinstance(fields, dict):
        for key, item in fields.items():
            yield from _below(item, f"{path}.{key}")
    elif "data" in node:
        yield from _below(node["data"], path)
