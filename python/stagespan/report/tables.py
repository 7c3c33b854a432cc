"""The page of a timing report, with the stages as a tree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from stagespan.pages.amounts import counted, three_digits
from stagespan.pages.escaping import one_line
from stagespan.pages.figures import RecordedFigures
from stagespan.pages.page import ResultPage, Words
from stagespan.pages.result import Block, Cell, Chart, Line, Result, Table
from stagespan.process.imports import importing, load
from stagespan.report import tree
from stagespan.report.reader import number

if TYPE_CHECKING:
    from rich.console import Console

_MS = 1e6
_MOST_REQUESTS = 20
_MOST_COLUMNS = 4
"""For the stages of requests."""
_OF_REQUESTS = {"total": "duration_ms", "in stages": "total_stages_ms"}


class ReportFigures(RecordedFigures, frozen=True):
    """A timing report; docs/internals/file_keys.md lists its other keys. Times are in ms."""

    request_id: str | None
    wall_clock_ms: float | None
    total_stages_ms: float | None
    rank: float | None
    world_size: float | None
    stages: dict[str, dict[str, Any]]


class Timing(Result):
    """The stages of a timing report; `others` are results that its pages show, too."""

    def __init__(self, report: Mapping[str, Any], others: Iterable[Result] = ()) -> None:
        self.report, self.others = report, others

    def figures(self) -> ReportFigures:
        """Return what the report has in any version."""
        report, request = self.report, self.report.get("request_id")
        return ReportFigures(
            request_id=request if isinstance(request, str) else None,
            wall_clock_ms=number(report.get("wall_clock_ms")),
            total_stages_ms=number(report.get("total_stages_ms")),
            rank=number(report.get("rank")),
            world_size=number(report.get("world_size")),
            stages=report["stages"],
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the file."""
        return {**self.report, **self.figures().to_dict()}

    def head(self) -> list[Block]:
        """Return the headline and the tree."""
        return [Line(self.headline()), *([self._tree()] if self.report["stages"] else [])]

    def tables(self) -> list[Table]:
        """Return the tree, the slowest requests, and the tables of other results."""
        own = [self._tree()] if self.report["stages"] else []
        own += [table for table in (self._requests(),) if table.rows]
        return [*own, *(table for other in self.others for table in other.tables())]

    def chart(self) -> Chart | None:
        """Return the tree as a flame graph; None without stages."""
        names: list[str] = []
        parents: list[int] = []
        own_ns: list[int] = []
        above: list[int] = []  # the frames that contain the row, by depth
        rows = list(tree.rows(self.report))
        for row in rows:
            if row.stage is None and row.count is None:
                continue  # what a parent did outside of its children is its own time
            del above[row.depth :]
            parents.append(above[-1] if above else -1)
            names.append(one_line(row.label))
            own_ns.append(round(_MS * row.duration_ms))
            if above:
                own_ns[above[-1]] = max(own_ns[above[-1]] - own_ns[-1], 0)
            above.append(len(names) - 1)
        if not names:
            return None
        return {
            "kind": "flame",
            "names": names,
            "parents": parents,
            "self_ns": own_ns,
            "depth": 1 + max(row.depth for row in rows),
            "note": "A stage is as wide as the time of its runs inside the stage above it.",
        }

    def _requests(self) -> Table:
        """Return the slowest requests, with the stages that most of their time was spent in."""
        listed = self.report.get("requests")
        entries = listed if isinstance(listed, list) else []
        requests = [request for request in entries if isinstance(request, dict)]
        slowest = sorted(requests, key=lambda request: -(number(request.get("duration_ms")) or 0.0))
        slowest = slowest[:_MOST_REQUESTS]
        top_ms: defaultdict[str, float] = defaultdict(float)
        for request in slowest:
            for name, stage in _stages_of(request).items():
                top_ms[name] += number(stage.get("top_level_ms")) or 0.0
        longest = sorted(top_ms, key=lambda name: -top_ms[name])[:_MOST_COLUMNS]
        return Table.of(
            "Requests"
            if len(slowest) == len(requests)
            else f"The {len(slowest):,} slowest of {len(requests):,} requests",
            slowest,
            (lambda request: str(request.get("request_id", "")), "request", ""),
            (lambda request: str(request.get("status", "")), "status", ""),
            *((_time(key), name, "ns") for name, key in _OF_REQUESTS.items()),
            *((_in_stage(name), name, "ns") for name in longest),
        )

    def headline(self) -> str:
        """Return the number of stages and the time of all."""
        return ", ".join((self.name(), *self._amounts()))

    def name(self) -> str:
        """Return what the report is called."""
        request = self.report.get("request_id")
        return f"Timing report{f' of request {request}' if request else ''}"

    def _amounts(self) -> list[str]:
        report = self.report
        amounts = []
        world_size = number(report.get("world_size"))
        if world_size is not None and world_size > 1:
            amounts.append(f"rank {report.get('rank')} of {world_size:.0f}")
        amounts.append(counted(len(report["stages"]), "stage"))
        for label, key in (("wall clock", "wall_clock_ms"), ("in stages", "total_stages_ms")):
            value = number(report.get(key))
            if value is not None:
                amounts.append(f"{label} {three_digits(value)} ms")
        return amounts

    def _tree(self) -> Table:
        return Table.of(
            "",
            list(tree.rows(self.report)),
            (_name, "stage", "words"),
            (lambda row: _MS * row.duration_ms, "total", "ns"),
            (lambda row: "" if row.share is None else 100 * row.share, "share", "%"),
            (lambda row: "" if row.count is None else row.count, "runs", ""),
            *((_of(_time(f"{name}_ms")), name, "ns") for name in ("p50", "p95")),
            (_of(lambda stage: int(number(stage.get("errors")) or 0)), "errors", ""),
            (_of(_time("device_elapsed_ms")), "device", "ns"),
            (_of(_device_runs), "device runs", ""),
            # A narrow screen leaves out the last columns.
            *((_of(_rates), "work", ""), (_of(_peak), "peak", "MB")),
            *((_of(_time(f"{name}_ms")), name, "ns") for name in ("mean", "p99", "suspended")),
            *((_of(_time(f"device_{name}_ms")), name, "ns") for name in ("queue", "tail")),
            (_of(_time("max_ms")), "max", "ns"),
        ).filled()

    def page(self) -> ResultPage:
        """Return the page of `stagespan show`."""
        lost = _lost(self.report.get("lost"))
        words = Words(page="Timing report", as_text="stagespan show")
        remarks = [f"lost: {lost}"] if lost else []
        return _ReportPage(words, self, self.name(), ", ".join(self._amounts()), remarks)


class _ReportPage(ResultPage):
    def headline(self) -> None:
        """Return None: the result has its own."""


def print_report(report: Mapping[str, Any], console: Console | None = None) -> None:
    """Print a report to ``console``, by default to standard output.

    If a terminal, or ``COLUMNS``, is too narrow, the last columns are left out. The width is not
    limited in a file or a pipe.
    """
    with importing():
        from rich import console as _  # noqa: F401

        from stagespan.pages.terminal import print_page

    print_page(Timing(report).page(), console)


def _lost(lost: object) -> str:
    """Return what was lost, by cause; empty if nothing was."""
    counts = {cause: number(n) for cause, n in lost.items()} if isinstance(lost, dict) else {}
    return ", ".join(f"{one_line(cause)} {n:,.0f}" for cause, n in counts.items() if n)


def print_timing_summary() -> None:
    """Print the report of this process as a table, with the stages as a tree."""
    print_report(load("stagespan.report.timing").timing_report())


def _name(row: tree.TreeRow) -> str:
    return row.guide + one_line(row.label) + (" (all its runs)" if row.is_sum else "")


def _stages_of(request: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the stages of a request, of a file that another program may have written."""
    stages = request.get("stages")
    stages = stages if isinstance(stages, dict) else {}
    return {name: stage for name, stage in stages.items() if isinstance(stage, dict)}


def _in_stage(name: str) -> _StageCell:
    return lambda request: _time("duration_ms")(_stages_of(request).get(name, {}))


# --- cells of stages ----------------------------------------------------------------------------

_StageCell = Callable[[dict[str, Any]], Cell]


def _of(cell: _StageCell) -> Callable[[tree.TreeRow], Cell]:
    """Return a function for the cells of rows, of which those without a stage are empty."""
    return lambda row: "" if row.stage is None else cell(row.stage)


def _time(key: str) -> _StageCell:
    def cell(stage: dict[str, Any]) -> Cell:
        ms = number(stage.get(key))
        return "" if ms is None else _MS * ms

    return cell


def _device_runs(stage: dict[str, Any]) -> Cell:
    """Return the number of runs with a device time if they are not all."""
    runs = number(stage.get("device_runs"))
    return "" if runs is None or runs == number(stage.get("count")) else int(runs)


def _peak(stage: dict[str, Any]) -> Cell:
    memory = stage.get("memory")
    if not isinstance(memory, dict):
        return ""
    for key in ("peak_allocated_mb", "peak_rss_mb"):
        value = number(memory.get(key))
        if value is not None:
            return value
    return ""


def _rates(stage: dict[str, Any]) -> str:
    rates = stage.get("work_per_s")
    if not isinstance(rates, dict):
        return ""
    numbers = ((what, number(rate)) for what, rate in rates.items())
    return ", ".join(
        f"{rate:,.0f} {one_line(what)}/s" if rate >= 1000 else f"{rate:.4g} {one_line(what)}/s"
        for what, rate in numbers
        if rate is not None
    )
