"""Two traces aligned: the stretches to compare, names that agree, and the same kernels renamed."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.analysis import idle
from stagespan.trace.analysis.result import Nothing, shortened
from stagespan.trace.analysis.step_ranges import PROFILER_STEP
from stagespan.trace.comparison.against import Against, Change, Side
from stagespan.trace.comparison.cells import device_cells, host_cells
from stagespan.trace.comparison.likeness import likeness
from stagespan.trace.comparison.renames import renamed
from stagespan.trace.comparison.windows import Windows, steps_of, whole
from stagespan.trace.device import device_work
from stagespan.trace.model import Trace

_DIGITS = re.compile(r"\d+")
# Of the work in either of two whole traces, how much the other must hold too.
_LEAST_ALIKE = 0.8


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
    found = likeness(before, after)
    remarks += _about_devices(before, after)
    if stretches[0].steps == 0:
        work = _work(before, on_device), _work(after, on_device)
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
    elif not found.alike:
        what = "kernels" if on_device else "operators"
        shapes = "" if found.shapes is None else ", with the shapes of their inputs,"
        remarks.insert(
            0,
            f"Only {100 * found.work:.0f} % of the {what}{shapes} are the same: if the traces are"
            " not of one program, their difference says nothing.",
        )
    remarks += [trace.incomplete for trace in (before, after) if trace.incomplete]
    written = _written(before, after)
    sides = [
        _side(trace, stretch, names, on_device)
        for trace, stretch, names in zip((before, after), stretches, written, strict=True)
    ]
    return Against(
        before=sides[0],
        after=sides[1],
        renamed=renamed(before, after, sides[0].cells, sides[1].cells),
        remarks=tuple(remarks),
        on_device=on_device,
        alike=found.alike,
        waits=_waits(before, after, stretches),
    )


def _side(trace: Trace, stretch: Windows, names: list[str], on_device: bool) -> Side:
    host = host_cells(trace, stretch, names)
    return Side(
        trace.path, stretch, device_cells(trace, stretch, names) if on_device else host, host
    )


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


def _about_devices(before: Trace, after: Trace) -> list[str]:
    devices = [_device(trace) for trace in (before, after)]
    if devices[0] is None or devices[1] is None or devices[0] == devices[1]:
        return []
    return [f"The devices are not the same: {devices[0]} before, {devices[1]} after."]


def _device(trace: Trace) -> str | None:
    found = trace.metadata.get("deviceProperties")
    if not isinstance(found, list) or not found or not isinstance(found[0], dict):
        return None
    name = found[0].get("name")
    return name if isinstance(name, str) and name else None


def _waits(before: Trace, after: Trace, stretches: tuple[Windows, Windows]) -> tuple[Change, ...]:
    """The idle time that calls which wait or allocate are to blame for, over all of each trace."""
    sums: dict[str, list[int]] = {}
    for at, (trace, stretch) in enumerate(zip((before, after), stretches, strict=True)):
        found = idle.analyze(trace)
        per = max(stretch.steps, 1)
        for group in [] if isinstance(found, Nothing) else found.groups:
            row = sums.setdefault(group.words, [0, 0, 0, 0])
            row[at] += round(group.idle_ns / per)
            row[2 + at] += group.calls
    steps = [max(stretch.steps, 1) for stretch in stretches]
    changes = [
        Change(words, row[0], row[1], row[2] / steps[0], row[3] / steps[1])
        for words, row in sums.items()
    ]
    return tuple(sorted(changes, key=lambda each: (-abs(each.change_ns), each.name)))


def _work(trace: Trace, on_device: bool) -> Counter[str]:
    """How often each name of device work (or each operator, without a device) occurs."""
    if not on_device:
        return _calls(trace, ["cpu_op"])
    return _counted(trace, device_work(trace).rows)


def _calls(trace: Trace, categories: list[str]) -> Counter[str]:
    """How often each name of some categories occurs, the profiler's steps left out."""
    found = _counted(trace, np.flatnonzero(trace.rows_of(categories)))
    return Counter({n: c for n, c in found.items() if PROFILER_STEP.match(n) is None})


def _counted(trace: Trace, rows: NDArray[np.intp]) -> Counter[str]:
    codes, counts = np.unique(trace.events.name[rows], return_counts=True)
    return Counter(
        {trace.names[c]: int(n) for c, n in zip(codes.tolist(), counts.tolist(), strict=True)}
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
