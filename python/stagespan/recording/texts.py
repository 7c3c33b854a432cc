"""The texts about recordings that several commands and pages show."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from stagespan.pages.amounts import counted, duration
from stagespan.pages.escaping import one_line

if TYPE_CHECKING:
    from stagespan.live.stage_figures import StageRunFigures
    from stagespan.recording.reading import Recording
    from stagespan.recording.source import State
    from stagespan.recording.summary import LoadFigures

_STATES: dict[State, str] = {
    "alive": "is alive",
    "exited": "ended with a clean exit",
    "stopped": "ended by a signal or os._exit, no span was open",
    "died": "died without a clean exit (it was killed, crashed, or called os._exit)",
    "unknown": "may be alive (it belongs to another container, or /proc cannot be read)",
}


def ending(recording: Recording) -> str:
    """Return what a sentence about a process says of its state, such as "is alive"."""
    if recording.stop_signal is not None:
        if recording.state == "stopped":
            return f"was stopped by {recording.stop_signal}"
        if recording.state == "exited":
            return f"{_STATES['exited']} after {recording.stop_signal}"
    return _STATES[recording.state]


def clock(ns: int | None) -> str:
    """Return a Unix time in ns as local time: ``2026-11-24 10:36:56.123``."""
    if ns is None:
        return "unknown"
    seconds = ns // 10**9
    try:
        local = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "unknown"
    return f"{local}.{ns % 10**9 // 10**6:03d}"


def open_requests(load: LoadFigures) -> str | None:
    """Return a sentence about open requests; None if there are none."""
    if load.oldest_request_ns is None:
        return None
    are_open = counted(load.open_requests, "request is open", "requests are open")
    more = (
        f" Up to {load.unshown_requests:,} more may be open: a recording has entries for "
        "STAGESPAN_REQUESTS of them."
        if load.unshown_requests
        else ""
    )
    return f"{are_open}, the oldest for {duration(load.oldest_request_ns)}.{more}"


def ended_requests(ended: StageRunFigures | None) -> str | None:
    """Return a sentence about requests that have ended; None if there are none."""
    if ended is None:
        return None
    have_ended = counted(ended.count, "request has ended", "requests have ended")
    errors = f", {ended.errors:,} with an error" if ended.errors else ""
    p50, p99 = (duration(round(ns)) for ns in (ended.p50_ns, ended.p99_ns))
    return f"{have_ended}{errors}: p50 {p50}, p99 {p99}."


def waiting(load: LoadFigures) -> str | None:
    """Return a sentence about what waits; None if nothing does."""
    queues = [
        f"{one_line(queue)} {n:,} (the oldest for {duration(load.longest_ns[queue])})"
        for queue, n in load.waiting.items()
    ]
    return f"Waiting: {', '.join(queues)}." if queues else None
