"""What a capture has recorded, and what it cost, as figures and on pages."""

from __future__ import annotations

from stagespan.pages.amounts import counted, in_words, quoted
from stagespan.pages.figures import Count, RecordedFigures
from stagespan.pages.result import Block, Line, Result, Table


class CaptureResult(RecordedFigures, Result, frozen=True):
    """What a capture has recorded, and what it cost."""

    __repr__ = Result.__repr__

    stage: str
    unit: str
    """What was counted: "run" or "step"."""
    asked: Count
    """The number of runs or steps that were asked for."""
    runs: Count
    """The number of whole runs or steps in the trace."""
    events: Count | None
    """The operators and annotations that were recorded, in whole blocks of torch's memory; None if
    torch does not show it."""
    bytes: Count
    """The size of the trace."""
    path: str
    pause_bound_ns: int | None
    """The bound of the longest pause that was told before, or None."""
    longest_pause_ns: int
    """The longest time for which no Python thread could run, at the end of the capture."""
    requests_delayed: Count | None
    """The requests that were open during a pause; None in a process without requests."""
    in_place: str | None
    """Why all Python threads had to wait while the profiler's trace was written; None if they had
    not to."""
    remarks: tuple[str, ...]
    """Sentences about what is missing or unexpected."""

    def figures(self) -> RecordedFigures:
        """Return the result itself."""
        return self

    def line(self) -> str:
        """Return what was captured, and the longest pause."""
        whole = counted(self.runs, self.unit)
        of = "" if self.runs == self.asked else f" of {self.asked:,}"
        events = "" if self.events is None else f", {counted(self.events, 'event')}"
        return (
            f"{whole}{of} of stage {quoted([self.stage])}{events}; the longest pause was"
            f" {in_words(self.longest_pause_ns, 'ns')}."
        )

    def head(self) -> list[Block]:
        """Return the line, the figures, and the remarks."""
        return [Line(self.line(), "strong"), *self.tables(), *map(Line, self.remarks)]

    def tables(self) -> list[Table]:
        """Return the figures in words."""
        rows = [
            ("trace", self.path),
            ("size", in_words(self.bytes, "bytes")),
            ("longest pause", in_words(self.longest_pause_ns, "ns")),
            ("bound told before", in_words(self.pause_bound_ns, "ns")),
            (
                "requests delayed",
                "unknown" if self.requests_delayed is None else f"{self.requests_delayed:,}",
            ),
        ]
        return [Table("The capture", (("figure", ""), ("value", "words")), rows)]


class CaptureResults(RecordedFigures, frozen=True):
    """What the captures of the processes of a job have recorded."""

    captures: list[CaptureResult]
