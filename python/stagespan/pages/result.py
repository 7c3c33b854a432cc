"""What is shown: figures, findings with their evidence, tables, a chart and a line.

What computes figures returns a `Result`, or `Unavailable` with the reason if something is missing.
Times are integer nanoseconds inside the package; every written figure names its unit.
"""

from __future__ import annotations

import importlib
import math
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import structs

from stagespan.errors import StagespanError
from stagespan.pages import kernel_names as names
from stagespan.pages.amounts import duration, in_percent, in_words, of_time, point_in_time, rate
from stagespan.pages.escaping import one_line
from stagespan.pages.figures import Figures, Internal, Ns, in_us

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Severity = Literal["high", "medium", "low", "better"]
"""How much time can be saved: most of it, a good part, or little; "better" if time was saved."""
Subject = Literal["idle", "host", "work", "place"]
"""What time a finding is about: that in which a device was idle, by its cause; work of the host,
which is idle time of the device if there is one; other work; or that of one step or module, which
other findings see by its cause."""
SEVERITIES: tuple[Severity, ...] = ("high", "medium", "low", "better")


class Thresholds(msgspec.Struct, frozen=True):
    """The least percentage at which a finding has each severity; infinite if it never has it."""

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


# The least time in ns that a finding of each severity must cover.
_SIZES: tuple[tuple[int, Severity], ...] = ((1_000_000, "high"), (250_000, "medium"))

Cell = str | int | float | None
Column = tuple[str | Callable[[Any], Cell], str, str]
"""A column of `Table.of`: the field of the rows or a function of a row, the heading, the unit."""
_T = TypeVar("_T")
_FOLDERS = re.compile(r"(?:^|(?<=, ))[^\s,]*/(?=[^/\s,]+\.py\(\d+\): )")
"""The folders before the file name of a frame: those in "a/b/model.py(3): forward"."""
MOST_LETTERS = 60
"""The number of characters of a name in a table."""
_LONGEST_EVIDENCE = 90
LONGEST_NAME = 160
"""The number of characters of a name in a picture."""


class Evidence(Figures, frozen=True):
    """One thing that the trace shows: an event, when it was, and a figure about it."""

    event: str
    """The event's name in the trace, or what several events have in common."""
    time_ns: Ns | None
    """From the start of the trace's window (`window_of`); None if it has no single time."""
    figure: float | None
    """In `unit`; in JSON, times are in microseconds."""
    unit: str
    """Of the figure: "ns", "%", "events", "bytes". Figures in "ns" are printed as µs, ms or s."""

    def to_dict(self) -> dict[str, Any]:
        """Return the evidence for JSON, with a figure in ns converted to microseconds."""
        written = super().to_dict()
        if self.unit == "ns":
            written["figure"] = None if self.figure is None else self.figure / 1000
            written["unit"] = "us"
        return written

    def __str__(self) -> str:
        return self.shortened_to(_LONGEST_EVIDENCE)

    @property
    def details(self) -> str:
        """When it was, and the figure: " at 1.200 ms: 30.000 µs"."""
        at = "" if self.time_ns is None else f" at {point_in_time(self.time_ns)}"
        figure = "" if self.figure is None else f": {in_words(self.figure, self.unit)}"
        return f"{at}{figure}"

    def shortened_to(self, most: int) -> str:
        """Return the evidence as text; the name is shortened to at most `most` characters."""
        return f"{shortened(self.event, min(most, _LONGEST_EVIDENCE))}{self.details}"


class Spared:
    """The time that a gain spares of each of some events, in ns."""

    __slots__ = ("launched", "rows", "time_ns")

    def __init__(
        self, rows: NDArray[np.int64], time_ns: NDArray[np.float64], launched: bool = False
    ) -> None:
        """``launched`` is whether the host goes on launching events of which nothing is left."""
        self.rows, self.time_ns, self.launched = rows, time_ns, launched

    def __add__(self, other: Spared) -> Spared:
        import numpy as np  # not by a report at the end of a program

        times = np.concatenate((self.time_ns, other.time_ns))
        return Spared(np.concatenate((self.rows, other.rows)), times, self.launched)

    @property
    def total_ns(self) -> int:
        """The time of all of them."""
        return round(float(self.time_ns.sum()))


# A gain now that is at least this part of the whole gain is not named separately.
_NEARLY = 0.9


class Gain(Figures, frozen=True):
    """What a change would win of the time of the steps, or of the trace if it has no steps."""

    time_ns: Ns
    at_most: bool
    """Whether it is a bound, so that the change can win less."""
    how: str
    """How it was computed: "the device does not wait there"."""
    spared: Internal[Spared | None] = None
    """The device events that it makes shorter; None if it spares time in which none of them runs.
    Gains that make the same events shorter are not added."""
    now_ns: Ns | None = None
    """What the change would win while all else takes as long as it does, by the critical path; None
    if that is unknown."""
    other: Internal[str] = ""
    """What else limits the step, so that less than `time_ns` can be won now."""

    others_ns: Ns = 0
    """The part of `time_ns` by which work of the host slows down what follows, such as by what it
    displaces from the caches."""

    @property
    def sure_ns(self) -> int:
        """What it would win now or, if that is unknown, at most."""
        return self.time_ns if self.now_ns is None else self.now_ns

    @property
    def condition(self) -> str:
        """A sentence about what must be so, so that a change wins as much."""
        return f"The gain assumes that {self.how}."

    def __str__(self) -> str:
        bound = "at most " if self.at_most else ""
        time = in_words(self.time_ns, "ns")
        if self.others_ns:
            time += f", {in_words(self.others_ns, 'ns')} of it in what follows"
        if self.now_ns is None or self.now_ns > _NEARLY * self.time_ns:
            return f"Gain: {bound}{time}."
        now = f"{bound}{in_words(self.now_ns, 'ns')}" if self.now_ns else "nothing"
        return f"Gain: {now} now, up to {time} once {self.other} is faster."


class Finding(Figures, frozen=True):
    """Something to improve, with its evidence (never empty).

    Pages tell the gain, the action, the reason and the caveat in this order. Its `first_line` can
    stand alone.
    """

    severity: Severity
    sentence: str
    """The reason: what the trace shows."""
    evidence: Annotated[tuple[Evidence, ...], msgspec.Meta(min_length=1)]
    code: str = ""
    """The subject of the finding, such as "idle.data_loader". It never changes."""
    numbers: Mapping[str, float] = msgspec.field(name="figures", default_factory=dict)
    """The figures of the texts by name, with times in ns: the time that the finding is about
    (`time_ns`), its share (`percent`), and what else the texts state. In JSON, times are in
    microseconds and their names end in `_us`."""
    gain: Gain | None = None
    """None if the trace does not show what a change would win."""
    no_gain: str = ""
    """Why `gain` is None, in words that follow "because"; "" for findings that are not about time
    of the steps, such as those about memory."""
    action: str = ""
    """What to do; "" if the trace does not show it."""
    details: str = ""
    """More about the reason."""
    caveat: str = ""
    """Why the figures are less certain, or a change wins less than they say."""
    about: Internal[Subject] = "work"
    covers: Internal[tuple[str, ...]] = ()
    """The codes of less detailed findings about the same lost time."""
    seen_as: Internal[tuple[str, ...]] = ()
    """The beginnings of the codes of findings whose gain contains this one's, if they exist."""

    @property
    def first_line(self) -> str:
        """What a change would win, what to do, and why."""
        gain = "" if self.gain is None else str(self.gain)
        return _joined(gain, self.action, self.sentence)

    @property
    def explanation(self) -> str:
        """What is behind the first line: more about the reason, and caveats."""
        gain = "" if self.gain is None else self.gain.condition
        if self.gain is None and self.no_gain:
            gain = f"The gain is unknown, because {self.no_gain}."
        return _joined(self.details, self.caveat, gain)

    @property
    def text(self) -> str:
        """The first line and the rest."""
        return _joined(self.first_line, self.explanation)

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as a dict for JSON, with times in microseconds."""
        return {**super().to_dict(), "figures": in_us(self.numbers)}


def _joined(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


def without_repeats(findings: Sequence[Finding]) -> list[Finding]:
    """Join each finding that another one covers to the first such one, with the evidence of both.

    The joined finding has the higher of their severities, and is about idle time if one of them
    is. A finding is not joined to one that is itself joined to another.
    """
    repeats = {code: other.code for other in reversed(findings) for code in other.covers}
    existing = {finding.code for finding in findings}
    codes = {code for code in existing if repeats.get(code) not in existing}
    kept = []
    for finding in findings:
        if repeats.get(finding.code) in codes:
            continue
        same = [other for other in findings if repeats.get(other.code) == finding.code]
        evidence = (*finding.evidence, *(item for other in same for item in other.evidence))
        severity = min((other.severity for other in (finding, *same)), key=SEVERITIES.index)
        about: Subject = "idle" if any(other.about == "idle" for other in same) else finding.about
        evidence = tuple(dict.fromkeys(evidence))
        kept.append(structs.replace(finding, severity=severity, evidence=evidence, about=about))
    return kept


def without_restatements(finding: Finding) -> Finding:
    """Return a finding without evidence that only repeats a figure of its texts.

    This is evidence without a time. One piece of evidence always remains.
    """
    kept = tuple(
        each
        for each in finding.evidence
        if each.time_ns is not None or not _is_stated(each, finding.text)
    )
    return structs.replace(finding, evidence=kept) if kept else finding


def _is_stated(item: Evidence, sentence: str) -> bool:
    """Whether a sentence contains the figure of a piece of evidence, a count with any noun."""
    if item.figure is None:
        return False
    if item.unit == "events":
        return re.search(rf"(?<![\d.,]){item.figure:,.0f} [a-z]", sentence) is not None
    return in_words(item.figure, item.unit) in sentence


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings, the most severe first; of one severity, those that win the most time.

    Findings of one severity and without a known gain come last, those about the most time first.
    """

    def place(finding: Finding) -> tuple[int, float, float]:
        severity, gain = SEVERITIES.index(finding.severity), finding.gain
        if gain is None:
            return severity, 0, -finding.numbers.get("time_ns", 0)
        return severity, -gain.sure_ns, 0

    return sorted(findings, key=place)


def together_ns(gains: Iterable[Gain]) -> int:
    """Return what several changes win together, without counting a part of an event twice."""
    idle, rows, times = 0, [], []
    for gain in gains:
        if gain.spared is None:
            idle += gain.time_ns
        else:
            rows.append(gain.spared.rows)
            times.append(gain.spared.time_ns)
    if not rows:
        return idle
    import numpy as np  # not by a report at the end of a program

    row, time = np.concatenate(rows), np.concatenate(times)
    order = np.argsort(row, kind="stable")
    ordered = row[order]
    firsts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(row)])
    longest = np.maximum.reduceat(time[order], firsts) if len(row) else time
    return idle + round(float(longest.sum()))


class Table(msgspec.Struct, frozen=True):
    """Rows for a page; a column whose unit is "ns" is printed in one suitable unit of time."""

    title: str
    columns: tuple[tuple[str, str], ...]
    """Heading and unit of each: "" for texts and plain counts, otherwise "ns", "%", "bytes" etc.
    Texts in "words" are not shortened, and a "state" is a word that can have a colour. Times in
    "rounded ns" are shown as by `duration`, each in its own unit, and figures in "rate" rounded."""
    rows: Sequence[tuple[Cell, ...]]
    """A cell that is None is unknown, and shown as such."""
    note: str = ""
    """A sentence below the table, such as what was left out of it."""

    @classmethod
    def of(cls, title: str, rows: Iterable[Any], *columns: Column, note: str = "") -> Table:
        """Return a table with one row for each of `rows`, usually structs of figures.

        Each column is (field, heading, unit), such as `("time_ns", "time", "ns")`. The field is the
        name of an attribute, which may be dotted, or a function that returns the cell of a row.
        """
        cells = [attrgetter(field) if isinstance(field, str) else field for field, _, _ in columns]
        return cls(
            title,
            tuple((heading, unit) for _, heading, unit in columns),
            [tuple(cell(row) for cell in cells) for row in rows],
            note,
        )

    def selected(self, most: int, headings: Sequence[str] | None = None) -> Table:
        """Return the first `most` rows, and only the columns with these headings, in their order.

        Raises ValueError for a heading that the table does not have.
        """
        names = [heading for heading, _ in self.columns]
        at = [names.index(heading) for heading in (names if headings is None else headings)]
        return Table(
            self.title,
            tuple(self.columns[each] for each in at),
            [tuple(row[each] for each in at) for row in self.rows[:most]],
        )

    def columns_of_frame(self) -> dict[str, list[Cell]]:
        """Return the cells by column, under names that contain the units: `time_ns`."""
        columns: dict[str, list[Cell]] = {}
        for at, (heading, unit) in enumerate(self.columns):
            name = f"{heading or 'name'} {_UNITS_IN_NAMES.get(unit, unit)}".strip().lower()
            name = re.sub(r"\W+", "_", name)
            name = name if name not in columns else f"{name}_{at}"
            columns[name] = [row[at] for row in self.rows]
        return columns

    def to_pandas(self) -> Any:
        """Return the table as a pandas.DataFrame. Raises StagespanError without pandas."""
        return _library("pandas").DataFrame(self.columns_of_frame())

    def to_polars(self) -> Any:
        """Return the table as a polars.DataFrame. Raises StagespanError without polars."""
        return _library("polars").DataFrame(self.columns_of_frame(), strict=False)

    def filled(self, always: Sequence[str] = ()) -> Table:
        """Return the table without the columns in which all cells are 0, empty or unknown.

        Those with the headings in `always` stay.
        """
        at = [
            column
            for column, (heading, _) in enumerate(self.columns)
            if heading in always or any(row[column] for row in self.rows)
        ]
        columns = tuple(self.columns[column] for column in at)
        rows = [tuple(row[column] for column in at) for row in self.rows]
        return Table(self.title, columns, rows, self.note)


_UNITS_IN_NAMES = {"%": "percent", "rounded ns": "ns", "state": "", "words": "", "rate": ""}
STATES: dict[str, Severity] = {
    **dict.fromkeys(("died", "fails", "slower", "worse", "missing"), "high"),
    **dict.fromkeys(("note", "not known"), "medium"),
    **dict.fromkeys(("works", "alive", "faster"), "better"),
}
"""The words in columns of states that have the colour of a severity."""


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise StagespanError(f"{name} is not installed: pip install {name}") from None


Chart = dict[str, Any]
"""The data of a picture: its "kind", and lists and texts for that kind. Times in ns."""

Style = Literal["plain", "strong", "remark", "warning"]


class Line(msgspec.Struct, frozen=True):
    """A sentence on the first screen."""

    text: str
    style: Style = "plain"


class Bar(msgspec.Struct, frozen=True):
    """A time on the first screen, drawn as a bar of its parts."""

    name: str
    """Whose time it is: "Device"."""
    parts: list[BarPart]
    """They sum to the whole time; none is 0."""
    count: int = 1
    """The number of devices over which the times are sums."""

    @property
    def whole_ns(self) -> int:
        """The whole time."""
        return sum(part.time_ns for part in self.parts)


class BarPart(NamedTuple):
    """A part of a `Bar`."""

    name: str
    time_ns: int
    colour: str
    """What has the same colour: "computing", "communicating", "copying" or "idle"."""


class Changes(msgspec.Struct, frozen=True):
    """A table of times before and after on the first screen."""

    heading: str
    """The heading of the column of names."""
    rows: list[tuple[str, int, int]]
    """Name, time before and time after, in ns."""
    whole_ns: int
    """The time before of everything. Percentages are left out for rows that are a small part."""
    has_sum: bool = False
    """Whether the last row is the sum of the others."""


Block = Line | Bar | Table | Changes
"""A part of the first screen of a page."""


class Result:
    """What an analysis returns if the trace has what it needs.

    Renderers use only its methods, so a new analysis does not require changes in a renderer.
    Most results are a `StructResult`. (This class is not an ABC, because structs have another
    metaclass; type checkers nevertheless report abstract methods that are missing.)
    """

    __slots__ = ()

    @abstractmethod
    def figures(self) -> Figures:
        """Return all figures. The JSON and its schema are derived from their type."""

    def findings(self) -> list[Finding]:
        """Return what could be improved, the most severe first; [] if there is nothing."""
        return []

    @abstractmethod
    def tables(self) -> list[Table]:
        """Return the tables for pages, the most important first."""

    def number_of_tables(self) -> int:
        """Return the number of `tables`."""
        return len(self.tables())

    def chart(self) -> Chart | None:
        """Return the data of a picture for the HTML page; None if there is nothing to draw."""
        return None

    def line(self) -> str:
        """Return a summary for the terminal, such as "3 steps, 2.1 ms in the median"; may be ""."""
        return ""

    def title(self) -> tuple[str, str] | None:
        """Return a word for the title of a page, and a sentence below it; None for most results.

        Of several results with a title, the first one has the page's.
        """
        return None

    def head(self) -> list[Block]:
        """Return what the first screen of a page shows of the result; [] for most results.

        A renderer shows lines and bars first, then the tables. The last tables may be left out.
        """
        return []

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as a dict for JSON, with times in microseconds."""
        return self.figures().to_dict()

    def headline(self) -> str:
        """Return the most important sentence; "" if there is none."""
        title = self.title()
        sentence = self.line() if title is None else title[1]
        return next((each.text for each in self.head() if isinstance(each, Line)), sentence)

    def to_pandas(self, title: str | None = None) -> Any:
        """Return a table as a pandas.DataFrame: the first one, or that with a title.

        Raises StagespanError if there is no such table, or without pandas.
        """
        return self._table(title).to_pandas()

    def to_polars(self, title: str | None = None) -> Any:
        """Return a table as a polars.DataFrame: the first one, or that with a title.

        Raises StagespanError if there is no such table, or without polars.
        """
        return self._table(title).to_polars()

    def _table(self, title: str | None) -> Table:
        tables = self.tables()
        for table in tables:
            if title is None or table.title == title:
                return table
        titles = ", ".join(repr(table.title) for table in tables) or "none"
        raise StagespanError(f"There is no table {title!r}: the tables are {titles}.")

    def __repr__(self) -> str:
        """Return the headline. The figures are in the tables, and in `to_dict`."""
        headline = self.headline()
        return f"<{type(self).__name__}: {headline}>" if headline else f"<{type(self).__name__}>"

    def _repr_html_(self) -> str:
        """Return the result for a notebook: its headline, its first screen, or else its tables."""
        head = self.head() or self.tables()
        headline = self.headline()
        has_headline = any(isinstance(each, Line) and each.text == headline for each in head)
        lines = [Line(headline, "strong")] if headline and not has_headline else []
        return in_notebook([*lines, *head])


class StructResult(Figures, Result, frozen=True):
    """A result whose fields are its figures; fields that are `Internal` serve only its pages."""

    __repr__ = Result.__repr__

    def figures(self) -> Figures:
        """Return the result itself."""
        return self


class Titled(Result):
    """A result with a page of its own, such as a comparison.

    Its first screen shows only its `head` and its findings.
    """

    __slots__ = ()

    @abstractmethod
    def title(self) -> tuple[str, str]:
        """Return the title of the page, and a sentence below it."""

    def amount(self) -> str:
        """Return how much the page is about, such as "8 ranks"; "" for a number of entries."""
        return ""


class UnknownFigures(Figures, frozen=True):
    """The JSON of an analysis that has no result."""

    reason: str = msgspec.field(name="unknown")
    code: str


class Unavailable(msgspec.Struct, frozen=True):
    """The analysis has no result for this trace, and why."""

    reason: str
    """One sentence: what the trace lacks, and how to record it if that is known."""
    code: str
    """Stands for the reason, and never changes."""
    partial: Figures | None = None
    """Figures that are known nevertheless; the others are None."""
    needs: tuple[str, str] | None = None
    """What the trace lacks and how to record it, if that is worth a note on the first screen:
    ("Python stacks", "with_stack=True")."""
    verdict: str = ""
    """The word for the title of a page, such as "cannot tell"; "" for most analyses."""
    is_requested: bool = False
    """Whether the user asked for this result, so that pages show the reason at the top."""

    def to_dict(self) -> dict[str, Any]:
        """Return the reason and the known figures as a dict for JSON."""
        partial = {} if self.partial is None else self.partial.to_dict()
        return {**UnknownFigures(self.reason, self.code).to_dict(), **partial}

    def line(self) -> str:
        """Return ""."""
        return ""

    def title(self) -> tuple[str, str] | None:
        """Return the word for the title of a page and the reason; None without such a word."""
        return (self.verdict, self.reason) if self.verdict else None

    def head(self) -> list[Block]:
        """Return the reason if it belongs on the first screen; else []."""
        if self.is_requested:
            return [Line(self.reason, "warning")]
        return [Line(self.reason, "strong")] if self.verdict else []

    def findings(self) -> list[Finding]:
        """Return []."""
        return []

    def tables(self) -> list[Table]:
        """Return []."""
        return []

    def number_of_tables(self) -> int:
        """Return 0."""
        return 0


def shortened(name: str, most: int = 60) -> str:
    """Return a name with at most `most` characters.

    Long kernel names become a `kernel_label`, and long paths of Python frames lose their folders.
    """
    if len(name) > most:
        name = _FOLDERS.sub("", names.kernel_label(name))
    name = one_line(name)
    return name if len(name) <= most else name[: most - 3] + "..."


def in_cell(cell: Cell, unit: str, most: int = 60) -> str:
    """Return a cell of a `Table` as text with at most `most` characters of a name."""
    if isinstance(cell, str):
        return shortened(cell, most)
    if cell is None:
        return "-" if unit in ("", "state", "words", "rounded ns") else "unknown"
    if unit == "rounded ns":
        return duration(cell)
    if unit == "rate":
        return rate(cell)
    return f"{cell:,}" if unit == "" and isinstance(cell, int) else in_words(cell, unit)


def at_most(severity: Severity, most: Severity) -> Severity:
    """Return a severity, but no more than another one."""
    return max(severity, most, key=SEVERITIES.index)


def of_size(severity: Severity, time_ns: int) -> Severity:
    """Lower `severity` if the finding covers little time.

    A large share of a short trace can still be little time, so little can be gained.
    """
    most: Severity = next((s for least, s in _SIZES if time_ns >= least), "low")
    return max(severity, most, key=SEVERITIES.index)


def largest(items: Sequence[_T], most: int, size: Callable[[_T], float]) -> list[_T]:
    """Return the `most` largest items in their original order; of equal items, the first ones."""
    if len(items) <= most:
        return list(items)
    kept = sorted(range(len(items)), key=lambda at: -size(items[at]))[:most]
    return [items[at] for at in sorted(kept)]


_UNITS = ((1e3, "µs"), (1e6, "ms"), (1e9, "s"))


def time_units(columns_ns: Sequence[float]) -> list[tuple[float, str]]:
    """Return the size in ns and the name of the unit for each column of times of a table.

    `columns_ns` contains the longest time of each. It is the same unit, so that times can be
    compared, except for columns of times far below it, which would lose their digits.
    """
    most = max(columns_ns, default=0.0)
    base = 0 if most < 1e6 else 1 if most < 1e12 else 2
    small = _UNITS[base][0] / 100
    return [_UNITS[max(base - (0 < each < small), 0)] for each in columns_ns]


def texts_of(table: Table, most: int = MOST_LETTERS) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the cells of a table as strings.

    The headings name the units of times (`time_units`). Names have at most `most` characters, and
    names that differ stay different.
    """
    units = [unit for _, unit in table.columns]
    # A point in time can be much larger than all durations, so it gets a unit of its own.
    when = [unit == "ns" and name == "at" for name, unit in table.columns]
    longest = [
        max((abs(row[at]) for row in table.rows if isinstance(row[at], (int, float))), default=0.0)  # type: ignore[arg-type]
        if unit == "ns"
        else 0.0
        for at, unit in enumerate(units)
    ]
    units_of = {
        is_when: time_units(
            [each if own == is_when else 0.0 for each, own in zip(longest, when, strict=True)]
        )
        for is_when in (False, True)
    }
    units_of_time = [units_of[own][at] for at, own in enumerate(when)]
    heads = [
        f"{name} ({units_of_time[at][1]})" if unit == "ns" else name
        for at, (name, unit) in enumerate(table.columns)
    ]
    shown_as = [
        {cell: one_line(cell) for row in table.rows if isinstance(cell := row[at], str)}
        if unit == "words"
        else names.labels((row[at] for row in table.rows if isinstance(row[at], str)), most)  # type: ignore[misc]
        for at, unit in enumerate(units)
    ]

    def text(cell: Cell, at: int) -> str:
        if isinstance(cell, str):
            return shown_as[at][cell]
        if cell is not None and units[at] == "ns":
            size, _ = units_of_time[at]
            return f"{cell / size:,.3f}" if when[at] else of_time(cell, size)
        return in_cell(cell, units[at], most)

    rows = [[text(cell, at) for at, cell in enumerate(row)] for row in table.rows]
    return [head.strip() for head in heads], rows


def share(part: float, whole: float) -> float:
    """Return a part of a whole in percent; 0 if the whole is 0."""
    return 100.0 * part / whole if whole else 0.0


_NOTEBOOK_ROWS = 12
_NOTEBOOK_COLOURS = {
    "computing": "#2f9e63",
    "communicating": "#a44cc4",
    "copying": "#2f7fd6",
    "idle": "#e2674a",
}
_OTHER_COLOUR = "#9aa4b1"
_BAR_WIDTH, _BAR_HEIGHT = 600, 18
_OF_TEXT, _OF_NUMBERS = "text-align:left;white-space:pre", "text-align:right"


def in_notebook(blocks: Iterable[Block]) -> str:
    """Return blocks as HTML for a notebook, in the colours of its own light or dark scheme."""
    return "".join(map(_block_html, blocks))


def _block_html(block: Block) -> str:
    if isinstance(block, Line):
        tag = "b" if block.style in ("strong", "warning") else "span"
        return f"<p><{tag}>{escape(one_line(block.text))}</{tag}></p>"
    if isinstance(block, Bar):
        return _bar_html(block)
    if isinstance(block, Changes):
        columns = ((block.heading, ""), ("before", "ns"), ("after", "ns"))
        block = Table("", columns, block.rows)
    first_rows = block.selected(_NOTEBOOK_ROWS)
    heads, rows = texts_of(first_rows)
    title = f"<caption>{escape(one_line(block.title))}</caption>" if block.title else ""
    is_text = [
        any(isinstance(cell, str) for cell in column)
        for column in zip(*first_rows.rows, strict=True)
    ]
    styles = [_OF_TEXT if each else _OF_NUMBERS for each in is_text] or [_OF_TEXT] * len(heads)

    def row_of(cells: Sequence[str], tag: str) -> str:
        return "".join(
            f'<{tag} style="{style}">{escape(one_line(cell))}</{tag}>'
            for cell, style in zip(cells, styles, strict=True)
        )

    body = [row_of(heads, "th"), *(row_of(row, "td") for row in rows)]
    left_out = len(block.rows) - len(rows)
    notes = [f"and {left_out:,} more rows"] if left_out > 0 else []
    below = "".join(f"<p>{escape(note)}</p>" for note in (*notes, *filter(None, [block.note])))
    return f"<table>{title}{''.join(f'<tr>{row}</tr>' for row in body)}</table>{below}"


def _bar_html(bar: Bar) -> str:
    drawn, legend, at = [], [], 0.0
    for part in bar.parts:
        width = part.time_ns / (bar.whole_ns or 1) * _BAR_WIDTH
        colour = _NOTEBOOK_COLOURS.get(part.colour, _OTHER_COLOUR)
        drawn.append(
            f'<rect x="{at:.1f}" width="{width:.1f}" height="{_BAR_HEIGHT}" fill="{colour}"/>'
        )
        words = escape(f"{part.name} {in_percent(share(part.time_ns, bar.whole_ns))}")
        legend.append(f'<span style="color:{colour}">\u25a0</span> {words}')
        at += width
    label = escape(f"{bar.name}: {', '.join(part.name for part in bar.parts)}")
    return (
        f'<svg width="{_BAR_WIDTH}" height="{_BAR_HEIGHT}" role="img" aria-label="{label}">'
        f"{''.join(drawn)}</svg><p>{escape(bar.name)}: {', '.join(legend)}</p>"
    )
