"""Compare two traces of one program, before and after a change, and explain the difference.

Times are compared per step if both traces have steps, or else over the whole traces. Every
nanosecond belongs to one cell (`cost_table`), so the differences by kind, cause, stage, layer,
operator and kernel each sum exactly to the change.
"""

from __future__ import annotations

from stagespan.trace.compare.alignment import compare
from stagespan.trace.compare.comparison import TraceComparison

__all__ = ["TraceComparison", "compare"]
