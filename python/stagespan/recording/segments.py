"""Segments of recordings as rows and as dicts, and what follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from stagespan import _core

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stagespan.recording.reading import Failures, Fields, Segment


class Details(NamedTuple):
    """What rows of segments refer to, besides the names of stages: both by number."""

    fields: dict[int, Fields]
    failures: Failures


def as_dicts(rows: NDArray[np.void], names: list[str], details: Details) -> list[Segment]:
    """Return rows of segments as dicts."""
    return cast("list[Segment]", _core.segment_dicts(rows, names, *details))


Trace = tuple[int, int]
"""The halves of the id of a trace, both 0 if there is none."""


def traces_of(rows: NDArray[np.void]) -> list[Trace]:
    """Return the traces of segments."""
    return list(zip(rows["trace_high"].tolist(), rows["trace_low"].tolist(), strict=True))


def trace_id(trace: Trace) -> str | None:
    """Return the id of a trace, as 32 hexadecimal digits; None if there is none."""
    return f"{trace[0]:016x}{trace[1]:016x}" if any(trace) else None


def behind_others_ns(segment: Segment, since_sent_ns: int | None) -> int | None:
    """Return how long a message waited because the thread that received it worked for others.

    That is until the end of the thread's last such work before it received the message.
    ``since_sent_ns`` is the time from sent to received; None if it is not known, as then is the
    wait.
    """
    received_ns, work_ns = segment["received_ns"], segment["work_ns"]
    if since_sent_ns is None or received_ns is None:
        return None
    if work_ns is None:
        return 0
    since_work_ns = received_ns - work_ns
    return since_sent_ns - since_work_ns if 0 <= since_work_ns < since_sent_ns else 0
