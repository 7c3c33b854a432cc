"""Analyses timing reports: one, or those of several ranks, as `stagespan analyze` shows them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stagespan.errors import TraceError
from stagespan.pages.result import Evidence
from stagespan.report.reader import count_of, looks_like_report, number, read_timing_report
from stagespan.report.side_by_side import StagesByRank, read_reports, whole_ns
from stagespan.trace.analyses.host_verdict import verdict_on_stages
from stagespan.trace.analyses.stages import Stage, Stages
from stagespan.trace.analyses.verdict import Verdict, verdict_of_host
from stagespan.trace.analysis import Analysis
from stagespan.trace.ascend import find_ascend_folder
from stagespan.trace.ranks.find import is_no_trace, traces_in
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
    runs = sum(stage.calls for stage in found.stages)
    return Analysis(without_events(str(path), runs), results)


def analyze_reports(folder: Path, paths: Sequence[Path]) -> Analysis:
    """Compare the timing reports of several ranks or processes, or analyse the only one.

    Raises TraceError if they contain no stages, and ReportError if one cannot be read.
    """
    if len(paths) == 1:
        return analyze_report(paths[0])
    reports = read_reports(paths)
    if not any(process.report["stages"] for process in reports):
        raise TraceError(
            f"The timing reports in {folder} contain no stages: run the program again."
        )
    whole = [whole_ns(process.report) for process in reports]
    together = StagesByRank(reports)
    everything: dict[str, int] = {}
    for times in together.times:
        for stage, time in times.items():
            everything[stage] = everything.get(stage, 0) + time.own_ns
    covered = sum(
        min(sum(t.own_ns for t in e.values()), w)
        for e, w in zip(together.times, whole, strict=True)
    )
    verdict = verdict_on_stages(
        everything, (0, sum(whole)), covered, f" of {len(reports):,} processes"
    )
    results: dict[str, Any] = {
        "verdict": verdict_of_host(verdict),
        "stages_by_rank": together,
    }
    runs = sum(time.runs for times in together.times for time in times.values())
    return Analysis(without_events(str(folder), runs), results)


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
