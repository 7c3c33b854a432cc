"""Before and after: two traces of one program compared, and what explains the change.

Time is compared per step where both traces have steps, else over all of each trace. Every
nanosecond of it belongs to one cell (`cells`), so the differences by kind, cause, stage, layer,
operator and kernel each sum to the change exactly.
"""

from __future__ import annotations

from stagespan.trace.comparison.against import Against
from stagespan.trace.comparison.alignment import compare

__all__ = ["Against", "compare"]
