"""Describes a node in a few words, for tables and messages. Accepts any content of a file."""

from __future__ import annotations

from typing import Any

from stagespan.signature.kinds.base import describe_node
from stagespan.text.escaping import one_line as printable

__all__ = ["describe", "printable"]


def describe(node: Any) -> str:
    """Return a text such as ``bfloat16[1, 16, 21, 60, 104] cuda:0``, ``5.0`` or ``tuple(2)``."""
    return printable(describe_node(node, 0))
