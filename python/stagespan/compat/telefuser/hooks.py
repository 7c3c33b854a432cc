"""The hooks of `stagespan.compat.telefuser.profiler`, which run around every stage."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from stagespan import _core, settings
from stagespan.compat.telefuser import memory_snapshot, messages, registry, workers
from stagespan.contexts import context
from stagespan.device import platforms, synchronize
from stagespan.live import service
from stagespan.pages.escaping import one_line
from stagespan.process import run
from stagespan.process.files import safe_name
from stagespan.profiling import names
from stagespan.profiling.profiled import ProfiledHook
from stagespan.report import timing
from stagespan.signature.recorder import SignatureHook
from stagespan.trace.read.model import Trace

_KINDS = ("profiling", "debug")


class TimingHook(context.Hook):
    """Takes memory checkpoints around each run, and reports it to a worker's parent."""

    name = "telefuser"

    def wants(self, call: context.Call) -> bool:
        """Whether this is a context, and not a plain span."""
        return call.kind in _KINDS

    def enter(self, call: context.Call) -> None:
        """Take the checkpoint before the run."""
        if call.capture_memory:
            memory_snapshot.record_memory_snapshot(f"before_{call.stage}")

    def exit(self, call: context.Call) -> None:
        """Take the checkpoint after the run, and report it to the parent if this is a worker."""
        messages.follow_loguru()  # before the line of this run is written
        snapshot = memory_snapshot.capture_memory_snapshot()
        if call.peak_bytes is not None:
            # The peak of this context, because an inner context may have reset the counter.
            snapshot.peak_allocated_mb = call.peak_bytes / (1 << 20)
            snapshot.peak_reserved_mb = max(snapshot.peak_reserved_mb, snapshot.peak_allocated_mb)
        if call.capture_memory:
            memory_snapshot.record_memory_snapshot(f"after_{call.stage}")
        if workers.is_worker():
            workers.write(call.stage, call.begin_ns, call.end_ns, snapshot.peak_reserved_gb)


class AllSignatures(SignatureHook):
    """Captures signatures of contexts outside of debug mode too."""

    def wants(self, call: context.Call) -> bool:
        """Whether this is a context of the main process. Workers' signatures are not reported."""
        return call.kind in _KINDS and not workers.is_worker()


class AlwaysSynchronize(synchronize.SynchronizeHook):
    """Waits for the device around contexts outside of debug mode too."""

    def wants(self, call: context.Call) -> bool:
        """Whether the process has a device to wait for."""
        return call.kind in _KINDS and platforms.accelerator_in_use() is not None


class NamedStages(ProfiledHook):
    """Profiles named stages with TeleFuser's options, file names and log lines."""

    trace_only = False  # contexts offer the profiler itself

    def __init__(self) -> None:
        super().__init__()
        self.options = dict.fromkeys(self.options, True)

    def wants(self, call: context.Call) -> bool:
        """Whether the stage is named. TeleFuser reads the variable before each run."""
        names.update()
        return super().wants(call)

    def limit(self) -> int:
        """Return STAGESPAN_PROFILER_RUNS, by default no limit. Each run replaces the files."""
        return int(settings.get("STAGESPAN_PROFILER_RUNS", 10**9))

    def max_events(self) -> float:
        """Return STAGESPAN_PROFILER_MAX_EVENTS, by default no limit, as in TeleFuser."""
        return int(settings.get("STAGESPAN_PROFILER_MAX_EVENTS", 0)) or math.inf

    def path(self, folder: Path, stage: str, kind: str) -> Path:
        """Return the path of a file, such as ``{stage}_rank{rank}.trace.json.gz``."""
        return folder / f"{safe_name(stage, blanks=True)}_rank{run.rank()}.{kind}"

    def breakdown(self, trace: Trace, stage: str) -> dict[str, Any]:
        """Return the breakdown with the rank."""
        return {**super().breakdown(trace, stage), "rank": run.rank()}

    def log_started(self, stage: str) -> None:
        """Log that the profiler is running."""
        messages.info(
            f"[Rank {run.rank()}] [Profiler] Started torch.profiler for '{one_line(stage)}'"
        )

    def log_written(self, what: str, path: Path) -> None:
        """Log the path of a file."""
        messages.info(f"[Rank {run.rank()}] [Profiler] {what}: {path}")


def install() -> None:
    """Register everything. Call this once per process."""
    context.need("debug")  # registers the reports at exit
    context.need("memory")
    context.need("profiled")
    context.register_hook(NamedStages())
    context.register_hook(AllSignatures())
    context.register_hook(AlwaysSynchronize())
    context.register_hook(TimingHook(), first=True)
    _core.memory_set_hook(True)  # makes the extension ask the hooks for every context
    timing.register_source(registry.WORKERS)
    timing.register_source(registry.CheckpointSource())
    workers.announce()
    service.on_exit(workers.remove)
    messages.follow_loguru()
