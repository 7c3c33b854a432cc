"""How the times of the stages of a process changed while it ran, from its latest spans."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stagespan.live.quantiles import rank
from stagespan.live.span_kinds import RUNS, number_of
from stagespan.pages.figures import Count, Figures, Ns
from stagespan.pages.result import Cell, Chart, Result, Table
from stagespan.recording import summary
from stagespan.recording.source import RequestSource
from stagespan.recording.spans import kinds_of

_PERIODS = 40
_MOST_DRAWN = 8
"""Stages in the chart, those with the most time."""
_QUANTILES = {"p50": 0.5, "p95": 0.95}


class _Runs(NamedTuple):
    """The finished runs of a stage in the recording, ordered by end."""

    end_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]


class StageOverTime(Figures, frozen=True):
    """The runs of a stage that a recording still has."""

    stage: str
    runs: Count
    all_runs: Count
    """Also those that the rings no longer have."""
    p50_before_ns: Ns | None
    """In the first half of the time; None if it had no run in it."""
    p50_after_ns: Ns | None
    p95_before_ns: Ns | None
    p95_after_ns: Ns | None


class StagesOverTimeFigures(Figures, frozen=True):
    """The stages of a process, those with the most time first."""

    stages: list[StageOverTime]


class StagesOverTime(Result):
    """The percentiles of the stages of a process over time."""

    def __init__(self, recording: RequestSource) -> None:
        self.recording = recording

    @cached_property
    def _runs(self) -> dict[str, _Runs]:
        """The runs of each stage, of those with the most time first."""
        spans = self.recording.spans()
        spans = spans[np.isin(kinds_of(spans), [number_of(kind) for kind in RUNS])]
        spans = spans[spans["end_ns"].argsort(kind="stable")]
        # int64[spans]
        duration_ns = spans["end_ns"] - spans["begin_ns"]
        names = self.recording.stage_names()
        total_ns = np.bincount(spans["stage"], duration_ns, len(names))
        return {
            names[stage]: _Runs(spans["end_ns"][at], duration_ns[at])
            for stage in np.argsort(-total_ns, kind="stable").tolist()
            if len(at := np.flatnonzero(spans["stage"] == stage))
        }

    @cached_property
    def _window_ns(self) -> tuple[int, int]:
        """The first and the last end of a run."""
        ends = [runs.end_ns for runs in self._runs.values()]
        return min(int(end[0]) for end in ends), max(int(end[-1]) for end in ends)

    def figures(self) -> StagesOverTimeFigures:
        """Return the runs of each stage, and its percentiles in both halves of the time."""
        counts = {name: stage.count for name, stage in summary.runs([self.recording]).items()}
        return StagesOverTimeFigures(
            [
                StageOverTime(
                    name,
                    len(runs.end_ns),
                    max(counts.get(name, 0), len(runs.end_ns)),
                    *self._halves(runs, "p50"),
                    *self._halves(runs, "p95"),
                )
                for name, runs in self._runs.items()
            ]
        )

    def _halves(self, runs: _Runs, quantile: str) -> tuple[int | None, int | None]:
        first_ns, last_ns = self._window_ns
        middle = int(np.searchsorted(runs.end_ns, (first_ns + last_ns) // 2, side="right"))
        before, after = (
            _quantile_ns(np.sort(half), quantile)
            for half in (runs.duration_ns[:middle], runs.duration_ns[middle:])
        )
        return before, after

    def tables(self) -> list[Table]:
        """Return the percentiles of each stage in both halves of the time."""

        def of_all(row: StageOverTime) -> Cell:
            return f"{row.runs:,} of {row.all_runs:,}"

        if not self._runs:
            return []
        return [
            Table.of(
                "First and second half of the time",
                self.figures().stages,
                *(("stage", "stage", ""), (of_all, "runs here", "")),
                *(("p50_before_ns", "p50 before", "ns"), ("p50_after_ns", "p50 after", "ns")),
                *(("p95_before_ns", "p95 before", "ns"), ("p95_after_ns", "p95 after", "ns")),
                note="The recording has the latest spans of each thread; older ones are counted.",
            )
        ]

    def chart(self) -> Chart | None:
        """Return the percentiles of the stages with the most time, by period."""
        if not self._runs:
            return None
        first_ns, last_ns = self._window_ns
        period_ns = (last_ns - first_ns) // _PERIODS + 1
        drawn = list(self._runs.items())[:_MOST_DRAWN]
        return {
            "kind": "percentiles",
            "window_ns": last_ns - first_ns,
            "period_ns": period_ns,
            "stages": [
                {
                    "name": name,
                    **_by_period((runs.end_ns - first_ns) // period_ns, runs.duration_ns),
                }
                for name, runs in drawn
            ],
        }


def _by_period(
    period: NDArray[np.int64], duration_ns: NDArray[np.int64]
) -> Mapping[str, list[int | None]]:
    """Return the number of runs and their percentiles for each period, for those with runs."""
    order = np.lexsort((duration_ns, period))
    # int64[runs], ordered by period and then by time.
    ordered = duration_ns[order]
    periods, firsts, counts = np.unique(period[order], return_index=True, return_counts=True)
    return {
        "periods": periods.tolist(),
        "runs": counts.tolist(),
        **{
            f"{name}_ns": [
                _quantile_ns(ordered[first : first + count], name)
                for first, count in zip(firsts.tolist(), counts.tolist(), strict=True)
            ]
            for name in _QUANTILES
        },
    }


def _quantile_ns(ordered_ns: NDArray[np.int64], name: str) -> int | None:
    """Return a quantile of ascending times; None without any."""
    count = len(ordered_ns)
    return int(ordered_ns[rank(_QUANTILES[name], count) - 1]) if count else None
