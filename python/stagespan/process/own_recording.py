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
    _core.recording_set_tell_fault(_tell_fault)
    # This runs after the exit handler of the service, which still writes spans.
    forks.at_worker_exit(_core.recording_end, priority=0)


def _tell_fault() -> None:
    """Say once that this process and those that it forks have no file that others can read."""
    place = _core.recording_place()
    why = place["why"] or "STAGESPAN_RECORDING=memfd is set"
    what = "is in no file" if place["kind"] == "memfd" else "cannot be read by other programs"
    settings.warn_once(
        "STAGESPAN_RECORDING",
        "no file",
        f"The recording of this process {what} because {why}. "
        + (
            "`stagespan export` does not find it if STAGESPAN_RECORDING_DIR is set, and it is lost "
            "when the process dies."
            if place["kind"] == "memfd"
            else "`stagespan ps` and `stagespan export` do not see the process."
        ),
    )
