"""A node in a few words, for tables and messages. Never fails, whatever the file holds."""

from __future__ import annotations

from typing import Any

from stagespan.signature.model import TYPE, UNREPLAYABLE, is_tensor

_LONGEST = 60


def describe(node: Any, depth: int = 0) -> str:
    """For example ``bfloat16[1, 16, 21, 60, 104] cuda:0``, ``5.0``, ``tuple(2)``."""
    return printable(_describe(node, depth))


def _describe(node: Any, depth: int) -> str:
    if is_tensor(node):
        return f"{node['dtype']}{_short(str(node['shape']))} {node.get('device', 'cpu')}"
    if isinstance(node, list):
        return _items("[", node, "]", depth)
    if not isinstance(node, dict):
        return _short(repr(node))
    if UNREPLAYABLE in node:
        return f"{node[UNREPLAYABLE]} (cannot be replayed)"
    kind = node.get(TYPE)
    if kind is None:
        return _pairs("{", node, "}", depth)
    if kind == "tuple":
        return _items("(", node.get("items"), ")", depth)
    if kind == "list":
        return f"list of {node.get('length')}"
    if kind in ("dataclass", "namedtuple"):
        name = str(node.get("class", "")).rpartition(":")[2]
        return _pairs(f"{name}(", node.get("fields"), ")", depth)
    if kind == "enum":
        return f"{str(node.get('class', '')).rpartition(':')[2]}.{node.get('name')}"
    if kind == "ndarray":
        return f"numpy {node.get('dtype')}{_short(str(node.get('shape')))}"
    if kind == "str":
        return f"string of {node.get('length')} characters"
    value = next((node[k] for k in ("value", "device", "size", "class") if k in node), "")
    return _short(f"{kind} {value}".strip())


def printable(text: str) -> str:
    """Any text as one line without control characters, for terminals and logs."""
    return text if text.isprintable() else repr(text)[1:-1]


def _items(opening: str, nodes: Any, closing: str, depth: int) -> str:
    if not isinstance(nodes, list) or depth >= 2 or len(nodes) > 4:
        count = len(nodes) if isinstance(nodes, list) else "?"
        return f"{opening}{count} values{closing}"
    return opening + ", ".join(describe(node, depth + 1) for node in nodes) + closing


def _pairs(opening: str, nodes: Any, closing: str, depth: int) -> str:
    if not isinstance(nodes, dict) or depth >= 2 or len(nodes) > 6:
        count = len(nodes) if isinstance(nodes, dict) else "?"
        return f"{opening}{count} values{closing}"
    inner = (f"{_short(str(k))}: {describe(v, depth + 1)}" for k, v in nodes.items())
    return opening + ", ".join(inner) + closing


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
