"""The files that debug mode writes when the process ends, including by SIGTERM.

Importing this module registers the handlers. `context` imports it when debug mode is first on.
"""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path
from typing import Any

from stagespan import _core, settings
from stagespan.contexts import switches
from stagespan.errors import StagespanError
from stagespan.live import lines, service
from stagespan.process import imports, run, termination
from stagespan.report import timing
from stagespan.report.entries import TimingReport

_LOGGER = logging.getLogger("stagespan")
_is_left_out = False
_was_debug = False


def write_reports(made: TimingReport | None = None) -> list[Path]:
    """Write ``timing.json`` and, if there are signatures, ``timing_io_signature.json``.

    They go to the output folder, or to the folder of the file that STAGESPAN_TIMING_REPORT names.
    With several ranks and in workers, their names contain the rank or pid. If a file cannot be
    written, one warning is logged. Returns the paths that were written. ``made`` is the timing
    report, if it is not that of this process alone.
    """
    report = run.timing_report_path()
    stem, suffix = report.stem + _tag(report), report.suffix or ".json"
    done = []
    for label, part, write in _contents(made):
        path = report.with_name(stem + part + suffix)
        try:
            write(path)
        except (StagespanError, OSError, ValueError) as error:
            _LOGGER.warning("[Profiler] %s not saved: %s", label, lines.one_line(str(error)))
            continue
        done.append((label, path))
    # Logged afterwards, so that a log handler that blocks does not delay the second file.
    for label, path in done:
        lines.log_info("[Profiler] %s saved to: %s", label, path)
    return [path for _, path in done]


def _contents(made: TimingReport | None = None) -> list[tuple[str, str, Any]]:
    write = functools.partial(timing.write_report, made) if made else timing.dump_timing_report
    contents: list[tuple[str, str, Any]] = [("Timing report", "", write)]
    store = imports.loaded("stagespan.signature.store")
    if store is not None and store.get_io_signatures():
        contents.append(("I/O signature", "_io_signature", store.dump_io_signatures))
    return contents


def _tag(report: Path) -> str:
    """Return the part of file names that makes them unique among the processes of a run."""
    tag = run.whose_file(report.parent)
    # `dump_timing_report` writes to any path.
    is_taken = _is_taken(report.with_name(report.stem + tag + (report.suffix or ".json")))
    return f"{tag}_pid{os.getpid()}" if is_taken and "_pid" not in tag else tag


def _is_taken(path: Path) -> bool:
    """Whether another process may have written the file since this process began."""
    if timing.holds_current_report(path):
        return False
    began_s = run.process_start_s(os.getpid())
    try:
        return began_s is not None and path.stat().st_mtime >= began_s
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError:
        return True


def leave_out() -> None:
    """Write nothing when this process ends: another process reports what it did."""
    global _is_left_out
    _is_left_out = True


def _write_at_exit() -> None:
    if _is_left_out:
        return
    is_requested = _core.is_debug() or settings.get("STAGESPAN_TIMING_REPORT") is not None
    # What was captured in debug mode is written even if it was switched off since.
    has_captured = _was_debug and len(_contents()) > 1
    if _core.snapshot().stages() and (is_requested or has_captured):
        write_reports()


def _note_debug_mode() -> None:
    global _was_debug
    _was_debug = _was_debug or _core.is_debug()


switches.on_switch(_note_debug_mode)
service.on_exit(_write_at_exit)
termination.watch(service.exit_soon)
