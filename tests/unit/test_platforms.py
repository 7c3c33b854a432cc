"""Platforms: which one is found, its queries, and that no device context is ever created.

The machine that runs these tests needs no accelerator: small objects that count their calls replace
torch's modules for cuda, rocm, xpu and npu. The CPU is the real one.
"""

from __future__ import annotations

import resource
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from fake_torch import Device, NestedDevice, torch_with

from running import ran
from stagespan.device import platforms
from stagespan.device.platforms import Accelerator, Platform


def use(monkeypatch: pytest.MonkeyPatch, torch: Any) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(platforms, "_cached", None)


@pytest.mark.parametrize(
    ("torch", "name", "device_type", "activities"),
    [
        (torch_with(cuda=Device()), "cuda", "cuda", ("CPU", "CUDA")),
        (torch_with(cuda=Device(), hip="6.2"), "rocm", "cuda", ("CPU", "CUDA")),
        (torch_with(cuda=Device(0), xpu=Device()), "xpu", "xpu", ("CPU", "XPU")),
        (torch_with(npu=Device()), "npu", "npu", ("CPU", "PrivateUse1")),
        (torch_with(cuda=Device(0), xpu=Device(0), npu=Device(0)), "cpu", "cpu", ("CPU",)),
        (SimpleNamespace(), "cpu", "cpu", ("CPU",)),
    ],
    ids=["cuda", "rocm", "xpu", "npu", "no device", "a torch that offers nothing"],
)
def test_the_platform_is_the_device_that_torch_can_use(
    torch: Any,
    name: str,
    device_type: str,
    activities: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, torch)
    found = platforms.current_platform
    assert (found.name, found.device_type) == (name, device_type)
    assert found.profiler_activities() == activities
    assert repr(found) == f"<platform {name}>"


def test_another_accelerator_is_named_as_torch_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = torch_with()
    torch.accelerator = SimpleNamespace(current_accelerator=lambda: SimpleNamespace(type="hpu"))
    module = Device()
    module.is_available = lambda: True  # type: ignore[attr-defined]
    torch.get_device_module = lambda device: module
    use(monkeypatch, torch)

    assert platforms.current_platform.device_type == "hpu"
    assert platforms.current_platform.profiler_activities() == ("CPU", "HPU")


def test_a_driver_that_raises_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Device()
    broken.device_count = lambda: 1 // 0  # type: ignore[method-assign]
    use(monkeypatch, torch_with(cuda=broken, npu=Device()))
    assert platforms.current_platform.name == "npu"


def test_an_accelerator_that_is_loaded_later_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a torch that was used before its NPU module existed
    torch = torch_with()
    use(monkeypatch, torch)
    assert platforms.loaded_platform().name == "cpu"

    torch.npu = Device()

    assert platforms.loaded_platform().name == "npu"


@pytest.mark.parametrize("kind", [Device, NestedDevice])
def test_memory_of_a_device_in_use(kind: type[Device], monkeypatch: pytest.MonkeyPatch) -> None:
    device = kind()
    use(monkeypatch, torch_with(cuda=device))
    platform = platforms.current_platform

    assert platform.device_memory() == platforms.DeviceMemory(300, 500, 400, 600)
    assert (platform.memory_bytes(), platform.peak_memory_bytes()) == (300, 400)

    assert platform.reset_peak_memory()

    assert platform.peak_memory_bytes() == 300
    if kind is NestedDevice:
        assert "max_memory_allocated" not in device.calls


def test_a_device_in_use_is_synchronised(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    use(monkeypatch, torch_with(cuda=device))
    platform = platforms.accelerator_in_use()
    assert isinstance(platform, Accelerator)
    platform.synchronize()
    platform.empty_cache()
    assert platform.is_capturing()
    assert device.calls == ["synchronize", "empty_cache", "is_current_stream_capturing"]


def test_no_question_creates_a_device_context(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN an unused device: any call that would initialise it fails the test
    use(monkeypatch, torch_with(cuda=NestedDevice(initialized=False)))
    platform = platforms.current_platform

    platform.synchronize()
    platform.empty_cache()
    assert platform.device_type == "cuda"
    assert not platform.is_capturing()
    assert platform.device_memory() is None
    assert platform.memory_bytes() is None
    assert platform.peak_memory_bytes() is None
    assert not platform.reset_peak_memory()
    assert platforms.accelerator_in_use() is None


def test_first_use_calls_the_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(initialized=False)
    use(monkeypatch, torch_with(cuda=device))
    calls: list[str] = []

    def callback_that_fails() -> None:
        calls.append("used")
        raise RuntimeError("must not reach the application")

    assert platforms.on_first_use(callback_that_fails)
    assert calls == []
    # THEN torch's own initialisation calls it, and its exception is ignored
    for callback in device.queued:
        callback()
    assert calls == ["used"]


def test_first_use_has_happened_or_cannot_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    use(monkeypatch, torch_with(cuda=Device()))
    assert platforms.on_first_use(lambda: calls.append("now"))
    use(monkeypatch, torch_with())
    assert not platforms.on_first_use(lambda: calls.append("never"))
    assert calls == ["now"]


def test_the_resident_memory_of_the_cpu() -> None:
    cpu = Platform()
    now, peak = cpu.memory_bytes(), cpu.peak_memory_bytes()
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert now is not None
    assert peak is not None
    assert 1 << 20 < now < 2 * peak  # the kernel updates the peak with a delay
    assert peak < 1.07 * highest  # the kernel's counters are inexact
    assert cpu.device_memory() is None
    assert not cpu.reset_peak_memory()
    assert not cpu.in_use()


def test_the_peak_follows_the_memory_of_the_process() -> None:
    # GIVEN a process, because the peak of this one would stay
    code = (
        "from stagespan import platforms\n"
        "before = platforms.peak_resident_bytes()\n"
        "block = bytearray(before)\n"
        "for i in range(0, len(block), 4096):\n"
        "    block[i] = 1\n"
        # THEN the peak has risen, by less than the block if earlier peaks left memory free
        "assert platforms.peak_resident_bytes() > before"
    )
    ran([sys.executable, "-c", code], status=0)


def test_questions_of_the_service_never_import_torch() -> None:
    code = (
        "import sys; from stagespan import platforms\n"
        "assert platforms.loaded_platform().name == 'cpu'\n"
        "assert platforms.accelerator_in_use() is None\n"
        "assert not platforms.on_first_use(print)\n"
        "repr(platforms.current_platform)\n"
        "assert 'torch' not in sys.modules"
    )
    ran([sys.executable, "-c", code], status=0)


def test_the_real_torch_is_used_for_queries_of_a_user() -> None:
    pytest.importorskip("torch", reason="asks the torch that is installed")
    code = (
        "import sys; from stagespan.device.platforms import current_platform\n"
        "kind = current_platform.device_type\n"
        "import torch\n"
        "assert (kind == 'cuda') == (torch.cuda.device_count() > 0), kind\n"
        "current_platform.synchronize(); current_platform.empty_cache()\n"
        "current_platform.peak_memory_bytes()\n"
        "assert not torch.cuda.is_initialized()\n"
    )
    ran([sys.executable, "-c", code], status=0)
