"""The texts about recordings that several commands and pages show."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stagespan.recording.reading import Recording, State

_STATES: dict[State, str] = {
    "alive": "is alive",
    "exited": "ended with a clean exit",
    "stopped": "ended by a signal or os._exit, no span was open",
    "died": "died without a clean exit: it was killed, crashed, or called os._exit",
    "unknown": "may be alive: it belongs to another container, or /proc cannot be read",
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
