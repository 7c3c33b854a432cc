"""Checks that a trace contains the kernels that it must contain."""

from __future__ import annotations

from stagespan.device_table import Device
from stagespan.trace import Trace, breakdown


def missing_kernels(trace: Trace, device: Device) -> str | None:
    """Return a problem and its solution if the trace has launches of kernels but no kernels."""
    if not device.trace_launches or breakdown(trace, "").on_device:
        return None
    launches = {
        code for code, name in enumerate(trace.names) if name.startswith(device.trace_launches)
    }
    count = sum(int(code) in launches for code in trace.events.name)
    if not count:
        return None
    return f"it contains {count:,} launches of kernels but no kernel; {device.advice}"
