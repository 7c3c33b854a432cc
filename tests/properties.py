"""How many examples the randomised tests draw."""

from __future__ import annotations

import os

FULL = os.environ.get("STAGESPAN_TEST_FULL") == "1"
"""Whether this is a run of `make test-all`, which draws more examples, and new ones each time."""


def examples(count: int) -> int:
    """Return `count` in a run of all tests, and a fifth of it (at least 20) otherwise."""
    return count if FULL else min(count, max(20, count // 5))
