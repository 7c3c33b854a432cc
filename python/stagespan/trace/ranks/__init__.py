"""The traces of many ranks together: aligned clocks, waiting ranks, one merged timeline."""

from __future__ import annotations

from stagespan.trace.ranks.folder import analyze_folder, ranks_of
from stagespan.trace.ranks.report import Ranks
from stagespan.trace.ranks.summary import summarise_all

__all__ = ["Ranks", "analyze_folder", "ranks_of", "summarise_all"]
