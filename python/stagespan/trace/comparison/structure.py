"""Where in the program device work and operators belong: stage, layer and operator."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.analysis.call_tree import Paths
from stagespan.trace.analysis.causes import MARKS
from stagespan.trace.analysis.host_time import named
from stagespan.trace.analysis.launchers import launchers
from stagespan.trace.analysis.nesting import Lanes, Nesting
from stagespan.trace.analysis.step_ranges import step_ranges
from stagespan.trace.model import Trace

Rows = NDArray[np.intp]
_MODULE = "nn.Module: "
_BETWEEN = " / "
# `hcom_allReduce__586_0_1` is the 0th of group 586, which another run calls otherwise.
_ASCEND_COLLECTIVE = re.compile(r"^(hcom_[A-Za-z]+)__\d+_\d+_\d+$")


@dataclass(frozen=True, slots=True)
class Labels:
    """A text for each of some events: `texts[codes[i]]`; "" where there is none."""

    texts: list[str]
    codes: NDArray[np.int64]


class Structure:
    """The program as its trace shows it: annotations, modules and operators around a call."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        operators = trace.rows_of(["cpu_op"])
        marks = trace.rows_of(["user_annotation"])
        if not marks.any():
            marks = operators & named(trace, MARKS)
        operators &= ~marks
        steps = step_ranges(trace)
        if steps is not None:
            marks[steps.marks] = False
            operators[steps.marks] = False
        self.operators = np.flatnonzero(operators)
        self.marks = np.flatnonzero(marks)

    def stages(self, calls: Rows, written: list[str]) -> Labels:
        """The annotations around each call (-1 for none); `written` are their names, by code.

        What runs on a thread without annotations, as the backward pass does, belongs to the
        annotation that the thread with the most of them is in.
        """
        return self._paths(self.marks, calls, written, everywhere=True)

    def layers(self, calls: Rows) -> Labels:
        """The modules around each call, where the trace has stacks of Python."""
        trace = self.trace
        is_module = np.array([name.startswith(_MODULE) for name in trace.names] + [False])
        rows = np.flatnonzero(is_module[trace.events.name] & trace.rows_of(["python_function"]))
        names = [name.removeprefix(_MODULE) for name in trace.names]
        return self._paths(rows, calls, names)

    def operator(self, rows: Rows) -> Labels:
        """The name of the innermost operator that launched each device event."""
        found = launchers(self.trace, rows)
        return self.names_of(np.full(len(rows), -1) if found is None else found.operator)

    def names_of(self, rows: Rows) -> Labels:
        """The names of events (-1 for none); those of Ascend's collectives without numbers."""
        names = [_ASCEND_COLLECTIVE.sub(r"\1", name) for name in self.trace.names]
        codes = np.where(rows >= 0, self.trace.events.name[rows], len(names))
        return Labels([*names, ""], codes.astype(np.int64))

    def _paths(self, rows: Rows, calls: Rows, names: list[str], everywhere: bool = False) -> Labels:
        """The names of those of `rows` around each call, from the outermost to the innermost."""
        trace, codes = self.trace, np.zeros(len(calls), dtype=np.int64)
        known = np.flatnonzero(calls >= 0)
        lanes = Lanes(trace, rows, calls[known])
        if len(rows) == 0 or len(known) == 0 or not lanes.fits:
            return Labels([""], codes)
        nesting = Nesting.of(trace, lanes.axis, rows, lanes.of[0])
        time = trace.events.begin_ns[calls[known]]
        found = nesting.at(lanes.axis.place(lanes.of[1], time))
        if everywhere:
            main = np.full(len(known), np.bincount(lanes.of[0]).argmax())
            found = np.where(found >= 0, found, nesting.at(lanes.axis.place(main, time)))
        used, which = np.unique(trace.events.name[nesting.rows], return_inverse=True)
        number: dict[str, int] = {}
        words = [number.setdefault(names[code], len(number)) for code in used.tolist()]
        paths = Paths(nesting.parent, np.array(words, dtype=np.int64)[which.reshape(-1)])
        spelled = list(number)
        texts = [""]
        for parent, word in zip(paths.parent.tolist(), paths.word.tolist(), strict=True):
            text = spelled[word]
            texts.append(f"{texts[parent + 1]}{_BETWEEN}{text}" if parent >= 0 else text)
        codes[known] = np.append(paths.node, -1)[found] + 1
        return Labels(texts, codes)
