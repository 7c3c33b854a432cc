"""A node in a few words, for tables and messages. Never fails, whatever the file holds."""

from __future__ import annotations

from typing import Any

from stagespan.signature.kinds.base import describe_node


def describe(node: Any) -> str:
    """For example ``bfloat16[1, 16, 21, 60, 104] cuda:0``, ``5.0``, ``tuple(2)``."""
    return printable(describe_node(node, 0))


def printable(text: str) -> str:
    """Any text as one line without control characters, for terminals and logs."""
    return text if text.isprintable() else repr(text)[1:-1]
