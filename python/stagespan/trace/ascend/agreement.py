"""Figures that two places of a result folder hold, where they differ."""

from __future__ import annotations

from collections.abc import Sequence

from stagespan.trace.analysis.result import Evidence, Finding, Severity


def disagreement(severity: Severity, what: str, differences: Sequence[str], code: str) -> Finding:
    """The finding that two sources, named by `what`, differ; `differences` is not empty."""
    return Finding(
        severity,
        f"{what} do not agree: {differences[0]}.",
        tuple(Evidence(each, None, None, "") for each in differences[:5]),
        code,
    )
