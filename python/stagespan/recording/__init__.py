"""Reading recordings: what a process of this machine does, or did before it died.

Each process that opens a span writes its spans, statistics and open spans to a recording that other
processes of the same user can read, without stopping it.
"""

from __future__ import annotations

from stagespan.recording.finding import open_recording, recordings
from stagespan.recording.jobs import Job, job
from stagespan.recording.reading import Recording

open = open_recording  # noqa: A001 - used as `recording.open(...)`, like `gzip.open`

__all__ = ["Job", "Recording", "job", "open", "recordings"]
