"""Writes the trace of a profiler in a forked child, so that this process need not stand still."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from stagespan import _core
from stagespan.device import times
from stagespan.device.platforms import current_platform, resident_bytes
from stagespan.profiling.running import foreign_profiler

_MOST_RESIDENT_BYTES = 4 << 30
"""A fork of a larger process takes as long as what it saves."""
_LONGEST_S = 30.0
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/accel", "/dev/davinci")
"""The files that drivers of accelerators keep open. A child must not use them, even at its end."""


class Child(NamedTuple):
    """What became of a child that was to write a trace."""

    fork_ns: int
    """For how long the fork has stopped this process; 0 without a fork."""
    failed: str | None
    """Why it has not written the trace, as a part of a sentence, or None."""


def why_in_place() -> str | None:
    """Return why this process must write the trace itself, as a part of a sentence, or None."""
    if sys.platform != "linux":
        return "forks are used on Linux only"
    if times.is_attached() or current_platform.in_use() or _has_open_device():
        return "an accelerator is in use"
    resident = resident_bytes()
    if resident is None or resident > _MOST_RESIDENT_BYTES:
        return f"the process has more than {_MOST_RESIDENT_BYTES >> 30} GiB of resident memory"
    if foreign_profiler():
        return "a profiler of the application is running"
    if _is_importing():
        return "another thread is importing a module"
    return None


def save_in_child(
    save: Callable[[str], object], path: Path, longest_s: float = _LONGEST_S
) -> Child:
    """Call `save(path)` in a forked child, and wait for its end.

    `save` must be written in C, because the child runs no Python code. If it has not returned after
    `longest_s` seconds, the child is killed.
    """
    begin_ns = time.perf_counter_ns()
    try:
        pid, fd = _core.call_in_child(save, str(path))
    except (OSError, TypeError) as error:
        return Child(0, f"the process could not be forked ({error})")
    fork_ns = time.perf_counter_ns() - begin_ns
    # The number of a child that another part of the program has waited for may be used again.
    handle = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
    try:
        failed = _waited(fd, longest_s)
        if failed is not None:
            with contextlib.suppress(OSError):
                if handle is None:
                    os.kill(pid, signal.SIGKILL)
                else:
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
    finally:
        os.close(fd)
        if handle is not None:
            os.close(handle)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    return Child(fork_ns, failed)


def _waited(fd: int, longest_s: float) -> str | None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if not poll.poll(longest_s * 1000):
        return f"the child did not write it within {longest_s:g} s"
    return None if os.read(fd, 1) else "the child ended before it had written it"


def _has_open_device() -> bool:
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{name}").startswith(_DEVICES):
                    return True
    return False


def _is_importing() -> bool:
    """Whether a thread is inside an import, so that its locks would be held in a child."""
    return any(
        getattr(getattr(module, "__spec__", None), "_initializing", False)
        for module in list(sys.modules.values())
    )
