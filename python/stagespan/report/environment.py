"""What a report says of the machine and the software that its figures come from."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from typing import Any

from stagespan import _core, platforms
from stagespan.report.entries import Environment


def environment() -> Environment:
    """Facts of this process; what is not known is None. Imports nothing heavy, runs no program."""
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
        "stagespan": _VERSION,
        "clock": clock.get("source"),
        "pid": os.getpid(),
    }


def version() -> str | None:
    """Version of the installed stagespan; None where it runs without having been installed."""
    try:
        return metadata.version("stagespan")
    except metadata.PackageNotFoundError:
        return None


def cpu_model() -> str | None:
    """Name of the processor as the kernel tells it; None where it does not."""
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
    # Asked only of a device in use: the name comes from a context that is already there.
    if not device.in_use():
        return None
    try:
        return str(getattr(torch, device.device_type).get_device_name())
    except Exception:
        return None


# Asked for here because it imports a part of the standard library, which a report in a signal
# handler could find half imported, and a forked child as well.
_VERSION = version()
