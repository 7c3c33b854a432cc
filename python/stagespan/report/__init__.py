"""The timing report: creating, writing, printing and comparing it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagespan.process.imports import OnFirstUse

# Comparing needs NumPy, which a program that only writes reports does not load, and `stagespan
# analyze` uses a module of this package for traces, too.
with OnFirstUse(globals()) as _lazy:
    from stagespan.report.changes_pages import compare_timing_reports as compare_timing_reports
    from stagespan.report.tables import print_timing_summary as print_timing_summary
    from stagespan.report.timing import (
        dump_timing_report as dump_timing_report,
        reset_timing_registry as reset_timing_registry,
        set_timing_metadata as set_timing_metadata,
        timing_report as timing_report,
    )
if not TYPE_CHECKING:
    __getattr__ = _lazy
