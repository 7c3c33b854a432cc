"""What follows from a segment of a recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stagespan.recording.reading import Segment


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
