"""The page of the stages of a process, like that of a timing report."""

from __future__ import annotations

from typing import Any

from stagespan.pages.result import Result
from stagespan.recording.process_page import ProcessPage, ProcessState
from stagespan.recording.reading import Recording
from stagespan.report.stages import stage_entries, top_level_ns
from stagespan.report.tables import Timing


class StagesPage(ProcessPage):
    """The stages of a recording as a report, with what the process was doing."""

    words = ProcessPage.words._replace(
        page="Timing report", as_text="stagespan show FILE|PID --stages"
    )

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        self._report = Timing(_report_of(recording), [ProcessState(recording)])

    @property
    def results(self) -> dict[str, Result]:
        """The stages, with the tables about the process."""
        return {"timing_report": self._report}

    def to_dict(self) -> dict[str, object]:
        """Return the report."""
        return self._report.to_dict()


def _report_of(recording: Recording) -> dict[str, Any]:
    """Return the stages of a recording as a report."""
    figures = recording.snapshot().stages()
    until_ns = recording.read_ns if recording.state == "alive" else recording.end_ns
    until_ns = until_ns or recording.last_ns
    return {
        "schema_version": 1,
        "wall_clock_ms": None if until_ns is None else (until_ns - recording.begin_ns) / 1e6,
        "total_stages_ms": sum(top_level_ns(name, figures) for name in figures) / 1e6,
        "rank": recording.rank,
        "world_size": recording.world_size,
        "stages": stage_entries(figures, lambda name: None, {}),
        "lost": recording.lost(),
    }
