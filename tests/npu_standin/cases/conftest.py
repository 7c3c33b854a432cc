"""Tests that share one process with the stand-in; `tests/integration/device` starts it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from standin import LIBRARY, Standin

# Outside such a process there is no device to test with.
collect_ignore_glob = [] if LIBRARY in os.environ else ["test_*.py"]


@pytest.fixture(scope="session")
def the_device() -> Standin:
    return Standin.of_environment()


@pytest.fixture
def device(the_device: Standin) -> Iterator[Standin]:
    """The stand-in, initialised, with device time on and nothing pending or counted."""
    import stagespan
    from stagespan import _core
    from stagespan.device import times as wiring

    the_device.set_up()
    wiring.watch()
    assert wiring.is_attached(), _core.device_info()
    # The position of the device's events on the host's timeline is not known from the first event
    # on.
    until = time.monotonic() + 30
    while _core.device_info()["base_error_ns"] is None and time.monotonic() < until:
        with stagespan.span("warm up"):
            pass
        assert stagespan.flush(20)
        time.sleep(0.05)
    assert stagespan.flush(20)
    _core._reset()
    yield the_device
    the_device.fail()
    the_device.capture(False)
    the_device.hold(False)
    the_device.synchronize()
    _core.device_every(1)
    stagespan.set_debug(False)
    assert stagespan.flush(20)
