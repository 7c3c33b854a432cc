"""What requests are joined from: the recording of a process, or what was kept of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stagespan.export.kept import KeptRecording
    from stagespan.recording.reading import Recording


class Surroundings(NamedTuple):
    """What is known of all requests of a process, if a source has only some of them."""

    medians_ns: Mapping[tuple[str, str], float]
    """Of the runs of each stage that has run more than once, by kind and stage."""
    times_ns: tuple[NDArray[np.int64], NDArray[np.int64]] | None
    """When each request that began in the process was received, or else begun, and when it ended
    (the largest number if that is not known), in Unix time; None if earlier versions kept some."""


RequestSource: TypeAlias = "Recording | KeptRecording"
"""Both have the segments, spans, links and amounts of a process as columns, with the same names."""


def latest_ns(recording: RequestSource) -> int:
    """Return the latest time that is known of a process: when it ended, or last recorded."""
    times_ns = [recording.begin_ns, recording.end_ns or 0, recording.last_ns or 0]
    rows = recording.segment_rows()
    names = "received_ns", "begin_ns", "end_ns", "last_chunk_ns"
    # What is unknown is the least number.
    return max(*times_ns, *(int(rows[name].max(initial=0)) for name in names))
