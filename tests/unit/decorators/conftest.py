"""Debug mode for each test, and contexts of each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from decorating import always, debug, plain

import stagespan
from stagespan import _core


@pytest.fixture(autouse=True)
def debug_mode() -> Iterator[None]:
    """Each test starts in debug mode with nothing counted, and leaves the mode off."""
    _core._reset()
    stagespan.set_debug(True)
    yield
    stagespan.set_debug(False)


@pytest.fixture(params=[plain, always, debug])
def context(request: pytest.FixtureRequest) -> Callable[[str], _core.Span]:
    return request.param  # type: ignore[no-any-return]
