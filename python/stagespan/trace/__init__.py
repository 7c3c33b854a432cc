"""Read and analyse traces of torch.profiler and compatible profilers. Needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagespan.process.imports import OnFirstUse

# Commands that read no trace use modules of this package, such as `trace.read.remote`.
with OnFirstUse(globals()) as _lazy:
    from stagespan.trace.analyses.breakdown import (
        Breakdown as Breakdown,
        KernelRow as KernelRow,
        breakdown as breakdown,
    )
    from stagespan.trace.derived.device_time import DeviceUse as DeviceUse, device_use as device_use
    from stagespan.trace.rates.calls import (
        Call as Call,
        Cost as Cost,
        CostUnknownError as CostUnknownError,
        Tensor as Tensor,
    )
    from stagespan.trace.rates.costs import register_cost as register_cost
    from stagespan.trace.read.model import (
        MISSING as MISSING,
        Events as Events,
        Flows as Flows,
        Trace as Trace,
    )
    from stagespan.trace.read.reader import read_trace as read_trace

__all__ = sorted(_lazy)  # noqa: PLE0605
if not TYPE_CHECKING:
    __getattr__ = _lazy
