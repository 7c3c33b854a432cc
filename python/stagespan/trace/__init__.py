"""Read and analyse traces of torch.profiler and compatible profilers. Needs no torch."""

from __future__ import annotations

from stagespan.trace.analyses.breakdown import Breakdown, KernelRow, breakdown
from stagespan.trace.derived.device_time import DeviceUse, device_use
from stagespan.trace.rates.calls import Call, Cost, CostUnknownError, Tensor
from stagespan.trace.rates.costs import register_cost
from stagespan.trace.read.model import MISSING, Events, Flows, Trace
from stagespan.trace.read.reader import read_trace

__all__ = [
    "MISSING",
    "Breakdown",
    "Call",
    "Cost",
    "CostUnknownError",
    "DeviceUse",
    "Events",
    "Flows",
    "KernelRow",
    "Tensor",
    "Trace",
    "breakdown",
    "device_use",
    "read_trace",
    "register_cost",
]
