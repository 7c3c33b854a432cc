"""A recorder that has recorded nothing yet, and a folder of recordings, for tests that ask."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import stagespan
from stagespan import ProfilingContext, ProfilingContext4Debug, _core, span


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


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a folder on a tmpfs, in which this process looks for recordings too."""
    try:
        made = Path(tempfile.mkdtemp(prefix="stagespan-test-", dir="/dev/shm"))
    except OSError as error:
        pytest.skip(f"no folder can be made in /dev/shm: {error}")
    monkeypatch.setenv("STAGESPAN_RECORDING_DIR", str(made))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(params=[span, ProfilingContext, ProfilingContext4Debug])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[[str], _core.Span]]:
    """Each kind of context, while it is active."""
    stagespan.set_debug(request.param is ProfilingContext4Debug)
    yield request.param
    stagespan.set_debug(False)
