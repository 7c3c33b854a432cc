"""The traces of many ranks together: clocks aligned, who waits for whom, one merged timeline."""

from __future__ import annotations

from stagespan.trace.ranks.folder import analyze_folder, ranks_of
from stagespan.trace.ranks.many import summarise_all
from stagespan.trace.ranks.report import Ranks

__all__ = ["Ranks", "analyze_folder", "ranks_of", "summarise_all"]
