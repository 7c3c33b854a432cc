"""What the recording of this process says of it, and that it ends in processes without atexit."""

from __future__ import annotations

import sys

from stagespan import _core, forks


def install(version: str) -> None:
    """Describe this process in its recording, and end the recordings of workers cleanly."""
    _core.describe_process(version=version)
    forks.after_in_child(_after_fork_in_child)
    _prepare_worker()


def _end() -> None:
    _core.end_recording()


def _end_as_worker(_: object = None) -> None:
    """Have multiprocessing, whose children leave without atexit, end the recording."""
    from multiprocessing import util

    # After the service, which still writes spans.
    util.Finalize(None, _end, exitpriority=0)


def _end_once_started() -> None:
    """Do so a bit later: multiprocessing clears the finalizers when it starts a worker's work."""
    from multiprocessing import util

    util.register_after_fork(_end, _end_as_worker)


def _after_fork_in_child() -> None:
    if "multiprocessing.util" in sys.modules:
        _end_once_started()


def _prepare_worker() -> None:
    """Be called at the end of a worker that multiprocessing started and that imports this late."""
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return
    if process.parent_process() is not None:
        _end_as_worker()
    elif getattr(process.current_process(), "_inheriting", False):
        _end_once_started()
