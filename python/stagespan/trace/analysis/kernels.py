"""Kernels and operators: where the time went by name, shape, kind, operator and stage."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.analysis.grouping import Group, grouped, prevailing
from stagespan.trace.analysis.kernel_findings import findings_of
from stagespan.trace.analysis.kernel_tables import as_dict, as_tables
from stagespan.trace.analysis.kinds import (
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
from stagespan.trace.analysis.launchers import Launchers, launchers, stages
from stagespan.trace.analysis.operators import HostOperators, host_operators
from stagespan.trace.analysis.result import Finding, Nothing, Table
from stagespan.trace.arrays import Numbers
from stagespan.trace.device import device_work
from stagespan.trace.model import Trace

Rows = NDArray[np.intp]
_KINDS = list(KINDS)
# Annotations that torch makes around the methods of optimizers.
_OPTIMIZER = re.compile(r"^Optimizer\.(?:step|zero_grad)#")


@dataclass(frozen=True, slots=True)
class Kernels:
    """What ran, each row with what launched it; on a trace without a device, operators.

    `rows` are device events, copies and memsets among them, or else operators with their own time.
    All arrays have one element a row; codes of names are those of `Trace.names`, -1 for unknown.
    """

    trace: Trace
    on_device: bool
    rows: Rows
    time_ns: Numbers
    is_kernel: NDArray[np.bool_]
    """On a device: neither a copy nor a memset."""
    kind: NDArray[np.int64]
    """Index into KINDS."""
    name: NDArray[np.int64]
    operator: NDArray[np.int64]
    stage: NDArray[np.int64]
    forward: NDArray[np.int64]
    call: Rows
    """The row in `Trace.events` of the call of the operator, or of the graph's launch; -1 if it is
    unknown."""
    shape: NDArray[np.int64]
    """Index into `shapes`, -1 where none was recorded."""
    shapes: list[str]
    launched: Launchers | None
    """On a device what launched each row."""
    host: HostOperators | None

    @property
    def total_ns(self) -> int:
        """Sum over all rows."""
        return int(self.time_ns.sum())

    @property
    def kind_of_name(self) -> dict[int, int]:
        """By kernel's name its kind: where launching operators differ, that of the most time."""
        return self.prevailing(self.kind)

    def by_kind(self) -> list[Group]:
        """Time by index into KINDS."""
        return grouped(self.kind, self.time_ns)

    def by_name(self) -> list[Group]:
        """Time of kernels, or operators, by name."""
        return grouped(self.name[self.is_kernel], self.time_ns[self.is_kernel])

    def prevailing(self, other: NDArray[np.int64]) -> dict[int, int]:
        """By kernel's name what most of its time has in common: its operator, its stage."""
        chosen = self.is_kernel
        return prevailing(self.name[chosen], other[chosen], self.time_ns[chosen])

    def to_dict(self) -> dict[str, object]:
        """For JSON, in microseconds."""
        return as_dict(self)

    def findings(self) -> list[Finding]:
        """What an expert would look at first."""
        return findings_of(self)

    def tables(self) -> list[Table]:
        """By kind, by name, by operator, by stage, by shape."""
        return as_tables(self)


def analyze(trace: Trace) -> Kernels | Nothing:
    """Break a trace down; Nothing for one with neither device events nor operators."""
    host = host_operators(trace)
    work = device_work(trace)
    rows = work.rows
    if len(rows) == 0 and (host is None or len(host.rows) == 0):
        return Nothing(
            "The trace has neither kernels nor operators: record it with the activities of the CPU"
            " and of the device."
        )
    if len(rows) == 0:
        assert host is not None
        return _of_host(trace, host)
    found = launchers(trace, rows)
    if found is None:
        return Nothing("The trace's events lie years apart: its times are damaged.")
    events = trace.events
    operator = _names(trace, found.operator)
    shape, shapes = _shapes(trace, found.operator)
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
        operator=np.where(found.of_graph, _names(trace, found.calls), operator),
        stage=_names(trace, found.stage),
        forward=_names(trace, found.forward),
        call=np.where(found.of_graph, found.calls, found.operator),
        shape=np.where(found.of_graph, -1, shape),
        shapes=shapes,
        launched=found,
        host=host,
    )


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
        stage=_names(trace, stages(trace, host.rows)),
        forward=_names(trace, host.forward),
        call=host.rows,
        shape=shape,
        shapes=shapes,
        launched=None,
        host=host,
    )


def _names(trace: Trace, rows: Rows) -> NDArray[np.int64]:
    """Codes of the events' names; -1 for row -1."""
    if len(trace.events) == 0:
        return np.full(len(rows), -1, dtype=np.int64)
    return np.where(rows >= 0, trace.events.name[rows], -1).astype(np.int64)


def _kinds(trace: Trace, name: NDArray[np.int64], operator: NDArray[np.int64]) -> NDArray[np.int64]:
    """By the name; if that says nothing, by the operator that launched it.

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
    """The kinds, with what an optimizer's step or zero_grad launched as the optimizer's."""
    marks = np.array([_OPTIMIZER.match(name) is not None for name in trace.names] + [False])
    own = (stage >= 0) & marks[trace.events.name[stage]]
    own &= ~np.isin(kind, [_KINDS.index(each) for each in (COMMUNICATION, MATMUL, ATTENTION)])
    result: NDArray[np.int64] = np.where(own, _KINDS.index(OPTIMIZER), kind)
    return result


def _shapes(trace: Trace, operators: Rows) -> tuple[NDArray[np.int64], list[str]]:
    """Of each operator's row the dimensions of its inputs, as index into texts like `8x4, 4x2`."""
    found = trace.argument("Input Dims") if len(operators) else None
    if found is None or found.numbers is not None:
        return np.full(len(operators), -1, dtype=np.int64), []
    texts = [_in_words(text) for text in found.texts]
    shapes = list(dict.fromkeys(text for text in texts if text))
    numbers = {text: number for number, text in enumerate(shapes)}
    table = np.array([numbers.get(text, -1) for text in texts], dtype=np.int64)
    of_event = np.full(len(trace.events) + 1, -1, dtype=np.int64)
    of_event[found.rows] = table[found.codes]
    return of_event[operators], shapes


def _in_words(dims: str) -> str:
    """`[[8, 4], [], [4, 2]]` as `8x4, 4x2`; empty where no input is a tensor with dimensions."""
    try:
        inputs = json.loads(dims)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(inputs, list):
        return ""
    words = []
    for each in inputs:
        if isinstance(each, list) and each:
            # A list of tensors is one input.
            nested = isinstance(each[0], list)
            parts = each if nested else [each]
            shown = ["x".join(map(str, part)) for part in parts if isinstance(part, list)]
            words.append(f"[{', '.join(shown)}]" if nested else shown[0])
    return ", ".join(words)
