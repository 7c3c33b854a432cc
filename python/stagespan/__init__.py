"""stagespan measures how long each stage of a PyTorch pipeline takes.

Names that need more than the timing core are imported when they are first used.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

try:
    if sys.version_info >= (3, 13):
        # Python would initialise the extension again in the main interpreter, for another one.
        import _interpreters

        if _interpreters.get_current()[0] != _interpreters.get_main()[0]:
            raise ImportError(
                "stagespan works in the main interpreter only: import it there, not in a "
                "sub-interpreter"
            )
    # Only in this form does the error say that the module is missing.
    import stagespan._core as _extension  # noqa: F401
except Exception as _error:  # a damaged file may raise any
    from stagespan import without_core as _without_core

    _without_core.install(_error)
from stagespan import _core
from stagespan import settings as _settings
from stagespan._core import (
    ProfilingContext as ProfilingContext,
    ProfilingContext4Debug as ProfilingContext4Debug,
    Span as Span,
    SpanCursor as SpanCursor,
    Token as Token,
    batch as batch,
    begin as begin,
    current_request as current_request,
    end as end,
    inject as inject,
    is_debug as is_debug,
    is_enabled as is_enabled,
    lost as lost,
    queued as queued,
    record as record,
    span as span,
    stage_names as stage_names,
)
from stagespan.contexts import context as _context
from stagespan.contexts import dynamo as _dynamo
from stagespan.contexts.context import (
    disable as disable,
    enable as enable,
    set_debug as set_debug,
)
from stagespan.contexts.requests import (
    record_request_fields as record_request_fields,
    request as request,
)
from stagespan.device import times as _device
from stagespan.live.finished_spans import spans as spans
from stagespan.live.open_spans import open_spans as open_spans
from stagespan.process import command as _command
from stagespan.process import imports as _imports
from stagespan.process import run as _run

with _imports.OnFirstUse(globals()) as _lazy:
    from stagespan.contexts.gauges import gauge as gauge
    from stagespan.contexts.graphs import graph_stages as graph_stages
    from stagespan.contexts.remotes import (
        Remote as Remote,
        extract as extract,
    )
    from stagespan.contexts.threads import (
        BoundExecutor as BoundExecutor,
        bind as bind,
        propagate_to_threads as propagate_to_threads,
    )
    from stagespan.device.memory import memory_snapshot as memory_snapshot
    from stagespan.errors import StagespanError as StagespanError
    from stagespan.harness import (
        HarnessConfig as HarnessConfig,
        StageBenchHarness as StageBenchHarness,
    )
    from stagespan.live.service import flush as flush
    from stagespan.live.statistics import stats as stats
    from stagespan.notebook import load_ipython_extension as load_ipython_extension
    from stagespan.profiling import (
        annotate as annotate,
        enable_profiler_for_names as enable_profiler_for_names,
        profile_steps as profile_steps,
        profile_window as profile_window,
    )
    from stagespan.profiling.capture import (
        Capture as Capture,
        capture as capture,
    )
    from stagespan.recording.any_path import analyze as analyze
    from stagespan.report.changes_pages import compare_timing_reports as compare_timing_reports
    from stagespan.report.tables import print_timing_summary as print_timing_summary
    from stagespan.report.timing import (
        dump_timing_report as dump_timing_report,
        reset_timing_registry as reset_timing_registry,
        set_timing_metadata as set_timing_metadata,
        timing_report as timing_report,
    )
    from stagespan.signature import (
        dump_io_signatures as dump_io_signatures,
        get_io_signatures as get_io_signatures,
    )

__version__ = "0.1.0"

get_profiler_output_dir = _run.output_dir
set_profiler_output_dir = _run.set_output_dir
set_pipeline_name = _run.set_pipeline_name


def get_include() -> str:
    """Return the folder of the C++ headers. Include `<stagespan/python.h>` to time C++ code."""
    return os.path.join(os.path.dirname(_core.__file__), "include")


def is_available() -> bool:
    """Return whether the extension could be imported.

    If it could not, one warning says why, contexts and requests do nothing, decorators return the
    function that they get, statistics and reports are empty, and everything that reads traces or
    recordings raises StagespanError.
    """
    return _core.__name__ == f"{__name__}._core"


__all__ = sorted(  # noqa: PLE0605
    {*_lazy, *(name for name, value in globals().items() if callable(value) and name[0] != "_")}
)
if not TYPE_CHECKING:
    __getattr__ = _lazy


def __dir__() -> list[str]:
    """Return the public names, and the attributes that every module has."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


# Hooks of higher packages, which are imported on first use.
_context.lazy_hook("debug", "stagespan.profiling.profiled:ProfiledHook")
_context.lazy_hook("debug", "stagespan.signature.recorder:SignatureHook")
_context.lazy_hook("debug", "stagespan.report.exit")
_context.lazy_hook("debug", "stagespan.signature.cost:LaunchesHook")
_context.lazy_hook("debug", "stagespan.signature.cost:CpuTimeHook")
# This hook enters last and leaves first, so that no other hook runs between the device and the
# clock.
_context.lazy_hook("debug", "stagespan.device.synchronize:SynchronizeHook")
_context.lazy_hook("profiled", "stagespan.profiling.profiled:ProfiledHook")
# After that one: the range in a trace is within the profiler's window.
_context.lazy_hook("profiled", "stagespan.profiling.annotation:AnnotateHook")
_context.lazy_hook("memory", "stagespan.device.memory")
_context.lazy_hook("service", "stagespan.live.service")
_context.lazy_hook("service", "stagespan.live.recording_updates")
_context.lazy_hook("breakdown", "stagespan.recording.breakdown")
if _settings.get("STAGESPAN_PROFILER_NAMES"):  # programs of plain spans start no service
    _imports.load("stagespan.profiling.unused")
if is_available():
    _dynamo.install()
    _device.install()
    _run.describe(__version__)
    if _settings.get("STAGESPAN_OTEL_CONTEXT"):
        _imports.load("stagespan.contexts.opentelemetry").install()
if is_available() and (_settings.get("STAGESPAN_LISTEN") or _command.folder()):
    _imports.load("stagespan.process.commands").listen()
if _settings.get("STAGESPAN_PROPAGATE_TO_THREADS"):
    _imports.load("stagespan.contexts.threads").propagate_to_threads()
if _stall_s := _settings.get("STAGESPAN_STALL_S"):
    _imports.load("stagespan.live.stalls").watch(_stall_s)
if is_debug() or (is_available() and _settings.get("STAGESPAN_TIMING_REPORT") is not None):
    # The environment asks for reports: they are written even if no debug context runs.
    _context.need("debug")
if _command.has_option("telefuser"):
    _imports.load("stagespan.compat.telefuser.replace").install()
if is_available() and _settings.get("STAGESPAN_STAGES"):
    _imports.load("stagespan.contexts.named").install()
