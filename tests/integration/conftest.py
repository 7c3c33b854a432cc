"""A recorder that has recorded nothing yet, for the tests that ask for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import stagespan
from stagespan import _core


@pytest.fixture
def fresh() -> Iterator[None]:
    """Start with empty statistics, the recorder on, debug mode off; leave nothing open."""
    stagespan.enable()
    stagespan.set_debug(False)
    _core.reset()
    yield
    stagespan.enable()
    stagespan.set_debug(False)
    left = _core.open_spans()
    assert left == [], "a test left spans open"
