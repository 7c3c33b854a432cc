"""The stages of a report from the recorder's summaries, in figures that add up."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from stagespan.live.statistics import Durations
from stagespan.report.entries import StageEntry

if TYPE_CHECKING:
    from stagespan._core import StageSummary
    from stagespan.report.merged import MergedStage, Stages

_MS = 1e6
SEVERAL = "(several)"
"""The name under which all parents beyond the fourth are counted."""


def top_level_ns(name: str, stages: Stages) -> int:
    """Return the time in ns of runs without a parent, or with a parent that is still running."""
    return sum(ns for _, ns in _at_top(name, stages))


def _at_top(name: str, stages: Stages) -> list[tuple[int, int]]:
    return [
        figures
        for parent, figures in stages[name].parents.items()
        if parent is None or (parent != SEVERAL and parent not in stages)
    ]


def stage_entries(
    stages: Stages,
    memory_of: Callable[[str], dict[str, Any] | None],
    signatures: Mapping[str, list[dict[str, Any]]],
) -> dict[str, StageEntry]:
    """Return the report's ``stages``, the longest first.

    ``percentage`` is the share of a stage's top-level runs in all top-level time. It is None for a
    stage that only ran inside others, so the percentages add up to 100. For every stage,
    ``duration_ms`` is ``children_ms`` + ``unattributed_ms``.
    """
    total_ns = sum(top_level_ns(name, stages) for name in stages)
    entries = {}
    for name in sorted(stages, key=lambda name: (-stages[name].total_ns, name)):
        top_ns = top_level_ns(name, stages) if _at_top(name, stages) else None
        share = 100 * top_ns / total_ns if top_ns is not None and total_ns else None
        entries[name] = _entry(stages[name], share, memory_of(name), signatures.get(name, []))
    return entries


def _entry(
    stage: StageSummary | MergedStage,
    percentage: float | None,
    memory: dict[str, Any] | None,
    signatures: list[dict[str, Any]],
) -> StageEntry:
    # The clocks of parent and child are read one after the other, so a child can seem longer.
    children_ns = min(max(stage.children_ns, 0), stage.total_ns)
    elapsed = stage.device_elapsed_ns
    parents = sorted(stage.parents.items(), key=lambda item: (-item[1][1], item[0] or ""))
    return {
        "duration_ms": stage.total_ns / _MS,
        "percentage": percentage,
        "count": stage.count,
        "mean_ms": stage.mean_ns / _MS,
        "min_ms": stage.min_ns / _MS,
        "max_ms": stage.max_ns / _MS,
        "p25_ms": stage.quantile_ns(0.25) / _MS,
        "p50_ms": stage.p50_ns / _MS,
        "p75_ms": stage.quantile_ns(0.75) / _MS,
        "p95_ms": stage.p95_ns / _MS,
        "p99_ms": stage.p99_ns / _MS,
        "errors": stage.errors,
        "suspended_ms": stage.suspended_ns / _MS,
        "children_ms": children_ns / _MS,
        "unattributed_ms": (stage.total_ns - children_ns) / _MS,
        # With sampling, or if a device failed, these are sums over some of the runs.
        "device_runs": None if elapsed is None else elapsed.count,
        "device_elapsed_ms": _ms(elapsed, "total_ns"),
        "device_queue_ms": _ms(stage.device_queue_ns, "total_ns"),
        "device_tail_ms": _ms(stage.device_tail_ns, "total_ns"),
        "device_elapsed_mean_ms": _ms(elapsed, "mean_ns"),
        "device_queue_mean_ms": _ms(stage.device_queue_ns, "mean_ns"),
        "device_tail_mean_ms": _ms(stage.device_tail_ns, "mean_ns"),
        "work": dict(stage.work),
        "work_per_s": {
            what: _per_second(amount, stage.total_ns) for what, amount in stage.work.items()
        },
        "memory": memory,
        "parent": parents[0][0] if parents else None,
        "parents": [
            {"parent": parent, "count": count, "duration_ms": ns / _MS}
            for parent, (count, ns) in parents
        ],
        "signatures": signatures,
        "parallel_info": None,
    }


def _per_second(amount: float, total_ns: int) -> float | None:
    """Return a rate over the stage's time; None if it is not a finite number."""
    rate = amount / (total_ns / 1e9) if total_ns else math.inf
    return rate if math.isfinite(rate) else None


def _ms(durations: Durations | None, figure: Literal["total_ns", "mean_ns"]) -> float | None:
    """Return a figure of the runs with a known device time, in ms; None without such runs."""
    return None if durations is None else float(getattr(durations, figure)) / _MS
