"""Kernels and operators: time by name, shape, kind, operator and stage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from stagespan.pages.amounts import counted, in_words
from stagespan.pages.figures import Count, CountedTime, Figures, Ns, one_of
from stagespan.pages.result import Cell, Column, Finding, Result, Table, Unavailable, share
from stagespan.trace.analyses.breakdown import TOP, Breakdown, breakdown
from stagespan.trace.analyses.kernel_findings import kernel_findings
from stagespan.trace.analyses.kernel_rows import KIND_OF_CODE, KernelRows, kernel_rows
from stagespan.trace.derived.kernel_kinds import KINDS
from stagespan.trace.derived.windows import base_window
from stagespan.trace.read.groups import RowGroup, grouped, pairs, prevailing
from stagespan.trace.read.intervals import Mask, Numbers
from stagespan.trace.read.model import Trace

_SHOWN = 15
_KINDS_IN_LINE = 4
_Kind = Annotated[str, one_of(KINDS)]


def analyze(trace: Trace) -> Kernels | Unavailable:
    """Break a trace down; Unavailable if it has neither device events nor operators."""
    rows = kernel_rows(trace)
    return rows if isinstance(rows, Unavailable) else Kernels(rows)


@dataclass(frozen=True, slots=True)
class Kernels(Result):
    """The time of a trace's kernels; for a trace without a device, of its operators."""

    work: KernelRows
    """All of it. The JSON is about the whole trace, pages about `work.shown`."""

    def figures(self) -> KernelsFigures:
        """By kind, name, shape, operator and stage."""
        return _figures(self.work)

    def findings(self) -> list[Finding]:
        """Findings about kernels that take much of the device's time."""
        return kernel_findings(self.work.shown)

    def tables(self) -> list[Table]:
        """By kind, by name, by operator, by stage, by shape."""
        return _tables(self.work.shown)

    def line(self) -> str:
        """The kinds of work that took the most time."""
        shown = self.work.shown
        count = counted(len(shown.rows), "device event" if shown.on_device else "operator")
        kinds = "; ".join(shown.kinds(_KINDS_IN_LINE))
        return f"{kinds} of the {in_words(float(shown.total_ns), 'ns')} of {count}"


class KindTime(Figures, frozen=True):
    """The time of one kind of work."""

    kind: _Kind
    time_ns: Ns
    percent: float
    count: Count


class KernelTime(Figures, frozen=True):
    """The time of one kernel, or of one operator on a trace without a device."""

    name: str
    kind: _Kind
    time_ns: Ns
    percent: float
    count: Count
    min_ns: Ns
    max_ns: Ns
    operator: str | None
    stage: str | None


class StageTime(Figures, frozen=True):
    """The time of what a stage launched; None is the time outside of stages."""

    stage: str | None
    time_ns: Ns
    percent: float
    count: Count


class ShapeTime(Figures, frozen=True):
    """The time of an operator with inputs of one shape."""

    operator: str | None
    shape: str
    kernel: str | None
    time_ns: Ns
    percent: float
    count: Count
    """Calls."""
    device_events: Count | None


class ForwardTime(Figures, frozen=True):
    """The time of the backward passes of a forward operator."""

    operator: str | None
    time_ns: Ns
    percent: float
    count: Count


class OperatorTime(Figures, frozen=True):
    """The device time of what an operator launched."""

    operator: str | None
    time_ns: Ns
    percent: float
    count: Count
    calls: Count | None


class HostTime(Figures, frozen=True):
    """The host time of an operator."""

    operator: str | None
    self_ns: Ns
    duration_ns: Ns
    count: Count


# Apart from `KernelRows`, which have a column of each figure for all rows: these are sums over the
# columns by several keys, which only the JSON needs.
class KernelsFigures(Figures, frozen=True):
    """Time by kind, name, shape, operator and stage: lists have 50 rows, sums are over all."""

    on_device: bool
    time_ns: Ns
    count: Count
    names: Count
    kernel_time_ns: Ns | None
    kernels: Count | None
    without_launch: CountedTime | None
    of_graphs: CountedTime | None
    by_kind: list[KindTime]
    top: list[KernelTime]
    by_stage: list[StageTime]
    by_shape: list[ShapeTime] | None
    by_forward_operator: list[ForwardTime] | None
    operators_by_device_time: list[OperatorTime] | None
    operators_by_host_time: list[HostTime] | None
    breakdown: Breakdown


def _figures(kernels: KernelRows) -> KernelsFigures:
    launched, time, total = kernels.launched, kernels.time_ns, kernels.total_ns
    on_device = launched is not None
    return KernelsFigures(
        on_device=kernels.on_device,
        time_ns=total,
        count=len(kernels.rows),
        names=len(kernels.names),
        kernel_time_ns=int(time[kernels.is_kernel].sum()) if on_device else None,
        kernels=int(kernels.is_kernel.sum()) if on_device else None,
        without_launch=None if launched is None else _time_of(time, launched.calls < 0),
        of_graphs=None if launched is None else _time_of(time, launched.of_graph),
        by_kind=_by_kind(kernels),
        top=_top(kernels),
        by_stage=[
            StageTime(_name(kernels, group.code), *_sums(group, total))
            for group in grouped(kernels.stage, time)[:TOP]
        ],
        by_shape=_by_shape(kernels),
        by_forward_operator=_by_forward(kernels),
        operators_by_device_time=_by_device_time(kernels) if on_device else None,
        operators_by_host_time=_by_host_time(kernels),
        breakdown=breakdown(kernels.trace, _stem(kernels.trace.path)),
    )


def _by_kind(kernels: KernelRows) -> list[KindTime]:
    total = kernels.total_ns
    return [KindTime(KIND_OF_CODE[group.code], *_sums(group, total)) for group in kernels.by_kind()]


def _time_of(time_ns: Numbers, chosen: Mask) -> CountedTime:
    return CountedTime(int(chosen.sum()), int(time_ns[chosen].sum()))


def _by_device_time(kernels: KernelRows) -> list[OperatorTime]:
    calls, total = _calls(kernels.operator, kernels.call), kernels.total_ns
    return [
        OperatorTime(_name(kernels, group.code), *_sums(group, total), calls.get(group.code))
        for group in grouped(kernels.operator, kernels.time_ns)[:TOP]
    ]


def _tables(kernels: KernelRows) -> list[Table]:
    """Return tables, the most important first. The notes of long ones say that they are cut."""
    what = "kernel" if kernels.on_device else "operator"
    by_name, count = _top(kernels), len(kernels.by_name())
    columns: list[Column] = [
        ("name", what, ""),
        ("time_ns", "time", "ns"),
        ("percent", _of(kernels), "%"),
        ("count", "count", ""),
        (lambda row: round(row.time_ns / row.count), "mean", "ns"),
        ("kind", "kind", ""),
    ]
    if kernels.on_device:
        columns.append(("operator", "operator", ""))
    if kernels.prevailing(kernels.stage):
        columns.append(("stage", "stage", ""))
    tables = [
        Table.of(
            "Kinds of work",
            _by_kind(kernels),
            (lambda row: KINDS[row.kind], "", ""),
            ("time_ns", "time", "ns"),
            ("percent", _of(kernels), "%"),
            ("count", _what(kernels), ""),
            note=_of_what(kernels),
        ),
        Table.of(
            "Kernels" if kernels.on_device else "Operators",
            by_name,
            *columns,
            note=_note(kernels, count),
        ),
    ]
    if kernels.on_device:
        tables.append(
            _groups("Operators by device time", "operator", kernels, kernels.operator, True)
        )
    if (kernels.stage >= 0).any():
        tables.append(_groups("Stages", "stage", kernels, kernels.stage))
    tables.append(
        Table.of(
            "Shapes",
            (_by_shape(kernels) or [])[:_SHOWN],
            ("operator", "operator", ""),
            ("shape", "inputs", ""),
            ("time_ns", "time", "ns"),
            ("count", "calls", ""),
            (lambda row: round(row.time_ns / row.count), "per call", "ns"),
        )
    )
    return [table for table in tables if table.rows]


def _note(kernels: KernelRows, names: int) -> str:
    notes = [f"{names - TOP:,} more names are not shown."] if names > TOP else []
    if kernels.launched is not None:
        unknown = kernels.launched.calls < 0
        if unknown.any():
            time = int(kernels.time_ns[unknown].sum())
            notes.append(
                f"The launch of {int(unknown.sum()):,} device events ({in_words(time, 'ns')}) is"
                " not in the trace, so their operator and stage are unknown."
            )
        graph = kernels.launched.of_graph & (kernels.call == kernels.launched.calls)
        if graph.any():
            notes.append(
                f"{int(graph.sum()):,} device events ran as part of device graphs: their operator"
                " is the graph's launch."
            )
    return " ".join(notes)


def _groups(
    title: str, what: str, kernels: KernelRows, codes: NDArray[np.int64], with_calls: bool = False
) -> Table:
    groups, total = grouped(codes, kernels.time_ns), kernels.total_ns
    left = f"{len(groups) - _SHOWN:,} more are not shown." if len(groups) > _SHOWN else ""
    calls = _calls(codes, kernels.call) if with_calls else {}
    columns = [(what, ""), ("time", "ns"), (_of(kernels), "%"), (_what(kernels), "")]
    rows: list[tuple[Cell, ...]] = []
    for group in groups[:_SHOWN]:
        row: list[Cell] = [_name(kernels, group.code), group.time_ns]
        row += [share(group.time_ns, total), group.count]
        rows.append((*row, calls.get(group.code)) if with_calls else tuple(row))
    return Table(title, (*columns, ("calls", "")) if with_calls else tuple(columns), rows, left)


def _of(kernels: KernelRows) -> str:
    """The total to which all percentages of this analysis refer."""
    return "of device work" if kernels.on_device else "of operators"


def _what(kernels: KernelRows) -> str:
    return "device events" if kernels.on_device else "calls"


def _of_what(kernels: KernelRows) -> str:
    time = in_words(kernels.total_ns, "ns")
    base = base_window(kernels.trace)
    where = "" if base is None or not base.steps else f" in {base.label}"
    if not kernels.on_device:
        return f"Operators by their own time on the host, {time} in total."
    return (
        f"Device work is the sum of the durations of all kernels, copies and memsets{where}:"
        f" {time}. All percentages of kernels and operators refer to it."
    )


def _top(kernels: KernelRows) -> list[KernelTime]:
    groups, total = kernels.by_name(), kernels.total_ns
    operator, stage = kernels.prevailing(kernels.operator), kernels.prevailing(kernels.stage)
    kind = kernels.kind_of_name
    return [
        KernelTime(
            kernels.trace.names[group.code],
            KIND_OF_CODE[kind[group.code]],
            *_sums(group, total),
            min_ns=group.shortest_ns,
            max_ns=group.longest_ns,
            operator=_name(kernels, operator.get(group.code, -1)),
            stage=_name(kernels, stage.get(group.code, -1)),
        )
        for group in groups[:TOP]
    ]


def _by_shape(kernels: KernelRows) -> list[ShapeTime] | None:
    """Return the time by operator and input shapes; None if no shapes were recorded."""
    known = kernels.shape >= 0
    if not known.any():
        return None
    size = len(kernels.shapes)
    code = kernels.operator[known] * size + kernels.shape[known]
    name = kernels.name[known]
    kernel = prevailing(code, name, kernels.time_ns[known]) if kernels.on_device else {}
    calls, total = _calls(code, kernels.call[known]), kernels.total_ns
    return [
        ShapeTime(
            operator=_name(kernels, group.code // size),
            shape=kernels.shapes[group.code % size],
            kernel=_name(kernels, kernel.get(group.code, -1)),
            time_ns=group.time_ns,
            percent=share(group.time_ns, total),
            count=calls[group.code],
            device_events=group.count if kernels.on_device else None,
        )
        for group in grouped(code, kernels.time_ns[known])[:TOP]
    ]


def _calls(code: NDArray[np.int64], call: NDArray[np.intp]) -> dict[int, int]:
    """Return the number of calls for each code. One call may launch several kernels and copies.

    Codes without a known call are left out.
    """
    code, call = code[call >= 0], call[call >= 0]
    different, _ = pairs(code, call)
    codes, counts = np.unique(different[:, 0], return_counts=True)
    return dict(zip(codes.tolist(), counts.tolist(), strict=True))


def _by_forward(kernels: KernelRows) -> list[ForwardTime] | None:
    """Return the time of backward passes by forward operator; None without such links."""
    known = kernels.forward >= 0
    if not known.any():
        return None
    total = kernels.total_ns
    return [
        ForwardTime(_name(kernels, group.code), *_sums(group, total))
        for group in grouped(kernels.forward[known], kernels.time_ns[known])[:TOP]
    ]


def _by_host_time(kernels: KernelRows) -> list[HostTime] | None:
    host = kernels.host
    if host is None or len(host.rows) == 0:
        return None
    events = kernels.trace.events
    name = events.name[host.rows].astype(np.int64)
    whole = np.bincount(name, weights=events.dur_ns[host.rows], minlength=1)
    return [
        HostTime(_name(kernels, group.code), group.time_ns, int(whole[group.code]), group.count)
        for group in grouped(name, host.own_ns)[:TOP]
    ]


def _sums(group: RowGroup, total: int) -> tuple[int, float, int]:
    """Return the time, its percentage of `total`, and the count."""
    return group.time_ns, share(group.time_ns, total), group.count


def _name(kernels: KernelRows, code: int) -> str | None:
    return kernels.trace.names[code] if code >= 0 else None


def _stem(path: str) -> str:
    name = Path(path).name
    for suffix in (".gz", ".json", "_trace"):
        name = name.removesuffix(suffix)
    return name
