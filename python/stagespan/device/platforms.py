"""The device that torch uses: cuda, rocm, xpu, npu, another accelerator of torch, or the CPU.

Nothing here creates a device context: an accelerator that the process has not used is not touched.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from stagespan.device.table import CPU, DEVICE_TYPES, Device, is_capturing, row_of
from stagespan.process import imports

_AcceleratorT = TypeVar("_AcceleratorT", bound="Accelerator")


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes that torch's allocator holds on the current device; None if unknown."""

    allocated: int | None
    reserved: int | None
    peak_allocated: int | None
    peak_reserved: int | None


class Platform:
    """The CPU, and the interface of every platform."""

    device: Device = CPU

    @property
    def name(self) -> str:
        """The platform's name: cpu, cuda, rocm, xpu, npu, or that of another accelerator."""
        return self.device.name

    device_name = name
    """The same."""

    @property
    def device_type(self) -> str:
        """torch's name of the kind of device; ROCm's is cuda."""
        return self.device.device_type

    @property
    def dispatch_key(self) -> str:
        """torch's dispatch key of the device."""
        return self.device.dispatch_key

    @property
    def dist_backend(self) -> str:
        """Backend of torch.distributed for the device, such as nccl."""
        return self.device.communication

    @property
    def full_dist_backend(self) -> str:
        """The same with the device, as ``init_process_group(backend=...)`` takes it."""
        return f"{self.device_type}:{self.dist_backend}"

    @property
    def device_control_env_var(self) -> str:
        """Environment variable that limits which devices a process sees."""
        return self.device.visible_variable

    def is_accelerator_available(self) -> bool:
        """Whether this platform is an accelerator."""
        return False

    def device_count(self) -> int:
        """Number of accelerators that the process sees; 0 on a CPU."""
        return 0

    def default_device(self) -> Any:
        """The ``torch.device`` of the platform, without an index."""
        with imports.importing():
            import torch
        return torch.device(self.device_type)

    def set_device(self, device: Any) -> None:
        """Make ``device`` the current one. Does nothing on a CPU."""

    def device_ctx(self, device: Any) -> contextlib.AbstractContextManager[Any]:
        """Return a context manager that makes ``device`` the current one; does nothing on a CPU."""
        return contextlib.nullcontext()

    def get_device_name(self) -> str:
        """The device's product name; on a CPU ``CPU``."""
        return "CPU"

    def get_device_properties(self, device: Any = None) -> Any:
        """Return torch's properties of the device; None on a CPU."""
        return None

    def get_device_capability(self, device: Any = None) -> tuple[int, int] | None:
        """The device's compute capability; None if it has none."""
        return None

    def get_device_total_memory(self, device: Any = None) -> int:
        """Return the size of the accelerator's memory in bytes; 0 on a CPU."""
        return 0

    def max_memory_allocated(self, device: Any = None) -> int:
        """Return the peak memory of tensors on the accelerator in bytes; 0 on a CPU."""
        return 0

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        """Reset `max_memory_allocated`, on an accelerator."""

    def ipc_collect(self) -> None:
        """Free memory that other processes have released, if torch supports this."""

    def in_use(self) -> bool:
        """Whether this process already has a context on the accelerator."""
        return False

    def synchronize(self, device: Any = None) -> None:
        """Wait for ``device`` (by default the current one), if the process uses one."""

    def is_capturing(self) -> bool:
        """Whether a device graph is being captured on the current stream. Do not wait then."""
        return False

    def empty_cache(self) -> None:
        """Release the allocator's unused device memory, if there is a device."""

    def current_device(self) -> int:
        """Return the index of the current device; 0 if there is only one or none in use."""
        return 0

    def device_memory(self, device: int | None = None) -> DeviceMemory | None:
        """Return what the allocator holds on ``device`` (the current one by default), or None."""
        return None

    def memory_bytes(self) -> int | None:
        """Return the bytes in use: allocated on the accelerator, or resident on a CPU."""
        return resident_bytes()

    def peak_memory_bytes(self) -> int | None:
        """Return the highest `memory_bytes` since the last reset, on a CPU since the start."""
        return peak_resident_bytes()

    def reset_peak_memory(self, device: int | None = None) -> bool:
        """Reset the peak; False if it cannot be reset, as on a CPU."""
        return False

    def profiler_activities(self) -> tuple[str, ...]:
        """Return the names of this platform's `torch.profiler.ProfilerActivity` members."""
        return ("CPU",)

    def __repr__(self) -> str:
        return f"<platform {self.name}>"


class Accelerator(Platform):
    """A device with its own module in torch, such as ``torch.cuda``."""

    def __init__(self, torch: Any, module: Any, device: Device) -> None:
        self.device = device
        self._torch = torch
        self._module = module

    def in_use(self) -> bool:
        """Whether torch has initialised the device in this process, not before a fork."""
        try:
            return bool(self._module.is_initialized())
        except Exception:
            return False

    def as_kind(self, kind: type[_AcceleratorT]) -> _AcceleratorT:
        """Return the same device as an instance of a subclass."""
        return kind(self._torch, self._module, self.device)

    def is_accelerator_available(self) -> bool:
        """Whether torch can use the device."""
        return bool(self._module.is_available())

    def device_count(self) -> int:
        """Number of devices that the process sees."""
        return int(self._module.device_count())

    def set_device(self, device: Any) -> None:
        """Make ``device`` (an index, a name or a ``torch.device``) the current one."""
        self._module.set_device(device)

    def device_ctx(self, device: Any) -> contextlib.AbstractContextManager[Any]:
        """Return a context manager that makes ``device`` the current one."""
        context: contextlib.AbstractContextManager[Any] = self._module.device(device)
        return context

    def get_device_name(self) -> str:
        """The current device's product name."""
        return str(self._module.get_device_name())

    def get_device_properties(self, device: Any = None) -> Any:
        """Return torch's properties of ``device``, by default the current one."""
        # Older versions of torch take no None here.
        index = self._module.current_device() if device is None else device
        return self._module.get_device_properties(index)

    def get_device_capability(self, device: Any = None) -> tuple[int, int] | None:
        """Return the compute capability of ``device``; None if torch has none."""
        ask = getattr(self._module, "get_device_capability", None)
        found = None if ask is None else ask(device)
        return found if isinstance(found, tuple) else None

    def get_device_total_memory(self, device: Any = None) -> int:
        """Return the size of the memory of ``device`` in bytes."""
        return int(self.get_device_properties(device).total_memory)

    def max_memory_allocated(self, device: Any = None) -> int:
        """Return the peak memory of tensors since the last reset in bytes; 0 before first use."""
        owner = self._memory_owner() if self.in_use() else None
        return 0 if owner is None else int(owner.max_memory_allocated(device))

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        """Reset `max_memory_allocated`, if the process has used the device."""
        self.reset_peak_memory(device)

    def ipc_collect(self) -> None:
        """Free memory that other processes have released, if torch supports this."""
        collect = getattr(self._module, "ipc_collect", None)
        if collect is not None and self.in_use():
            collect()

    def synchronize(self, device: Any = None) -> None:
        """Wait for ``device`` (by default the current one), if the process uses one."""
        if self.in_use():
            self._module.synchronize(*(() if device is None else (device,)))

    def is_capturing(self) -> bool:
        """Whether a device graph is being captured on the current stream."""
        return self.in_use() and is_capturing(self._module)

    def empty_cache(self) -> None:
        """Release the allocator's unused device memory, if the process has used the device."""
        if self.in_use():
            self._module.empty_cache()

    def current_device(self) -> int:
        """Return the index of the current device; 0 before the device's first use."""
        return int(self._module.current_device()) if self.in_use() else 0

    def device_memory(self, device: int | None = None) -> DeviceMemory | None:
        """Return what the allocator holds on ``device``; None before its first use."""
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
        """Reset the peak of ``device`` (the current one by default); False before its first use."""
        owner = self._memory_owner() if self.in_use() else None
        if owner is None:
            return False
        owner.reset_peak_memory_stats(device)
        return True

    def profiler_activities(self) -> tuple[str, ...]:
        """Return ``("CPU", ...)`` with the accelerator's activity."""
        return ("CPU", self.device.activity)

    def _memory_owner(self) -> Any:
        """Return the module with torch's memory functions: the device's, or torch.accelerator."""
        for owner in (self._module, getattr(self._torch, "accelerator", None)):
            if hasattr(owner, "max_memory_allocated"):
                return owner
        return None


_CPU = Platform()


def resident_bytes() -> int | None:
    """Return the resident set size of this process in bytes; None if unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def peak_resident_bytes() -> int:
    """Return the highest resident set size since the process began, in bytes.

    Linux adds the peak of the parent to ``ru_maxrss`` of a process that subprocess or
    multiprocessing's "spawn" started (csrc/bindings/peak_memory.cpp).
    """
    try:
        with open("/proc/self/status", "rb") as file:
            return int(file.read().split(b"VmHWM:")[1].split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


# --- which one ----------------------------------------------------------------------------------


def _known(torch: Any, device_type: str) -> Accelerator | None:
    module = getattr(torch, device_type, None)  # torch_npu puts torch.npu there
    row = row_of(torch, device_type)
    built = getattr(getattr(torch.backends, device_type, None), "is_built", None)
    # device_count() of CUDA uses NVML, so the process can still fork, unlike after is_available().
    if row is None or module is None or (built and not built()) or module.device_count() < 1:
        return None
    return Accelerator(torch, module, row)


def _other(torch: Any) -> Accelerator | None:
    device = torch.accelerator.current_accelerator()
    if device is None or device.type in DEVICE_TYPES:
        return None
    module = torch.get_device_module(device)
    if not module.is_available():
        return None
    known = getattr(torch.profiler.ProfilerActivity, "__members__", {})
    activity = next((name for name in known if name.lower() == device.type), "PrivateUse1")
    return Accelerator(torch, module, Device(device.type, device.type, activity))


_cached: tuple[tuple[object, list[bool]], Platform] | None = None


def _detect(torch: Any) -> Platform:
    for device_type in (*DEVICE_TYPES, None):
        try:
            accelerator = _known(torch, device_type) if device_type else _other(torch)
        except Exception:  # an older torch without it, or a driver that does not answer
            continue
        if accelerator is not None:
            return accelerator
    return _CPU


def loaded_platform() -> Platform:
    """Return the platform of the imported torch; the CPU if torch is not imported.

    Never imports torch, so the service thread and the contexts can call this at any time.
    """
    global _cached
    torch = imports.loaded("torch")
    if torch is None:
        return _CPU
    # Packages such as torch_npu may be imported later than torch.
    seen = (torch, [hasattr(torch, device_type) for device_type in DEVICE_TYPES])
    if _cached is None or _cached[0] != seen:
        _cached = (seen, _detect(torch))
    return _cached[1]


def accelerator_in_use() -> Platform | None:
    """Return the accelerator whose context this process has, or None. Never imports torch."""
    platform = loaded_platform()
    return platform if platform.in_use() else None


def on_first_use(callback: Callable[[], None]) -> bool:
    """Call ``callback`` when torch initialises its accelerator, or now if it already has.

    Returns False if torch is not imported, has no accelerator, or offers no callback. Call this
    again later then.
    """
    platform = loaded_platform()
    if not isinstance(platform, Accelerator):
        return False
    if platform.in_use():
        callback()
        return True

    def safe_callback() -> None:
        # An exception here would appear in the application's first use of its device.
        with contextlib.suppress(Exception):
            callback()

    lazy_call = getattr(platform._module, "_lazy_call", None)
    if lazy_call is None:
        return False
    try:
        lazy_call(safe_callback)
    except Exception:
        return False
    return True


class _CurrentPlatform:
    """A proxy that finds the platform on first use, and imports torch if it is installed."""

    def __getattr__(self, name: str) -> Any:
        if imports.loaded("torch") is None and not name.startswith("__"):
            with imports.importing(), contextlib.suppress(ImportError):
                import torch  # noqa: F401
        return getattr(loaded_platform(), name)

    def __repr__(self) -> str:
        return repr(loaded_platform())


current_platform: Platform = cast(Platform, _CurrentPlatform())
"""The platform that torch uses here. Reading any of its attributes imports torch."""
