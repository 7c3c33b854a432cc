"""Real traces, which many tests analyse."""

from __future__ import annotations

import functools
from pathlib import Path

from stagespan.trace import Trace, read_trace
from stagespan.trace.read.view import TraceView


@functools.cache
def read_real(path: Path) -> Trace:
    """Return a real trace that keeps what analyses derive from it.

    This halves the time of the tests that loop over all traces, which take about 160 MB together.
    """
    return TraceView.of(read_trace(path))
