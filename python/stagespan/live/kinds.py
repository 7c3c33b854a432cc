"""The kinds of spans."""

from __future__ import annotations

from typing import Literal

Kind = Literal[
    "execution",
    "queue",
    "handoff",
    "batch",
    "remote",
    "part_first_chunk",
    "between_chunks",
    "per_token",
]

KINDS: tuple[Kind, ...] = (
    *("execution", "queue", "handoff", "batch", "remote"),
    *("part_first_chunk", "between_chunks", "per_token"),
)
"""By the number that the recording uses. The last three have figures and no spans."""

RUNS: tuple[Kind, ...] = ("execution", "batch")
"""The kinds of spans that are runs of a stage."""


def number_of(kind: str) -> int:
    """Return the number of a kind. Raises ValueError for an unknown one."""
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is not a kind of span: pass one of {', '.join(KINDS)}")
    return KINDS.index(kind)
