"""The kernels of a trace, each with its kind, operator, stage and shapes; or its operators."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stagespan.pages.amounts import in_percent
from stagespan.pages.figures import Count, Figures, Ns, one_of
from stagespan.pages.result import Unavailable, shortened
from stagespan.trace.derived.captures import captured_work
from stagespan.trace.derived.device import device_work
from stagespan.trace.derived.host_work import wait_for_collectives
from stagespan.trace.derived.kernel_kinds import (
    ATTENTION,
    COMMUNICATION,
    CONVOLUTION,
    KINDS,
    MATMUL,
    MOE,
    OPTIMIZER,
    OTHER,
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
from stagespan.trace.derived.threads import name_codes
from stagespan.trace.derived.windows import base_window
from stagespan.trace.derived.work_table import Column, WorkTable
from stagespan.trace.rates.calls import inputs_in_words
from stagespan.trace.read.groups import values_of
from stagespan.trace.read.intervals import Codes, Mask, Numbers, Rows
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once, operators_of

KIND_OF_CODE = list(KINDS)
"""The kinds of work; `KernelRows.kind` has indices into it."""
# Annotations that torch makes around the methods of optimizers.
_OPTIMIZER = re.compile(r"^Optimizer\.(?:step|zero_grad)#")


Kind = Annotated[str, one_of(KINDS)]


class KernelTime(Figures, frozen=True):
    """The time of one kernel, or of one operator on a trace without a device."""

    kernel: str = msgspec.field(name="name")
    kind: Kind
    time_ns: Ns
    percent: float
    count: Count
    min_ns: Ns
    max_ns: Ns
    operator: str | None
    stage: str | None


@once
def kernel_rows(trace: Trace) -> KernelRows | Unavailable:
    """Find the kernels of a trace, or its operators if it has no device events.

    Unavailable if it has neither, or if its times span several years.
    """
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
    sources = launch_sources(trace, rows)
    if sources is None:
        return DAMAGED_TIMES
    events = trace.events
    captured = captured_work(trace)
    hosts, called = operators_of(trace), sources.operator
    in_graph, call, forward = sources.of_graph, sources.operator, sources.forward
    if captured is not None:
        called = np.where(captured.has_operator, captured.operator, called)
        call = np.where(captured.has_operator, captured.numbers(captured.operator), call)
        in_graph, forward = in_graph & ~captured.has_operator, captured.forward_or(sources)
    operator = name_codes(hosts, called)
    shape, shapes = _shapes(hosts, called)
    without_shapes = in_graph if captured is None else sources.of_graph & ~captured.with_shapes
    return KernelRows(
        trace=trace,
        on_device=True,
        rows=rows,
        time_ns=events.dur_ns[rows],
        is_kernel=work.is_kernel[rows],
        kind=_of_optimizer(trace, sources.stage, _kinds(trace, events.name[rows], operator)),
        name=events.name[rows],
        operator=np.where(in_graph, name_codes(trace, sources.calls), operator),
        stage=name_codes(trace, sources.stage),
        forward=name_codes(hosts, forward),
        call=np.where(in_graph, sources.calls, call),
        shape=np.where(without_shapes, -1, shape),
        shapes=shapes,
        launched=sources,
        host=host,
        without_shapes=without_shapes,
        hosts=hosts,
    )


@dataclass(frozen=True)
class KernelRows:
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
    kind: Codes
    """Index into `KIND_OF_CODE`."""
    name: Codes
    operator: Codes
    stage: Codes
    forward: Codes
    call: Rows
    """The call of the operator, or of the graph's launch; -1 if it is unknown. Its row in
    `hosts.events` is the remainder by their number: a captured call has a number for each launch of
    its graph."""
    shape: Codes
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
    def work(self) -> WorkTable:
        """The rows as a table, whose columns have the names of the fields of `KernelTime`."""
        names = self.trace.names
        columns = {
            "kernel": Column(self.name, names),
            "kind": Column(self.kind, KIND_OF_CODE),
            "operator": Column(self.operator, names),
            "stage": Column(self.stage, names),
            "forward": Column(self.forward, names),
            "shape": Column(self.shape, self.shapes),
        }
        return WorkTable(self.time_ns, self.call, columns)

    def of(self, chosen: Mask) -> KernelRows:
        """Return some of the rows."""
        every = {field.name: getattr(self, field.name) for field in fields(self)}
        columns: dict[str, Any] = {
            name: values[chosen] for name, values in every.items() if isinstance(values, np.ndarray)
        }
        launched = None if self.launched is None else self.launched.of(chosen)
        return replace(self, **columns, launched=launched)

    @cached_property
    def in_steps(self) -> KernelRows:
        """What pages show: the work that began in the steps, or all of it without steps.

        The figures in the JSON are about the whole trace.
        """
        base = base_window(self.trace)
        if self.launched is None or base is None:
            return self
        inside = base.contains(self.trace, self.rows)
        return self if inside.all() or not inside.any() else self.of(inside)

    @cached_property
    def names(self) -> list[int]:
        """The codes of the different names."""
        codes: list[int] = values_of(self.name).tolist()
        return codes

    @cached_property
    def by_name(self) -> list[KernelTime]:
        """Time of kernels, or operators, by name."""
        main = ("kind", "operator", "stage")
        return self.work.by(KernelTime, "kernel", where=self.is_kernel, main=main)

    def kinds(self, most: int) -> list[str]:
        """The kinds of work that took the most time, at most `most`, each with its percentage.

        What is of no known kind has the name that takes most of it.
        """
        main = self.work.by(KernelTime, "kind", main=("kernel",))[:most]
        return [
            KINDS[row.kind]
            + (f" (mostly {shortened(row.kernel, 40)})" if row.kind == OTHER else "")
            + f" {in_percent(row.percent)}"
            for row in main
        ]


def _of_host(trace: Trace, host: HostOperators) -> KernelRows:
    name = trace.events.name[host.rows]
    shape, shapes = _shapes(trace, host.rows)
    kind = _kinds(trace, name, name)
    kind[wait_for_collectives(trace, host.rows, host.own_ns)] = KIND_OF_CODE.index(COMMUNICATION)
    return KernelRows(
        trace=trace,
        on_device=False,
        rows=host.rows,
        time_ns=host.own_ns,
        is_kernel=np.ones(len(name), dtype=np.bool_),
        kind=kind,
        name=name,
        operator=name,
        stage=name_codes(trace, stages_around(trace, host.rows)),
        forward=name_codes(trace, host.forward),
        call=host.rows,
        shape=shape,
        shapes=shapes,
        launched=None,
        host=host,
        without_shapes=np.zeros(len(name), dtype=np.bool_),
        hosts=trace,
    )


def _kinds(trace: Trace, name: Codes, operator: Codes) -> Codes:
    """Return the kind by the name or, if that is not known, by the operator that launched it.

    Convolutions are computed by matrix products, too, and mixtures of experts by work of all kinds.
    """
    table = np.full(len(trace.names) + 1, KIND_OF_CODE.index(OTHER), dtype=np.int32)
    for code in values_of(np.concatenate((name, operator))).tolist():
        if code >= 0:
            table[code] = KIND_OF_CODE.index(kind_of(trace.names[code]))
    kind, around = table[name], table[operator]
    part = (kind == KIND_OF_CODE.index(OTHER)) | (
        (kind == KIND_OF_CODE.index(MATMUL)) & (around == KIND_OF_CODE.index(CONVOLUTION))
    )
    part |= (around == KIND_OF_CODE.index(MOE)) & (kind != KIND_OF_CODE.index(COMMUNICATION))
    result: Codes = np.where(part, around, kind)
    return result


def _of_optimizer(trace: Trace, stage: Rows, kind: Codes) -> Codes:
    """Set the kind of work that an optimizer's step or zero_grad launched to optimizer."""
    marks = np.array([_OPTIMIZER.match(name) is not None for name in trace.names] + [False])
    own = (stage >= 0) & marks[trace.events.name[stage]]
    own &= ~np.isin(kind, [KIND_OF_CODE.index(each) for each in (COMMUNICATION, MATMUL, ATTENTION)])
    result: Codes = np.where(own, KIND_OF_CODE.index(OPTIMIZER), kind)
    return result


def _shapes(trace: Trace, operators: Rows) -> tuple[Codes, list[str]]:
    """Return the input shapes of each operator as an index into texts like `8x4, 4x2`."""
    dims = trace.argument("Input Dims") if len(operators) else None
    if dims is None or dims.numbers is not None:
        return np.full(len(operators), -1, dtype=np.int32), []
    texts = [inputs_in_words(text) for text in dims.texts]
    shapes = list(dict.fromkeys(text for text in texts if text))
    numbers = {text: number for number, text in enumerate(shapes)}
    table = np.array([numbers.get(text, -1) for text in texts], dtype=np.int32)
    of_event = np.full(len(trace.events) + 1, -1, dtype=np.int32)
    of_event[dims.rows] = table[dims.codes]
    return of_event[operators], shapes
