"""The device that torch works on: cuda, rocm, xpu, npu, any other accelerator of torch, or the CPU.

Nothing here creates a device context: an accelerator that the process has not used is left alone.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from stagespan import imports


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes that torch's allocator holds on the current device; None where it does not tell."""

    allocated: int | None
    reserved: int | None
    peak_allocated: int | None
    peak_reserved: int | None


class Platform:
    """The CPU, and what every platform offers."""

    name: str = "cpu"
    device_type: str = "cpu"

    def in_use(self) -> bool:
        """Whether this process has an accelerator's context already."""
        return False

    def synchronize(self) -> None:
        """Wait for the current device; nothing where the process has not used one."""

    def is_capturing(self) -> bool:
        """Whether a device graph is being captured on the current stream: do not wait then."""
        return False

    def empty_cache(self) -> None:
        """Give the allocator's unused device memory back; nothing where there is none."""

    def current_device(self) -> int:
        """Index of the current device; 0 where there is only one or none in use."""
        return 0

    def device_memory(self, device: int | None = None) -> DeviceMemory | None:
        """What the allocator holds of ``device`` (the current one); None on a CPU or before use."""
        return None

    def memory_bytes(self) -> int | None:
        """Bytes in use now: allocated on the accelerator, resident on a CPU; None if unknown."""
        return resident_bytes()

    def peak_memory_bytes(self) -> int | None:
        """Highest `memory_bytes` since the last reset, on a CPU since the process began."""
        return peak_resident_bytes()

    def reset_peak_memory(self, device: int | None = None) -> bool:
        """Start the peak anew; False where it cannot be reset, as on a CPU."""
        return False

    def profiler_activities(self) -> tuple[str, ...]:
        """Names of the `torch.profiler.ProfilerActivity` members that see this platform's work."""
        return ("CPU",)

    def __repr__(self) -> str:
        return f"<platform {self.name}>"


class Accelerator(Platform):
    """A device that torch drives through a module of its own, such as ``torch.cuda``."""

    def __init__(self, torch: Any, module: Any, name: str, device_type: str, activity: str) -> None:
        self.name = name
        self.device_type = device_type
        self._torch = torch
        self._module = module
        self._activity = activity

    def in_use(self) -> bool:
        """Whether torch has set the device up in this very process, not in one it forked from."""
        try:
            return bool(self._module.is_initialized())
        except Exception:
            return False

    def synchronize(self) -> None:
        """Wait for the current device; nothing where the process has not used one."""
        if self.in_use():
            self._module.synchronize()

    def is_capturing(self) -> bool:
        """Whether a device graph is being captured on the current stream."""
        capturing = getattr(self._module, "is_current_stream_capturing", None)
        return bool(capturing()) if capturing is not None and self.in_use() else False

    def empty_cache(self) -> None:
        """Give the allocator's unused device memory back; nothing before the device's first use."""
        if self.in_use():
            self._module.empty_cache()

    def current_device(self) -> int:
        """Index of the current device; 0 before the device's first use."""
        return int(self._module.current_device()) if self.in_use() else 0

    def device_memory(self, device: int | None = None) -> DeviceMemory | None:
        """What the allocator holds of ``device`` (the current one); None before its first use."""
        if not self.in_use():
            return None
        # The flat dictionary behind max_memory_allocated() is built and sorted in Python: the
        # nested one comes from C and is an order of magnitude cheaper.
        nested = getattr(self._module, "memory_stats_as_nested_dict", None)
        if nested is not None:
            stats = nested(device)
            allocated = stats.get("allocated_bytes", {}).get("all", {})
            reserved = stats.get("reserved_bytes", {}).get("all", {})
            return DeviceMemory(
                allocated.get("current"),
                reserved.get("current"),
                allocated.get("peak"),
                reserved.get("peak"),
            )
        owner = self._memory_owner()
        if owner is None:
            return None
        return DeviceMemory(
            owner.memory_allocated(device),
            owner.memory_reserved(device),
            owner.max_memory_allocated(device),
            owner.max_memory_reserved(device),
        )

    def memory_bytes(self) -> int | None:
        """Bytes of the current device that tensors hold now; None before the device's first use."""
        memory = self.device_memory()
        return None if memory is None else memory.allocated

    def peak_memory_bytes(self) -> int | None:
        """Highest `memory_bytes` since the last reset; None before the device's first use."""
        memory = self.device_memory()
        return None if memory is None else memory.peak_allocated

    def reset_peak_memory(self, device: int | None = None) -> bool:
        """Start the peak of ``device`` (the current one) anew; False before its first use."""
        owner = self._memory_owner() if self.in_use() else None
        if owner is None:
            return False
        owner.reset_peak_memory_stats(device)
        return True

    def profiler_activities(self) -> tuple[str, ...]:
        """``("CPU", ...)`` with the accelerator's own activity."""
        return ("CPU", self._activity)

    def _memory_owner(self) -> Any:
        """Who offers torch's memory functions: the device's module, else torch.accelerator."""
        for owner in (self._module, getattr(self._torch, "accelerator", None)):
            if hasattr(owner, "max_memory_allocated"):
                return owner
        return None


_CPU = Platform()


def resident_bytes() -> int | None:
    """Resident set size of this process in bytes; None where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def peak_resident_bytes() -> int:
    """Highest resident set size since the process began, in bytes. It cannot be reset."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


# --- which one ----------------------------------------------------------------------------------


def _cuda(torch: Any) -> Accelerator | None:
    # device_count() asks NVML and so leaves the process fit to fork, unlike is_available().
    if not torch.backends.cuda.is_built() or torch.cuda.device_count() < 1:
        return None
    name = "rocm" if getattr(torch.version, "hip", None) else "cuda"
    return Accelerator(torch, torch.cuda, name, "cuda", "CUDA")


def _xpu(torch: Any) -> Accelerator | None:
    module = getattr(torch, "xpu", None)
    if module is None or module.device_count() < 1:
        return None
    return Accelerator(torch, module, "xpu", "xpu", "XPU")


def _npu(torch: Any) -> Accelerator | None:
    module = getattr(torch, "npu", None)  # torch_npu puts itself there
    if module is None or module.device_count() < 1:
        return None
    return Accelerator(torch, module, "npu", "npu", "PrivateUse1")


def _other(torch: Any) -> Accelerator | None:
    device = torch.accelerator.current_accelerator()
    if device is None or device.type in ("cuda", "xpu"):
        return None
    module = torch.get_device_module(device)
    if not module.is_available():
        return None
    return Accelerator(torch, module, device.type, device.type, _activity_of(torch, device.type))


def _activity_of(torch: Any, device_type: str) -> str:
    known = getattr(torch.profiler.ProfilerActivity, "__members__", {})
    return next((name for name in known if name.lower() == device_type), "PrivateUse1")


_PROBES: tuple[Callable[[Any], Accelerator | None], ...] = (_cuda, _xpu, _npu, _other)
_found: tuple[tuple[object, bool], Platform] | None = None


def _detect(torch: Any) -> Platform:
    for probe in _PROBES:
        try:
            accelerator = probe(torch)
        except Exception:  # an older torch without it, or a driver that does not answer
            continue
        if accelerator is not None:
            return accelerator
    return _CPU


def loaded_platform() -> Platform:
    """The platform of the torch that this process has imported; the CPU without one.

    Never imports torch, so that the service thread and the contexts may ask at any time.
    """
    global _found
    torch = imports.loaded("torch")
    if torch is None:
        return _CPU
    seen = (torch, hasattr(torch, "npu"))  # torch_npu may be imported later than torch
    if _found is None or _found[0] != seen:
        _found = (seen, _detect(torch))
    return _found[1]


def accelerator_in_use() -> Platform | None:
    """The accelerator whose context this process has; None without one. Never imports torch."""
    platform = loaded_platform()
    return platform if platform.in_use() else None


def on_first_use(callback: Callable[[], None]) -> bool:
    """Call ``callback`` once torch sets its accelerator up, or now where it has done so.

    False when torch is not imported, has no accelerator, or does not tell: ask again later.
    """
    platform = loaded_platform()
    if not isinstance(platform, Accelerator):
        return False
    if platform.in_use():
        callback()
        return True

    def safe_callback() -> None:
        # An exception in here would surface in the application's first use of its device.
        try:
            callback()
        except Exception:
            return

    lazy_call = getattr(platform._module, "_lazy_call", None)
    if lazy_call is None:
        return False
    try:
        lazy_call(safe_callback)
    except Exception:
        return False
    return True


class _CurrentPlatform:
    """Stands for the platform and finds it at the first question, importing torch if installed."""

    def __getattr__(self, name: str) -> Any:
        if imports.loaded("torch") is None and not name.startswith("__"):
            with imports.importing(), contextlib.suppress(ImportError):
                import torch  # noqa: F401
        return getattr(loaded_platform(), name)

    def __repr__(self) -> str:
        return repr(loaded_platform())


current_platform: Platform = cast(Platform, _CurrentPlatform())
"""The platform that torch works on here; asking for any of its attributes imports torch."""
