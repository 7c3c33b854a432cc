"""Pictures of analyses that have more to show than tables: idle causes, memory, a flame graph."""

from __future__ import annotations

from typing import Any

from stagespan.trace.analysis import Analysis
from stagespan.trace.analysis.causes import CAUSES
from stagespan.trace.analysis.idle import Idle


def pictures(analysis: Analysis) -> list[dict[str, Any]]:
    """One entry a picture: the analysis that it belongs to, its kind, and what it is drawn from."""
    found: list[dict[str, Any]] = []
    idle = analysis.results.get("idle")
    if isinstance(idle, Idle) and idle.by_cause:
        found.append(_idle_causes(idle))
    return found


def _idle_causes(idle: Idle) -> dict[str, Any]:
    """Cause, its meaning, idle ns and gaps, the longest first."""
    causes = [
        (cause, CAUSES[cause], time, idle.gaps_by_cause.get(cause, 0))
        for cause, time in idle.by_cause.items()
    ]
    return {"analysis": "idle", "kind": "idle_causes", "causes": causes}
