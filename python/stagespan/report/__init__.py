"""The timing report: creating, writing, printing and comparing it."""

from __future__ import annotations

from stagespan.report.changes_pages import compare_timing_reports
from stagespan.report.tables import print_timing_summary
from stagespan.report.timing import (
    dump_timing_report,
    reset_timing_registry,
    set_timing_metadata,
    timing_report,
)

__all__ = [
    "compare_timing_reports",
    "dump_timing_report",
    "print_timing_summary",
    "reset_timing_registry",
    "set_timing_metadata",
    "timing_report",
]
