"""A timed generator for the tests of generators."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from stagespan import span


@span("counts")
def numbers(n: int) -> Generator[int, Any, str]:
    """Yield numbers, and store what was sent."""
    sent = []
    for i in range(n):
        sent.append((yield i))  # noqa: PERF401
    return repr(sent)
