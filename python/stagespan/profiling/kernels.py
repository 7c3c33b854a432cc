"""Checks that a trace contains the kernels that it must contain."""

from __future__ import annotations

import numpy as np

from stagespan.device.table import Device
from stagespan.trace.derived.device import device_work
from stagespan.trace.read.model import Trace


def missing_kernels(trace: Trace, device: Device) -> str | None:
    """Return a problem and its solution if the trace has launches of kernels but no kernels."""
    if not device.trace_launches or len(device_work(trace).kernels):
        return None
    is_launch = np.array([name.startswith(device.trace_launches) for name in trace.names], np.bool_)
    count = int(is_launch[trace.events.name].sum())
    if not count:
        return None
    return f"it contains {count:,} launches of kernels but no kernel; {device.advice}"
