"""Analyses timing reports: one, or those of several ranks, as `stagespan analyze` shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stagespan.errors import TraceError
from stagespan.pages.figures import Count, Figures, Ns
from stagespan.pages.result import Evidence, Finding, Result, Table
from stagespan.report.reader import count_of, looks_like_report, number, read_timing_report
from stagespan.report.side_by_side import stage_runs, whole_ns
from stagespan.trace.analyses.host_verdict import verdict_on_stages
from stagespan.trace.analyses.stages import Stage, Stages
from stagespan.trace.analyses.verdict import Verdict, verdict_of_host
from stagespan.trace.analysis import Analysis
from stagespan.trace.ascend import find_ascend_folder
from stagespan.trace.ranks.find import is_no_trace, traces_in
from stagespan.trace.ranks.stages import StageRuns, stage_findings, stage_table
from stagespan.trace.read.columns import without_events

_NS = 1e6


def reports_without_traces(folder: Path) -> list[Path]:
    """Return the timing reports in a folder that contains nothing else to analyse; else []."""
    if not folder.is_dir() or find_ascend_folder(folder) is not None:
        return []
    try:
        files = traces_in(folder)
    except TraceError:
        return []
    reports = [path for path in files if looks_like_report(path)]
    return reports if all(path in reports or is_no_trace(path) for path in files) else []


def analyze_report(path: Path) -> Analysis:
    """Analyse one timing report. Raises ReportError if it cannot be read."""
    report = read_timing_report(path)
    found = _stages(report)
    results: dict[str, Any] = {"verdict": _verdict(found, report), "stages": found}
    return Analysis(without_events(str(path), _runs(found)), results)


def analyze_reports(folder: Path, paths: Sequence[Path]) -> Analysis:
    """Compare the timing reports of several ranks or processes, or analyse the only one.

    Raises TraceError if they contain no stages, and ReportError if one cannot be read.
    """
    if len(paths) == 1:
        return analyze_report(paths[0])
    reports = [read_timing_report(path) for path in paths]
    stages_of_each = [_stages(report) for report in reports]
    if not any(stages.stages for stages in stages_of_each):
        raise TraceError(
            f"The timing reports in {folder} contain no stages: run the program again."
        )
    names = _names(reports, paths)
    whole = [whole_ns(report) for report in reports]
    together = StagesByRank(tuple(names), tuple(map(stage_runs, reports)), tuple(whole))
    everything: dict[str, int] = {}
    for times in together.times:
        for stage, time in times.items():
            everything[stage] = everything.get(stage, 0) + time.own_ns
    covered = sum(
        min(sum(t.own_ns for t in e.values()), w)
        for e, w in zip(together.times, whole, strict=True)
    )
    verdict = verdict_on_stages(
        everything, (0, sum(whole)), covered, f" of {len(names):,} processes"
    )
    results: dict[str, Any] = {
        "verdict": verdict_of_host(verdict),
        "stages_by_rank": together,
    }
    return Analysis(without_events(str(folder), sum(map(_runs, stages_of_each))), results)


class RankOfStage(Figures, frozen=True):
    """The runs of a stage in one process."""

    process: str
    runs: Count
    own_ns: Ns
    """Without the stages inside it."""


class StagesByRankFigures(Figures, frozen=True):
    """The runs of each stage by process."""

    stages: dict[str, list[RankOfStage]]


@dataclass(frozen=True, slots=True, repr=False)
class StagesByRank(Result):
    """The times of stages in several processes."""

    names: tuple[str, ...]
    """The processes, such as "rank 1"."""
    times: tuple[dict[str, StageRuns], ...]
    whole_ns: tuple[int, ...]
    """The length of each process's report."""

    def figures(self) -> StagesByRankFigures:
        """The runs of each stage by process."""
        stages: dict[str, list[RankOfStage]] = {}
        for name, each in zip(self.names, self.times, strict=True):
            for stage, time in each.items():
                stages.setdefault(stage, []).append(RankOfStage(name, time.runs, time.own_ns))
        return StagesByRankFigures(stages)

    def findings(self) -> list[Finding]:
        """Findings about stages in which one process is slower than the others."""
        return stage_findings(self.times, self.names, self.whole_ns)

    def tables(self) -> list[Table]:
        """The time in each stage by process."""
        table = stage_table(self.times, self.names)
        return [] if table is None else [table]


def _stages(report: dict[str, Any]) -> Stages:
    entries: dict[str, dict[str, Any]] = report["stages"]
    stages = []
    for name, entry in entries.items():
        duration = number(entry.get("duration_ms")) or 0.0
        unattributed = number(entry.get("unattributed_ms"))
        longest = number(entry.get("max_ms"))
        stages.append(
            Stage(
                path=_path(name, entries),
                calls=count_of(entry) or 0,
                host_ns=round(duration * _NS),
                host_self_ns=round((duration if unattributed is None else unattributed) * _NS),
                longest=Evidence(name, None, None if longest is None else longest * _NS, "ns"),
            )
        )
    stages.sort(key=lambda stage: _order(stage, {each.path: each.host_ns for each in stages}))
    work = sum(stage.host_self_ns for stage in stages)
    return Stages.of(stages, work)


def _order(stage: Stage, times: dict[tuple[str, ...], int]) -> list[tuple[int, str]]:
    """Return a sort key: the longest stages first, and each stage after the one around it."""
    paths = [stage.path[: level + 1] for level in range(len(stage.path))]
    return [(-times.get(path, 0), path[-1]) for path in paths]


def _path(name: str, entries: dict[str, dict[str, Any]]) -> tuple[str, ...]:
    """Return the stages around a stage and itself; a stage with several parents has no path."""
    path = [name]
    while len(path) <= len(entries):
        parents = entries[path[0]].get("parents") or []
        parent = parents[0]["parent"] if len(parents) == 1 else None
        if parent not in entries or parent in path:
            break
        path.insert(0, parent)
    return tuple(path)


def _verdict(stages: Stages, report: dict[str, Any]) -> Verdict:
    times: dict[str, int] = {}
    for stage in stages.stages:
        times[stage.path[-1]] = stage.host_self_ns
    whole = whole_ns(report)
    return verdict_of_host(verdict_on_stages(times, (0, whole), min(stages.work_ns, whole)))


def _runs(found: Stages) -> int:
    return sum(stage.calls for stage in found.stages)


def _names(reports: Sequence[dict[str, Any]], paths: Sequence[Path]) -> list[str]:
    """Return the ranks of the reports if they are different, and otherwise their files' names."""
    ranks = [report.get("rank") for report in reports]
    if len(set(map(str, ranks))) == len(ranks) and all(isinstance(rank, int) for rank in ranks):
        return [f"rank {rank}" for rank in ranks]
    return [path.stem for path in paths]
