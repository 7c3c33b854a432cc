"""Kernels and operators: time by name, shape, kind, operator and stage."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from stagespan.text.amounts import counted, in_words
from stagespan.trace.analyses.breakdown import TOP, Breakdown, breakdown
from stagespan.trace.analyses.operators import operator_findings
from stagespan.trace.derived.captures import captured_work
from stagespan.trace.derived.device import device_work
from stagespan.trace.derived.gains import gain_of_rows
from stagespan.trace.derived.kernel_kinds import (
    ATTENTION,
    COMMUNICATION,
    CONVOLUTION,
    COPY,
    ELEMENTWISE,
    KINDS,
    LAYOUT,
    MATMUL,
    MOE,
    NORM,
    OPTIMIZER,
    OTHER,
    REDUCTION,
    inductor_kind,
    kind_of,
)
from stagespan.trace.derived.launch_sources import (
    HostOperators,
    LaunchSources,
    host_operators,
    launch_sources,
    stages_around,
)
from stagespan.trace.derived.missing import DAMAGED_TIMES, needs_operators
from stagespan.trace.derived.windows import base_window
from stagespan.trace.figures import Count, CountedTime, Figures, Ns, one_of
from stagespan.trace.rates.calls import inputs_in_words
from stagespan.trace.rates.peaks import device_peaks, kernel_profiler, vendor_of
from stagespan.trace.read.groups import RowGroup, grouped, pairs, prevailing
from stagespan.trace.read.intervals import Mask, Numbers, Rows, covered
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once, operators_of
from stagespan.trace.result import (
    Cell,
    Column,
    Evidence,
    Finding,
    Gain,
    Result,
    Table,
    Thresholds,
    Unavailable,
    evidence,
    of_size,
    share,
    shortened,
)

_KINDS = list(KINDS)
_SHOWN = 15
_KINDS_IN_LINE = 4
_Kind = Annotated[str, one_of(KINDS)]


@once
def analyze(trace: Trace) -> Kernels | Unavailable:
    """Break a trace down; Unavailable if it has neither device events nor operators."""
    host = host_operators(trace)
    work = device_work(trace)
    rows = work.rows
    if len(rows) == 0 and (host is None or len(host.rows) == 0):
        return Unavailable(
            "The trace has neither kernels nor operators: record it with the activities of the CPU"
            " and of the device.",
            "no_operators",
            needs=needs_operators(trace),
        )
    if len(rows) == 0:
        assert host is not None
        return _of_host(trace, host)
    found = launch_sources(trace, rows)
    if found is None:
        return DAMAGED_TIMES
    events = trace.events
    captured = captured_work(trace)
    hosts, called = operators_of(trace), found.operator
    in_graph, call = found.of_graph, found.operator
    if captured is not None:
        called = np.where(captured.known, captured.operator, called)
        call = np.where(captured.known, captured.numbers(captured.operator), call)
        in_graph = in_graph & ~captured.known
    operator = _names(hosts, called)
    shape, shapes = _shapes(hosts, called)
    without_shapes = in_graph if captured is None else found.of_graph & ~captured.with_shapes
    return Kernels(
        trace=trace,
        on_device=True,
        rows=rows,
        time_ns=events.dur_ns[rows],
        is_kernel=work.is_kernel[rows],
        kind=_of_optimizer(
            trace, found.stage, _kinds(trace, events.name[rows].astype(np.int64), operator)
        ),
        name=events.name[rows].astype(np.int64),
        operator=np.where(in_graph, _names(trace, found.calls), operator),
        stage=_names(trace, found.stage),
        forward=_names(hosts, found.forward if captured is None else captured.forward_or(found)),
        call=np.where(in_graph, found.calls, call),
        shape=np.where(without_shapes, -1, shape),
        shapes=shapes,
        launched=found,
        host=host,
        without_shapes=without_shapes,
        hosts=hosts,
    )


@dataclass(frozen=True)
class Kernels(Result):
    """The kernels of a trace with their launches; for a trace without a device, its operators.

    `rows` are device events, including copies and memsets, or else operators with their own time.
    All arrays have one element per row; codes of names are those of `Trace.names`, -1 for unknown.
    """

    trace: Trace
    on_device: bool
    rows: Rows
    time_ns: Numbers
    is_kernel: NDArray[np.bool_]
    """Whether the row is a kernel, and not a copy or memset."""
    kind: NDArray[np.int64]
    """Index into KINDS."""
    name: NDArray[np.int64]
    operator: NDArray[np.int64]
    stage: NDArray[np.int64]
    forward: NDArray[np.int64]
    call: Rows
    """The call of the operator, or of the graph's launch; -1 if it is unknown. Its row in
    `hosts.events` is the remainder by their number: a captured call has a number for each launch of
    its graph."""
    shape: NDArray[np.int64]
    """Index into `shapes`, or -1 if none was recorded."""
    shapes: list[str]
    launched: LaunchSources | None
    """The launch of each row; None without a device."""
    host: HostOperators | None
    without_shapes: Mask
    """Which rows ran in device graphs whose captures do not show the shapes."""
    hosts: Trace
    """The trace that has the operators: that of the capture, if there is one, after its own."""

    @property
    def total_ns(self) -> int:
        """The sum over all rows."""
        return int(self.time_ns.sum())

    @cached_property
    def shown(self) -> Kernels:
        """What pages show: the work that began in the steps, or all of it without steps.

        The figures in the JSON are about the whole trace.
        """
        base = base_window(self.trace)
        if self.launched is None or base is None:
            return self
        begin = self.trace.events.begin_ns[self.rows]
        inside = (begin >= base.begin_ns) & (begin < base.end_ns)
        if inside.all() or not inside.any():
            return self
        columns = ("rows", "time_ns", "is_kernel", "kind", "name", "operator", "stage", "forward")
        more = ("call", "shape", "without_shapes")
        chosen = {each: getattr(self, each)[inside] for each in (*columns, *more)}
        return replace(self, **chosen, launched=self.launched.of(inside))

    @property
    def kind_of_name(self) -> dict[int, int]:
        """The kind of each kernel name; if there are several, the one with the most time."""
        return self.prevailing(self.kind)

    def by_kind(self) -> list[RowGroup]:
        """Time by index into KINDS."""
        return grouped(self.kind, self.time_ns)

    def by_name(self) -> list[RowGroup]:
        """Time of kernels, or operators, by name."""
        return grouped(self.name[self.is_kernel], self.time_ns[self.is_kernel])

    def prevailing(self, other: NDArray[np.int64]) -> dict[int, int]:
        """Return the code in `other`, such as the operator, with most time of each kernel name."""
        chosen = self.is_kernel
        return prevailing(self.name[chosen], other[chosen], self.time_ns[chosen])

    def figures(self) -> KernelsFigures:
        """By kind, name, shape, operator and stage."""
        return _figures(self)

    def findings(self) -> list[Finding]:
        """Findings about kernels that take much of the device's time."""
        return kernel_findings(self.shown)

    def tables(self) -> list[Table]:
        """By kind, by name, by operator, by stage, by shape."""
        return as_tables(self.shown)

    def line(self) -> str:
        """The kinds of work that took the most time."""
        shown = self.shown
        count = counted(len(shown.rows), "device event" if shown.on_device else "operator")
        kinds = "; ".join(shown.kinds(_KINDS_IN_LINE))
        return f"{kinds} of the {in_words(float(shown.total_ns), 'ns')} of {count}"

    def kinds(self, most: int) -> list[str]:
        """The kinds of work that took the most time, at most `most`, each with its percentage."""
        return [
            f"{self._named_kind(group.code)} {share(group.time_ns, self.total_ns):.1f} %"
            for group in self.by_kind()[:most]
        ]

    def _named_kind(self, code: int) -> str:
        """The name of a kind; what is of no known kind has the name that takes most of it."""
        name = KINDS[_KINDS[code]]
        if _KINDS[code] != OTHER:
            return name
        mine = self.kind == code
        first = grouped(self.name[mine], self.time_ns[mine])[0]
        return f"{name} (mostly {shortened(self.trace.names[first.code], 40)})"


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


# Apart from `Kernels`, which has a column of each figure for all rows: these are sums over the
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


def _figures(kernels: Kernels) -> KernelsFigures:
    launched, time, total = kernels.launched, kernels.time_ns, kernels.total_ns
    on_device = launched is not None
    return KernelsFigures(
        on_device=kernels.on_device,
        time_ns=total,
        count=len(kernels.rows),
        names=len(np.unique(kernels.name)),
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


def _by_kind(kernels: Kernels) -> list[KindTime]:
    total = kernels.total_ns
    return [KindTime(_KINDS[group.code], *_sums(group, total)) for group in kernels.by_kind()]


def _time_of(time_ns: Numbers, chosen: Mask) -> CountedTime:
    return CountedTime(int(chosen.sum()), int(time_ns[chosen].sum()))


def _by_device_time(kernels: Kernels) -> list[OperatorTime]:
    calls, total = _calls(kernels.operator, kernels.call), kernels.total_ns
    return [
        OperatorTime(_name(kernels, group.code), *_sums(group, total), calls.get(group.code))
        for group in grouped(kernels.operator, kernels.time_ns)[:TOP]
    ]


def as_tables(kernels: Kernels) -> list[Table]:
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


def _note(kernels: Kernels, names: int) -> str:
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
    title: str, what: str, kernels: Kernels, codes: NDArray[np.int64], with_calls: bool = False
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


def _of(kernels: Kernels) -> str:
    """The total to which all percentages of this analysis refer."""
    return "of device work" if kernels.on_device else "of operators"


def _what(kernels: Kernels) -> str:
    return "device events" if kernels.on_device else "calls"


def _of_what(kernels: Kernels) -> str:
    time = in_words(kernels.total_ns, "ns")
    base = base_window(kernels.trace)
    where = "" if base is None or not base.steps else f" in {base.label}"
    if not kernels.on_device:
        return f"Operators by their own time on the host, {time} in total."
    return (
        f"Device work is the sum of the durations of all kernels, copies and memsets{where}:"
        f" {time}. All percentages of kernels and operators refer to it."
    )


def _top(kernels: Kernels) -> list[KernelTime]:
    groups, total = kernels.by_name(), kernels.total_ns
    operator, stage = kernels.prevailing(kernels.operator), kernels.prevailing(kernels.stage)
    kind = kernels.kind_of_name
    return [
        KernelTime(
            kernels.trace.names[group.code],
            _KINDS[kind[group.code]],
            *_sums(group, total),
            min_ns=group.shortest_ns,
            max_ns=group.longest_ns,
            operator=_name(kernels, operator.get(group.code, -1)),
            stage=_name(kernels, stage.get(group.code, -1)),
        )
        for group in groups[:TOP]
    ]


def _by_shape(kernels: Kernels) -> list[ShapeTime] | None:
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


def _by_forward(kernels: Kernels) -> list[ForwardTime] | None:
    """Return the time of backward passes by forward operator; None without such links."""
    known = kernels.forward >= 0
    if not known.any():
        return None
    total = kernels.total_ns
    return [
        ForwardTime(_name(kernels, group.code), *_sums(group, total))
        for group in grouped(kernels.forward[known], kernels.time_ns[known])[:TOP]
    ]


def _by_host_time(kernels: Kernels) -> list[HostTime] | None:
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


def _name(kernels: Kernels, code: int) -> str | None:
    return kernels.trace.names[code] if code >= 0 else None


def _stem(path: str) -> str:
    name = Path(path).name
    for suffix in (".gz", ".json", "_trace"):
        name = name.removesuffix(suffix)
    return name


# --- Findings ---


# Percent of the steps, or of the trace: if kernels take less, other time is to be saved first.
_LEAST_PERCENT = 10.0


_DOMINANT = 50.0


_TINY_NS = 5_000


_TINY_LEAST = 10_000


_TINY_SHARE = 50.0


_FUSIBLE = tuple(_KINDS.index(kind) for kind in (ELEMENTWISE, COPY, NORM, REDUCTION))


_FUSIBLE_SHARES = Thresholds(60.0, 40.0, 30.0)


_ELEMENTWISE_LEAST = 10.0


# These already read memory only once, or cannot be fused with elementwise kernels.
_FUSED = re.compile(
    r"multi_?tensor|foreach|softmax|pool|sort|topk|scan|cub::|rocprim", re.IGNORECASE
)


_LAYOUT_SHARES = Thresholds(20.0, 5.0)


_ASCEND_LAYOUT = re.compile("TransData")


_MIOPEN_LAYOUT = re.compile(r"^batched_transpose_\d")


_COMPILED = re.compile(r"^Torch-Compiled Region|^CompiledFunction|^## Call CompiledFxGraph")


_SINGLE = re.compile(
    r"(?:^|_)(?:volta|turing|ampere|hopper|sm[789]\d)_s(?:gemm|cudnn)_|cutlass_[789]\d_simt_sgemm"
    r"|^sm\d+_xmma_gemm_f32f32_f32f32_f32"
    # cuDNN's own kernels, whose first types are those of the operands.
    r"|(?:dgrad|wgrad)\w*_engine<float,|implicit_convolve_sgemm<float, float"
    r"|winograd\w*<float, float"
)


# These have matrix units only for half precision.
_HALF_ALONE = re.compile(r"volta|turing|sm7\d|cutlass_7")


_SOFTMAX = re.compile(r"softmax", re.IGNORECASE)


_SOFTMAX_SHARES = Thresholds(30.0, 10.0)


_BATCHED = re.compile(r"^aten::(?:bmm|baddbmm)$")


# On the matrix units such work takes less than half of its time.
_SINGLE_SHARES = Thresholds(80.0, 40.0, 20.0)


def kernel_findings(kernels: Kernels) -> list[Finding]:
    """Findings about a device's kernels, or about the operators of a trace without a device."""
    if not kernels.on_device:
        return operator_findings(kernels.trace)
    base = base_window(kernels.trace)
    time = int(kernels.time_ns[kernels.is_kernel].sum())
    if base is None or share(time, base.whole_ns) < _LEAST_PERCENT:
        return []
    found = [
        _dominant(kernels),
        _tiny(kernels),
        _fusible(kernels),
        _layout(kernels),
        _single_precision(kernels),
        _attention_in_parts(kernels),
    ]
    return [each for each in found if each is not None]


def _dominant(kernels: Kernels) -> Finding | None:
    """Return a finding if one kernel takes most of the device's busy time."""
    groups = kernels.by_name()
    first = groups[0]
    percent = share(first.time_ns, kernels.total_ns)
    events = kernels.trace.events
    # Streams overlap: more than half of the busy time, not only of the sum.
    begin, end = events.begin_ns[kernels.rows], events.end_ns[kernels.rows]
    mine = kernels.name == first.code
    of_busy = share(covered(begin[mine], end[mine]), covered(begin, end))
    kind = _KINDS[kernels.kind_of_name[first.code]]
    if min(percent, of_busy) < _DOMINANT or kind == "communication":
        return None
    if _SINGLE.search(kernels.trace.names[first.code]):
        return None  # another finding says what to change
    operator = kernels.prevailing(kernels.operator).get(first.code)
    launched = "" if operator is None else f" (launched by {kernels.trace.names[operator]})"
    name = shortened(kernels.trace.names[first.code])
    tool = kernel_profiler(vendor_of(kernels.trace))
    return Finding(
        of_size("medium", first.time_ns),
        f"The kernel {name}{launched} takes {in_words(first.time_ns, 'ns')}"
        f" ({percent:.1f} % of device work) in {counted(first.count, 'launch', 'launches')}."
        f" {tool} shows whether it uses the device well.",
        tuple(_longest_two(kernels, mine)),
        "kernels.dominant",
        numbers={"time_ns": first.time_ns, "percent": percent, "launches": first.count},
        no_gain="the trace does not show how fast the kernel could be",
    )


def _tiny(kernels: Kernels) -> Finding | None:
    """Return a finding about many kernels that are shorter than their launches."""
    assert kernels.launched is not None
    single = kernels.is_kernel & ~kernels.launched.of_graph
    tiny = single & (kernels.time_ns < _TINY_NS)
    count = int(tiny.sum())
    percent = share(count, int(single.sum()))
    if count < _TINY_LEAST or percent < _TINY_SHARE:
        return None
    time = int(kernels.time_ns[tiny].sum())
    first = grouped(kernels.name[tiny], kernels.time_ns[tiny])[0]
    return Finding(
        "medium",
        f"{count:,} kernels ({percent:.1f} % of those launched one by one) ran for less than"
        f" {in_words(_TINY_NS, 'ns')} each, {in_words(time, 'ns')} in total. They would cost less"
        " if torch.compile fused them, if a device graph launched them, or with more work in each.",
        (
            Evidence("kernels below 5 µs", None, count, "events"),
            Evidence(kernels.trace.names[first.code], None, first.count, "events"),
        ),
        "kernels.tiny",
        numbers={"kernels": count, "percent": percent, "time_ns": time},
        gain=_gain(kernels, tiny, "few kernels do their work in next to no time"),
    )


def _fusible(kernels: Kernels) -> Finding | None:
    """Return a finding if memory-bound kernels that are not fused take much time."""
    names = kernels.trace.names
    ran = np.unique(kernels.name).tolist()
    if any(inductor_kind(names[code]) for code in ran):
        return None
    if any(_COMPILED.search(name) for name in names):
        return None
    chosen = kernels.is_kernel & np.isin(kernels.kind, _FUSIBLE) & ~_named(kernels, _FUSED)
    time, total = int(kernels.time_ns[chosen].sum()), kernels.total_ns
    percent = share(time, total)
    severity = _FUSIBLE_SHARES.severity(percent)
    elementwise = chosen & (kernels.kind == _KINDS.index(ELEMENTWISE))
    least = _ELEMENTWISE_LEAST
    if severity is None or share(int(kernels.time_ns[elementwise].sum()), total) < least:
        return None
    groups = grouped(kernels.name[chosen], kernels.time_ns[chosen])
    return Finding(
        of_size(severity, time),
        f"{in_words(time, 'ns')} ({percent:.1f} % of device work) went into"
        f" {counted(int(chosen.sum()), 'memory-bound kernel')} (elementwise, copies, norms,"
        " reductions), and no code in the trace was compiled. torch.compile would fuse many of"
        " them.",
        tuple(Evidence(names[each.code], None, each.time_ns, "ns") for each in groups[:2]),
        "kernels.memory_bound",
        numbers={"time_ns": time, "percent": percent, "kernels": int(chosen.sum())},
        gain=_gain(kernels, chosen, "all of them become part of other kernels"),
    )


def _layout(kernels: Kernels) -> Finding | None:
    """Return a finding about changes of layout around convolutions."""
    chosen = kernels.is_kernel & _named(kernels, LAYOUT)
    time, total = int(kernels.time_ns[chosen].sum()), kernels.total_ns
    percent = share(time, total)
    severity = _LAYOUT_SHARES.severity(percent)
    if severity is None:
        return None
    if _named(kernels, _ASCEND_LAYOUT)[chosen].any():
        advice = "see whether torch.npu.config.allow_internal_format = False avoids them"
    elif _named(kernels, _MIOPEN_LAYOUT)[chosen].any():
        advice = (
            "keep model and inputs in memory_format=torch.channels_last, and set"
            " PYTORCH_MIOPEN_SUGGEST_NHWC=1, without which MIOpen is given the other layout"
        )
    else:
        advice = (
            "keep model and inputs in the layout that the convolutions use"
            " (memory_format=torch.channels_last)"
        )
    return Finding(
        of_size(severity, time),
        f"{in_words(time, 'ns')} ({percent:.1f} % of device work) went into"
        f" {counted(int(chosen.sum()), 'kernel')} that only"
        f" {'changes' if chosen.sum() == 1 else 'change'} the layout of tensors: {advice}.",
        tuple(_longest_two(kernels, chosen)),
        "kernels.layout",
        numbers={"time_ns": time, "percent": percent, "kernels": int(chosen.sum())},
        gain=_gain(kernels, chosen, "none of them is necessary"),
    )


def _single_precision(kernels: Kernels) -> Finding | None:
    """Return a finding about single-precision products without the device's matrix units."""
    chosen = kernels.is_kernel & _named(kernels, _SINGLE)
    chosen &= np.isin(kernels.kind, (_KINDS.index(MATMUL), _KINDS.index(CONVOLUTION)))
    time, total = int(kernels.time_ns[chosen].sum()), kernels.total_ns
    percent = share(time, total)
    severity = _SINGLE_SHARES.severity(percent)
    if severity is None:
        return None
    half = _named(kernels, _HALF_ALONE)[chosen].any()
    advice = "autocast to bfloat16 or torch.set_float32_matmul_precision('high')"
    if half:
        advice = "autocast to float16"
    return Finding(
        of_size(severity, time),
        f"{in_words(time, 'ns')} ({percent:.1f} % of device work) went into products and"
        " convolutions in single precision that, by the kernels' names, do not use the device's"
        f" matrix units. If lower precision is sufficient, {advice} uses them.",
        tuple(_longest_two(kernels, chosen)),
        "kernels.single_precision",
        numbers={"time_ns": time, "percent": percent},
        gain=(gain := _gain_of_precision(kernels, chosen)),
        no_gain="" if gain else "the peaks of the device are not known",
    )


def _attention_in_parts(kernels: Kernels) -> Finding | None:
    """Return a finding about attention that runs as two products and a softmax."""
    if (kernels.kind == _KINDS.index(ATTENTION)).any():
        return None
    chosen = kernels.is_kernel & _named(kernels, _SOFTMAX)
    # The last layer, or a loss, has one softmax per step; attention has one per layer.
    time, total = int(kernels.time_ns[chosen].sum()), kernels.total_ns
    percent = share(time, total)
    severity = _SOFTMAX_SHARES.severity(percent)
    batched = kernels.is_kernel & (np.isin(kernels.operator, _codes(kernels, _BATCHED)))
    products = int(kernels.time_ns[batched].sum())
    if severity is None or int(chosen.sum()) < 4 or int(batched.sum()) < 2 * int(chosen.sum()):
        return None
    return Finding(
        of_size(severity, time),
        f"Attention ran as separate kernels: {in_words(time, 'ns')}"
        f" ({percent:.1f} % of device work) went into {int(chosen.sum()):,} softmax kernels, and"
        f" {in_words(products, 'ns')} ({share(products, total):.1f} %) into the batched products"
        " around them. torch.nn.functional.scaled_dot_product_attention runs all of this in one"
        " kernel, without writing the weights to memory.",
        (_longest(kernels, chosen), _longest(kernels, batched)),
        "kernels.attention_in_parts",
        gain=_gain(kernels, chosen, "one kernel computes the softmax with the products"),
        numbers={
            "time_ns": time,
            "percent": percent,
            "kernels": int(chosen.sum()),
            "products_ns": products,
            "products_percent": share(products, total),
        },
    )


def _gain(kernels: Kernels, chosen: Mask, how: str) -> Gain | None:
    """Return the gain of a change that makes these kernels unnecessary."""
    return gain_of_rows(kernels.trace, kernels.rows[chosen], kernels.time_ns[chosen], how)


def _gain_of_precision(kernels: Kernels, chosen: Mask) -> Gain | None:
    """Return the gain of products on the matrix units; None if the device's peaks are unknown."""
    known = {each for each in device_peaks(kernels.trace).values() if each is not None}
    if len(known) != 1:
        return None
    rates = known.pop().tflops
    fast = max(("tf32", "fp16", "bf16"), key=lambda name: rates.get(name, 0.0))
    if not 0 < rates.get("fp32", 0.0) < rates.get(fast, 0.0):
        return None
    times = rates[fast] / rates["fp32"]
    spared = kernels.time_ns[chosen] * (1 - 1 / times)
    how = f"they are as much faster as the peak of {fast} is higher, {times:.1f} times"
    return gain_of_rows(kernels.trace, kernels.rows[chosen], spared, how)


def _codes(kernels: Kernels, pattern: re.Pattern[str]) -> list[int]:
    return [code for code, name in enumerate(kernels.trace.names) if pattern.search(name)]


def _named(kernels: Kernels, pattern: re.Pattern[str]) -> Mask:
    codes = [c for c in np.unique(kernels.name).tolist() if pattern.search(kernels.trace.names[c])]
    return np.isin(kernels.name, codes)


def _longest_two(kernels: Kernels, chosen: Mask) -> list[Evidence]:
    """Return the longest launch and, if there is one, the longest of another kernel or the next."""
    rows, names = kernels.rows[chosen], kernels.name[chosen]
    order = np.argsort(-kernels.time_ns[chosen], kind="stable")
    others = order[names[order] != names[order[0]]]
    shown = [order[0], *(others[:1] if len(others) else order[1:2])]
    return [evidence(kernels.trace, int(rows[at])) for at in shown]


def _longest(kernels: Kernels, chosen: Mask) -> Evidence:
    rows = kernels.rows[chosen]
    return evidence(kernels.trace, int(rows[kernels.time_ns[chosen].argmax()]))


# Annotations that torch makes around the methods of optimizers.
_OPTIMIZER = re.compile(r"^Optimizer\.(?:step|zero_grad)#")


def _of_host(trace: Trace, host: HostOperators) -> Kernels:
    name = trace.events.name[host.rows].astype(np.int64)
    shape, shapes = _shapes(trace, host.rows)
    return Kernels(
        trace=trace,
        on_device=False,
        rows=host.rows,
        time_ns=host.own_ns,
        is_kernel=np.ones(len(name), dtype=np.bool_),
        kind=_kinds(trace, name, name),
        name=name,
        operator=name,
        stage=_names(trace, stages_around(trace, host.rows)),
        forward=_names(trace, host.forward),
        call=host.rows,
        shape=shape,
        shapes=shapes,
        launched=None,
        host=host,
        without_shapes=np.zeros(len(name), dtype=np.bool_),
        hosts=trace,
    )


def _names(trace: Trace, rows: Rows) -> NDArray[np.int64]:
    """Return the codes of the events' names; -1 for row -1."""
    if len(trace.events) == 0:
        return np.full(len(rows), -1, dtype=np.int64)
    return np.where(rows >= 0, trace.events.name[rows], -1).astype(np.int64)


def _kinds(trace: Trace, name: NDArray[np.int64], operator: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the kind by the name or, if that is not known, by the operator that launched it.

    Convolutions are computed by matrix products, too, and mixtures of experts by work of all kinds.
    """
    table = np.full(len(trace.names) + 1, _KINDS.index(OTHER), dtype=np.int64)
    for code in np.union1d(name, operator).tolist():
        if code >= 0:
            table[code] = _KINDS.index(kind_of(trace.names[code]))
    kind, around = table[name], table[operator]
    part = (kind == _KINDS.index(OTHER)) | (
        (kind == _KINDS.index(MATMUL)) & (around == _KINDS.index(CONVOLUTION))
    )
    part |= (around == _KINDS.index(MOE)) & (kind != _KINDS.index(COMMUNICATION))
    result: NDArray[np.int64] = np.where(part, around, kind)
    return result


def _of_optimizer(trace: Trace, stage: Rows, kind: NDArray[np.int64]) -> NDArray[np.int64]:
    """Set the kind of work that an optimizer's step or zero_grad launched to optimizer."""
    marks = np.array([_OPTIMIZER.match(name) is not None for name in trace.names] + [False])
    own = (stage >= 0) & marks[trace.events.name[stage]]
    own &= ~np.isin(kind, [_KINDS.index(each) for each in (COMMUNICATION, MATMUL, ATTENTION)])
    result: NDArray[np.int64] = np.where(own, _KINDS.index(OPTIMIZER), kind)
    return result


def _shapes(trace: Trace, operators: Rows) -> tuple[NDArray[np.int64], list[str]]:
    """Return the input shapes of each operator as an index into texts like `8x4, 4x2`."""
    found = trace.argument("Input Dims") if len(operators) else None
    if found is None or found.numbers is not None:
        return np.full(len(operators), -1, dtype=np.int64), []
    texts = [inputs_in_words(text) for text in found.texts]
    shapes = list(dict.fromkeys(text for text in texts if text))
    numbers = {text: number for number, text in enumerate(shapes)}
    table = np.array([numbers.get(text, -1) for text in texts], dtype=np.int64)
    of_event = np.full(len(trace.events) + 1, -1, dtype=np.int64)
    of_event[found.rows] = table[found.codes]
    return of_event[operators], shapes
