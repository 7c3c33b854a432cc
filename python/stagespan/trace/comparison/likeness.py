"""Whether two traces show one program: by its kernels, their operators and shapes, and its parts.

Operators alone do not tell: all models are made of the same ones. What counts is how much of either
trace's work the other has too.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.analysis.launchers import launchers, stage_marks
from stagespan.trace.analysis.names import kernel_label
from stagespan.trace.analysis.step_ranges import FRAMEWORK, PROFILER_STEP
from stagespan.trace.arrays import Numbers
from stagespan.trace.device import device_work
from stagespan.trace.model import Trace

Rows = NDArray[np.intp]
_MODULE = re.compile(r"^nn\.Module: (.+?)(?:_\d+)?$")
_DIGITS = re.compile(r"\d+")
# Of the work that both have, weighed by calls. One model at two sizes, or two models of one size,
# have kernels or weights in common; the shapes of what they work on they do not.
_LEAST_SHAPES, _LEAST_KERNELS, _LEAST_OPERATORS = 0.15, 0.6, 0.95
# Of the names of stages and modules that either has, and how many these must be.
_LEAST_PARTS, _FEWEST_PARTS = 0.6, 3
# Of the work whose operator is known; below it the operators tell nothing.
_LEAST_KNOWN = 0.5


@dataclass(frozen=True, slots=True)
class Likeness:
    """What two traces have in common, each from 0 to 1; None where a trace does not tell."""

    kernels: float | None
    """Without a device None."""
    operators: float | None
    """Those that launched the kernels; without a device all."""
    shapes: float | None
    """The same with the shapes of their inputs."""
    parts: float | None
    """Different stages and classes of modules."""

    @property
    def alike(self) -> bool:
        """Whether the traces may be of one program; also where nothing tells."""
        told = (
            (self.shapes, _LEAST_SHAPES),
            (self.kernels, _LEAST_KERNELS),
            (self.operators, _LEAST_OPERATORS),
            (self.parts, _LEAST_PARTS),
        )
        known = [(share, least) for share, least in told if share is not None]
        return not known or any(share >= least for share, least in known)

    @property
    def work(self) -> float:
        """How much of the work is the same, by what tells it best."""
        return next((s for s in (self.shapes, self.kernels, self.operators) if s is not None), 0.0)


def likeness(before: Trace, after: Trace) -> Likeness:
    """Compare what the traces hold."""
    first, second = (_Work(trace) for trace in (before, after))
    return Likeness(
        kernels=_in_both(first.kernels, second.kernels),
        operators=_in_both(first.operators, second.operators),
        shapes=_in_both(first.shapes, second.shapes),
        parts=_same(first.parts, second.parts),
    )


class _Work:
    """How often a trace has each kernel, operator, and operator with its shapes."""

    def __init__(self, trace: Trace) -> None:
        rows = device_work(trace).rows
        names = trace.names
        self.kernels: Counter[str] = Counter()
        for code, count in _counts(trace.events.name[rows]):
            self.kernels[kernel_label(names[code])] += count
        if len(rows):
            found = launchers(trace, rows)
            operator = np.full(len(rows), -1) if found is None else found.operator
        else:
            marks = trace.rows_of(["cpu_op"]) & ~stage_marks(trace)
            operator = np.flatnonzero(marks)
        known = operator[operator >= 0]
        told = len(known) >= _LEAST_KNOWN * max(len(operator), 1)
        self.operators: Counter[str] = Counter()
        for code, count in _counts(trace.events.name[known]) if told else ():
            if PROFILER_STEP.match(names[code]) is None:
                self.operators[names[code]] += count
        self.shapes = _shapes(trace, known) if told else Counter()
        self.parts = _parts(trace)


def _shapes(trace: Trace, operators: Rows) -> Counter[tuple[str, str]]:
    written = trace.argument("Input Dims") if len(operators) else None
    if written is None or written.numbers is not None or len(written.rows) == 0:
        return Counter()
    at = np.minimum(np.searchsorted(written.rows, operators), len(written.rows) - 1)
    has = written.rows[at] == operators
    if has.sum() < _LEAST_KNOWN * len(operators):
        return Counter()
    texts = len(written.texts)
    code = trace.events.name[operators[has]].astype(np.int64) * texts + written.codes[at[has]]
    return Counter(
        {(trace.names[each // texts], written.texts[each % texts]): n for each, n in _counts(code)}
    )


def _parts(trace: Trace) -> set[str]:
    """The user's own stages, numbers left out, and the classes of modules."""
    stages = {trace.names[code] for code, _ in _counts(trace.events.name[stage_marks(trace)])}
    own = {_DIGITS.sub("#", name) for name in stages if FRAMEWORK.match(name) is None}
    modules = {found[1] for name in trace.names if (found := _MODULE.match(name)) is not None}
    return own | modules


def _counts(codes: Numbers | NDArray[np.int32]) -> list[tuple[int, int]]:
    found, counts = np.unique(codes, return_counts=True)
    return list(zip(found.tolist(), counts.tolist(), strict=True))


def _in_both(first: Counter[Any], second: Counter[Any]) -> float | None:
    """The part of the work that both have, each trace's work taken as a whole."""
    wholes = sum(first.values()), sum(second.values())
    if not all(wholes):
        return None
    return sum(min(n / wholes[0], second[what] / wholes[1]) for what, n in first.items())


def _same(first: set[str], second: set[str]) -> float | None:
    either = first | second
    if len(first) < _FEWEST_PARTS or len(second) < _FEWEST_PARTS:
        return None
    return len(first & second) / len(either)
