"""Debug contexts wait for the device at both ends; always-on contexts never do.

The device is a small stand-in that notes when it is waited for: the order of events is what counts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

import stagespan
from stagespan import _core
from stagespan.device import platforms
from stagespan.device.platforms import Platform


class Device(Platform):
    name = device_type = "cuda"

    def __init__(self) -> None:
        self.events: list[str] = []
        self.capturing = False
        self.broken = False

    def in_use(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return self.capturing

    def synchronize(self) -> None:
        self.events.append("wait")
        if self.broken:
            raise RuntimeError("device-side assert")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    found = Device()
    monkeypatch.setattr(platforms, "loaded_platform", lambda: found)
    stagespan.set_debug(True)
    yield found
    stagespan.set_debug(False)


def flags_of_the_last_span() -> int:
    flags: int = _core.spans()[-1]["flags"]
    return flags


def test_a_debug_context_waits_at_both_ends(device: Device) -> None:
    with stagespan.ProfilingContext4Debug("stage"):
        device.events.append("stage")
    assert device.events == ["wait", "stage", "wait"]
    assert not flags_of_the_last_span() & _core.FLAG_CAPTURED


def test_a_decorated_function_too_even_when_it_raises(device: Device) -> None:
    @stagespan.ProfilingContext4Debug("stage")
    def fails() -> None:
        device.events.append("stage")
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fails()
    assert device.events == ["wait", "stage", "wait"]


def test_always_on_contexts_and_spans_never_wait(device: Device) -> None:
    with stagespan.ProfilingContext("always"), stagespan.span("span"):
        pass
    assert device.events == []


def test_nothing_waits_without_debug_mode(device: Device) -> None:
    stagespan.set_debug(False)
    with stagespan.ProfilingContext4Debug("stage"):
        pass
    assert device.events == []


def test_a_capture_is_not_disturbed_but_flagged(device: Device) -> None:
    device.capturing = True

    with stagespan.ProfilingContext4Debug("captured"):
        pass
    # THEN nothing waited, and the span says why its time does not include the device
    assert device.events == []
    assert flags_of_the_last_span() & _core.FLAG_CAPTURED


def test_compilation_is_not_disturbed(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = SimpleNamespace(is_compiling=lambda: True)
    monkeypatch.setitem(sys.modules, "torch.compiler", compiler)
    monkeypatch.setitem(sys.modules, "torch._dynamo", compiler)
    with stagespan.ProfilingContext4Debug("compiled"):
        pass
    assert device.events == []
    assert flags_of_the_last_span() & _core.FLAG_CAPTURED


def test_a_device_that_fails_does_not_change_what_the_stage_does(device: Device) -> None:
    device.broken = True
    with stagespan.ProfilingContext4Debug("stage"):
        device.events.append("stage")
    assert device.events == ["wait", "stage", "wait"]
