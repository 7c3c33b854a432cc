"""The page of a comparison of two files of times."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from stagespan.pages.amounts import of_time, signed_percent
from stagespan.pages.figures import Count, RecordedFigures, document_schema
from stagespan.pages.markdown import markdown
from stagespan.pages.page import Page, Words
from stagespan.pages.result import Block, Result, Table
from stagespan.report.changes import (
    WORDS,
    PartChange,
    Statistic,
    TimingChange,
    TimingComparison,
    Tolerance,
    Verdict,
    compare,
)
from stagespan.report.noise import Times
from stagespan.report.timed import read


def compare_timing_reports(path_a: str | os.PathLike[str], path_b: str | os.PathLike[str]) -> str:
    """Compare two ``timing.json`` files, ``path_a`` (before) and ``path_b`` (after).

    Returns the page of ``stagespan compare`` in Markdown: which stages are slower or faster than
    before by more than 5 %, 0.01 ms and the noise, with their medians, means and totals. If the
    reports have no stage in common, the page says so. Also reads TeleFuser's files. Raises
    ReportError if a file cannot be read.
    """
    return markdown(ComparisonPage(compare(read(path_a), read(path_b), Tolerance())))


class TimesFigures(RecordedFigures, frozen=True):
    """The times of a stage or kernel in one file. Times are in ms."""

    median_ms: float
    count: Count | None
    quartiles_ms: tuple[float, float] | None
    disturbed: bool | None
    fixed_ns: float | None
    tracers: tuple[str, ...]
    sessions: Count
    mean_ms: float | None
    total_ms: float | None

    @classmethod
    def of(cls, times: Times | None) -> TimesFigures | None:
        """Return the figures of times, without the samples."""
        if times is None:
            return None
        return cls.taken(times, sessions=len(times.sessions) or 1)


class ChangeFigures(RecordedFigures, frozen=True):
    """The change of one stage, signature or kernel; see `TimingChange`."""

    name: str
    signature: str | None
    verdict: Verdict
    before: TimesFigures | None
    after: TimesFigures | None
    interval_ms: tuple[float, float] | None
    reason: str
    statistic: Statistic
    parts: tuple[PartChange, ...]
    at_one_speed: bool
    label: str
    remarks: tuple[str, ...]
    before_ms: float | None
    after_ms: float | None
    change_ms: float | None
    change: float | None
    noise: float | None
    slowdown: float | None


class TotalFigures(RecordedFigures, frozen=True):
    """The change of a time that has no verdict."""

    name: str
    before_ms: float | None
    after_ms: float | None
    change_ms: float | None


class ComparisonFigures(RecordedFigures, frozen=True):
    """The changes between two files of times."""

    before: str
    after: str
    kind: str
    tolerance: Tolerance
    slower: bool
    worse: bool
    unknown: bool
    summary: str
    changes: list[ChangeFigures]
    totals: list[TotalFigures]
    environment: dict[str, tuple[Any, Any]]
    requests: tuple[str | None, str | None]
    warnings: list[str]
    notes: list[str]

    @classmethod
    def of(cls, comparison: TimingComparison) -> ComparisonFigures:
        """Return the figures of a comparison."""
        return cls.taken(
            comparison,
            slower=comparison.is_slower,
            worse=comparison.is_worse,
            unknown=comparison.is_unknown,
            changes=[
                ChangeFigures.taken(
                    change,
                    before=TimesFigures.of(change.before),
                    after=TimesFigures.of(change.after),
                )
                for change in comparison.changes
            ],
            totals=list(map(TotalFigures.taken, comparison.totals)),
        )


class Changes(Result):
    """What changed between two files of times."""

    def __init__(self, comparison: TimingComparison) -> None:
        self.comparison = comparison

    def figures(self) -> ComparisonFigures:
        """Return all changes."""
        return ComparisonFigures.of(self.comparison)

    def head(self) -> list[Block]:
        """Return the changes and the totals."""
        return [table for table in (self._changes(), self._totals()) if table.rows]

    def tables(self) -> list[Table]:
        """Return the changes, the totals, and what differs between the environments."""
        tables = self._changes(), self._totals(), self._environment()
        return [table for table in tables if table.rows]

    def _changes(self) -> Table:
        """Return the changes, the most important columns first."""
        changes = self.comparison.changes
        table = Table.of(
            "",
            changes,
            (_name, "stage", ""),
            (lambda change: _ns(change.before_ms) if change.before else "", "before", "ns"),
            (lambda change: _ns(change.after_ms) if change.after else "", "after", "ns"),
            (lambda change: _share(change.before_ms, change.after_ms), "change", ""),
            *(("bounds", "interval", ""), (_counts, "runs", "")),
            (lambda change: change.label or WORDS[change.verdict], "verdict", "state"),
            (lambda change: _share_of(change, "mean_ms"), "mean change", ""),
            (lambda change: _share_of(change, "total_ms"), "total change", ""),
            (lambda change: _ms_of(change, "computing"), "computing ms", ""),
            (lambda change: _ms_of(change, "waiting"), "waiting ms", ""),
            (lambda change: _pair(change, "mean_ms"), "mean ms", ""),
            (lambda change: _pair(change, "total_ms"), "total ms", ""),
        )
        always = "before", "after", "change", "interval", "runs", "verdict"
        return table.filled(always)

    def _totals(self) -> Table:
        return Table.of(
            "Totals",
            [
                total
                for total in self.comparison.totals
                if (total.before_ms, total.after_ms) != (None, None)
            ],
            ("name", "total", ""),
            (lambda total: _ns(total.before_ms), "before", "ns"),
            (lambda total: _ns(total.after_ms), "after", "ns"),
            (
                lambda total: "" if total.change_ms is None else _change(total.change_ms),
                "change ms",
                "",
            ),
            (lambda total: _share(total.before_ms, total.after_ms), "change", ""),
        )

    def _environment(self) -> Table:
        rows = [
            (key, *("-" if value is None else str(value) for value in values))
            for key, values in self.comparison.environment.items()
        ]
        return Table("Environment", (("what", ""), ("before", ""), ("after", "")), rows)


class ComparisonPage(Page):
    """The page of a comparison."""

    words = Words(page="Comparison", as_text="stagespan compare BEFORE AFTER")
    is_whole = True

    def __init__(self, comparison: TimingComparison) -> None:
        self.comparison = comparison
        self.results: Mapping[str, Result] = {"changes": Changes(comparison)}

    def name(self) -> str:
        """Return the files."""
        after, before = (
            path if request is None else f"{path} (request {request})"
            for path, request in zip(
                (self.comparison.after, self.comparison.before),
                reversed(self.comparison.requests),
                strict=True,
            )
        )
        return f"{after} against {before}"

    def summary(self) -> str:
        """Return the number of stages with each verdict."""
        return self.comparison.summary

    def caveat(self) -> str | None:
        """Return why nothing could be compared, and the warnings."""
        problem = self.comparison.problem
        sentences = [*([] if problem is None else [problem]), *self.comparison.warnings]
        return f"Warning: {' '.join(sentences)}" if sentences else None

    def notes(self) -> list[str]:
        """Return the reasons for verdicts, and what is not known."""
        return self.comparison.notes

    def to_dict(self) -> dict[str, object]:
        """Return the version of the schema and the figures."""
        return {"schema_version": 1, **self.results["changes"].to_dict()}


def json_schema() -> dict[str, object]:
    """Return the JSON Schema of a comparison."""
    return document_schema(ComparisonFigures, title="Comparison of times")


# --- cells --------------------------------------------------------------------------------------


def _ns(ms: float | None) -> float | None:
    return None if ms is None else 1e6 * ms


def _ms(value: float | None) -> str:
    return "" if value is None else of_time(value, 1.0)


def _change(ms: float) -> str:
    return f"{'+' if ms > 0 else ''}{_ms(ms)}"


def _share(before: float | None, after: float | None) -> str:
    """Return a relative change; empty if one of the two is unknown or nothing took time before."""
    return signed_percent((after - before) / before) if before and after is not None else ""


def _ms_of(change: TimingChange, name: str) -> str:
    """Return a part of the runs before and after."""
    return "".join(
        f"{_ms(part.before_ms)} / {_ms(part.after_ms)}"
        for part in change.parts
        if part.name == name
    )


def _pair(change: TimingChange, name: str) -> str:
    """Return times as text, ``12.000 / 10.000`` or ``? / 10.000``; empty if none is known."""
    times_ms = [getattr(times, name) for times in _sides(change)]
    if all(ms is None for ms in times_ms):
        return ""
    return " / ".join("?" if ms is None else _ms(ms) for ms in times_ms)


def _name(change: TimingChange) -> str:
    return change.name if change.signature is None else f"{change.name} ({change.signature})"


def _sides(change: TimingChange) -> list[Times]:
    return [times for times in (change.before, change.after) if times is not None]


def _counts(change: TimingChange) -> str:
    return " / ".join("?" if times.count is None else f"{times.count}" for times in _sides(change))


def _share_of(change: TimingChange, name: str) -> str:
    times_ms = [getattr(times, name) for times in _sides(change)]
    return _share(*times_ms) if len(times_ms) == 2 else ""
