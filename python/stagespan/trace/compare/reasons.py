"""Why the work of operators changed: their shapes, their launches, or the time of a launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

import msgspec

from stagespan.pages.amounts import counted, in_words, listed
from stagespan.pages.figures import Figures, Ns, one_of
from stagespan.pages.result import shortened
from stagespan.trace.compare.cost_table import COMMUNICATING, Cells, CostCell
from stagespan.trace.rates.calls import inputs_in_words

SHAPES, LAUNCHES, RATE, OVERLAP = "shapes", "launches", "rate", "overlap"
KINDS_OF_REASONS = {
    SHAPES: "inputs of other shapes",
    LAUNCHES: "more or fewer launches",
    RATE: "a launch takes longer or shorter",
    OVERLAP: "more or less runs beside computation",
}
"""The kinds of reasons. Those of an operator sum to its change."""
COMMUNICATION = "communication"
"""The name of all communication together, whose reasons are not by operator."""
# Shapes that are named, and the number of characters of each.
_NAMED, _LETTERS = 2, 40
_NO_LAUNCH = "0 launches"


class Reason(Figures, frozen=True):
    """A part of the change of an operator's time in a step (or in the trace), and its reason."""

    operator: str
    kind: Annotated[str, one_of(KINDS_OF_REASONS)]
    change_ns: Ns
    before: str
    """What it was before: shapes, launches in a step, or the time of a launch."""
    after: str

    @property
    def sentence(self) -> str:
        """What changed, without the time."""
        if self.kind == SHAPES:
            return f"{self.operator} has inputs of other shapes: {self.after}, before {self.before}"
        if self.kind == LAUNCHES:
            if self.before == _NO_LAUNCH:
                return f"{self.operator} is new, with {self.after}"
            if self.after == _NO_LAUNCH:
                return f"{self.operator}, which had {self.before}, is gone"
            return f"{self.operator} has {self.after}, before {self.before}"
        if self.kind == OVERLAP:
            return f"computation hides {self.after} of {self.operator}, before {self.before}"
        if self.operator == COMMUNICATION:
            return f"communication takes {self.after}, before {self.before}"
        return f"each launch of {self.operator} takes {self.after}, before {self.before}"


class _Work(msgspec.Struct):
    """The times and the launches of a step, before and after."""

    time_ns: list[int] = msgspec.field(default_factory=lambda: [0, 0])
    count: list[float] = msgspec.field(default_factory=lambda: [0.0, 0.0])

    def add(self, at: int, time_ns: int, count: float) -> None:
        self.time_ns[at] += time_ns
        self.count[at] += count


def reasons(
    before: Cells, after: Cells, chosen: Callable[[CostCell], bool] = lambda _: True
) -> list[Reason]:
    """Return why the time of each operator changed, the largest change first.

    The change of an operator is divided, in this order: calls with shapes that only one of the
    traces has; for each other shape the difference of the launches, at the time that a launch took
    before; and the rest, which is the difference of the time of a launch. Only cells that `chosen`
    returns True for count. Communication is left out: see `overlap`.
    """
    work: dict[str, dict[str, _Work]] = {}
    for at, cells in enumerate((before, after)):
        for cell, time in cells.time_ns.items():
            count = cells.count.get(cell)
            if (
                count is None
                or not cell.operator
                or cell.group == COMMUNICATING
                or not chosen(cell)
            ):
                continue
            of = work.setdefault(cell.operator, {}).setdefault(cell.shape, _Work())
            of.add(at, time, count / cells.per)
    found = [each for operator, of in work.items() for each in _of_operator(operator, of)]
    return sorted(found, key=lambda each: (-abs(each.change_ns), each.operator, each.kind))


def _of_operator(operator: str, work: Mapping[str, _Work]) -> list[Reason]:
    gone = [shape for shape, of_shape in work.items() if not of_shape.count[1]]
    come = [shape for shape, of_shape in work.items() if not of_shape.count[0]]
    reasons_ = []
    # Without shapes, all launches of an operator are of one kind.
    if gone and come:
        change = sum(work[shape].time_ns[1] - work[shape].time_ns[0] for shape in (*gone, *come))
        reasons_.append(Reason(operator, SHAPES, change, _shapes(gone), _shapes(come)))
        work = {shape: of_shape for shape, of_shape in work.items() if all(of_shape.count)}
    launches, counts, slower, times = 0, [0.0, 0.0], 0, [0.0, 0.0]
    for of_shape in work.values():
        change = of_shape.time_ns[1] - of_shape.time_ns[0]
        if all(of_shape.count):
            before = of_shape.time_ns[0] / of_shape.count[0]
            part = round((of_shape.count[1] - of_shape.count[0]) * before)
        else:
            part = change
        launches += part
        slower += change - part
        for at in range(2):
            counts[at] += of_shape.count[at]
            times[at] += of_shape.time_ns[at]
    if launches:
        texts = [counted_launches(count) for count in counts]
        reasons_.append(Reason(operator, LAUNCHES, launches, *texts))
    if slower:
        means = [in_words(time / count, "ns") for time, count in zip(times, counts, strict=True)]
        reasons_.append(Reason(operator, RATE, slower, *means))
    return reasons_


def counted_launches(count: float) -> str:
    """Return a number of launches in a step, which can be a mean."""
    if count.is_integer():
        return counted(int(count), "launch", "launches")
    return f"{count:.1f} launches"


def _shapes(shapes: list[str]) -> str:
    words = [inputs_in_words(shape) or "unknown shapes" for shape in shapes]
    return listed([shortened(each, _LETTERS) for each in dict.fromkeys(words)], _NAMED)


class Overlap(msgspec.Struct, frozen=True):
    """The communication of a step, in ns."""

    whole_ns: int
    exposed_ns: int

    @property
    def hidden_ns(self) -> int:
        """The part during which something computed."""
        return self.whole_ns - self.exposed_ns


def overlap(before: Overlap, after: Overlap) -> list[Reason]:
    """Return why the communication during which nothing computed changed."""
    overlap_ = []
    whole = after.whole_ns - before.whole_ns
    hidden = before.hidden_ns - after.hidden_ns
    if whole:
        texts = [in_words(each.whole_ns, "ns") for each in (before, after)]
        overlap_.append(Reason(COMMUNICATION, RATE, whole, *texts))
    if hidden:
        texts = [in_words(each.hidden_ns, "ns") for each in (before, after)]
        overlap_.append(Reason(COMMUNICATION, OVERLAP, hidden, *texts))
    return overlap_
