"""What a trace says, in figures and in sentences: one analysis a module, walked by `analyze`.

To add an analysis of one trace: a module here with `analyze(trace) -> Result | Nothing`, and its
name in `ANALYSES`, where the order is that of the report.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from stagespan.trace.analysis.result import (
    Finding,
    Nothing,
    Result,
    gravest_first,
    merged,
    window_of,
)
from stagespan.trace.analysis.torchair_calls import calls_torchair
from stagespan.trace.device import is_ascend
from stagespan.trace.model import Trace

SCHEMA_VERSION = 1
# Modules of this package, each with one function `analyze(trace)`.
ANALYSES: tuple[str, ...] = (
    "verdict",
    "device_use",
    "idle",
    "launches",
    "host",
    "kernels",
    "compiled",
    "steps",
    "stages",
    "layers",
    "memory",
    "flame",
)

# Those of traces of torch_npu.profiler alone.
ASCEND: tuple[str, ...] = (
    "head_overhead",
    "ascend_steps",
    "ascend_free",
    "ascend_waits",
    "ascend_host_waits",
    "ascend_cores",
)


# Findings whose event is the same as that of another analysis' finding, which says more.
_TELLS_ALSO: dict[str, tuple[str, ...]] = {
    "ascend.exposed_communication": (
        "device_use.exposed_communication",
        "ascend.collectives_waited",
    ),
}


@dataclass(frozen=True, slots=True)
class Analysis:
    """All that was found out about one trace."""

    trace: Trace
    results: dict[str, Result | Nothing]
    """By the analysis' name, in the order of the report."""

    def findings(self) -> list[Finding]:
        """Of all analyses, the gravest first; within a severity in the order of the report.

        What several analyses report of the same lost time is one finding.
        """
        found = [finding for result in self.results.values() for finding in result.findings()]
        codes = {finding.code for finding in found}
        covered = {other for code in codes for other in _TELLS_ALSO.get(code, ())}
        return gravest_first(merged([each for each in found if each.code not in covered]))

    def to_dict(self) -> dict[str, Any]:
        """For JSON: what was read, the findings, then one key an analysis."""
        trace = self.trace
        window = window_of(trace)
        return {
            "schema_version": SCHEMA_VERSION,
            "trace": {
                "path": trace.path,
                "entries": trace.total,
                "window_begin_ns": None if window is None else window[0],
                "window_us": None if window is None else (window[1] - window[0]) / 1000,
                "incomplete": trace.incomplete,
                "left_out": dict(trace.left_out),
                "adjusted": dict(trace.adjusted),
            },
            "findings": [finding.to_dict() for finding in self.findings()],
            **{name: result.to_dict() for name, result in self.results.items()},
        }


def analyze(trace: Trace, only: Iterable[str] | None = None) -> Analysis:
    """Run all analyses on a trace (`ASCEND` if it is of an NPU), or those that `only` names.

    Raises KeyError for a name that is in neither list.
    """
    names = list(_asked(trace)) if only is None else list(only)
    known = (*ANALYSES, *ASCEND)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise KeyError(f"There is no analysis {unknown[0]!r}: choose from {', '.join(known)}.")
    results: dict[str, Result | Nothing] = {}
    for name in names:
        module = importlib.import_module(f"stagespan.trace.analysis.{name}")
        results[name] = module.analyze(trace)
    return Analysis(trace, results)


def _asked(trace: Trace) -> tuple[str, ...]:
    """The analyses for a trace; graph mode can be in one that torch.profiler wrote, too."""
    if is_ascend(trace):
        return (*ANALYSES, *ASCEND)
    return (*ANALYSES, "head_overhead") if calls_torchair(trace) else ANALYSES
