"""The one trace that a path names: a file, or a result folder of Ascend."""

from __future__ import annotations

from pathlib import Path

from stagespan.trace.model import Trace


def open_trace(path: Path) -> Trace:
    """The one trace that a path names. Raises TraceError with a sentence where it names none."""
    from stagespan.trace.ascend import find_ascend_folder, read_ascend_trace
    from stagespan.trace.reader import read_trace

    folder = find_ascend_folder(path)
    return read_trace(path) if folder is None else read_ascend_trace(folder)
