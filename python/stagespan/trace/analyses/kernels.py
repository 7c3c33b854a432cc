"""Kernels and operators: time by name, shape, kind, operator and stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec import structs

from stagespan.pages.amounts import counted, in_words
from stagespan.pages.figures import Count, CountedTime, Figures, Ns
from stagespan.pages.result import Block, Column, Finding, Line, Result, Table, Unavailable
from stagespan.trace.analyses.breakdown import TOP, Breakdown, breakdown
from stagespan.trace.analyses.kernel_findings import kernel_findings
from stagespan.trace.analyses.kernel_rows import KernelRows, KernelTime, Kind, kernel_rows
from stagespan.trace.derived.kernel_kinds import KINDS
from stagespan.trace.derived.windows import base_window
from stagespan.trace.read.groups import grouped
from stagespan.trace.read.intervals import Mask, Numbers
from stagespan.trace.read.model import Trace

_SHOWN = 15
_KINDS_IN_LINE = 4


def analyze(trace: Trace) -> Kernels | Unavailable:
    """Break a trace down; Unavailable if it has neither device events nor operators."""
    rows = kernel_rows(trace)
    return rows if isinstance(rows, Unavailable) else Kernels(rows)


class Kernels(Result, msgspec.Struct, frozen=True):
    """The time of a trace's kernels; for a trace without a device, of its operators."""

    work: KernelRows
    """All of it. The JSON is about the whole trace, pages about `work.shown`."""

    def figures(self) -> KernelsFigures:
        """By kind, name, shape, operator and stage."""
        kernels, launched, work = self.work, self.work.launched, self.work.work
        on_device, time = launched is not None, kernels.time_ns
        forward = work.by(ForwardTime, "forward", where=kernels.forward >= 0)
        return KernelsFigures(
            on_device=kernels.on_device,
            time_ns=kernels.total_ns,
            count=len(kernels.rows),
            names=len(kernels.names),
            kernel_time_ns=int(time[kernels.is_kernel].sum()) if on_device else None,
            kernels=int(kernels.is_kernel.sum()) if on_device else None,
            without_launch=None if launched is None else _time_of(time, launched.calls < 0),
            of_graphs=None if launched is None else _time_of(time, launched.of_graph),
            by_kind=work.by(KindTime, "kind"),
            top=kernels.by_name[:TOP],
            by_stage=work.by(StageTime, "stage")[:TOP],
            by_shape=_by_shape(kernels)[:TOP] or None,
            by_forward_operator=forward[:TOP] or None,
            operators_by_device_time=work.by(OperatorTime, "operator")[:TOP] if on_device else None,
            operators_by_host_time=_by_host_time(kernels),
            breakdown=breakdown(kernels.trace, _stem(kernels.trace.path)),
        )

    def findings(self) -> list[Finding]:
        """Findings about kernels that take much of the device's time."""
        return kernel_findings(self.work.in_steps)

    def tables(self) -> list[Table]:
        """By kind, by name, by operator, by stage, by shape."""
        return _tables(self.work.in_steps)

    def head(self) -> list[Block]:
        """The kinds of work that took the most time."""
        work = self.work.in_steps
        count = counted(len(work.rows), "device event" if work.on_device else "operator")
        whole = f"the {in_words(float(work.total_ns), 'ns')} of {count}"
        return [Line(f"Time goes to: {'; '.join(work.kinds(_KINDS_IN_LINE))} of {whole}.")]


class KindTime(Figures, frozen=True):
    """The time of one kind of work."""

    kind: Kind
    time_ns: Ns
    percent: float
    count: Count


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
    calls: Count = msgspec.field(name="count")
    count: Count | None = msgspec.field(name="device_events")


class ForwardTime(Figures, frozen=True):
    """The time of the backward passes of a forward operator."""

    forward: str | None = msgspec.field(name="operator")
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


def _time_of(time_ns: Numbers, chosen: Mask) -> CountedTime:
    return CountedTime(int(chosen.sum()), int(time_ns[chosen].sum()))


def _by_shape(kernels: KernelRows) -> list[ShapeTime]:
    """Return the time by operator and input shapes; empty if no shapes were recorded."""
    main = ("kernel",) if kernels.on_device else ()
    rows = kernels.work.by(ShapeTime, "operator", "shape", where=kernels.shape >= 0, main=main)
    return rows if kernels.on_device else [structs.replace(row, count=None) for row in rows]


def _by_host_time(kernels: KernelRows) -> list[HostTime] | None:
    host, names = kernels.host, kernels.trace.names
    if host is None or len(host.rows) == 0:
        return None
    events = kernels.trace.events
    name = events.name[host.rows].astype(np.int64)
    whole = np.bincount(name, weights=events.dur_ns[host.rows], minlength=1)
    return [
        HostTime(names[group.code], group.time_ns, int(whole[group.code]), group.count)
        for group in grouped(name, host.own_ns)[:TOP]
    ]


def _tables(kernels: KernelRows) -> list[Table]:
    """Return tables, the most important first. The notes of long ones say that they are cut."""
    work, on_device, by_name = kernels.work, kernels.on_device, kernels.by_name
    # All percentages of this analysis refer to the same total.
    time: list[Column] = [
        ("time_ns", "time", "ns"),
        ("percent", "of device work" if on_device else "of operators", "%"),
    ]
    counted_time: list[Column] = [*time, ("count", "device events" if on_device else "calls", "")]
    main: list[Column] = [("operator", "operator", "")] if on_device else []
    if any(row.stage is not None for row in by_name):
        main.append(("stage", "stage", ""))
    tables = [
        Table.of(
            "Kinds of work",
            work.by(KindTime, "kind"),
            (lambda row: KINDS[row.kind], "", ""),
            *counted_time,
            note=_of_what(kernels),
        ),
        Table.of(
            "Kernels" if on_device else "Operators",
            by_name[:TOP],
            ("kernel", "kernel" if on_device else "operator", ""),
            *time,
            ("count", "count", ""),
            (lambda row: round(row.time_ns / row.count), "mean", "ns"),
            ("kind", "kind", ""),
            *main,
            note=_note(kernels, len(by_name)),
        ),
    ]
    if on_device:
        operators = work.by(OperatorTime, "operator")
        columns: list[Column] = [
            ("operator", "operator", ""),
            *counted_time,
            ("calls", "calls", ""),
        ]
        tables.append(_longest("Operators by device time", operators, columns))
    if (kernels.stage >= 0).any():
        stages = work.by(StageTime, "stage")
        tables.append(_longest("Stages", stages, [("stage", "stage", ""), *counted_time]))
    tables.append(
        Table.of(
            "Shapes",
            _by_shape(kernels)[:_SHOWN],
            ("operator", "operator", ""),
            ("shape", "inputs", ""),
            ("time_ns", "time", "ns"),
            ("calls", "calls", ""),
            (lambda row: round(row.time_ns / row.calls), "per call", "ns"),
        )
    )
    return [table for table in tables if table.rows]


def _longest(title: str, rows: Sequence[Figures], columns: Iterable[Column]) -> Table:
    left = f"{len(rows) - _SHOWN:,} more are not shown." if len(rows) > _SHOWN else ""
    return Table.of(title, rows[:_SHOWN], *columns, note=left)


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


def _stem(path: str) -> str:
    name = Path(path).name
    for suffix in (".gz", ".json", "_trace"):
        name = name.removesuffix(suffix)
    return name
