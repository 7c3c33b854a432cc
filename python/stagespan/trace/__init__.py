"""Read and analyse traces of torch.profiler and compatible profilers. Needs no torch."""

from __future__ import annotations

from stagespan.trace.analyses.breakdown import Breakdown, KernelRow, breakdown
from stagespan.trace.derived.device_time import DeviceUse, device_use
from stagespan.trace.read.model import MISSING, Events, Flows, Trace
from stagespan.trace.read.reader import read_trace

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
