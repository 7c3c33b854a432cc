"""The kinds of spans."""

from __future__ import annotations

from typing import Literal

_WithSpans = Literal["execution", "queue", "handoff", "batch", "remote"]
Kind = Literal[_WithSpans, "part_first_chunk", "between_chunks", "per_token"]
"""The last three have figures and no spans."""
TITLES: dict[Kind, str] = {
    "execution": "execution",
    "queue": "queue",
    "handoff": "hand-off",
    "batch": "batch",
    "remote": "requests",
    "part_first_chunk": "time to first chunk",
    "between_chunks": "between chunks",
    "per_token": "time per token",
}
"""What pages, charts and time lines call each kind, in the order of the numbers in recordings."""
KINDS = tuple(TITLES)
"""By the number that the recording uses."""
RUNS: tuple[Kind, ...] = ("execution", "batch")
"""The kinds of spans that are runs of a stage."""


def number_of(kind: str) -> int:
    """Return the number of a kind. Raises ValueError for an unknown one."""
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is not a kind of span: pass one of {', '.join(KINDS)}")
    return KINDS.index(kind)
