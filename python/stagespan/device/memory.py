"""Peak memory of nested and overlapping contexts, and memory snapshots, for the report."""

from __future__ import annotations

import collections
import time
from dataclasses import dataclass, field
from typing import Any

from stagespan import _core
from stagespan.contexts import context
from stagespan.device import platforms
from stagespan.device.platforms import DeviceMemory, Platform
from stagespan.process import forks
from stagespan.process.atomic import Highest

_MEGABYTE = 1 << 20
_MOST_STAGES = 4096
_MOST_SNAPSHOTS = 1000
_MOST_RUNS_OF_A_STAGE = 16


# --- peaks --------------------------------------------------------------------------------------


class _Peak:
    """The highest memory so far, in bytes; an allocator knows only that since its last reset."""

    __slots__ = ("allocated", "reserved")

    def __init__(self) -> None:
        self.allocated = Highest()
        self.reserved = Highest()

    def raise_to(self, allocated: int | None, reserved: int | None) -> None:
        self.allocated.raise_to(allocated or 0)
        self.reserved.raise_to(reserved or 0)

    def in_place_of(self, memory: DeviceMemory) -> DeviceMemory:
        """Return what the device holds, with these peaks if the device has peaks."""
        return DeviceMemory(
            memory.allocated,
            memory.reserved,
            None if memory.peak_allocated is None else self.allocated.value,
            None if memory.peak_reserved is None else self.reserved.value,
        )


@dataclass(eq=False)
class OpenPeak:
    """A context whose peak is being watched."""

    platform: Platform
    device: int
    peak: _Peak = field(default_factory=_Peak)


class PeakWatch:
    """Gives every context its own peak, although they share one counter per device.

    A context that resets the counter first passes its value to all contexts that are open on the
    device, in any thread or task, so that none of them loses its peak. No lock is held while torch
    is called, because torch runs Python code, and with it garbage collections and signal handlers.
    A peak between one thread's reading of the counter and its reset is lost for the other threads.
    """

    def __init__(self) -> None:
        self._open: dict[int, dict[OpenPeak, None]] = {}
        self._process: dict[int, _Peak] = {}

    def enter(self, platform: Platform, *, reset: bool) -> OpenPeak | None:
        """Start watching the current device; None if its memory is unknown.

        Without ``reset``, the peak is the highest value since the device's first use.
        """
        device = platform.current_device()
        if self._read(platform, device) is None:
            return None
        entered = OpenPeak(platform, device)
        if reset:
            platform.reset_peak_memory(device)
        else:
            highest = self._process[device]
            entered.peak.raise_to(highest.allocated.value, highest.reserved.value)
        self._open.setdefault(device, {})[entered] = None
        return entered

    def exit(self, entered: OpenPeak) -> DeviceMemory | None:
        """Stop watching. Returns what the device holds now, with the peaks since `enter`."""
        # This also updates the others: a context that interrupted this thread just before it reset
        # the counter does not have this context's peak yet.
        memory = self._read(entered.platform, entered.device)
        self._open.get(entered.device, {}).pop(entered, None)
        return None if memory is None else entered.peak.in_place_of(memory)

    def _read(self, platform: Platform, device: int) -> DeviceMemory | None:
        """Read the counter, and pass its value to all contexts open since its last reset."""
        # Copied first: a context that enters later resets the counter after this value.
        watched = self._open.get(device, {}).copy()
        memory = platform.device_memory(device)
        if memory is not None:
            for peak in (
                self._process.setdefault(device, _Peak()),
                *(other.peak for other in watched),
            ):
                peak.raise_to(memory.peak_allocated, memory.peak_reserved)
        return memory


# --- what the report shows ----------------------------------------------------------------------


class _StageMemory:
    """The highest figures over a stage's runs, and the state after its last run."""

    def __init__(self) -> None:
        self.latest: DeviceMemory | None = None
        self.peak = _Peak()
        self.runs: collections.deque[dict[str, Any]] = collections.deque(
            maxlen=_MOST_RUNS_OF_A_STAGE
        )


_UNKNOWN = DeviceMemory(None, None, None, None)
_watch = PeakWatch()
_stages: dict[str, _StageMemory] = {}
_snapshots: collections.deque[dict[str, Any]] = collections.deque(maxlen=_MOST_SNAPSHOTS)


def _forget_parent() -> None:
    global _watch
    _watch = PeakWatch()


forks.after_in_child(_forget_parent)


def reset() -> None:
    """Remove all snapshots and all figures of stages. Open contexts continue."""
    _core.memory_forget_peak_rss()
    _stages.clear()
    _snapshots.clear()


def memory_snapshot(name: str) -> dict[str, Any]:
    """Record the memory in use now under ``name``, for the report. Returns it, in bytes.

    Never synchronises and never creates a device context: the figures of an accelerator are None
    before its first use. The report contains the latest 1,000 snapshots.
    """
    taken = {"name": str(name), "time_ns": time.time_ns(), **_now()}
    _snapshots.append(taken)
    return dict(taken)


def _now() -> dict[str, Any]:
    platform = platforms.loaded_platform()
    device = platform.device_memory() or _UNKNOWN
    resident, peak = platforms.resident_bytes(), platforms.peak_resident_bytes()
    return {
        "device_type": platform.device_type,
        "allocated_bytes": device.allocated,
        "reserved_bytes": device.reserved,
        "peak_allocated_bytes": device.peak_allocated,
        "peak_reserved_bytes": device.peak_reserved,
        "rss_bytes": resident,
        # The kernel updates the peak with a delay.
        "peak_rss_bytes": max(peak, resident or 0),
    }


def stages_memory() -> dict[str, dict[str, Any]]:
    """Return the report's ``memory`` by stage, in MB of 2^20 bytes, for the measured stages."""
    peak_rss_bytes, stages = _core.memory_peak_rss_bytes(), _stages.copy()
    return {
        stage: _shown(stages.get(stage), peak_rss_bytes.get(stage))
        for stage in {**peak_rss_bytes, **stages}
    }


def _shown(entry: _StageMemory | None, peak_rss_bytes: int | None) -> dict[str, Any]:
    device = _UNKNOWN
    if entry is not None and entry.latest is not None:
        device = entry.peak.in_place_of(entry.latest)
    figures: dict[str, Any] = {
        "peak_allocated_mb": _mb(device.peak_allocated),
        "peak_reserved_mb": _mb(device.peak_reserved),
        "allocated_mb": _mb(device.allocated),
        "reserved_mb": _mb(device.reserved),
        "peak_rss_mb": _mb(peak_rss_bytes),
    }
    if entry is not None and entry.runs:
        figures["runs"] = [
            {**run, "before": _in_mb(run["before"]), "after": _in_mb(run["after"])}
            for run in entry.runs.copy()
        ]
    return figures


def snapshots() -> list[dict[str, Any]]:
    """Return the report's ``memory_snapshots``, oldest first, in MB of 2^20 bytes."""
    return [_in_mb(taken) for taken in _snapshots.copy()]


def _mb(size: int | None) -> float | None:
    return None if size is None else round(size / _MEGABYTE, 3)


def _in_mb(taken: dict[str, Any]) -> dict[str, Any]:
    return {
        key.replace("_bytes", "_mb"): _mb(value) if key.endswith("_bytes") else value
        for key, value in taken.items()
    }


# --- the hook of the contexts -------------------------------------------------------------------


class MemoryHook(context.Hook):
    """Watches an accelerator's peak in each context, and takes snapshots before and after it."""

    name = "memory"

    def wants(self, call: context.Call) -> bool:
        """Whether there is anything to read. On a CPU, the extension itself reads the peak."""
        return bool(call.capture_memory) or platforms.accelerator_in_use() is not None

    def enter(self, call: context.Call) -> None:
        """Before the clock starts: snapshot, then start watching the peak."""
        before = _now() if call.capture_memory else None
        platform = platforms.accelerator_in_use()
        watched = _watch.enter(platform, reset=call.reset_peak_memory) if platform else None
        call.state[self.name] = (before, watched)

    def exit(self, call: context.Call) -> None:
        """After the clock stopped: read the peak and take the second snapshot."""
        before, watched = call.state.pop(self.name, (None, None))
        device = _watch.exit(watched) if watched is not None else None
        if device is None and before is None:
            return
        entry = _stages.get(call.stage)
        if entry is None:
            entry = _StageMemory()
            if len(_stages) < _MOST_STAGES:
                entry = _stages.setdefault(call.stage, entry)
        if device is not None:
            call.peak_bytes = device.peak_allocated  # for the log line
            entry.latest = device
            entry.peak.raise_to(device.peak_allocated, device.peak_reserved)
        if before is not None:
            entry.runs.append({"begin_ns": call.begin_ns, "before": before, "after": _now()})


_is_watching = False


def watch_accelerator() -> None:
    """Make contexts read an accelerator's memory as soon as the application has initialised it.

    Call this again, at no cost, until torch has been imported.
    """
    global _is_watching
    if not _is_watching:
        _is_watching = platforms.on_first_use(lambda: _core.memory_set_hook(True))


context.register_hook(MemoryHook())
watch_accelerator()
