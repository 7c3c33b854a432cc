"""Captures of this process that another program has asked for."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from stagespan.errors import StagespanError
from stagespan.process.commands import Answer, Cancelled, Work
from stagespan.process.imports import importing
from stagespan.profiling.capture import PROBE_EVENTS, Capture, capture, in_progress

_TURN_S = 0.1


def requested_capture(stage: str, **options: Any) -> Work:
    """Capture runs of a stage, with the options of `capture`. The answer has its ``result``."""
    started = capture(stage, **options)
    is_cancelled = False
    while not started.is_over():
        try:
            yield _progress(started), _TURN_S
        except Cancelled:
            is_cancelled = True
            started.cancel()
    if started.result is None:
        raise StagespanError(str(started.refused))
    with importing():
        import msgspec
    # Its path may be relative to the working folder of this process.
    written = msgspec.structs.replace(started.result, path=os.path.abspath(started.result.path))
    result: Answer = {"result": msgspec.to_builtins(written)}
    if is_cancelled:
        result["doing"] = "The capture had ended before it was cancelled."
    return result


def prepare_capture(stage: str, **options: Any) -> Work:
    """Do what the first capture of a process needs: imports, and the measure of the pause.

    Raises StagespanError if a capture would be refused.
    """
    with tempfile.TemporaryDirectory(prefix="stagespan-") as folder:
        probe = {**options, "max_events": PROBE_EVENTS, "output": f"{folder}/probe.json.gz"}
        yield from requested_capture(stage, **probe, runs=1, probe=False)
    return {}


def cancel_capture() -> Work:
    """End the capture in progress, whose asker may have gone."""
    started = in_progress()
    if started is None:
        raise StagespanError("No capture is in progress in this process.")
    started.cancel()
    while not started.is_over():
        yield {"doing": "the capture ends"}, _TURN_S
    return {"stage": started.stage}


def _progress(started: Capture) -> Answer:
    return {
        "doing": f"the capture {started.progress()}, {started.left_s():.0f} s left at the most",
        "bound_ns": started.pause_bound_ns,
    }
