"""A short hash of a signature's form: shapes, element types, kinds of device, structure.

Values of numbers and strings are left out, so that a new prompt or seed does not make a new
signature. Indexes of devices are left out, so that the ranks of a run share their keys.
"""

from __future__ import annotations

import hashlib
from typing import Any

from stagespan.signature.model import TYPE, UNREPLAYABLE, is_tensor

# Parts of an object with a `$type` that are words, not nodes.
_VERBATIM = ("class", "name", "value", "length")


def key_of(inputs: dict[str, Any], *, sizes: bool = True) -> str:
    """Key of the nodes of a stage's inputs: 12 hexadecimal digits, the same in every process.

    Without ``sizes`` only the number of a tensor's dimensions counts: the key of a family.
    """
    parts: list[str] = []
    for name in sorted(inputs):
        parts.append(name)
        _form(inputs[name], parts, sizes)
    return hashlib.blake2b("\x1f".join(parts).encode("utf-8", "replace"), digest_size=6).hexdigest()


def _form(node: Any, parts: list[str], sizes: bool) -> None:
    if is_tensor(node) or (isinstance(node, dict) and node.get(TYPE) == "ndarray"):
        device = str(node.get("device", "host")).partition(":")[0]
        shape = node["shape"] if sizes else len(node["shape"])
        parts.append(f"{node['dtype']}{shape}{device}")
    elif isinstance(node, list):
        parts.append(f"[{len(node)}")
        for item in node:
            _form(item, parts, sizes)
    elif isinstance(node, dict):
        _form_of_object(node, parts, sizes)
    elif node is None or isinstance(node, bool):
        parts.append(repr(node))
    else:
        parts.append(type(node).__name__)


def _form_of_object(node: dict[str, Any], parts: list[str], sizes: bool) -> None:
    kind = node.get(TYPE)
    # A text that is long, or left out, is a string all the same, and an infinite number is a float.
    if kind in ("str", "float", "path", "bytes"):
        parts.append(kind)
        return
    if UNREPLAYABLE in node:
        parts.append(str(node[UNREPLAYABLE]))
        return
    parts.append(f"{{{kind or ''}")
    for name, item in node.items():
        if name == TYPE:
            continue
        parts.append(name)
        if kind is not None and name in _VERBATIM:
            parts.append(str(item))
        else:
            _form(item, parts, sizes)
