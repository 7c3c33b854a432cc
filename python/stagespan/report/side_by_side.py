"""The timing reports of the ranks or workers of one run, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from stagespan.pages.amounts import duration
from stagespan.pages.console import limit, trimmed, wrapped
from stagespan.pages.escaping import one_line
from stagespan.pages.tables import Column, fitted_table
from stagespan.process.imports import importing
from stagespan.report.reader import count_of, number, read_timing_report, reports_in
from stagespan.trace.ranks.stages import MANY_RUNS, StageRuns, stage_findings

_NS = 1e6


class RankReport(NamedTuple):
    """The timing report of one process, and what the process is called."""

    label: str
    report: dict[str, Any]


def read_reports(folder: Path) -> list[RankReport]:
    """Read the timing reports in a folder, ranks first. Raises ReportError if one cannot be read.

    Reports are called by their rank if they come from several ranks, and otherwise, or if several
    processes of one rank wrote reports, by the process id in their environment.
    """
    read = [(path, read_timing_report(path)) for path in reports_in(folder)]
    ranks = [_rank(report) for _, report in read]
    pids = [_pid(report) for _, report in read]
    several = len(set(ranks) - {None}) > 1
    reports = []
    for (path, report), rank, pid in zip(read, ranks, pids, strict=True):
        label = path.stem if pid is None or pids.count(pid) > 1 else f"pid {pid}"
        if several and rank is not None:
            label = f"rank {rank}" if ranks.count(rank) == 1 else f"rank {rank}, {label}"
        reports.append((rank is None, rank or 0, path.name, RankReport(label, report)))
    return [one[-1] for one in sorted(reports, key=lambda one: one[:3])]


def _pid(report: dict[str, Any]) -> int | None:
    environment = report.get("environment")
    pid = environment.get("pid") if isinstance(environment, dict) else None
    return pid if type(pid) is int else None


def _rank(report: dict[str, Any]) -> int | None:
    rank = report.get("rank")
    return rank if type(rank) is int and (number(report.get("world_size")) or 0) > 1 else None


def print_reports(folder: Path) -> None:
    """Print the reports in a folder: a row for each process, the longest stages as columns.

    Raises ReportError if a report cannot be read.
    """
    with importing():
        from rich.console import Console
        from rich.text import Text

    reports = read_reports(folder)
    console = Console(highlight=False)
    console.width = limit() or 10_000
    sentences = [f"{len(reports)} timing reports in {folder}"]
    if all(_rank(process.report) is not None for process in reports):
        times = [stage_runs(process.report) for process in reports]
        slower = stage_findings(
            times,
            [process.label for process in reports],
            [whole_ns(process.report) for process in reports],
        )
        sentences += [finding.sentence for finding in slower]
    for sentence in sentences:
        console.print(Text(wrapped(one_line(sentence), "  ")), soft_wrap=True)
    totals: dict[str, float] = {}
    for process in reports:
        for name, stage in process.report["stages"].items():
            totals[name] = max(totals.get(name, 0.0), float(stage["duration_ms"]))
    columns = [
        Column("process", [process.label for process in reports]),
        Column("wall clock ms", [_ms(process.report.get("wall_clock_ms")) for process in reports]),
        Column("in stages ms", [_ms(process.report.get("total_stages_ms")) for process in reports]),
    ]
    columns += [
        Column(
            one_line(name),
            [_runs(process.report["stages"].get(name)) for process in reports],
            is_flexible=True,
            optional=place > 0,
        )
        for place, name in enumerate(sorted(totals, key=lambda name: (-totals[name], name)))
    ]
    with trimmed(console):
        console.print(fitted_table(columns, console.width))


def stage_runs(report: dict[str, Any]) -> dict[str, StageRuns]:
    """Return the runs of each stage of a timing report, without the stages inside it."""
    runs = {}
    for name, stage in report["stages"].items():
        count, duration_ms = count_of(stage) or 0, number(stage.get("duration_ms")) or 0.0
        own_ms, median_ms = number(stage.get("unattributed_ms")), number(stage.get("p50_ms"))
        # The median is known of whole runs only.
        if median_ms is None or own_ms not in (None, duration_ms) or count >= MANY_RUNS:
            median_ns = None
        else:
            median_ns = median_ms * _NS
        runs[name] = StageRuns(
            count, round((duration_ms if own_ms is None else own_ms) * _NS), median_ns=median_ns
        )
    return runs


def whole_ns(report: dict[str, Any]) -> int:
    """Return the length of a report, or else the time in its stages."""
    length_ns = round((number(report.get("wall_clock_ms")) or 0.0) * _NS)
    return length_ns or sum(each.own_ns for each in stage_runs(report).values())


def _ms(value: object) -> str:
    found = number(value)
    return "" if found is None else f"{found:,.1f}"


def _runs(stage: dict[str, Any] | None) -> str:
    """Return how often a stage ran, and the mean time: ``20 x 1.2 ms``."""
    count = None if stage is None else count_of(stage)
    if stage is None or not count:
        return ""
    return f"{count:,} x {duration(round(1e6 * float(stage['duration_ms']) / count))}"
