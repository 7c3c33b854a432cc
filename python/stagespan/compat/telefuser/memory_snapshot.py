"""``telefuser.utils.memory_snapshot``: the memory of an accelerator at named checkpoints.

As in TeleFuser, all figures are 0.0 if there is no accelerator or the process has not used it yet.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from stagespan.compat.telefuser import messages
from stagespan.device import platforms

__all__ = [
    "MemorySnapshot",
    "capture_memory_snapshot",
    "get_memory_analysis",
    "get_memory_info",
    "get_memory_snapshots",
    "print_memory_analysis",
    "record_memory_snapshot",
    "reset_memory_registry",
    "reset_peak_memory_stats",
    "set_memory_baseline",
]

_MB = 1 << 20
_MB_PER_GB = 1024


@dataclass(slots=True)
class MemorySnapshot:
    """Memory of the current device, in MB of 2^20 bytes."""

    allocated_mb: float
    reserved_mb: float
    peak_allocated_mb: float
    peak_reserved_mb: float

    def to_dict(self) -> dict[str, float]:
        """Return the four figures, rounded to two digits."""
        return {name: round(value, 2) for name, value in asdict(self).items()}

    @property
    def allocated_gb(self) -> float:
        """Memory of tensors in GB of 2^30 bytes."""
        return self.allocated_mb / _MB_PER_GB

    @property
    def reserved_gb(self) -> float:
        """Memory that the allocator holds in GB of 2^30 bytes."""
        return self.reserved_mb / _MB_PER_GB

    @property
    def peak_allocated_gb(self) -> float:
        """Highest `allocated_gb` since the last reset."""
        return self.peak_allocated_mb / _MB_PER_GB

    @property
    def peak_reserved_gb(self) -> float:
        """Highest `reserved_gb` since the last reset."""
        return self.peak_reserved_mb / _MB_PER_GB

    @property
    def pool_overhead_mb(self) -> float:
        """Memory that the allocator holds but no tensor uses, in MB."""
        return self.reserved_mb - self.allocated_mb

    @property
    def pool_overhead_gb(self) -> float:
        """Memory that the allocator holds but no tensor uses, in GB."""
        return self.pool_overhead_mb / _MB_PER_GB

    @property
    def pool_overhead_pct(self) -> float:
        """Percentage of the allocator's memory that no tensor uses; 0.0 if it holds none."""
        return 100 * self.pool_overhead_mb / self.reserved_mb if self.reserved_mb else 0.0


_snapshots: dict[str, MemorySnapshot] = {}
_baseline: list[MemorySnapshot] = []  # the latest one, if any


def capture_memory_snapshot(device: Any = None) -> MemorySnapshot:
    """Return the current memory and the peaks of ``device``, by default the current one."""
    return snapshot_of(platforms.loaded_platform().device_memory(device))


def snapshot_of(memory: platforms.DeviceMemory | None) -> MemorySnapshot:
    """Return a snapshot from figures in bytes."""
    if memory is None:
        return MemorySnapshot(0.0, 0.0, 0.0, 0.0)
    return MemorySnapshot(
        (memory.allocated or 0) / _MB,
        (memory.reserved or 0) / _MB,
        (memory.peak_allocated or 0) / _MB,
        (memory.peak_reserved or 0) / _MB,
    )


def reset_peak_memory_stats(device: Any = None) -> None:
    """Reset the peaks of ``device``, by default the current one. Needs an accelerator."""
    platforms.loaded_platform().reset_peak_memory(device)


def get_memory_info(device: Any = None) -> dict[str, float]:
    """Return `capture_memory_snapshot` as a dict."""
    return capture_memory_snapshot(device).to_dict()


def reset_memory_registry() -> None:
    """Remove the checkpoints and the baseline."""
    _snapshots.clear()
    _baseline.clear()


def record_memory_snapshot(checkpoint_name: str) -> MemorySnapshot:
    """Capture a snapshot, store it under ``checkpoint_name`` for the report, and return it."""
    taken = capture_memory_snapshot()
    _snapshots[checkpoint_name] = taken
    return taken


def get_memory_snapshots() -> dict[str, MemorySnapshot]:
    """Return the checkpoints by name."""
    return _snapshots.copy()


def set_memory_baseline() -> MemorySnapshot:
    """Capture the snapshot from which `get_memory_analysis` computes the increase."""
    taken = capture_memory_snapshot()
    _baseline[:] = [taken]
    return taken


def get_memory_analysis() -> dict[str, Any]:
    """Return figures of the checkpoint with the highest peak; {} if there are no checkpoints."""
    snapshots, baseline = _snapshots.copy(), _baseline.copy()
    if not snapshots:
        return {}
    highest = max(snapshots.values(), key=lambda snapshot: snapshot.peak_reserved_mb)
    platform = platforms.accelerator_in_use()
    total_mb = 0.0 if platform is None else platform.get_device_total_memory() / _MB
    left_mb = total_mb - highest.peak_reserved_mb if total_mb else 0.0
    analysis: dict[str, Any] = {
        "peak_reserved_mb": highest.peak_reserved_mb,
        "peak_allocated_mb": highest.peak_allocated_mb,
        "peak_reserved_gb": highest.peak_reserved_gb,
        "peak_allocated_gb": highest.peak_allocated_gb,
        "pool_overhead_mb": highest.pool_overhead_mb,
        "pool_overhead_pct": round(highest.pool_overhead_pct, 1),
        "remaining_memory_mb": round(left_mb, 2),
        "remaining_memory_gb": round(left_mb / _MB_PER_GB, 3),
        "total_device_memory_mb": round(total_mb, 2),
        "total_device_memory_gb": round(total_mb / _MB_PER_GB, 3),
        "snapshots": {name: snapshot.to_dict() for name, snapshot in snapshots.items()},
    }
    for before in baseline:
        increase_mb = highest.peak_reserved_mb - before.reserved_mb
        analysis["baseline"] = before.to_dict()
        analysis["memory_increase_mb"] = round(increase_mb, 2)
        analysis["memory_increase_gb"] = round(increase_mb / _MB_PER_GB, 3)
    return analysis


def print_memory_analysis() -> None:
    """Log the analysis as text."""
    messages.info("\n".join(("", *analysis_lines())))


def analysis_lines() -> list[str]:
    """Return the analysis as lines of text."""
    usage = get_memory_analysis()
    if not usage:
        return ["No memory snapshots recorded."]
    allocated_mb = usage["peak_allocated_mb"]
    lines = [
        "Memory Statistics:",
        f"  Peak Reserved: {usage['peak_reserved_gb']:.2f} GB ({usage['peak_reserved_mb']:.0f} MB)",
        f"  Peak Allocated: {usage['peak_allocated_gb']:.2f} GB ({allocated_mb:.0f} MB)",
        f"  Pool Overhead: {usage['pool_overhead_mb']:.0f} MB ({usage['pool_overhead_pct']:.1f}%)",
        f"  Remaining: {usage['remaining_memory_gb']:.2f} GB",
    ]
    if "memory_increase_gb" in usage:
        lines.append(f"  Increase from Baseline: {usage['memory_increase_gb']:.2f} GB")
    return lines


def checkpoint_lines() -> list[str]:
    """Return the checkpoints as lines of text."""
    return [f"  {name}: {figures(snapshot)}" for name, snapshot in _snapshots.copy().items()]


def figures(snapshot: MemorySnapshot) -> str:
    """Return a snapshot as a short text."""
    return (
        f"{snapshot.allocated_mb:.0f}/{snapshot.reserved_mb:.0f} MB"
        f" (peak: {snapshot.peak_allocated_mb:.0f}/{snapshot.peak_reserved_mb:.0f} MB)"
    )
