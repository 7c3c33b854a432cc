"""Device time, which starts when the application has initialised its accelerator.

stagespan never initialises a device. Spans without device time have host time only. `lost()` counts
the reasons, `stagespan doctor` shows them, and one warning is logged.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from stagespan import _core, settings
from stagespan.contexts import context
from stagespan.device.table import DEVICE_TYPES, PACKAGES, row_of
from stagespan.process import forks
from stagespan.process.imports import ImportFinder

_log = logging.getLogger("stagespan")

_TROUBLES = {
    "device_failed": "the driver refused their events",
    "device_timeout": "their work did not end within the time limit",
}

_asked: set[str] = set()
_refused: set[str] = set()
_is_attached = False
_is_forked = False
_has_warned = False


def install() -> None:
    """Watch for torch and its accelerator. Called once, when stagespan is imported."""
    if "torch" in sys.modules:
        _torch_is_there()
    for name in PACKAGES:  # torch_npu, for example, puts torch.npu into torch
        if name not in sys.modules:
            sys.meta_path.insert(0, ImportFinder(name, _torch_is_there, _count_failure))


def watch() -> None:
    """Check for a device that gave no callback, and for problems with the current one.

    The service thread calls this each time it wakes up.
    """
    if not _is_attached:
        from stagespan.device import platforms

        platform = platforms.accelerator_in_use()
        if platform is not None:
            _attach(platform.device.events or platform.device_type)
    elif not _has_warned:
        _look_for_trouble()


def wait(timeout_s: float) -> bool:
    """Wait for the device times of ended spans; False if some of them are still pending.

    Returns at once if no device is timed. Waits only for work that was already queued.
    """
    return not _is_attached or _core.device_resolve(timeout_s) == 0


def is_attached() -> bool:
    """Whether this process measures device times."""
    return _is_attached


def _torch_is_there() -> None:
    """Register with torch's accelerators. Calling a driver here could break a later fork."""
    torch: Any = sys.modules.get("torch")
    for name in DEVICE_TYPES:
        # Modules of torch run queued callbacks once their device is initialised.
        lazy_call = getattr(getattr(torch, name, None), "_lazy_call", None)
        if lazy_call is None or name in _asked:
            continue
        row = row_of(torch, name)
        if row is None or not row.events:
            continue
        _asked.add(name)
        lazy_call(lambda kind=row.events: _guarded_attach(kind))


def _guarded_attach(kind: str) -> None:
    # An exception here would appear in the application's first use of its device.
    try:
        _attach(kind)
    except Exception as error:
        _count_failure(error)


def _count_failure(error: Exception) -> None:
    _core.lost_add("hook_errors")
    _warn("%s: %s", type(error).__name__, error)


def _attach(kind: str) -> None:
    global _is_attached
    every = context.device_every
    if every is None:
        every = settings.get("STAGESPAN_DEVICE_EVERY")
    if _is_attached or _is_forked or kind in _refused or every == 0:
        return
    _core.device_every(every)
    if _core.device_attach(kind):
        _is_attached = True
        _warn_of_connections(kind)
        return
    _refused.add(kind)
    _warn("%s", _core.device_info().get("reason") or f"the {kind} device gave no reason")


def _look_for_trouble() -> None:
    lost = _core.lost()
    for cause, meaning in _TROUBLES.items():
        if lost.get(cause, 0):
            error = _core.device_info()["last_error"]
            status = f" (last status {error})" if error else ""
            _warn("it is unknown for %d spans, because %s%s", lost[cause], meaning, status)
            return
    info = _core.device_info()
    if not info["attached"] and info["reason"]:
        _warn("%s", info["reason"])


def _warn(reason: str, *arguments: object) -> None:
    global _has_warned
    if not _has_warned:
        _has_warned = True
        _log.warning(
            "[Profiler] device time is not complete: " + reason + ". Host time is still measured; "
            "`stagespan doctor` shows more (logged once).",
            *arguments,
        )


def _warn_of_connections(kind: str) -> None:
    if kind == "cuda" and max_connections() == 1:
        _log.warning(
            "[Profiler] CUDA_DEVICE_MAX_CONNECTIONS=1: events that time spans can keep "
            "communication and kernels from overlapping. Set STAGESPAN_DEVICE_EVERY to a larger "
            "number, or to 0, if steps get slower (logged once)."
        )


def max_connections() -> int | None:
    """Return ``CUDA_DEVICE_MAX_CONNECTIONS``, or None if it is not set or not a number."""
    number: int | None = _core.device_info()["max_connections"]
    return number


def _forget_parent() -> None:
    # Drivers do not survive a fork. A child can use a device only if its parent did not.
    global _is_attached, _is_forked
    _is_forked = _is_forked or _is_attached
    _is_attached = False


forks.after_in_child(_forget_parent)
