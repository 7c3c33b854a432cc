"""Detects a profiler that another one has ended."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

_never_stopped: weakref.WeakSet[Any] = weakref.WeakSet()
"""Profilers of windows whose session was taken over."""


def is_enabled_here() -> bool:
    """Whether a profiler that records this thread only is enabled in it."""
    import torch

    enabled = getattr(torch.autograd, "_profiler_enabled", None)
    return enabled is not None and bool(enabled())


def was_taken_over(profiler: Any, all_threads: bool = False) -> bool:
    """Whether another profiler was started in any thread while ``profiler`` was recording.

    ``all_threads`` is whether ``profiler`` records all threads.

    It may still be recording, or have ended the session of both. Call this before ``profiler`` is
    stopped. If the result is true, ``profiler`` must not be stopped.
    """
    autograd: Any = sys.modules.get("torch.autograd.profiler")
    inner = getattr(profiler, "profiler", None)
    if autograd is None or inner is None:
        return False
    # Each profiler that ends, in any thread, resets the flag of the process.
    runs = getattr(autograd, "_is_profiler_enabled", True)
    # The flag of this thread is not set if it records all of them.
    if not (runs and (all_threads or is_enabled_here())) or any(
        candidate is not inner
        and candidate not in _never_stopped
        and getattr(candidate, "entered", False)
        and getattr(candidate, "kineto_results", None) is None
        for candidate in instances_of(autograd.profile)
    ):
        _never_stopped.add(inner)
        return True
    return False


def instances_of(kind: type) -> list[Any]:
    """Return all objects of a class and of its subclasses.

    One call searches all objects, because a profiler with stacks would record each step of a loop.
    """
    kinds = [kind]
    for each in kinds:
        kinds += each.__subclasses__()
    # Not isinstance(), because it runs code of proxies, and some of torch's proxies warn.
    return [one for one in gc.get_referrers(*kinds) if issubclass(type(one), kind)]
