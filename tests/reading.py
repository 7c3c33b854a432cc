"""Traces that may be refused."""

from __future__ import annotations

from pathlib import Path

from stagespan.errors import TraceError
from stagespan.trace import Trace, read_trace


def trace_or_refusal(path: Path, chunk_bytes: int) -> Trace | str:
    """Return a trace, or the sentence that says why it was refused."""
    try:
        return read_trace(path, chunk_bytes=chunk_bytes)
    except TraceError as error:
        return str(error)
