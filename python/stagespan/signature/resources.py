"""Checks before a replay that its device exists and that its inputs fit into memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from stagespan.errors import HarnessError


def check_device(device: str, where: str) -> None:
    """Raise HarnessError unless tensors can be created on ``device``; ``where`` names the input."""
    import torch

    override = "make the inputs elsewhere with HarnessConfig(device='cpu') (or --device cpu)"
    try:
        parsed = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        raise HarnessError(
            f"{where} is on {device!r}, which is not a device of torch; {override}."
        ) from None
    if parsed.type == "cpu":
        return
    module: Any = getattr(torch, parsed.type, None)
    if parsed.type == "meta" or not hasattr(module, "is_available"):
        raise HarnessError(f"{where} is on {device!r}, which cannot run operators; {override}.")
    count = int(module.device_count()) if module.is_available() else 0
    if count == 0:
        raise HarnessError(
            f"{where} is on {device!r}, but this machine has no {parsed.type} device; {override}."
        )
    if (parsed.index or 0) >= count:
        raise HarnessError(
            f"{where} is on {device!r}, but this machine has {count} {parsed.type} device(s), "
            f"counted from 0; {override}."
        )


def free_bytes(device: str) -> int | None:
    """Return the free memory of a device in bytes, or None if unknown."""
    kind = device.partition(":")[0]
    if kind == "cpu":
        return free_host_bytes()
    import torch

    try:
        module: Any = getattr(torch, kind)
        return int(module.mem_get_info(torch.device(device))[0])
    except (AttributeError, RuntimeError, ValueError):
        return None


def free_host_bytes() -> int | None:
    """Return the free memory of the machine, or of the container if that is less, in bytes."""
    found = [value for value in (_available(), _container()) if value is not None]
    return min(found) if found else None


def _available() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def _container() -> int | None:
    base = Path("/sys/fs/cgroup")
    try:
        limit = (base / "memory.max").read_text(encoding="ascii").strip()
        used = (base / "memory.current").read_text(encoding="ascii").strip()
        return None if limit == "max" else max(int(limit) - int(used), 0)
    except (OSError, ValueError):
        return None


def check_memory(needed: dict[str, int], largest: str) -> None:
    """Raise HarnessError if the bytes ``needed`` by device are not free."""
    for device, required in needed.items():
        free = free_bytes(device)
        if free is not None and required > free:
            raise HarnessError(
                f"The inputs need {_size(required)} on {device}, but only {_size(free)} are free; "
                f"the largest is {largest}: make its shape smaller in the signature file, or pass "
                f"it with HarnessConfig(inputs={{...}})."
            )


def _size(count: int) -> str:
    return f"{count / 2**30:,.2f} GiB" if count < 1 << 60 else f"{count / 2**60:.3g} EiB"
