"""Peak memory of contexts that nest and overlap, and snapshots of memory, for the report."""

from __future__ import annotations

import collections
import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from stagespan import _core, context, platforms
from stagespan.platforms import DeviceMemory, Platform

_MEGABYTE = 1 << 20
_MOST_STAGES = 4096
_MOST_SNAPSHOTS = 1000
_MOST_RUNS_OF_A_STAGE = 16


# --- peaks --------------------------------------------------------------------------------------


@dataclass
class _Peak:
    """Highest bytes seen so far; an allocator's counter only knows those since its last reset."""

    allocated: int = 0
    reserved: int = 0

    def raise_to(self, allocated: int | None, reserved: int | None) -> None:
        self.allocated = max(self.allocated, allocated or 0)
        self.reserved = max(self.reserved, reserved or 0)


@dataclass(eq=False)
class OpenPeak:
    """A context whose peak is being watched."""

    platform: Platform
    device: int
    peak: _Peak = field(default_factory=_Peak)


class PeakWatch:
    """Gives every context its own true peak, although they share one counter a device.

    A context that resets the counter first hands its value to all contexts that are open on the
    device, whatever thread or task they belong to, so none of them loses its peak.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, set[OpenPeak]] = {}
        self._process: dict[int, _Peak] = {}

    def enter(self, platform: Platform, *, reset: bool) -> OpenPeak | None:
        """Start watching the current device; None where its memory is not known.

        Without ``reset`` the peak is the process's: the highest since the device's first use.
        """
        device = platform.current_device()
        with self._lock:
            memory = platform.device_memory(device)
            if memory is None:
                return None
            known = self._process.setdefault(device, _Peak())
            known.raise_to(memory.peak_allocated, memory.peak_reserved)
            watched = self._open.setdefault(device, set())
            entered = OpenPeak(platform, device)
            if reset:
                for other in watched:
                    other.peak.raise_to(memory.peak_allocated, memory.peak_reserved)
                platform.reset_peak_memory(device)
            else:
                entered.peak.raise_to(known.allocated, known.reserved)
            watched.add(entered)
            return entered

    def exit(self, entered: OpenPeak) -> DeviceMemory | None:
        """Stop watching; what the device holds now, with the peaks since `enter`."""
        with self._lock:
            self._open.get(entered.device, set()).discard(entered)
            memory = entered.platform.device_memory(entered.device)
            if memory is None:
                return None
            entered.peak.raise_to(memory.peak_allocated, memory.peak_reserved)
            return DeviceMemory(
                memory.allocated,
                memory.reserved,
                None if memory.peak_allocated is None else entered.peak.allocated,
                None if memory.peak_reserved is None else entered.peak.reserved,
            )


# --- what the report shows ----------------------------------------------------------------------


@dataclass
class _StageMemory:
    """Highest figures over a stage's runs, and what its last run left behind."""

    device: DeviceMemory | None = None
    peak_rss_bytes: int | None = None
    runs: collections.deque[dict[str, Any]] = field(
        default_factory=lambda: collections.deque(maxlen=_MOST_RUNS_OF_A_STAGE)
    )


_lock = threading.Lock()
_watch = PeakWatch()
_stages: dict[str, _StageMemory] = {}
_snapshots: collections.deque[dict[str, Any]] = collections.deque(maxlen=_MOST_SNAPSHOTS)


def _forget_parent() -> None:
    # A lock that another thread held when the process forked would never be released here.
    global _lock, _watch
    _lock, _watch = threading.Lock(), PeakWatch()


os.register_at_fork(after_in_child=_forget_parent)


def reset() -> None:
    """Forget all snapshots and all figures of stages; contexts that are open go on."""
    with _lock:
        _stages.clear()
        _snapshots.clear()


def memory_snapshot(name: str) -> dict[str, Any]:
    """Note what memory holds now under ``name``, for the report; returns it, in bytes.

    Never synchronises and never creates a device context: the figures of an accelerator are None
    before its first use. The latest 1,000 snapshots are kept.
    """
    taken = {"name": str(name), "time_ns": time.time_ns(), **_now()}
    with _lock:
        _snapshots.append(taken)
    return dict(taken)


def _now() -> dict[str, Any]:
    platform = platforms.loaded_platform()
    device = platform.device_memory() or DeviceMemory(None, None, None, None)
    resident, peak = platforms.resident_bytes(), platforms.peak_resident_bytes()
    return {
        "device_type": platform.device_type,
        "allocated_bytes": device.allocated,
        "reserved_bytes": device.reserved,
        "peak_allocated_bytes": device.peak_allocated,
        "peak_reserved_bytes": device.peak_reserved,
        "rss_bytes": resident,
        # The kernel raises the peak a little late.
        "peak_rss_bytes": max(peak, resident or 0),
    }


def note_rss(stage: str, peak_rss_bytes: int) -> None:
    """Note the process's peak RSS at the end of a run of ``stage``."""
    with _lock:
        entry = _entry(stage)
        if entry is not None:
            entry.peak_rss_bytes = max(entry.peak_rss_bytes or 0, peak_rss_bytes)


def stage_memory(stage: str) -> dict[str, Any] | None:
    """The report's ``memory`` of a stage, in MB of 2^20 bytes; None where nothing was measured."""
    with _lock:
        entry = _stages.get(stage)
        if entry is None:
            return None
        device = entry.device or DeviceMemory(None, None, None, None)
        found: dict[str, Any] = {
            "peak_allocated_mb": _mb(device.peak_allocated),
            "peak_reserved_mb": _mb(device.peak_reserved),
            "allocated_mb": _mb(device.allocated),
            "reserved_mb": _mb(device.reserved),
            "peak_rss_mb": _mb(entry.peak_rss_bytes),
        }
        if entry.runs:
            found["runs"] = [
                {**run, "before": _in_mb(run["before"]), "after": _in_mb(run["after"])}
                for run in entry.runs
            ]
        return found


def snapshots() -> list[dict[str, Any]]:
    """The report's ``memory_snapshots``, oldest first, in MB of 2^20 bytes."""
    with _lock:
        return [_in_mb(taken) for taken in _snapshots]


def _entry(stage: str) -> _StageMemory | None:
    entry = _stages.get(stage)
    if entry is None and len(_stages) < _MOST_STAGES:
        entry = _stages[stage] = _StageMemory()
    return entry


def _mb(size: int | None) -> float | None:
    return None if size is None else round(size / _MEGABYTE, 3)


def _in_mb(taken: dict[str, Any]) -> dict[str, Any]:
    return {
        f"{key[: -len('_bytes')]}_mb" if key.endswith("_bytes") else key: (
            _mb(value) if key.endswith("_bytes") else value
        )
        for key, value in taken.items()
    }


def _higher(first: int | None, second: int | None) -> int | None:
    return max((size for size in (first, second) if size is not None), default=None)


# --- the hook of the contexts -------------------------------------------------------------------


class MemoryHook:
    """Watches an accelerator's peak in each context, and takes the snapshots around it."""

    name = "memory"

    def wants(self, call: context.Call) -> bool:
        """Whether there is anything to read: on a CPU the extension reads the peak itself."""
        return bool(call.capture_memory) or platforms.accelerator_in_use() is not None

    def enter(self, call: context.Call) -> None:
        """Before the clock starts: snapshot, then start watching the peak."""
        before = _now() if call.capture_memory else None
        platform = platforms.accelerator_in_use()
        watched = _watch.enter(platform, reset=call.reset_peak_memory) if platform else None
        call.state[self.name] = (before, watched)

    def leave(self, call: context.Call) -> None:
        """Nothing: memory is read after the clock has stopped."""

    def exit(self, call: context.Call) -> None:
        """After the clock stopped: read the peak and take the second snapshot."""
        before, watched = call.state.pop(self.name, (None, None))
        device = _watch.exit(watched) if watched is not None else None
        if device is not None:
            call.peak_bytes = device.peak_allocated  # for the log line
        after = _now() if before is not None else None
        with _lock:
            entry = _entry(call.stage)
            if entry is not None and device is not None:
                old = entry.device or device
                entry.device = DeviceMemory(
                    device.allocated,
                    device.reserved,
                    _higher(old.peak_allocated, device.peak_allocated),
                    _higher(old.peak_reserved, device.peak_reserved),
                )
            if entry is not None and before is not None:
                entry.runs.append({"begin_ns": call.begin_ns, "before": before, "after": after})


_is_watching = False


def watch_accelerator() -> None:
    """Have contexts read an accelerator's memory as soon as the application has set one up.

    To be called again, at no cost, until torch has been imported.
    """
    global _is_watching
    if not _is_watching:
        _is_watching = platforms.on_first_use(lambda: _core.set_memory_hook(True))


context.register_hook(MemoryHook())
watch_accelerator()
