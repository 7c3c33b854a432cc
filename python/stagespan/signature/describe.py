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
    if kind in ("dataclass", "namedtuple", "object"):
        name = str(node.get("class", "")).rpartition(":")[2]
        return _pairs(f"{name}(", node.get("fields"), ")", depth)
    if kind == "enum":
        return f"{str(node.get('class', '')).rpartition(':')[2]}.{node.get('name')}"
    if kind == "shared":
        return f"the same tensor as {_short(str(node.get('of')))}"
    if kind == "ndarray":
        return f"numpy {node.get('dtype')}{_short(str(node.get('shape')))}"
    if kind == "str":
        return f"string of {node.get('length')} characters"
    if kind in ("path", "bytes") and "length" in node:
        return f"{kind} of {node['length']} {'characters' if kind == 'path' else 'bytes'}"
    value = next((node[k] for k in ("value", "device", "size", "class") if k in node), "")
    return _short(f"{kind} {value}".strip())


def holds_text(node: Any) -> bool:
    """Whether a node has the content of strings, bytes or paths in it; keys do not count."""
    if isinstance(node, str):
        return bool(node)
    if isinstance(node, list):
        return any(map(holds_text, node))
    if not isinstance(node, dict) or UNREPLAYABLE in node or is_tensor(node):
        return False
    kind = node.get(TYPE)
    if kind is None:
        return any(map(holds_text, node.values()))
    if kind == "dict":
        pairs = node.get("items")
        return isinstance(pairs, list) and any(
            holds_text(pair[1]) for pair in pairs if isinstance(pair, list) and len(pair) == 2
        )
    held = _CONTENT.get(str(kind))
    return held is not None and holds_text(node.get(held))


# Where the content of an object with a `$type` is.
_CONTENT = {
    **dict.fromkeys(("tuple", "set", "list"), "items"),
    **dict.fromkeys(("dataclass", "namedtuple", "object"), "fields"),
    "userdict": "data",
    "str": "text",
    "bytes": "hex",
    "path": "value",
    "slice": "args",
}


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
