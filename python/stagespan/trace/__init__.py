"""Reading traces of torch.profiler and its kin, and what they say; needs no torch."""

from __future__ import annotations

from stagespan.trace.breakdown import Breakdown, KernelRow, breakdown
from stagespan.trace.device_use import DeviceUse, device_use
from stagespan.trace.model import MISSING, Events, Flows, Trace
from stagespan.trace.reader import read_trace

__all__ = [
    "MISSING",
    "Breakdown",
    "DeviceUse",
    "Events",
    "Flows",
    "KernelRow",
    "Trace",
    "breakdown",
    "device_use",
    "read_trace",
]
