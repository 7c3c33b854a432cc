"""Describes this process in its recording, and closes recordings of processes without atexit."""

from __future__ import annotations

from stagespan import _core, settings
from stagespan.process import forks, run, termination


def install(version: str) -> None:
    """Describe this process in its recording, which also says how the process ends."""
    _core.recording_describe_program(version, run.program_arguments())
    run.describe_worker()
    forks.after_in_child(run.describe_worker)
    if settings.get("STAGESPAN_RECORDING") != "off":
        termination.watch_signal_calls()
    # This runs after the exit handler of the service, which still writes spans.
    forks.at_worker_exit(_end, priority=0)


def _end() -> None:
    _core.recording_end()
