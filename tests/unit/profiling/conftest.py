"""Each test starts with the controller in its initial state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from running import in_threads

pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from stagespan.profiling import controller, names

    monkeypatch.delenv("ENABLE_PROFILER_NAMES", raising=False)
    monkeypatch.delenv("STAGESPAN_PROFILER_RUNS", raising=False)
    monkeypatch.delenv("STAGESPAN_PROFILER_SKIP", raising=False)
    monkeypatch.delenv("STAGESPAN_PROFILER_ONE_TRACE", raising=False)
    monkeypatch.setattr(controller, "_warned", set())
    names.forget_names()
    yield
    monkeypatch.undo()  # otherwise, names of the environment would be read again
    names.forget_names()


@pytest.fixture
def work() -> Callable[[], None]:
    """Return work that a profiler can record: ten matrix products."""
    import torch

    left, right = torch.randn(32, 32), torch.randn(32, 32)

    def multiply() -> None:
        for _ in range(10):
            left @ right

    return multiply


@pytest.fixture(params=["here", "in a thread"])
def call(request: pytest.FixtureRequest) -> Callable[[Callable[[], None]], None]:
    """Return a function that calls another one, in this thread or in a new one."""

    def in_thread(function: Callable[[], None]) -> None:
        in_threads(function)

    return in_thread if request.param == "in a thread" else lambda function: function()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return the run's output folder."""
    from stagespan.process import run

    run.set_output_dir(tmp_path / "out")
    yield tmp_path / "out"
    run.set_output_dir(None)
