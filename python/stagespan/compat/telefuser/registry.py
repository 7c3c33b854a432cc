"""TeleFuser's registry of timings, signatures and checkpoints, based on stagespan's report."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

from stagespan import _core
from stagespan.compat.telefuser import memory_snapshot, messages
from stagespan.compat.telefuser.memory_snapshot import MemorySnapshot
from stagespan.compat.telefuser.signatures import StageIOSignature, from_entry
from stagespan.compat.telefuser.workers import WorkerTimings
from stagespan.report import timing
from stagespan.signature import SignatureFile, get_io_signatures

WORKERS = WorkerTimings()
_RULE = "=" * 60
_THIN_RULE = "-" * 60


class CheckpointSource:
    """Adds the memory checkpoints to reports."""

    def begin(self) -> None:
        """Remove the checkpoints and the baseline."""
        memory_snapshot.reset_memory_registry()

    def collect(self) -> None:
        """Do nothing, because the checkpoints exist already."""

    def complete(self, report: dict[str, Any]) -> None:
        """Set ``memory`` in the report if there are checkpoints."""
        analysis = memory_snapshot.get_memory_analysis()
        if analysis:
            report["memory"] = analysis


class GlobalTimingRegistry:
    """The registry of the process, which contains stagespan's report.

    A stage that ran several times is in the report once, with the sum of its runs.
    """

    _instance: GlobalTimingRegistry | None = None

    def __init__(self) -> None:
        self._signatures: dict[str, StageIOSignature] = {}  # those from `record_signature`

    @classmethod
    def get_instance(cls) -> GlobalTimingRegistry:
        """Return the registry of the process."""
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    @classmethod
    def reset(
        cls, request_id: str = "", metadata: dict[str, Any] | None = None
    ) -> GlobalTimingRegistry:
        """Start a new report, and return the registry."""
        registry = cls.get_instance()
        registry._signatures = {}
        timing.reset_timing_registry(request_id or _new_request_id(), metadata)
        return registry

    def record(
        self, name: str, duration_ms: float, memory_snapshot: MemorySnapshot | None = None
    ) -> None:
        """Add a run that ends now. ``memory_snapshot`` is not kept."""
        end_ns = time.time_ns()
        _core.record(name, end_ns - max(round(duration_ms * 1e6), 0), end_ns)

    def record_parallel_stage(self, name: str, rank_records: dict[int, dict[str, Any]]) -> None:
        """Add a run of several ranks: ``{rank: {"duration_ms": ..., "peak_memory_gb": ...}}``."""
        self.record(name, max(record["duration_ms"] for record in rank_records.values()))
        WORKERS.give(name, rank_records)

    def record_signature(self, signature: StageIOSignature) -> None:
        """Store a signature that the program created."""
        self._signatures[signature.stage_name] = signature

    def get_io_signatures(self) -> dict[str, StageIOSignature]:
        """Return the signatures of all stages, by name."""
        found = {name: from_entry(name, entry) for name, entry in get_io_signatures().items()}
        return {**found, **self._signatures}

    def dump_io_signatures(self, path: str) -> None:
        """Write the signatures, and log the path."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        entries = get_io_signatures()
        entries.update({name: given.to_dict() for name, given in self._signatures.items()})
        file = SignatureFile.from_json(
            {"request_id": timing.request_id(), "timestamp": now, "stages": entries}
            | ({} if self._signatures else {"schema_version": 1})
        )
        file.write(path)
        messages.info(f"[Profiler] I/O signature saved to: {path}")

    def set_metadata(self, key: str, value: Any) -> None:
        """Set ``key`` to ``value`` in the report's metadata."""
        timing.set_timing_metadata(key, value)

    def finalize(self) -> None:
        """Do nothing, because a report covers everything up to its creation."""

    def get_report(self) -> dict[str, Any]:
        """Return the report as a dict."""
        return cast(dict[str, Any], timing.timing_report())

    def dump(self, path: str) -> None:
        """Write the report, and log the path."""
        written: Path = timing.dump_timing_report(path)
        messages.info(f"[Profiler] Timing report saved to: {written}")

    def summary(self) -> str:
        """Return the report as text."""
        report = self.get_report()
        wall_ms = report["wall_clock_ms"] or 0.0
        lines = [
            "",
            _RULE,
            f"Pipeline Timing Summary ({report['request_id']})",
            _RULE,
            f"Wall Clock: {wall_ms:.1f} ms ({wall_ms / 1000:.2f} s)",
            f"Stage Total: {report['total_stages_ms']:.1f} ms",
        ]
        if "memory" in report:
            lines += ["", *memory_snapshot.analysis_lines()]
        lines += [_THIN_RULE, "Stage Breakdown:"]
        for name, stage in report["stages"].items():
            lines.append(_stage_line(name, stage))
            for rank in (stage["parallel_info"] or {}).get("ranks", ()):
                lines.append(
                    f"    rank {rank['rank']:2d}: {rank['duration_ms']:8.1f} ms"
                    f"  peak: {rank['peak_memory_gb']:.2f} GB"
                )
        checkpoints = memory_snapshot.checkpoint_lines()
        if checkpoints:
            lines += [_THIN_RULE, "Memory Checkpoints:", *checkpoints]
        return "\n".join([*lines, _RULE])


def _stage_line(name: str, stage: dict[str, Any]) -> str:
    share = stage["percentage"]
    percent = "      " if share is None else f"({share:5.1f}%)"
    memory = stage["memory"] or {}
    peak = memory.get("peak_allocated_mb")
    tail = "" if peak is None else f"  peak: {peak:.0f}/{memory['peak_reserved_mb']:.0f} MB"
    return f"  {name:30s} {stage['duration_ms']:8.1f} ms {percent}{tail}".rstrip()


def log_summary() -> None:
    """Log the report as text."""
    messages.info(GlobalTimingRegistry.get_instance().summary())


def _new_request_id() -> str:
    now_ns = time.time_ns()
    stamp = time.strftime("%Y%m%d_%H%M%S", time.localtime(now_ns / 1e9))
    return f"req_{stamp}_{now_ns // 1000 % 10**6:06d}"
