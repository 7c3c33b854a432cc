"""Small objects that count their calls, in place of torch and its modules for accelerators."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class Device:
    """What ``torch.cuda`` and similar modules offer; a query must never initialise it."""

    def __init__(self, devices: int = 1, *, initialized: bool = True) -> None:
        self.devices = devices
        self.initialized = initialized
        self.calls: list[str] = []
        self.queued: list[Any] = []
        self.current = {"allocated": 300, "reserved": 500}
        self.peak = {"allocated": 400, "reserved": 600}

    def device_count(self) -> int:
        return self.devices

    def is_initialized(self) -> bool:
        return self.initialized

    def _needs_context(self, call: str) -> None:
        assert self.initialized, f"{call}() would have created a device context"
        self.calls.append(call)

    def synchronize(self) -> None:
        self._needs_context("synchronize")

    def empty_cache(self) -> None:
        self._needs_context("empty_cache")

    def max_memory_allocated(self, device: int | None = None) -> int:
        self._needs_context("max_memory_allocated")
        return self.peak["allocated"]

    def max_memory_reserved(self, device: int | None = None) -> int:
        return self.peak["reserved"]

    def memory_allocated(self, device: int | None = None) -> int:
        return self.current["allocated"]

    def memory_reserved(self, device: int | None = None) -> int:
        return self.current["reserved"]

    def reset_peak_memory_stats(self, device: int | None = None) -> None:
        self._needs_context("reset_peak_memory_stats")
        self.peak = dict(self.current)

    def is_current_stream_capturing(self) -> bool:
        self._needs_context("is_current_stream_capturing")
        return True

    def _lazy_call(self, callback: Any) -> None:
        self.queued.append(callback)


class NestedDevice(Device):
    """A torch whose module also returns the allocator's own nested dictionary."""

    def memory_stats_as_nested_dict(self, device: int | None = None) -> dict[str, Any]:
        self._needs_context("memory_stats_as_nested_dict")
        return {
            f"{kind}_bytes": {"all": {"current": self.current[kind], "peak": self.peak[kind]}}
            for kind in ("allocated", "reserved")
        }


def torch_with(**modules: Any) -> Any:
    """Return a torch that was built for ``cuda`` and has the given device modules."""
    hip = modules.pop("hip", None)
    return SimpleNamespace(
        backends=SimpleNamespace(cuda=SimpleNamespace(is_built=lambda: "cuda" in modules)),
        version=SimpleNamespace(hip=hip),
        profiler=SimpleNamespace(
            ProfilerActivity=SimpleNamespace(__members__={"CPU": 0, "CUDA": 1, "HPU": 2})
        ),
        **modules,
    )
