"""Leaves secrets out of nodes that were captured with them, for files made from a signature."""

from __future__ import annotations

import contextlib
from typing import Any

from stagespan.pages.redaction import hides_secrets, is_secret, names_secret
from stagespan.signature.model import TYPE, UNREPLAYABLE, is_tensor
from stagespan.signature.value_kinds import kind_of

# The keys of nodes with a type whose values are nodes.
_INNER = ("items", "fields", "data", "args", "kwargs", "function", "self")


def without_secrets(name: str, node: Any) -> Any:
    """Return an argument's node as `capture` writes it by default: with lengths for secrets."""
    return _without(node, is_secret(name)) if hides_secrets() else node


def _without(node: Any, is_hidden: bool) -> Any:
    if isinstance(node, str):
        return {TYPE: "str", "length": len(node)} if is_hidden else node
    if isinstance(node, list):
        if len(node) == 2 and names_secret((_name(node[0]), node[1])):
            return [node[0], _without(node[1], True)]
        return [_without(item, is_hidden) for item in node]
    if not isinstance(node, dict) or is_tensor(node) or UNREPLAYABLE in node:
        return node
    if TYPE not in node:
        return {k: _without(v, is_hidden or is_secret(k)) for k, v in node.items()}
    text = node.get(kind_of(node).user_text or "")
    if is_hidden and isinstance(text, str):
        length = len(text) // 2 if node[TYPE] == "bytes" else node.get("length", len(text))
        kept = {k: v for k, v in node.items() if v is not text}
        return {**kept, "length": length}
    kept_node = {k: _without(v, is_hidden) if k in _INNER else v for k, v in node.items()}
    if node[TYPE] == "dict" and isinstance(node.get("items"), list):
        kept_node["items"] = [_pair(pair, is_hidden) for pair in node["items"]]
    return kept_node


def _pair(pair: Any, is_hidden: bool) -> Any:
    """Return a key and its value; keys are part of the structure and stay."""
    if not isinstance(pair, list) or len(pair) != 2:
        return pair
    return [pair[0], _without(pair[1], is_hidden or is_secret(_name(pair[0])))]


def _name(node: Any) -> str:
    """Return the text of a node that can be a name, of a string or bytes; else an empty one."""
    if isinstance(node, dict) and node.get(TYPE) == "bytes":
        with contextlib.suppress(TypeError, ValueError, KeyError):
            return bytes.fromhex(node["hex"]).decode("latin-1")
    return node if isinstance(node, str) else ""
