"""``telefuser.utils.memory_snapshot``: what an accelerator's memory holds, at named checkpoints.

Without an accelerator, and before the process has used it, every figure is 0.0, as in TeleFuser.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from stagespan import platforms
from stagespan.compat.telefuser import messages

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
    """Memory of the current device in MB of 2^20 bytes."""

    allocated_mb: float
    reserved_mb: float
    peak_allocated_mb: float
    peak_reserved_mb: float

    def to_dict(self) -> dict[str, float]:
        """The four figures, rounded to two digits."""
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
        """What the allocator holds beyond the tensors, in MB."""
        return self.reserved_mb - self.allocated_mb

    @property
    def pool_overhead_gb(self) -> float:
        """The same in GB."""
        return self.pool_overhead_mb / _MB_PER_GB

    @property
    def pool_overhead_pct(self) -> float:
        """The same in percent of what the allocator holds; 0.0 if it holds nothing."""
        return 100 * self.pool_overhead_mb / self.reserved_mb if self.reserved_mb else 0.0


_snapshots: dict[str, MemorySnapshot] = {}
_baseline: list[MemorySnapshot] = []  # the latest one, if any


def capture_memory_snapshot(device: Any = None) -> MemorySnapshot:
    """What ``device`` (the current one) holds now, and its peaks since the last reset."""
    return snapshot_of(platforms.loaded_platform().device_memory(device))


def snapshot_of(memory: platforms.DeviceMemory | None) -> MemorySnapshot:
    """A snapshot of figures in bytes."""
    if memory is None:
        return MemorySnapshot(0.0, 0.0, 0.0, 0.0)
    return MemorySnapshot(
        (memory.allocated or 0) / _MB,
        (memory.reserved or 0) / _MB,
        (memory.peak_allocated or 0) / _MB,
        (memory.peak_reserved or 0) / _MB,
    )


def reset_peak_memory_stats(device: Any = None) -> None:
    """Start the peaks of ``device`` (the current one) anew; nothing without an accelerator."""
    platforms.loaded_platform().reset_peak_memory(device)


def get_memory_info(device: Any = None) -> dict[str, float]:
    """`capture_memory_snapshot` as a dict."""
    return capture_memory_snapshot(device).to_dict()


def reset_memory_registry() -> None:
    """Forget the checkpoints and the baseline."""
    _snapshots.clear()
    _baseline.clear()


def record_memory_snapshot(checkpoint_name: str) -> MemorySnapshot:
    """Capture a snapshot, keep it under ``checkpoint_name`` for the report, and return it."""
    taken = capture_memory_snapshot()
    _snapshots[checkpoint_name] = taken
    return taken


def get_memory_snapshots() -> dict[str, MemorySnapshot]:
    """The checkpoints by name."""
    return _snapshots.copy()


def set_memory_baseline() -> MemorySnapshot:
    """Capture the snapshot that `get_memory_analysis` counts the increase from."""
    taken = capture_memory_snapshot()
    _baseline[:] = [taken]
    return taken


def get_memory_analysis() -> dict[str, Any]:
    """The checkpoint with the highest peak, and what is left of the device; {} if there is none."""
    snapshots, baseline = _snapshots.copy(), _baseline.copy()
    if not snapshots:
        return {}
    highest = max(snapshots.values(), key=lambda snapshot: snapshot.peak_reserved_mb)
    total_mb = _total_mb()
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
    """The analysis as lines of text."""
    found = get_memory_analysis()
    if not found:
        return ["No memory snapshots recorded."]
    allocated_mb = found["peak_allocated_mb"]
    lines = [
        "Memory Statistics:",
        f"  Peak Reserved: {found['peak_reserved_gb']:.2f} GB ({found['peak_reserved_mb']:.0f} MB)",
        f"  Peak Allocated: {found['peak_allocated_gb']:.2f} GB ({allocated_mb:.0f} MB)",
        f"  Pool Overhead: {found['pool_overhead_mb']:.0f} MB ({found['pool_overhead_pct']:.1f}%)",
        f"  Remaining: {found['remaining_memory_gb']:.2f} GB",
    ]
    if "memory_increase_gb" in found:
        lines.append(f"  Increase from Baseline: {found['memory_increase_gb']:.2f} GB")
    return lines


def checkpoint_lines() -> list[str]:
    """The checkpoints as lines of text."""
    return [f"  {name}: {figures(snapshot)}" for name, snapshot in _snapshots.copy().items()]


def figures(snapshot: MemorySnapshot) -> str:
    """A snapshot in a few words."""
    return (
        f"{snapshot.allocated_mb:.0f}/{snapshot.reserved_mb:.0f} MB"
        f" (peak: {snapshot.peak_allocated_mb:.0f}/{snapshot.peak_reserved_mb:.0f} MB)"
    )


def _total_mb() -> float:
    platform = platforms.accelerator_in_use()
    return platform.get_device_total_memory() / _MB if platform is not None else 0.0
