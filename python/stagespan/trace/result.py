"""What an analysis returns: figures, findings with their evidence, tables, a chart and a line.

An analysis is a module with a function `analyze(trace)`. It returns a `Result`, or `Unavailable`
with the reason if the trace lacks what the analysis needs. Times are integer nanoseconds inside the
package; every written figure names its unit.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from stagespan.trace import kernel_names as names
from stagespan.trace.figures import Figures, Ns, one_of
from stagespan.trace.read.model import Trace
from stagespan.trace.view import once

Severity = Literal["high", "medium", "low", "better"]
"""How much time can be saved: most of it, a good part, or little; "better" if time was saved."""
SEVERITIES: tuple[Severity, ...] = ("high", "medium", "low", "better")


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The percentages from which a finding has each severity; infinite if it never does."""

    high: float = math.inf
    medium: float = math.inf
    low: float = math.inf

    def severity(self, percent: float) -> Severity | None:
        """The severity for a percentage; None if it is below all thresholds."""
        reached: tuple[tuple[float, Severity], ...] = (
            (self.high, "high"),
            (self.medium, "medium"),
            (self.low, "low"),
        )
        return next((severity for least, severity in reached if percent >= least), None)


# The least time in ns that a finding of each severity is about.
_SIZES: tuple[tuple[int, Severity], ...] = ((1_000_000, "high"), (250_000, "medium"))

Cell = str | int | float | None
_T = TypeVar("_T")
printable = names.printable
MOST_LETTERS = 60
"""Of a name in a table."""
LONGEST_NAME = 160
"""Letters of a name in a picture."""


class EvidenceFigures(Figures, frozen=True):
    """An `Evidence` in JSON."""

    event: str
    time_ns: Ns | None
    figure: float | None
    """In `unit`; times in microseconds."""
    unit: str


class FindingFigures(Figures, frozen=True):
    """A `Finding` in JSON."""

    code: str
    severity: Annotated[str, one_of(SEVERITIES)]
    sentence: str
    evidence: Annotated[list[EvidenceFigures], msgspec.Meta(min_length=1)]


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that the trace shows: an event, when it was, and a figure about it."""

    event: str
    """The event's name as the trace has it, or what many events have in common."""
    time_ns: int | None
    """From the begin of the trace's window (`window_of`); None if it has no single time."""
    figure: float | None
    unit: str
    """Of the figure: "ns", "%", "events", "bytes". Figures in "ns" are printed as µs, ms or s."""

    def figures(self) -> EvidenceFigures:
        """For JSON: a figure in ns is written in microseconds."""
        in_ns = self.unit == "ns" and self.figure is not None
        return EvidenceFigures(
            event=self.event,
            time_ns=self.time_ns,
            figure=self.figure / 1000 if in_ns and self.figure is not None else self.figure,
            unit="us" if self.unit == "ns" else self.unit,
        )

    def __str__(self) -> str:
        at = "" if self.time_ns is None else f" at {in_words(self.time_ns, 'ns')}"
        figure = "" if self.figure is None else f": {in_words(self.figure, self.unit)}"
        return f"{shortened(self.event, 90)}{at}{figure}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence about something to improve, with its evidence (never empty)."""

    severity: Severity
    sentence: str
    evidence: tuple[Evidence, ...]
    code: str = ""
    """The subject of the finding, such as "idle.data_loader". It never changes."""
    same_as: str = ""
    """The code of another analysis' finding about the same lost time. If there is such a finding,
    only that one is shown, with the evidence of both."""

    def figures(self) -> FindingFigures:
        """For JSON."""
        evidence = [each.figures() for each in self.evidence]
        return FindingFigures(self.code, self.severity, self.sentence, evidence)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return self.figures().to_dict()


def merged(findings: Sequence[Finding]) -> list[Finding]:
    """The findings without those that repeat another one, which takes their evidence."""
    there = {finding.code for finding in findings if finding.code}
    codes = {finding.code for finding in findings if finding.same_as not in there}
    kept = []
    for finding in findings:
        if finding.same_as and finding.same_as in codes:
            continue
        same = [each for each in findings if finding.code and each.same_as == finding.code]
        shown = (*finding.evidence, *(item for each in same for item in each.evidence))
        severity = min((each.severity for each in (finding, *same)), key=SEVERITIES.index)
        kept.append(replace(finding, severity=severity, evidence=tuple(dict.fromkeys(shown))))
    return kept


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """By severity; within one, in the order in which they come."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


@dataclass(frozen=True, slots=True)
class Table:
    """Rows for a page; a column whose unit is "ns" is printed in one suitable unit of time."""

    title: str
    columns: tuple[tuple[str, str], ...]
    """Heading and unit of each: "" for texts and plain counts, else "ns", "%", "bytes", ..."""
    rows: Sequence[tuple[Cell, ...]]
    """A cell that is None is unknown, and shown as such."""
    note: str = ""
    """A sentence below the table, such as what was left out of it."""


Chart = dict[str, Any]
"""The data of a picture: its "kind", and lists and texts for that kind. Times in ns."""


class Result(ABC):
    """What an analysis returns if the trace has what it needs.

    Renderers read what these methods return, and nothing else: a new analysis needs no change in
    them.
    """

    __slots__ = ()

    @abstractmethod
    def figures(self) -> Figures:
        """All figures, from which the JSON and its schema are derived."""

    def findings(self) -> list[Finding]:
        """What is worth a look, the most severe first; empty for a trace without a fault."""
        return []

    @abstractmethod
    def tables(self) -> list[Table]:
        """For pages, the most important first."""

    def chart(self) -> Chart | None:
        """For the HTML page; None if there is nothing to draw."""
        return None

    def line(self) -> str:
        """A few words for the terminal, such as "3 steps, 2.1 ms in the median"; may be empty."""
        return ""

    def to_dict(self) -> dict[str, Any]:
        """The figures for JSON, times in microseconds."""
        return self.figures().to_dict()


class Titled(Result):
    """A result that heads the page about it, such as a comparison."""

    __slots__ = ()

    @abstractmethod
    def title(self) -> tuple[str, str]:
        """A few words, and a sentence."""


class UnknownFigures(Figures, frozen=True):
    """The JSON of an analysis that has no result."""

    reason: str = msgspec.field(name="unknown")


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The analysis has no result for this trace, and why."""

    reason: str
    """One sentence: what the trace lacks, and how to record it if that is known."""
    known: Figures | None = None
    """Figures that are known nevertheless; the others are None."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        known = {} if self.known is None else self.known.to_dict()
        return {**UnknownFigures(self.reason).to_dict(), **known}

    def findings(self) -> list[Finding]:
        """None."""
        return []

    def tables(self) -> list[Table]:
        """None."""
        return []


@once
def window_of(trace: Trace) -> tuple[int, int] | None:
    """Begin and end in ns of all events with a duration; None if there are none."""
    events = trace.events
    if len(events) == 0:
        return None
    return int(events.begin_ns.min()), int(events.end_ns.max())


def evidence(trace: Trace, row: int, figure: float | None = None, unit: str = "ns") -> Evidence:
    """Evidence of an event, a row of `trace.events`; its duration if no figure is given."""
    events = trace.events
    begin, _ = window_of(trace) or (0, 0)
    return Evidence(
        trace.names[int(events.name[row])],
        int(events.begin_ns[row]) - begin,
        int(events.dur_ns[row]) if figure is None and unit == "ns" else figure,
        unit,
    )


def in_words(figure: float | None, unit: str) -> str:
    """A figure with its unit as a reader wants it: 1,234,567 ns is "1.235 ms"."""
    if figure is None:
        return "unknown"
    if unit == "ns":
        for size, name in ((1e9, "s"), (1e6, "ms")):
            if abs(figure) >= size:
                return f"{figure / size:,.3f} {name}"
        return f"{figure / 1e3:,.3f} µs"
    if unit == "%":
        return f"{figure:.1f} %"
    if unit == "bytes":
        for size, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
            if abs(figure) >= size:
                return f"{figure / size:,.2f} {name}"
    number = f"{figure:,}" if isinstance(figure, int) else f"{figure:,.3f}"
    return f"{number} {unit.removesuffix('s') if figure == 1 else unit}".rstrip()


def counted(count: int, what: str) -> str:
    """A number of things: "1 call", "1,200 calls"."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def shortened(name: str, most: int = 60) -> str:
    """A name that fits a sentence: of a long kernel's what it runs, see `kernel_label`."""
    if len(name) > most:
        name = names.kernel_label(name)
    return printable(name if len(name) <= most else name[: most - 3] + "...")


def in_cell(cell: Cell, unit: str, most: int = 60) -> str:
    """A cell of a Table as text."""
    if isinstance(cell, str):
        return shortened(cell, most)
    if cell is None:
        return "-" if unit == "" else "unknown"
    return f"{cell:,}" if unit == "" and isinstance(cell, int) else in_words(cell, unit)


def of_size(severity: Severity, time_ns: int) -> Severity:
    """The severity that a finding has at most, for the time that it is about.

    However much of a short trace it is, little can be won from little time.
    """
    most: Severity = next((s for least, s in _SIZES if time_ns >= least), "low")
    return max(severity, most, key=SEVERITIES.index)


def largest(items: Sequence[_T], most: int, size: Callable[[_T], float]) -> list[_T]:
    """The `most` largest items in the order in which they come; of equal ones the first."""
    if len(items) <= most:
        return list(items)
    kept = sorted(range(len(items)), key=lambda at: -size(items[at]))[:most]
    return [items[at] for at in sorted(kept)]


def time_unit(columns_ns: Iterable[float]) -> tuple[float, str]:
    """Size and name of the unit for all times of a table; of each column the longest is given."""
    longest = [each for each in columns_ns if each > 0]
    most, least = max(longest, default=0.0), min(longest, default=0.0)
    # A column of short times would lose its digits if another one is in ms.
    if most < 1e6 or (most < 1e9 and least < 1e5):
        return 1e3, "µs"
    return (1e6, "ms") if most < 1e12 else (1e9, "s")


def texts_of(table: Table, most: int = MOST_LETTERS) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of a table as texts: times in one unit, which the headings name.

    Texts have at most `most` letters; those that differ stay different.
    """
    units = [unit for _, unit in table.columns]
    # When something was may be far from how long anything took.
    when = [unit == "ns" and name == "at" for name, unit in table.columns]
    longest = [
        max((abs(row[at]) for row in table.rows if isinstance(row[at], (int, float))), default=0.0)  # type: ignore[arg-type]
        if unit == "ns"
        else 0.0
        for at, unit in enumerate(units)
    ]
    of_time = [
        time_unit(most for most, each in zip(longest, when, strict=True) if each == is_when)
        for is_when in when
    ]
    heads = [
        f"{name} ({of_time[at][1]})" if unit == "ns" else name
        for at, (name, unit) in enumerate(table.columns)
    ]
    shown_as = [
        names.labels((row[at] for row in table.rows if isinstance(row[at], str)), most)  # type: ignore[misc]
        for at in range(len(units))
    ]

    def text(cell: Cell, at: int) -> str:
        if isinstance(cell, str):
            return shown_as[at][cell]
        if cell is not None and units[at] == "ns":
            return f"{cell / of_time[at][0]:,.3f}"
        return in_cell(cell, units[at], most)

    rows = [[text(cell, at) for at, cell in enumerate(row)] for row in table.rows]
    return [head.strip() for head in heads], rows


def share(part: float, whole: float) -> float:
    """Part of a whole in percent; 0 if the whole is 0."""
    return 100.0 * part / whole if whole else 0.0
