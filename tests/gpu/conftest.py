"""Tests that need a real GPU; without one they are skipped with that reason."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest


def _why_not() -> str | None:
    try:
        import torch
    except ImportError:
        return "no GPU: torch is not installed"
    if not torch.backends.cuda.is_built():
        return "no GPU: this torch was built without CUDA"
    if torch.cuda.device_count() < 1:
        return "no GPU: torch sees none"
    return None


_REASON = _why_not()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder, and skip them if there is no device."""
    for item in items:
        if "tests/gpu/" in item.path.as_posix():
            item.add_marker(pytest.mark.gpu)
            if _REASON is not None:
                item.add_marker(pytest.mark.skip(reason=_REASON))


@pytest.fixture
def cuda() -> Iterator[Any]:
    """Return `torch.cuda`, attached, with a known position on the host's timeline."""
    import torch

    import stagespan
    from stagespan import _core
    from stagespan.device import times as wiring

    torch.cuda.init()
    torch.cuda._sleep(1000)
    torch.cuda.synchronize()
    assert wiring.is_attached(), _core.device_info()["reason"]
    until = time.monotonic() + 10
    while _core.device_info()["base_error_ns"] is None and time.monotonic() < until:
        with stagespan.span("warm up"):
            torch.cuda._sleep(1000)
        assert stagespan.flush(10)
        time.sleep(0.05)
    _core._reset()
    yield torch.cuda
    torch.cuda.synchronize()
    _core.device_every(1)
    assert stagespan.flush(20)
