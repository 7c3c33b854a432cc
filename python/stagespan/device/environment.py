"""Facts about the machine and the software of this process, for reports."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any, TypedDict

from stagespan import _core
from stagespan.device import platforms
from stagespan.harness.standalone.machine import cpu_model


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
    return {
        "python": platform.python_version(),
        "torch": None if torch_version is None else str(torch_version),
        "platform": device.name,
        "device": _device_name(device),
        "hostname": system.nodename,
        "cpu": cpu_model(),
        "cpu_count": os.cpu_count(),
        "system": f"{system.sysname} {system.release} {system.machine}",
        "stagespan": version(),
        "clock": _core.clock_info().get("source"),
        "pid": os.getpid(),
    }


def machine() -> dict[str, Any]:
    """Return facts about the machine and the software, without the process and the host name."""
    return {key: value for key, value in environment().items() if key not in ("pid", "hostname")}


def version() -> str:
    """Return the version of stagespan."""
    return str(sys.modules["stagespan"].__version__)


def _device_name(device: platforms.Platform) -> str | None:
    try:
        # Only for a device in use, because the name needs a device context.
        return device.get_device_name() if device.in_use() else None
    except Exception:
        return None
