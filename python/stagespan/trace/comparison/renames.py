"""Kernels that came in the place of others: the same work under another name."""

from __future__ import annotations

import numpy as np

from stagespan.trace.analysis.launchers import launchers
from stagespan.trace.comparison.cells import COMPUTING, Cell, Cells
from stagespan.trace.model import Trace


def renamed(before: Trace, after: Trace, old: Cells, new: Cells) -> dict[str, str]:
    """Kernels under a new name: the old name by the new one.

    Only where one kernel vanished and one came, of one kind, launched as often a step by the same
    operators in the same stages and layers, for inputs of the same shapes where both traces have
    them; and no other pair is alike.
    """
    gone = _signatures(old, {cell.kernel for cell in new.time_ns})
    come = _signatures(new, {cell.kernel for cell in old.time_ns})
    pairs = {
        names[0]: gone[signature][0]
        for signature, names in come.items()
        if len(names) == 1 and len(gone.get(signature, [])) == 1
    }
    shapes = shapes_of(before, set(pairs.values())), shapes_of(after, set(pairs))
    return {
        name: was
        for name, was in pairs.items()
        if not shapes[0].get(was) or not shapes[1].get(name) or shapes[0][was] == shapes[1][name]
    }


def shapes_of(trace: Trace, kernels: set[str]) -> dict[str, frozenset[str]]:
    """Of each kernel the shapes of the inputs of the operators that launched it."""
    codes = [code for code, name in enumerate(trace.names) if name in kernels]
    rows = np.flatnonzero(np.isin(trace.events.name, codes))
    launched = launchers(trace, rows) if len(rows) else None
    written = trace.argument("Input Dims") if launched is not None else None
    if launched is None or written is None or written.numbers is not None:
        return {}
    at = np.minimum(np.searchsorted(written.rows, launched.operator), len(written.rows) - 1)
    known = written.rows[at] == launched.operator
    found: dict[str, set[str]] = {}
    for name, code in zip(
        trace.events.name[rows[known]].tolist(), written.codes[at[known]].tolist(), strict=True
    ):
        found.setdefault(trace.names[name], set()).add(written.texts[code])
    return {name: frozenset(shapes) for name, shapes in found.items()}


def _signatures(cells: Cells, others: set[str]) -> dict[frozenset[object], list[str]]:
    places: dict[str, set[object]] = {}
    for cell in cells.time_ns:
        if cell.group == COMPUTING and cell.kernel not in others and cell.operator:
            places.setdefault(cell.kernel, set()).add(_place(cell, cells))
    found: dict[frozenset[object], list[str]] = {}
    for name, where in places.items():
        found.setdefault(frozenset(where), []).append(name)
    return found


def _place(cell: Cell, cells: Cells) -> object:
    # Compared as products, so that no division rounds: see the counts' meaning in Cells.
    count = cells.count[cell]
    whole, rest = divmod(count, cells.per)
    return (cell.part, cell.stage, cell.layer, cell.operator, whole, rest / cells.per)
