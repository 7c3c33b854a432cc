"""Facts about the machine, its present speed and the software of this process, for reports."""

from __future__ import annotations

import os
import platform
import sys
import time
from typing import Any, TypedDict

from stagespan import _core
from stagespan.device import platforms


class Environment(TypedDict):
    """The machine and the software that produced a file."""

    python: str
    torch: str | None
    platform: str
    device: str | None
    hostname: str
    cpu: str | None
    cpu_count: int | None
    system: str
    stagespan: str | None
    clock: str | None
    pid: int


def environment() -> Environment:
    """Return facts about this process; unknown ones are None. Does not import torch."""
    system = os.uname()
    device = platforms.loaded_platform()
    torch: Any = sys.modules.get("torch")
    torch_version = getattr(torch, "__version__", None)
    clock = _core.clock_info()
    return {
        "python": platform.python_version(),
        "torch": None if torch_version is None else str(torch_version),
        "platform": device.name,
        "device": _device_name(torch, device),
        "hostname": system.nodename,
        "cpu": cpu_model(),
        "cpu_count": os.cpu_count(),
        "system": f"{system.sysname} {system.release} {system.machine}",
        "stagespan": version(),
        "clock": clock.get("source"),
        "pid": os.getpid(),
    }


def machine() -> dict[str, Any]:
    """Return facts about the machine and the software, without the process and the host name."""
    return {key: value for key, value in environment().items() if key not in ("pid", "hostname")}


def version() -> str:
    """Return the version of stagespan."""
    return str(sys.modules["stagespan"].__version__)


def cpu_model() -> str | None:
    """Return the name of the processor from the kernel, or None if it gives none."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() in ("model name", "Model", "cpu model"):
                    return value.strip() or None
    except OSError:
        pass
    return None


def _device_name(torch: Any, device: platforms.Platform) -> str | None:
    # Only for a device in use, because the name needs a device context.
    if not device.in_use():
        return None
    try:
        return str(getattr(torch, device.device_type).get_device_name())
    except Exception:
        return None


def fixed_computation_ns(loops: int = 4000) -> int:
    """Run a computation that never changes, and return the CPU time that it took, in ns.

    It takes longer if something outside of this thread slows the processor down: another thread on
    the same core, another guest of the same host, or a lower clock. The operating system may not
    see these, and they make all CPU times longer. Files contain this time to compare it with that
    of another day, so the computation must stay the same.
    """
    began = time.thread_time_ns()
    total = 0
    for number in range(loops):
        total += number * number
    return time.thread_time_ns() - began
