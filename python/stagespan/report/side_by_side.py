"""The timing reports of the ranks or workers of one run, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stagespan.pages.amounts import duration
from stagespan.pages.figures import Count, Figures, Ns
from stagespan.pages.page import ResultPage, Words
from stagespan.pages.result import Block, Finding, Result, Table
from stagespan.report.reader import count_of, number, read_timing_report
from stagespan.trace.ranks.stages import MANY_RUNS, StageRuns, stage_findings, stage_table

_NS = 1e6


class RankReport(NamedTuple):
    """The timing report of one process, and what the process is called."""

    label: str
    report: dict[str, Any]


def read_reports(paths: Sequence[Path]) -> list[RankReport]:
    """Read timing reports, ranks first. Raises ReportError if one cannot be read.

    Reports are called by their rank if they come from several ranks, and otherwise, or if several
    processes of one rank wrote reports, by the process id in their environment.
    """
    read = [(path, read_timing_report(path)) for path in paths]
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
    return rank if type(rank) is int else None


class RunsInProcess(Figures, frozen=True):
    """The runs of a stage in one process."""

    process: str
    runs: Count
    own_ns: Ns
    """Without the stages inside it."""


class ReportOfProcess(Figures, frozen=True):
    """The times of the report of one process."""

    process: str
    wall_clock_ns: Ns | None
    total_stages_ns: Ns | None


class ReportsFigures(Figures, frozen=True):
    """The timing reports of several processes."""

    processes: list[ReportOfProcess]
    stages: dict[str, list[RunsInProcess]]


class StagesByRank(Result):
    """The timing reports of ranks or workers, side by side."""

    def __init__(self, reports: Sequence[RankReport]) -> None:
        self.reports = reports
        self.times = [stage_runs(process.report) for process in reports]

    def figures(self) -> ReportsFigures:
        """Return the runs of each stage in each process."""
        stages: dict[str, list[RunsInProcess]] = {}
        for (label, _), times in zip(self.reports, self.times, strict=True):
            for name, time in times.items():
                row = RunsInProcess(label, time.runs, time.own_ns)
                stages.setdefault(name, []).append(row)
        processes = [
            ReportOfProcess(label, *(_ns(report.get(f"{key}_ms")) for key in _TIMES))
            for label, report in self.reports
        ]
        return ReportsFigures(processes, stages)

    def findings(self) -> list[Finding]:
        """Return the stages in which one rank is slower than the others.

        Workers that are not ranks do not run in step, so they are not compared. TeleFuser's reports
        do not say what their processes are.
        """
        ranks = [_rank(process.report) for process in self.reports]
        if len(set(ranks)) < len(ranks) and set(ranks) != {None}:
            return []
        whole = [whole_ns(process.report) for process in self.reports]
        return stage_findings(self.times, [process.label for process in self.reports], whole)

    def head(self) -> list[Block]:
        """Return the table of the processes."""
        return [*self.tables()[:1]]

    def tables(self) -> list[Table]:
        """Return a row for each process, with the longest stages first, and one for each stage."""
        totals: dict[str, float] = {}
        for process in self.reports:
            for name, stage in process.report["stages"].items():
                totals[name] = max(totals.get(name, 0.0), float(stage["duration_ms"]))
        processes = Table.of(
            "Processes",
            self.reports,
            ("label", "process", ""),
            *(
                (lambda process, key=key: _ns(process.report.get(f"{key}_ms")), title, "ns")
                for key, title in _TIMES.items()
            ),
            *(
                (lambda process, name=name: _runs(process.report["stages"].get(name)), name, "")
                for name in sorted(totals, key=lambda name: (-totals[name], name))
            ),
            note="Behind the times, how often each stage ran, and its mean time.",
        )
        by_stage = stage_table(self.times, [process.label for process in self.reports])
        return [processes, *([] if by_stage is None else [by_stage])]

    def page(self, folder: Path) -> ResultPage:
        """Return the page of `stagespan show FOLDER`."""
        words = Words(page="Timing reports", as_text="stagespan show FOLDER")
        return ResultPage(words, self, str(folder), f"{len(self.reports)} timing reports")


_TIMES = {"wall_clock": "wall clock", "total_stages": "in stages"}


def _ns(ms: Any) -> int | None:
    known_ms = number(ms)
    return None if known_ms is None else round(known_ms * _NS)


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


def _runs(stage: dict[str, Any] | None) -> str:
    """Return how often a stage ran, and the mean time: ``20 x 1.2 ms``."""
    count = None if stage is None else count_of(stage)
    if stage is None or not count:
        return ""
    return f"{count:,} x {duration(round(1e6 * float(stage['duration_ms']) / count))}"
