"""Logs at the end of the process which stages were named for the profiler but not profiled.

Importing this module registers the handler. It is imported when a stage is named.
"""

from __future__ import annotations

from collections.abc import Collection

from stagespan import _core
from stagespan.live import service
from stagespan.pages.amounts import quoted
from stagespan.process import command, run
from stagespan.process.files import safe_name
from stagespan.profiling.names import not_in_contexts


def sentences(ran: Collection[str]) -> list[str]:
    """Return sentences about the named stages that were not profiled; ``ran`` are all that ran.

    If no stage ran, only stages in debug contexts are reported. Stages that another process of this
    run has profiled are left out.
    """
    names = [name for name in not_in_contexts() if not _is_profiled_elsewhere(name)]
    debug = () if _core.is_debug() else _core.debug_stages()
    off = [name for name in names if name in debug and name not in ran]
    missing = [name for name in names if name not in ran and name not in off] if ran else []
    spans = [name for name in names if name in ran]
    reasons = []
    if off:
        reasons.append(
            f"{_were_not_profiled(off)} runs only in debug mode, in a ProfilingContext4Debug: set "
            f"STAGESPAN_DEBUG=true"
        )
    if missing:
        reasons.append(
            f"{_were_not_profiled(missing)} did not run in this process; stages that ran: "
            f"{quoted(sorted(ran))}"
        )
    if spans:
        reasons.append(
            f"{_were_not_profiled(spans)} ran only as a plain span, or only before it was named: "
            f"use ProfilingContext instead of span, and name a stage before it runs"
        )
    return reasons


def _were_not_profiled(names: list[str]) -> str:
    if len(names) == 1:
        return f"stage {quoted(sorted(names))} was not profiled, because it"
    return f"stages {quoted(sorted(names))} were not profiled, because each"


def _is_profiled_elsewhere(stage: str) -> bool:
    """Whether a worker or another rank has written a trace of a stage in this run."""
    folder, stem = run.output_dir(), safe_name(stage)
    began_s = run.current().began_s
    try:
        return any(
            path.stat().st_mtime >= began_s
            for whose in ("", "_rank*", "_pid*")
            for path in folder.glob(f"{stem}{whose}_trace.json.gz")
        )
    except OSError:
        return False


def _warn_at_exit() -> None:
    if command.folder():
        return  # the command says what was not profiled in any process
    # Workers and other ranks run only some of the stages.
    if run.is_worker() or run.rank() != 0:
        return
    ran = set(_core.snapshot().stages())
    ran.update(str(span["stage"]) for span in _core.open_spans())
    for text in sentences(ran):
        service.warn(f"[Profiler] {text[:1].upper()}{text[1:]}.")


service.on_exit(_warn_at_exit)
