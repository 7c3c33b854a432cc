"""Tests that need a real GPU; without one they are skipped with that reason.

If GPU_TEST_FIGURES names a file, the outcome of each test and its figures are written to it as
JSON, with which `tools/gpu/run.py` makes its result.

In a process for the stand-in of `tests/npu_standin`, tests with the marker `stand_in` run on it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the modules that other tests use, too

from gpu_device import IS_STAND_IN, gpu

_FIGURES = os.environ.get("GPU_TEST_FIGURES")
_outcomes: dict[str, dict[str, Any]] = {}


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


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, also where the repository's settings of pytest are absent."""
    config.addinivalue_line("markers", "gpu: needs a real GPU; skipped without one")
    line = "stand_in: of a GPU; also runs on the stand-in for an accelerator"
    config.addinivalue_line("markers", line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder, and skip them if there is no device."""
    for item in items:
        if "tests/gpu/" in item.path.as_posix():
            item.add_marker(pytest.mark.gpu)
            if _REASON is not None and not (IS_STAND_IN and item.get_closest_marker("stand_in")):
                item.add_marker(pytest.mark.skip(reason=_REASON))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the outcome of a test, and why it failed or was skipped."""
    entry = _outcomes.setdefault(report.nodeid.rpartition("/")[2], {"outcome": "passed"})
    if report.when == "call":
        entry["seconds"] = round(report.duration, 3)
    entry.update(report.user_properties)
    if report.outcome != "passed":
        entry["outcome"] = report.outcome
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        entry["why"] = why[-2000:]


def pytest_sessionfinish() -> None:
    """Write the outcomes."""
    if _FIGURES:
        Path(_FIGURES).write_text(json.dumps(_outcomes, default=float))


@pytest.fixture
def figures(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Return a function that keeps figures of a test: ``figures(elapsed_ns=1200)``."""

    def keep(**values: object) -> None:
        for name, value in values.items():
            record_property(name, value)

    return keep


@pytest.fixture
def cuda() -> Iterator[Any]:
    """Return `torch.cuda`, attached, with a known position on the host's timeline.

    Where there is only a stand-in, return what stands in for `torch.cuda`.
    """
    import stagespan
    from stagespan import _core
    from stagespan.device import times as wiring

    device = gpu()
    device.init()
    device._sleep(1000)
    device.synchronize()
    assert wiring.is_attached(), _core.device_info()["reason"]
    until = time.monotonic() + 10
    while _core.device_info()["base_error_ns"] is None and time.monotonic() < until:
        with stagespan.span("warm up"):
            device._sleep(1000)
        assert stagespan.flush(10)
        time.sleep(0.05)
    _core._reset()
    yield device
    device.synchronize()
    _core.device_every(1)
    assert stagespan.flush(20)
