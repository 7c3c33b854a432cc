"""Logs at the end of the process which stages were named for the profiler but never ran.

Importing this module registers the handler. It is imported when a stage is named.
"""

from __future__ import annotations

from collections.abc import Collection

from stagespan import _core, run, service
from stagespan.files import safe_name
from stagespan.profiling.names import not_run

_MOST_LISTED = 8
_is_left_out = False


def leave_out() -> None:
    """Log nothing when this process ends, because the caller reports these stages itself."""
    global _is_left_out
    _is_left_out = True


def sentence(ran: Collection[str]) -> str | None:
    """Return a sentence about the named stages that are not in ``ran``; None if there are none.

    Stages that another process of this run has profiled are left out.
    """
    missing = [repr(name) for name in not_run(ran) if not _is_profiled_elsewhere(name)]
    if not missing:
        return None
    what = f"stage {missing[0]} was" if len(missing) == 1 else f"stages {_listed(missing)} were"
    return (
        f"{what} not profiled, because {'it' if len(missing) == 1 else 'they'} did not run in this "
        f"process; stages that ran: {_listed(sorted(map(repr, ran))) or 'none'}"
    )


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_LISTED
    return ", ".join(names[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


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
    # Workers and other ranks run only some of the stages.
    if _is_left_out or run.is_worker() or run.rank() != 0:
        return
    ran = {name for name, stage in _core.snapshot().stages().items() if stage.count}
    ran.update(str(span["stage"]) for span in _core.open_spans())
    text = sentence(ran) if ran else None
    if text is not None:
        service.warn(f"[Profiler] {text[:1].upper()}{text[1:]}.")


service.on_exit(_warn_at_exit)
