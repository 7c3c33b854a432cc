"""Analyses the traces of many ranks together: clocks, waiting ranks, a merged timeline."""

from __future__ import annotations

from stagespan.trace.ranks.folder import ranks_of
from stagespan.trace.ranks.report import Ranks
from stagespan.trace.ranks.workers import summarise_all

__all__ = ["Ranks", "ranks_of", "summarise_all"]
