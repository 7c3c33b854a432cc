"""A page: several results about one subject. The renderers use only what a page offers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from stagespan.pages.result import (
    Block,
    Finding,
    Line,
    Result,
    Table,
    Titled,
    Unavailable,
    in_notebook,
)

if TYPE_CHECKING:
    from stagespan.pages.timeline import TimelineRow

_NOTEBOOK_FINDINGS = 3


class Words(NamedTuple):
    """What the kind of a page is called in its texts."""

    page: str
    """The title of the kind: "Trace analysis"."""
    as_text: str
    """The command that prints the page."""
    timeline: str = ""
    """What the timeline shows."""
    axis: str = ""
    """What the axis of the timeline shows."""
    heights: str = ""
    """What the heights of the bars in the timeline mean; "" if all have one height."""
    no_findings: str = ""
    """The sentence in place of the findings if there are none; "" to leave them out."""


class Page:
    """Results about one subject, their findings, and a timeline.

    (This class is not an ABC, for the same reason as `Result`.)
    """

    words: Words
    is_whole: bool = False
    """Whether a terminal shows all of it, also what does not fit on its screen."""
    open_sections: frozenset[str] | None = None
    """The results whose sections an HTML page does not fold; None if it folds none."""

    if TYPE_CHECKING:  # at run time it may also be a field

        @property
        def results(self) -> Mapping[str, Result | Unavailable]:
            """The results by their keys in the JSON, in the order of the page."""

    def __repr__(self) -> str:
        """Return the name of the subject, and the first line of the page."""
        blocks = (block for result in self.results.values() for block in result.head())
        line = next((block.text for block in blocks if isinstance(block, Line)), self.summary())
        return f"<{type(self).__name__} of {self.name()}: {line}>"

    @abstractmethod
    def name(self) -> str:
        """Return the name of the subject, such as that of a file."""

    @abstractmethod
    def summary(self) -> str:
        """Return how much there is: "1,200 entries, 3.500 s long"."""

    def headline(self) -> str | None:
        """Return the first line on a terminal; None for none."""
        return f"{self.name()}: {self.summary()}"

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the page as a dict for JSON."""

    @cached_property
    def tables(self) -> dict[str, list[Table]]:
        """The tables of each result, which all forms of the page share."""
        return {name: result.tables() for name, result in self.results.items()}

    def findings(self) -> list[Finding]:
        """Return the findings of all results, the most severe first."""
        return [finding for result in self.results.values() for finding in result.findings()]

    def together(self) -> str | None:
        """Return a sentence about what all findings win together; None if there is none."""
        return None

    def caveat(self) -> str | None:
        """Return the sentence that a reader must know before all others; None if there is none."""
        return None

    def lines(self) -> list[str]:
        """Return the sentences of the first screens, except those of titles."""
        titles = [title[1] for each in self.results.values() if (title := each.title())]
        shown = (each for each in self.results.values() if not isinstance(each, Titled))
        blocks = (block for each in shown for block in each.head())
        lines = (block.text for block in blocks if isinstance(block, Line))
        return [line for line in lines if line not in titles]

    def notes(self) -> list[str]:
        """Return sentences about what was not used, or is not on the page."""
        return []

    def missing(self) -> list[str]:
        """Return a sentence about missing data and how to record it; [] if nothing is missing."""
        return []

    def _repr_html_(self) -> str:
        """Return the page for a notebook: its first screen and its first findings."""
        head: list[Block] = [Line(f"{self.name()}: {self.summary()}", "strong")]
        if (caveat := self.caveat()) is not None:
            head.append(Line(caveat, "warning"))
        head += [block for result in self.results.values() for block in result.head()]
        findings = self.findings()[:_NOTEBOOK_FINDINGS]
        return in_notebook(
            [*head, *(Line(f"{each.severity}: {each.first_line}") for each in findings)]
        )

    def window_ns(self) -> int:
        """Return the length of the timeline."""
        return 0

    def timeline(self) -> Sequence[TimelineRow]:
        """Return the rows of the timeline; [] if there is none."""
        return []


@dataclass(frozen=True, repr=False)
class ResultPage(Page):
    """A page of one result, whose JSON has the result's figures at the top."""

    words: Words
    result: Result
    subject: str
    amount: str
    """How much of it there is: "3 processes"."""
    remarks: Sequence[str] = ()
    is_whole: bool = True
    schema_version: int = 1

    @property
    def results(self) -> Mapping[str, Result]:
        """The only result."""
        return {self.words.page.lower().replace(" ", "_"): self.result}

    def name(self) -> str:
        """Return the subject."""
        return self.subject

    def summary(self) -> str:
        """Return the amount."""
        return self.amount

    def notes(self) -> list[str]:
        """Return the remarks."""
        return list(self.remarks)

    def to_dict(self) -> dict[str, Any]:
        """Return the version of the schema and the figures."""
        return {"schema_version": self.schema_version, **self.result.to_dict()}


def heading(name: str) -> str:
    """Return the key of a result as a heading: "device_use" is "Device use"."""
    words = {"against": "comparison"}.get(name, name.replace("_", " "))
    return words[:1].upper() + words[1:]
