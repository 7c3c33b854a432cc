"""Writes a trace with its critical path, for ``stagespan analyze --critical-path``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stagespan.errors import StagespanError
from stagespan.pages.result import Unavailable
from stagespan.process.files import json_bytes, write_whole
from stagespan.profiling.timeline import compressed_with_events, microseconds
from stagespan.trace.analyses.critical_path import CriticalPath
from stagespan.trace.analysis import Analysis
from stagespan.trace.derived.dependencies import KINDS


def mark_critical_path(analysis: Analysis, target: Path) -> None:
    """Write the analysed trace with its critical path as a separate process, as gzip.

    Raises StagespanError if the trace has no critical path, or if a file cannot be read or written.
    """
    path_result = analysis.results.get("critical_path")
    if not isinstance(path_result, CriticalPath):
        reason = (
            path_result.reason
            if isinstance(path_result, Unavailable)
            else "The path names no trace."
        )
        raise StagespanError(f"{analysis.trace.path} has no critical path to mark. {reason}")

    def events(base_ns: int) -> Iterator[bytes]:
        place = b'"pid": "critical path", "tid": 0'
        for segment in path_result.segments:
            yield (
                b'{"ph": "X", "cat": "critical_path", "name": %s, %s, "ts": %s, "dur": %s}'
                % (
                    json_bytes(f"{KINDS[segment.kind]}: {segment.name}"),
                    place,
                    microseconds(segment.begin_ns - base_ns),
                    microseconds(segment.end_ns - segment.begin_ns),
                )
            )
        name = json_bytes({"name": f"critical path of {path_result.step or 'the trace'}"})
        yield b'{"ph": "M", "name": "process_name", %s, "ts": 0, "args": %s}' % (place, name)

    try:
        write_whole(target, compressed_with_events(Path(analysis.trace.path), events))
    except (OSError, ValueError) as error:
        raise StagespanError(
            f"The critical path cannot be written from {analysis.trace.path} to {target}: {error}"
        ) from error
