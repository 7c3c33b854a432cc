"""Two traces aligned: the stretches to compare, names that agree, and the same kernels renamed."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from stagespan.trace.analysis.result import Nothing, shortened
from stagespan.trace.comparison.against import Against, Side
from stagespan.trace.comparison.cells import COMPUTING, Cell, Cells, device_cells, host_cells
from stagespan.trace.comparison.windows import Windows, steps_of, whole
from stagespan.trace.device import device_work
from stagespan.trace.model import Trace

_DIGITS = re.compile(r"\d+")
# Of the work in either of two whole traces, how much the other must hold too.
_LEAST_ALIKE = 0.8
# Below this, what two programs have in common is chance.
_LEAST_IN_COMMON = 0.2


def compare(before: Trace, after: Trace) -> Against | Nothing:
    """Compare two traces; Nothing, with the reason, where a difference would say nothing."""
    reason = _why_not(before, after)
    if reason is not None:
        return Nothing(reason)
    on_device = len(device_work(before).rows) > 0
    remarks: list[str] = []
    stretches = _stretches(before, after, remarks)
    if stretches is None:
        return Nothing(
            "One of the traces holds no events that last, so there is nothing to compare."
        )
    work = _work(before, on_device), _work(after, on_device)
    common = _in_common(*work)
    if stretches[0].steps == 0:
        alike = sum((work[0] & work[1]).values()) / max(sum((work[0] | work[1]).values()), 1)
        if alike < _LEAST_ALIKE:
            counts = [f"{sum(each.values()):,}" for each in work]
            what = "launches of kernels and copies" if on_device else "calls of operators"
            return Nothing(
                "The traces do not both have steps, and hold different work"
                f" ({counts[0]} {what} before, {counts[1]} after, {100 * alike:.0f} % of them the"
                " same): the difference of their totals would say nothing. Record both with"
                " steps, or the same stretch of the program.",
            )
        remarks.append("All of each trace is compared, because not both have the same steps.")
    elif common < _LEAST_IN_COMMON:
        remarks.append(
            f"Only {100 * common:.0f} % of the kernels and operators of one trace, by calls, occur"
            " in the other: where they do not show the same program, the difference says nothing."
        )
    remarks += [trace.incomplete for trace in (before, after) if trace.incomplete]
    written = _written(before, after)
    cells_of = device_cells if on_device else host_cells
    sides = [
        Side(trace.path, stretch, cells_of(trace, stretch, names))
        for trace, stretch, names in zip((before, after), stretches, written, strict=True)
    ]
    renamed = _renamed(sides[0].cells, sides[1].cells)
    return Against(sides[0], sides[1], renamed, tuple(remarks), on_device)


def _why_not(before: Trace, after: Trace) -> str | None:
    devices = [len(device_work(trace).rows) > 0 for trace in (before, after)]
    if devices[0] != devices[1]:
        with_device = "first" if devices[0] else "second"
        return (
            f"Only the {with_device} of the two traces has device events: record both with the same"
            " activities, or nothing can be said about the change."
        )
    return None


def _stretches(before: Trace, after: Trace, remarks: list[str]) -> tuple[Windows, Windows] | None:
    steps = steps_of(before), steps_of(after)
    first, second = steps
    if first is not None and second is not None:
        if _same_steps(first, second):
            if first.steps != second.steps:
                remarks.append(
                    f"The traces have {first.steps:,} and {second.steps:,} steps: the means of one"
                    " step are compared."
                )
            if first.source not in ("profiler", "annotation"):
                remarks.append(first.how)
            return first, second
        remarks.append(
            f"The steps of the traces are not the same ({shortened(first.names[0])} before,"
            f" {shortened(second.names[0])} after)."
        )
    stretches = whole(before), whole(after)
    if stretches[0] is None or stretches[1] is None:
        return None
    return stretches[0], stretches[1]


def _same_steps(first: Windows, second: Windows) -> bool:
    if first.total_ns == 0 or second.total_ns == 0 or first.source != second.source:
        return False
    words = [{_DIGITS.sub("#", name) for name in each.names} for each in (first, second)]
    return first.source != "annotation" or words[0] == words[1]


def _work(trace: Trace, on_device: bool) -> Counter[str]:
    """How often each name of device work (or each operator, without a device) occurs."""
    rows = device_work(trace).rows if on_device else np.flatnonzero(trace.rows_of(["cpu_op"]))
    codes, counts = np.unique(trace.events.name[rows], return_counts=True)
    return Counter(
        {trace.names[c]: int(n) for c, n in zip(codes.tolist(), counts.tolist(), strict=True)}
    )


def _in_common(first: Counter[str], second: Counter[str]) -> float:
    """The smaller part of either's calls whose name the other knows."""
    return min(
        sum(n for name, n in one.items() if name in other) / max(sum(one.values()), 1)
        for one, other in ((first, second), (second, first))
    )


def _written(before: Trace, after: Trace) -> tuple[list[str], list[str]]:
    """Names by code as they are compared: numbers in names that only one trace has left out.

    So `batch 17` and `batch 42` agree, while `layer 1` and `layer 2`, which both traces have, are
    kept apart.
    """
    both = set(before.names) & set(after.names)

    def spelled(names: list[str]) -> list[str]:
        return [name if name in both else _DIGITS.sub("#", name) for name in names]

    return spelled(before.names), spelled(after.names)


def _renamed(before: Cells, after: Cells) -> dict[str, str]:
    """Kernels under a new name: the old name by the new one.

    Only where one kernel vanished and one came, of one kind, launched as often a step by the same
    operators in the same stages and layers, and no other pair is alike.
    """
    gone = _signatures(before, {cell.kernel for cell in after.time_ns})
    come = _signatures(after, {cell.kernel for cell in before.time_ns})
    pairs: dict[str, str] = {}
    for signature, names in come.items():
        old = gone.get(signature, [])
        if len(names) == len(old) == 1:
            pairs[names[0]] = old[0]
    return pairs


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
