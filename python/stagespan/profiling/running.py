"""Detects a profiler of the application, which a window would break."""

from __future__ import annotations

import sys
import weakref
from typing import Any

from stagespan.harness.standalone.running import instances_of, is_enabled_here

of_windows: weakref.WeakSet[Any] = weakref.WeakSet()
"""The profilers of windows. Because of cycles in them, they stay until garbage is collected."""


def foreign_profiler() -> bool:
    """Whether a profiler of the application is recording or warming up in this process.

    A second torch.profiler does not fail. It silently ends the first, or makes it lose its trace.
    """
    autograd: Any = sys.modules.get("torch.autograd.profiler")
    if autograd is None:
        return False
    if getattr(autograd, "_is_profiler_enabled", False):
        return True
    return is_enabled_here() or _warming_up(autograd)


def is_left_over() -> bool:
    """Whether a profiler is still enabled in this thread, but one of another thread ended it."""
    autograd: Any = sys.modules.get("torch.autograd.profiler")
    return not getattr(autograd, "_is_profiler_enabled", True) and is_enabled_here()


def _warming_up(autograd: Any) -> bool:
    """Whether a scheduled profiler is in its warm-up, for which torch has no flag."""
    kinds: Any = sys.modules.get("torch.profiler.profiler") or sys.modules.get("torch.profiler")
    profile = getattr(kinds, "profile", None)
    action = getattr(kinds, "ProfilerAction", None)
    tracker = getattr(autograd, "KinetoStepTracker", None)
    if profile is None or action is None:
        return False
    # Profilers count their steps there from their creation on. No count means no profiler.
    if tracker is not None and "ProfilerStep" not in getattr(
        tracker, "_step_dict", {"ProfilerStep"}
    ):
        return False
    candidates = [candidate for candidate in instances_of(profile) if candidate not in of_windows]
    if not candidates and tracker is not None:
        # One that was ended by `stop()` has left its count behind. This spares further searches.
        tracker.erase_step_count("ProfilerStep")
    for candidate in candidates:
        inner = getattr(candidate, "profiler", None)
        prepared = inner is not None and getattr(inner, "kineto_results", None) is None
        if prepared and getattr(candidate, "current_action", None) is action.WARMUP:
            return True
    return False


class Marks:
    """What another profiler would change, marked when one has started.

    If the marks are there at its end, no other one was started or made ready meanwhile. This spares
    a search among all objects, which stops all threads for tens of milliseconds.
    """

    def __init__(self, autograd: Any, had_count: bool) -> None:
        self._autograd = autograd
        tracker: Any = getattr(autograd, "KinetoStepTracker", None)
        steps: Any = getattr(tracker, "_step_dict", None)
        # A profiler that was made before and counts its steps can be made ready without a change.
        self._is_possible = (
            not had_count
            and getattr(autograd, "_is_profiler_enabled", None) is True
            and isinstance(steps, dict)
            and "ProfilerStep" in steps
        )
        self._steps: dict[str, int] = steps if self._is_possible else {}
        if self._is_possible:
            self._step = _Step(self._steps["ProfilerStep"])
            self._steps["ProfilerStep"] = self._step
            # Each start sets it to True, and each end to False.
            autograd._is_profiler_enabled = _ENABLED

    def are_there(self) -> bool:
        """Whether no other profiler has changed them. False if they could not be made."""
        return (
            self._is_possible
            and self._autograd._is_profiler_enabled is _ENABLED
            and self._steps.get("ProfilerStep") is self._step
        )


class _Step(int):
    """A number of steps, which is told from an equal one by its identity."""


_ENABLED = 1
