"""The kinds of spans."""

from __future__ import annotations

from typing import Literal, cast

_WithSpans = Literal["execution", "queue", "handoff", "batch", "remote"]
_OfChunks = Literal["part_first_chunk", "between_chunks", "per_token", "first_chunk"]
_OfRequests = Literal[
    "request_ok", "request_error", "request_cancelled", "request_discarded", "request_abandoned"
]
Kind = Literal[_WithSpans, _OfChunks, _OfRequests]
"""Those of chunks and requests have figures and no spans."""
AnyKind = Kind | Literal["request"]
"""The last one is all requests together."""
TITLES: dict[Kind, str] = {
    "execution": "execution",
    "queue": "queue",
    "handoff": "hand-off",
    "batch": "batch",
    "remote": "requests",
    "part_first_chunk": "time to first chunk of a part",
    "between_chunks": "between chunks",
    "per_token": "time per token",
    "first_chunk": "time to first chunk",
    "request_ok": "requests that ended well",
    "request_error": "requests with an error",
    "request_cancelled": "cancelled requests",
    "request_discarded": "discarded requests",
    "request_abandoned": "abandoned requests",
}
"""What pages, charts and time lines call each kind, in the order of the numbers in recordings."""
KINDS = tuple(TITLES)
"""By the number that the recording uses."""
KINDS_OF_NAMES = (*KINDS, "exception")
"""The same for all names in a recording, which types of exceptions have too."""
OPEN: dict[Kind, Literal["running", "waiting"]] = {
    "execution": "running",
    "batch": "running",
    "queue": "waiting",
}
"""What is said of spans of a kind that have not ended. Commands, pages and metrics count these."""
RUNS = tuple(kind for kind, state in OPEN.items() if state == "running")
"""The kinds of spans that are runs of a stage."""
REQUESTS: dict[str, Kind] = {
    status: cast("Kind", f"request_{status}")
    for status in ("ok", "error", "cancelled", "discarded", "abandoned")
}
"""The kinds of requests that have ended, by status."""


def number_of(kind: str) -> int:
    """Return the number of a kind. Raises ValueError for an unknown one."""
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is not a kind of span: pass one of {', '.join(KINDS)}")
    return KINDS.index(kind)


def numbers_of(kind: str) -> tuple[int, ...]:
    """Return the numbers of a kind, or of all kinds of requests. Raises ValueError as above."""
    of_all = REQUESTS.values() if kind == "request" else (kind,)
    return tuple(map(number_of, of_all))
