"""Compare two traces: check that they match, align their windows, pair renamed kernels."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from stagespan.pages.kernel_names import kernel_label
from stagespan.pages.result import Unavailable, shortened
from stagespan.trace.analyses.idle_culprits import group_by_culprit
from stagespan.trace.analyses.idle_time import split_gaps
from stagespan.trace.compare.comparison import (
    CostChange,
    Side,
    TraceComparison,
    change_of,
    comparison_of,
)
from stagespan.trace.compare.cost_table import COMPUTING, Cells, CostCell, device_cells, host_cells
from stagespan.trace.compare.reasons import Overlap
from stagespan.trace.derived.call_site import call_sites
from stagespan.trace.derived.device import COMMUNICATION, COMPUTE, device_work
from stagespan.trace.derived.launch_sources import launch_sources, stage_marks
from stagespan.trace.derived.modules import class_of_module
from stagespan.trace.derived.step_ranges import FRAMEWORK, PROFILER_STEP
from stagespan.trace.derived.windows import Windows, steps_of, whole
from stagespan.trace.rates.collectives import argument_of
from stagespan.trace.read.groups import counts_of
from stagespan.trace.read.intervals import Cover, Numbers, Rows
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import TraceView


def renamed(before: Trace, after: Trace, old: Cells, new: Cells) -> dict[str, str]:
    """Find renamed kernels. Returns the old name by the new one.

    A pair is one kernel that only the first trace has and one that only the second has. Both are of
    one kind and are launched equally often per step by the same operators in the same stages and
    layers, for inputs of the same shapes if both traces have them. No other pair has the same
    properties.
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
    """Return the input shapes of the operators that launched each kernel."""
    codes = [code for code, name in enumerate(trace.names) if name in kernels]
    rows = np.flatnonzero(np.isin(trace.events.name, codes))
    launched = launch_sources(trace, rows) if len(rows) else None
    if launched is None:
        return {}
    shape, texts = argument_of(trace, launched.operator, "Input Dims")
    by_name: dict[str, set[str]] = {}
    for name, code in zip(trace.events.name[rows].tolist(), shape.tolist(), strict=True):
        if code >= 0:
            by_name.setdefault(trace.names[name], set()).add(texts[code])
    return {name: frozenset(shapes) for name, shapes in by_name.items()}


def _signatures(cells: Cells, others: set[str]) -> dict[frozenset[object], list[str]]:
    # Kernels are paired regardless of shapes, which are compared afterwards.
    counts: dict[CostCell, int] = {}
    for cell, number in cells.count.items():
        place = structs.replace(cell, shape="")
        counts[place] = counts.get(place, 0) + number
    places: dict[str, set[object]] = {}
    for cell, count in counts.items():
        if cell.group == COMPUTING and cell.kernel not in others and cell.operator:
            # Products are compared, so that no division rounds; see the counts in Cells.
            whole, rest = divmod(count, cells.per)
            work = (cell.part, cell.stage, cell.layer, cell.operator, whole, rest / cells.per)
            places.setdefault(cell.kernel, set()).add(work)
    signatures: dict[frozenset[object], list[str]] = {}
    for name, where in places.items():
        signatures.setdefault(frozenset(where), []).append(name)
    return signatures


# --- Whether two traces show the same program ---


_DIGITS = re.compile(r"\d+")
# The least fractions of common work, weighted by calls. One model in two sizes, or two models of
# one size, have kernels or weights in common, but not their input shapes.
_LEAST_SHAPES, _LEAST_KERNELS, _LEAST_OPERATORS = 0.15, 0.6, 0.95
# The least fraction of common names of stages and modules, and the least number of names.
_LEAST_PARTS, _FEWEST_PARTS = 0.6, 3
# The least fraction of work with a known operator; below it, operators are not compared.
_LEAST_KNOWN = 0.5


class Likeness(msgspec.Struct, frozen=True):
    """The fractions that two traces have in common, from 0 to 1; None if unknown."""

    kernels: float | None
    """The kernels; None without a device."""
    operators: float | None
    """The operators that launched the kernels; without a device, all operators."""
    shapes: float | None
    """The operators with their input shapes."""
    parts: float | None
    """The names of stages and classes of modules."""

    @property
    def alike(self) -> bool:
        """Whether the traces may be of one program; True if unknown."""
        thresholds = (
            (self.shapes, _LEAST_SHAPES),
            (self.kernels, _LEAST_KERNELS),
            (self.operators, _LEAST_OPERATORS),
            (self.parts, _LEAST_PARTS),
        )
        known = [(share, least) for share, least in thresholds if share is not None]
        return not known or any(share >= least for share, least in known)

    @property
    def work(self) -> float:
        """The fraction of the work that is the same, by the most precise known figure."""
        return next((s for s in (self.shapes, self.kernels, self.operators) if s is not None), 0.0)


def likeness(before: Trace, after: Trace) -> Likeness:
    """Return how similar the contents of the traces are."""
    first, second = (_Work(trace) for trace in (before, after))
    return Likeness(
        kernels=_in_both(first.kernels, second.kernels),
        operators=_in_both(first.operators, second.operators),
        shapes=_in_both(first.shapes, second.shapes),
        parts=_same(first.parts, second.parts),
    )


class _Work:
    """The counts of each kernel, operator, and operator with its shapes in a trace."""

    def __init__(self, trace: Trace) -> None:
        rows = device_work(trace).rows
        names = trace.names
        self.kernels: Counter[str] = Counter()
        for code, count in _counts(trace.events.name[rows]):
            self.kernels[kernel_label(names[code])] += count
        if len(rows):
            found = launch_sources(trace, rows)
            operator = np.full(len(rows), -1) if found is None else found.operator
        else:
            marks = trace.rows_of(["cpu_op"]) & ~stage_marks(trace)
            operator = np.flatnonzero(marks)
        operators = operator[operator >= 0]
        enough = len(operators) >= _LEAST_KNOWN * max(len(operator), 1)
        self.operators: Counter[str] = Counter()
        for code, count in _counts(trace.events.name[operators]) if enough else ():
            if PROFILER_STEP.match(names[code]) is None:
                self.operators[names[code]] += count
        self.shapes = _shapes(trace, operators) if enough else Counter()
        self.parts = _parts(trace)


def _shapes(trace: Trace, operators: Rows) -> Counter[tuple[str, str]]:
    shape, texts = argument_of(trace, operators, "Input Dims")
    has = shape >= 0
    if has.sum() < _LEAST_KNOWN * len(operators):
        return Counter()
    count = len(texts)
    code = trace.events.name[operators[has]].astype(np.int64) * count + shape[has]
    return Counter(
        {(trace.names[each // count], texts[each % count]): n for each, n in _counts(code)}
    )


def _parts(trace: Trace) -> set[str]:
    """Return the user's stages, without numbers, and the classes of modules."""
    stages = {trace.names[code] for code, _ in _counts(trace.events.name[stage_marks(trace)])}
    own = {_DIGITS.sub("#", name) for name in stages if FRAMEWORK.match(name) is None}
    classes = map(class_of_module, trace.names)
    return own | {name for name in classes if name is not None}


def _counts(codes: Numbers | NDArray[np.int32]) -> list[tuple[int, int]]:
    found, counts = counts_of(codes)
    return list(zip(found.tolist(), counts.tolist(), strict=True))


def _in_both(first: Counter[Any], second: Counter[Any]) -> float | None:
    """Return the fraction of the work that both traces have, of each trace's total work."""
    wholes = sum(first.values()), sum(second.values())
    if not all(wholes):
        return None
    return sum(min(n / wholes[0], second[what] / wholes[1]) for what, n in first.items())


def _same(first: set[str], second: set[str]) -> float | None:
    either = first | second
    if len(first) < _FEWEST_PARTS or len(second) < _FEWEST_PARTS:
        return None
    return len(first & second) / len(either)


# --- Comparing ---


# The least fraction of the work of two whole traces that must be in both.
_LEAST_COMMON = 0.8


def compare(before: Trace, after: Trace) -> TraceComparison | Unavailable:
    """Compare two traces; Unavailable, with the reason, if they cannot be compared."""
    before, after = TraceView.of(before), TraceView.of(after)
    reason = _why_not(before, after)
    if reason is not None:
        return Unavailable(reason, "different_activities", is_requested=True)
    on_device = len(device_work(before).rows) > 0
    remarks: list[str] = []
    stretches = _stretches(before, after, remarks)
    if stretches is None:
        return Unavailable(
            "One of the traces contains no events with a duration, so they cannot be compared.",
            "no_durations",
            is_requested=True,
        )
    alignment = likeness(before, after)
    remarks += _about_devices(before, after)
    if stretches[0].steps == 0:
        work = _work(before, on_device), _work(after, on_device)
        alike = sum((work[0] & work[1]).values()) / max(sum((work[0] | work[1]).values()), 1)
        if alike < _LEAST_COMMON:
            counts = [f"{sum(each.values()):,}" for each in work]
            what = "launches of kernels and copies" if on_device else "calls of operators"
            return Unavailable(
                "The traces do not both have steps, and contain different work"
                f" ({counts[0]} {what} before, {counts[1]} after, {100 * alike:.0f} % of them the"
                " same), so the difference of their totals is meaningless. Record both with"
                " steps, or record the same part of the program.",
                "different_work",
                is_requested=True,
            )
        remarks.append("The whole traces are compared, because not both have the same steps.")
    elif not alignment.alike:
        what = "kernels" if on_device else "operators"
        shapes = "" if alignment.shapes is None else ", with the shapes of their inputs,"
        remarks.insert(
            0,
            f"Only {100 * alignment.work:.0f} % of the {what}{shapes} are the same. If the traces"
            " are not from the same program, the difference of their totals is meaningless.",
        )
    remarks += [trace.caveat for trace in (before, after) if trace.caveat]
    written = _written(before, after)
    with_shapes = all(each.argument("Input Dims") is not None for each in (before, after))
    sides = [
        _side(trace, stretch, names, on_device, with_shapes)
        for trace, stretch, names in zip((before, after), stretches, written, strict=True)
    ]
    return comparison_of(
        before=sides[0],
        after=sides[1],
        renamed=renamed(before, after, sides[0].cells, sides[1].cells),
        remarks=remarks,
        on_device=on_device,
        alike=alignment.alike,
        waits=_waits(before, after, stretches) if on_device else [],
    )


def _side(
    trace: Trace, stretch: Windows, names: list[str], on_device: bool, with_shapes: bool
) -> Side:
    host = host_cells(trace, stretch, names, with_shapes)
    cells = device_cells(trace, stretch, names, with_shapes) if on_device else host
    return Side.of(trace.path, stretch, cells, host, _overlap(trace, stretch))


def _overlap(trace: Trace, stretch: Windows) -> Overlap | None:
    """Return the communication of a step; None if there is none, or the host communicates."""
    events, kind = trace.events, device_work(trace).kind
    covers = [
        Cover(events.begin_ns[kind == each], events.end_ns[kind == each])
        for each in (COMMUNICATION, COMPUTE)
    ]
    begin, end = stretch.begin_ns, stretch.end_ns
    whole = int(covers[0].length(begin, end).sum())
    exposed = int(
        (covers[0] | covers[1]).length(begin, end).sum() - covers[1].length(begin, end).sum()
    )
    per = max(stretch.steps, 1)
    return Overlap(whole // per, exposed // per) if whole else None


def _why_not(before: Trace, after: Trace) -> str | None:
    devices = [len(device_work(trace).rows) > 0 for trace in (before, after)]
    if devices[0] != devices[1]:
        with_device = "first" if devices[0] else "second"
        return (
            f"Only the {with_device} trace has device events: record both with the same activities"
            " to compare them."
        )
    return None


def _stretches(before: Trace, after: Trace, remarks: list[str]) -> tuple[Windows, Windows] | None:
    steps = steps_of(before), steps_of(after)
    first, second = steps
    if first is not None and second is not None:
        if _same_steps(first, second):
            if first.steps != second.steps:
                remarks.append(
                    f"The traces have {first.steps:,} and {second.steps:,} steps, so the means per"
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
    properties = trace.metadata.get("deviceProperties")
    if not isinstance(properties, list) or not properties or not isinstance(properties[0], dict):
        return None
    name = properties[0].get("name")
    return name if isinstance(name, str) and name else None


def _waits(before: Trace, after: Trace, stretches: tuple[Windows, Windows]) -> list[CostChange]:
    """Return the idle time caused by calls that wait or allocate, over each whole trace."""
    sums: dict[str, list[int]] = {}
    for at, (trace, stretch) in enumerate(zip((before, after), stretches, strict=True)):
        per = max(stretch.steps, 1)
        for group in group_by_culprit(call_sites(trace), split_gaps(trace)[1]):
            row = sums.setdefault(group.label, [0, 0, 0, 0])
            row[at] += round(group.idle_ns / per)
            row[2 + at] += group.calls
    steps = [max(stretch.steps, 1) for stretch in stretches]
    return [
        change_of(label, row[0], row[1], row[2] / steps[0], row[3] / steps[1])
        for label, row in sums.items()
    ]


def _work(trace: Trace, on_device: bool) -> Counter[str]:
    """Return the counts of device work by name; without a device, of operators but steps."""
    rows = device_work(trace).rows if on_device else np.flatnonzero(trace.rows_of(["cpu_op"]))
    counts = {trace.names[code]: count for code, count in _counts(trace.events.name[rows])}
    if not on_device:
        counts = {name: n for name, n in counts.items() if PROFILER_STEP.match(name) is None}
    return Counter(counts)


def _written(before: Trace, after: Trace) -> tuple[list[str], list[str]]:
    """Return the names by code, without numbers if only one trace has the name.

    So `batch 17` and `batch 42` are the same, while `layer 1` and `layer 2`, which both traces
    have, stay different.
    """
    both = set(before.names) & set(after.names)

    def spelled(names: list[str]) -> list[str]:
        return [name if name in both else _DIGITS.sub("#", name) for name in names]

    return spelled(before.names), spelled(after.names)
