"""Reading recordings: what a process of this machine does, or did before it died.

Each process that opens a span writes its spans, statistics and open spans to a recording that other
processes of the same user can read, without stopping it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagespan.process.imports import OnFirstUse

# `stagespan analyze` uses a module of this package for traces, too.
with OnFirstUse(globals()) as _lazy:
    from stagespan.recording.finding import (
        open_recording as open,  # noqa: A004 - used as `recording.open(...)`, like `gzip.open`
    )
    from stagespan.recording.finding import (
        open_recording as open_recording,
    )
    from stagespan.recording.finding import (
        recordings,
    )
    from stagespan.recording.jobs import Job, job
    from stagespan.recording.reading import Recording

__all__ = ["Job", "Recording", "job", "open", "recordings"]
if not TYPE_CHECKING:
    __getattr__ = _lazy
