"""``telefuser.utils.profiler``: contexts, the timing report, signatures, memory, settings.

Importing this module makes the stages of the process behave as in TeleFuser: `ProfilingContext`
also synchronises and captures signatures, log lines and files of named stages have TeleFuser's
form, and the lines go to loguru if the program uses it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

import torch

from stagespan import _core
from stagespan._core import ProfilingContext4Debug
from stagespan.compat.telefuser import hooks, registry, workers
from stagespan.compat.telefuser.comparison import compare_timing_reports
from stagespan.compat.telefuser.memory_snapshot import (
    MemorySnapshot,
    capture_memory_snapshot,
    get_memory_analysis,
    get_memory_snapshots,
    print_memory_analysis,
    record_memory_snapshot,
    reset_memory_registry,
    reset_peak_memory_stats,
    set_memory_baseline,
)
from stagespan.compat.telefuser.ncu import NCU_KEY_METRICS, analyze_ncu_report
from stagespan.compat.telefuser.platforms import current_platform
from stagespan.compat.telefuser.registry import GlobalTimingRegistry
from stagespan.compat.telefuser.signatures import StageIOSignature, TensorSignature
from stagespan.process import run
from stagespan.profiling import names as _names
from stagespan.profiling.controller import open_window

__all__ = [
    "NCU_KEY_METRICS",
    "GlobalTimingRegistry",
    "MemorySnapshot",
    "ProfilingContext",
    "ProfilingContext4Debug",
    "StageIOSignature",
    "TensorSignature",
    "analyze_ncu_report",
    "capture_memory_snapshot",
    "compare_timing_reports",
    "current_platform",
    "dump_io_signatures",
    "dump_timing_report",
    "enable_profiler_for_names",
    "get_io_signatures",
    "get_memory_analysis",
    "get_memory_snapshots",
    "get_profiler_output_dir",
    "get_timing_report",
    "mark_as_worker_process",
    "print_memory_analysis",
    "print_timing_summary",
    "record_memory_snapshot",
    "reset_memory_registry",
    "reset_peak_memory_stats",
    "reset_timing_registry",
    "set_memory_baseline",
    "set_pipeline_name",
    "set_profiler_output_dir",
    "set_timing_metadata",
    "torch",
]

_F = TypeVar("_F", bound=Callable[..., Any])


class ProfilingContext:
    """Times a stage: ``with``, ``async with``, or a decorator. Waits for the device at both ends.

    Each run is in the timing report and has a log line. The inputs and the output of a decorated
    function are kept as a signature. Stages in ENABLE_PROFILER_NAMES run under the profiler.
    """

    def __init__(
        self, name: str, *, reset_peak_memory: bool = True, capture_memory: bool = False
    ) -> None:
        self.name = name
        self.reset_peak_memory = reset_peak_memory
        self.capture_memory = capture_memory
        self._context = _core.ProfilingContext(
            name, reset_peak_memory, capture_memory=capture_memory
        )
        self._open = 0

    def __enter__(self) -> ProfilingContext:
        self._open += 1
        self._context.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> Literal[False]:
        self._open -= 1
        self._context.__exit__(kind, error, traceback)
        return False

    async def __aenter__(self) -> ProfilingContext:
        return self.__enter__()

    async def __aexit__(self, *error: Any) -> Literal[False]:
        return self.__exit__(*error)

    def __call__(self, function: _F) -> _F:
        decorated: _F = self._context(function)
        return decorated

    def __del__(self) -> None:
        # Without this, a context that was entered by hand and dropped would keep its profiler
        # running.
        while getattr(self, "_open", 0) > 0:
            with contextlib.suppress(Exception):
                self.__exit__()

    @property
    def _profiler(self) -> Any:
        """The torch.profiler object that records this stage now, or None."""
        window = open_window()
        return window.profiler if window is not None and window.name == self.name else None


# --- the report ---------------------------------------------------------------------------------


def reset_timing_registry(
    request_id: str = "", metadata: dict[str, Any] | None = None
) -> GlobalTimingRegistry:
    """Start a new report, without earlier checkpoints and workers' timings. Returns the registry.

    The default ``request_id`` contains the time.
    """
    return GlobalTimingRegistry.reset(request_id, metadata)


def get_timing_report() -> dict[str, Any]:
    """Return the report as a dict. It includes the runs of workers since its beginning."""
    return GlobalTimingRegistry.get_instance().get_report()


def dump_timing_report(path: str) -> None:
    """Write the report to ``path``."""
    GlobalTimingRegistry.get_instance().dump(path)


def print_timing_summary() -> None:
    """Log the report as text."""
    registry.log_summary()


def set_timing_metadata(key: str, value: Any) -> None:
    """Set ``key`` to ``value`` in the report's metadata."""
    GlobalTimingRegistry.get_instance().set_metadata(key, value)


def get_io_signatures() -> dict[str, StageIOSignature]:
    """Return the signatures of all stages that ran, by name."""
    return GlobalTimingRegistry.get_instance().get_io_signatures()


def dump_io_signatures(path: str) -> None:
    """Write the signatures to ``path``, in stagespan's format, which contains more."""
    GlobalTimingRegistry.get_instance().dump_io_signatures(path)


def mark_as_worker_process() -> None:
    """Make this process a worker. Its timings go to the report of the process that started it."""
    workers.mark()


# --- settings -----------------------------------------------------------------------------------


def set_pipeline_name(name: str) -> None:
    """Set the pipeline's name, a part of the default output folder, also for later processes."""
    run.set_pipeline_name(name)
    os.environ["TELEFUSER_PIPELINE_NAME"] = name


def set_profiler_output_dir(path: str) -> None:
    """Set the output folder, also for processes that start later."""
    run.set_output_dir(path)
    os.environ["TELEFUSER_PROFILER_OUTPUT_DIR"] = str(path)


def get_profiler_output_dir() -> Path:
    """Return the output folder. Only the two functions above change it."""
    return run.output_dir()


def enable_profiler_for_names(names: str) -> None:
    """Run only these stages under the profiler: names separated by commas, or ``*`` for all."""
    os.environ.pop("STAGESPAN_PROFILER_NAMES", None)
    os.environ["ENABLE_PROFILER_NAMES"] = names
    _names.forget_names()


hooks.install()
