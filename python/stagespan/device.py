"""Device time, begun when the application has set its accelerator up; never before, never by us.

Spans that are timed on no device keep their host time. Why they are is counted in `lost()`, told by
`stagespan doctor`, and warned of once.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from stagespan import _core, forks, settings
from stagespan.imports import ImportFinder

if TYPE_CHECKING:
    from stagespan.platforms import Platform

_log = logging.getLogger("stagespan")

# Modules of torch that run what was left with them once their device is set up.
_MODULES = ("cuda", "xpu", "npu")
_TROUBLES = {
    "device_failed": "the driver refused their events",
    "device_timeout": "their work did not end within the time that it is waited for",
}

_asked: set[str] = set()
_refused: set[str] = set()
_is_attached = False
_is_forked = False
_has_warned = False
_every: int | None = None  # None: as the environment says


def install() -> None:
    """Wait for torch and for its accelerator; to be called once, when stagespan is imported."""
    if "torch" in sys.modules:
        _torch_is_there()
    for name in ("torch", "torch_npu"):  # the second puts torch.npu into the first
        if name not in sys.modules:
            sys.meta_path.insert(0, ImportFinder(name, _torch_is_there, _went_wrong))


def watch() -> None:
    """Look whether there is a device to time that did not say so itself, and whether it works.

    The service thread calls this each time it wakes.
    """
    if not _is_attached:
        from stagespan import platforms

        platform = platforms.accelerator_in_use()
        if platform is not None:
            _attach(_kind_of(platform))
    elif not _has_warned:
        _look_for_trouble()


def wait(timeout_s: float) -> bool:
    """Wait for the device time of spans that have ended; False where some of it is still pending.

    At once where no device is timed. Waits for what was queued, and for nothing of the device else.
    """
    return not _is_attached or _core.resolve_device(timeout_s) == 0


def is_attached() -> bool:
    """Whether the device's part of spans is timed in this process."""
    return _is_attached


def set_device_every(every: int) -> None:
    """Time the device's part of every ``every``-th span of a stage in a thread from now on.

    0 is none, 1 is all. Until it is called ``STAGESPAN_DEVICE_EVERY`` holds. Raises ValueError for
    a number that is negative or does not fit 32 bits, TypeError for what is no whole number.
    """
    global _every
    _every = _core.device_every(every)


def _torch_is_there() -> None:
    """Leave word with torch's accelerators. Asks no driver: that could hinder a later fork."""
    torch: Any = sys.modules.get("torch")
    for name in _MODULES:
        module = getattr(torch, name, None)
        lazy_call = getattr(module, "_lazy_call", None)
        if lazy_call is None or name in _asked:
            continue
        _asked.add(name)
        kind = "rocm" if name == "cuda" and getattr(torch.version, "hip", None) else name
        lazy_call(lambda kind=kind: _guarded_attach(kind))


def _guarded_attach(kind: str) -> None:
    # An exception in here would surface in the application's first use of its device.
    try:
        _attach(kind)
    except Exception as error:
        _went_wrong(error)


def _went_wrong(error: Exception) -> None:
    _core.count_lost("hook_errors")
    _warn("%s: %s", type(error).__name__, error)


def _kind_of(platform: Platform) -> str:
    return "rocm" if platform.name == "rocm" else platform.device_type


def _attach(kind: str) -> None:
    global _is_attached
    every = settings.get("STAGESPAN_DEVICE_EVERY") if _every is None else _every
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
            _warn("of %d spans it is unknown, because %s%s", lost[cause], meaning, status)
            return
    info = _core.device_info()
    if not info["attached"] and info["reason"]:
        _warn("%s", info["reason"])


def _warn(reason: str, *arguments: object) -> None:
    global _has_warned
    if not _has_warned:
        _has_warned = True
        _log.warning(
            "[Profiler] device time is not complete: " + reason + ". Host time goes on; "
            "`stagespan doctor` tells more (told once).",
            *arguments,
        )


def _warn_of_connections(kind: str) -> None:
    if kind == "cuda" and max_connections() == 1:
        _log.warning(
            "[Profiler] CUDA_DEVICE_MAX_CONNECTIONS=1: events that time spans can keep "
            "communication and kernels from overlapping. Set STAGESPAN_DEVICE_EVERY to a larger "
            "number, or to 0, if steps get slower (told once)."
        )


def max_connections() -> int | None:
    """``CUDA_DEVICE_MAX_CONNECTIONS`` as a number; None where it is not set, or no number."""
    number: int | None = _core.device_info()["max_connections"]
    return number


def _forget_parent() -> None:
    # No driver works on both sides of a fork. A child whose parent used no device may begin.
    global _is_attached, _is_forked
    _is_forked = _is_forked or _is_attached
    _is_attached = False


forks.after_in_child(_forget_parent)
