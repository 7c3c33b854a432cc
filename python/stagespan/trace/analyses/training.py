"""Parts of a training step that a setting can avoid: recomputation, and optimizers by tensor."""

from __future__ import annotations

import re

import msgspec
import numpy as np

from stagespan.pages.amounts import counted, in_words
from stagespan.pages.figures import Count, Figures, Internal, Ns
from stagespan.pages.result import (
    Evidence,
    Finding,
    Gain,
    Spared,
    StructResult,
    Table,
    Thresholds,
    Unavailable,
    of_size,
    share,
)
from stagespan.trace.derived.device import device_work
from stagespan.trace.derived.gains import gain_of, gain_shared_by, gain_without, without
from stagespan.trace.derived.launch_sources import host_operators, launch_sources, values_at
from stagespan.trace.derived.threads import ThreadIndex, named
from stagespan.trace.derived.trees import Nesting, forest_of_operators
from stagespan.trace.derived.windows import BaseWindow, base_window
from stagespan.trace.evidence import evidence
from stagespan.trace.rates.collectives import number_of
from stagespan.trace.read.groups import by_group, numbered, values_of
from stagespan.trace.read.intervals import Mask, Numbers, Rows
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once

# Percent of the steps, or of the trace.
_SHARES = Thresholds(25.0, 10.0, 3.0)
_EVALUATES = re.compile(r"^autograd::engine::evaluate_function: ")
_BACKWARD = re.compile(r"Backward\d*$")
_OPTIMIZER = re.compile(r"^Optimizer\.(?:step|zero_grad)#")
_ZEROES = re.compile(r"^aten::(?:zero_|_foreach_zero_)$")
_ACCUMULATES = re.compile(r"^torch::autograd::AccumulateGrad$")
_ADDS = re.compile(r"^aten::add_$")
_MANY_TENSORS = re.compile(r"_foreach_|_fused_|multi_tensor|FusedAdam|FusedSGD|FusedLAMB")
# Of the nodes of backward passes: with create_graph=True, most of them record operators.
_MOST_NODES = 50.0
# Fewer operators or kernels in a call are not one for each tensor.
_FEWEST = 8


class OptimizerCalls(Figures, frozen=True):
    """The calls of one method of an optimizer, such as `Optimizer.step#SGD.step`; times in ns."""

    name: str
    calls: Count
    time_ns: Ns
    """On a device, from the first to the last of what a call launched; else on the host."""
    parts: Count
    """Kernels, or operators on the host, in all calls."""
    by_tensor: bool
    """Whether it runs operators for each tensor alone."""
    rows: Internal[Rows]
    """The kernels, or the operators."""
    weights: Internal[Numbers]
    mark: Internal[int]
    """The row of its longest call."""
    added: Internal[Spared | None] = None
    """What adds gradients to those that the calls have cleared."""


class Training(StructResult, frozen=True):
    """Recomputed operators, and the methods of optimizers; times in ns."""

    on_device: bool
    recomputed: Count
    """Operators of forward passes that ran again in a backward pass."""
    recomputed_ns: Ns
    """The time of what they launched, or their own time on the host."""
    optimizers: list[OptimizerCalls] = msgspec.field(name="optimizer_calls")
    base: Internal[BaseWindow]
    trace: Internal[Trace]
    spared: Internal[Spared]
    """What was recomputed: device events, or operators and the pauses after them."""

    def findings(self) -> list[Finding]:
        """Recomputation, and optimizers that update or clear one tensor at a time."""
        found = [self._recomputation(), *map(self._of_optimizer, self.optimizers)]
        return [each for each in found if each is not None]

    def tables(self) -> list[Table]:
        """The methods of optimizers."""
        if not self.optimizers:
            return []
        return [
            Table.of(
                "Optimizers",
                self.optimizers,
                ("name", "method", ""),
                ("calls", "calls", ""),
                ("time_ns", "time", "ns"),
                ("parts", "kernels" if self.on_device else "operators", ""),
                (lambda each: "yes" if each.by_tensor else "no", "by tensor", ""),
            )
        ]

    def _recomputation(self) -> Finding | None:
        severity = _SHARES.severity(share(self.recomputed_ns, self.base.whole_ns))
        if severity is None:
            return None
        rows, times = self.spared.rows, self.spared.time_ns
        longest = int(rows[np.argmax(np.where(rows >= 0, times, -1))])
        return Finding(
            # It saves memory, so it may be what the program needs.
            "low" if severity == "low" else "medium",
            f"Backward passes ran {counted(self.recomputed, 'operator')} of forward passes again"
            f" (activation checkpointing), for {self.base.part(self.recomputed_ns)}.",
            (
                evidence(self.trace, longest),
                Evidence("operators that ran again", None, self.recomputed, "events"),
            ),
            "training.recomputation",
            numbers={"operators": self.recomputed, **self.base.figures_of(self.recomputed_ns)},
            gain=self._gain(self.spared, "nothing is recomputed"),
            action="If there is memory left, checkpoint fewer modules, or keep the results of"
            " products with a selective policy.",
        )

    def _of_optimizer(self, calls: OptimizerCalls) -> Finding | None:
        severity = _SHARES.severity(share(calls.time_ns, self.base.whole_ns))
        clears = ".zero_grad#" in calls.name
        advice = _FREES if clears else _advice_on_step(calls.name, self.on_device)
        if severity is None or not calls.by_tensor or advice is None:
            return None
        what = "kernels" if self.on_device else "operators"
        added = 0 if calls.added is None else calls.added.total_ns
        sums = f" Adding gradients to the zeros took {in_words(added, 'ns')}." if added else ""
        return Finding(
            of_size(severity, calls.time_ns),
            f"{calls.name} {'clears' if clears else 'updates'} tensors one by one, with"
            f" {calls.parts:,} {what} in {counted(calls.calls, 'call')}:"
            f" {self.base.part(calls.time_ns)}.{sums}",
            (evidence(self.trace, calls.mark), Evidence(what, None, calls.parts, "events")),
            "training.zero_grad" if clears else "training.optimizer_by_tensor",
            numbers=self.base.figures_of(calls.time_ns)
            | {"parts": calls.parts, "calls": calls.calls}
            | ({"added_ns": added} if added else {}),
            action=advice,
            about="host",
            gain=self._gain_of(calls),
        )

    def _gain_of(self, calls: OptimizerCalls) -> Gain | None:
        how = "one operator updates all tensors" if calls.added is None else "nothing is cleared"
        gain = gain_shared_by(calls.rows, calls.weights, calls.time_ns, how)
        if calls.added is None or gain.spared is None:
            return gain
        return self._gain(gain.spared + calls.added, how)

    def _gain(self, spared: Spared, how: str) -> Gain | None:
        return (gain_of if self.on_device else gain_without)(self.trace, spared, how)


_FREES = "set_to_none=True (the default since torch 2.0) frees gradients instead of clearing them."
# Torch's optimizers by what can update all tensors of a group together.
_FUSED = re.compile(r"#(?:Adam|AdamW|SGD|Adagrad)\.step$")
_FOREACH = re.compile(r"#(?:Adadelta|Adafactor|Adamax|ASGD|NAdam|RAdam|RMSprop|Rprop)\.step$")


def _advice_on_step(name: str, on_device: bool) -> str | None:
    """Return how an optimizer can update many tensors together; None if it cannot, or is unknown.

    On a host, foreach runs the operators of each tensor one after the other.
    """
    if _FUSED.search(name):
        how = "foreach=True or fused=True updates" if on_device else "fused=True updates"
        return f"{how} all tensors of a group together."
    if _FOREACH.search(name) and on_device:
        return "foreach=True updates all tensors of a group together."
    return None


@once
def analyze(trace: Trace) -> Training | Unavailable:
    """Look at the training step; Unavailable if the trace shows no backward pass or optimizer."""
    base, host = base_window(trace), host_operators(trace)
    marks = trace.rows_of(["user_annotation", "cpu_op"]) & named(trace, _OPTIMIZER)
    backward = trace.rows_of(["cpu_op"]) & named(trace, _EVALUATES)
    if base is None or host is None or not (marks.any() or backward.any()):
        return Unavailable("The trace has neither backward passes nor optimizers.", "no_training")
    on_device = bool(len(device_work(trace).rows))
    nested = forest_of_operators(trace)
    forest = None if nested is None else nested[1]
    again = _recomputed(trace, forest, backward)
    outermost = _outermost(forest, again)
    spared = _work_in(trace, base, forest, again, on_device)
    return Training(
        on_device=on_device,
        recomputed=int(base.contains(trace, outermost).sum()),
        recomputed_ns=spared.total_ns,
        optimizers=_optimizers(trace, base, np.flatnonzero(marks), forest, on_device),
        base=base,
        trace=trace,
        spared=spared,
    )


def _recomputed(trace: Trace, forest: Nesting | None, backward: Mask) -> Mask:
    """Return the operators of forward passes that run within nodes of a backward pass.

    Only operators that autograd records have a sequence number. Within a backward pass it records
    only what is recomputed, unless the pass itself is differentiated (create_graph=True): then
    most of its nodes contain such operators.
    """
    recomputed: Mask = np.zeros(len(trace.events), dtype=np.bool_)
    if forest is None or not backward.any():
        return recomputed
    rows = forest.rows
    recorded = _recorded(trace, rows) & ~named(trace, _BACKWARD, rows)
    recorded &= ~backward[rows]
    node = forest.first_around(backward[rows])
    in_forest = recorded & (node >= 0)
    nodes = values_of(node[in_forest])
    if len(nodes) == 0 or share(len(nodes), int(backward.sum())) > _MOST_NODES:
        return recomputed
    # With everything that these operators call.
    recomputed[rows[forest.first_around(in_forest) >= 0]] = True
    # Nodes of the backward pass that run within a recomputation are not recomputed.
    inner = forest.first_around(backward[rows] | in_forest)
    recomputed[rows[(inner >= 0) & backward[rows[inner]]]] = False
    return recomputed


def _recorded(trace: Trace, rows: Rows) -> Mask:
    """Return which rows have a sequence number, and are not of a backward pass."""
    order = np.argsort(rows, kind="stable")
    recorded: Mask = np.zeros(len(rows), dtype=np.bool_)
    number = number_of(trace, rows[order], "Sequence number")
    thread = number_of(trace, rows[order], "Fwd thread id")
    recorded[order] = (number >= 0) & (thread <= 0)
    return recorded


def _outermost(forest: Nesting | None, chosen: Mask) -> Rows:
    """Return the rows of the chosen operators that are not within another one."""
    if forest is None:
        return np.empty(0, dtype=np.intp)
    mine = chosen[forest.rows]
    parent = forest.parent
    return forest.rows[mine & ~((parent >= 0) & mine[parent])]


def _work_in(
    trace: Trace, base: BaseWindow, forest: Nesting | None, operators: Mask, on_device: bool
) -> Spared:
    """Return the device events of the base that some operators launched, or the operators."""
    if not on_device and forest is not None:
        return without(trace, forest, operators[forest.rows])
    rows = device_work(trace).rows
    sources = launch_sources(trace, rows)
    launched = np.zeros(len(rows), dtype=np.bool_)
    if sources is not None:
        launched = (sources.operator >= 0) & operators[np.maximum(sources.operator, 0)]
        launched &= base.contains(trace, rows)
    return Spared(rows[launched], trace.events.dur_ns[rows[launched]].astype(np.float64))


def _adding_to(trace: Trace, forest: Nesting | None, calls: Rows, cleared: Numbers) -> Mask:
    """Return the operators that add gradients to those that calls of an optimizer have cleared.

    These are as many nodes after each call as it has cleared tensors: further ones add to sums.
    """
    events = trace.events
    adding: Mask = np.zeros(len(events), dtype=np.bool_)
    if forest is None:
        return adding
    accumulates = named(trace, _ACCUMULATES, forest.rows)
    node = values_of(forest.first_around(accumulates)[named(trace, _ADDS, forest.rows)])
    node = node[node >= 0]
    rows = forest.rows[node]
    order = np.argsort(events.begin_ns[rows], kind="stable")
    node, rows = node[order], rows[order]
    by_time = np.argsort(events.end_ns[calls], kind="stable")
    after = np.searchsorted(events.end_ns[calls[by_time]], events.begin_ns[rows], "right") - 1
    number = np.arange(len(rows)) - np.searchsorted(after, after)
    first = (after >= 0) & (number < cleared[by_time][after])
    chosen = np.zeros(len(forest), dtype=np.bool_)
    chosen[node[first]] = True
    adding[forest.rows[forest.first_around(chosen) >= 0]] = True
    return adding


def _optimizers(
    trace: Trace, base: BaseWindow, marks: Rows, nodes: Nesting | None, on_device: bool
) -> list[OptimizerCalls]:
    """Return the methods of optimizers that were called in the base, the most time first."""
    marks = marks[base.contains(trace, marks)]
    events = trace.events
    host = host_operators(trace)
    if len(marks) == 0 or host is None:
        return []
    operators = host.rows
    index = ThreadIndex(trace, marks, operators)
    if not index.fits:
        return []
    forest = Nesting.of(trace, index.axis, marks, index.of[0])
    around = forest.at(index.axis.place(index.of[1], events.begin_ns[operators]))
    of_operator = np.full(len(events), -1, dtype=np.intp)
    of_operator[operators] = values_at(forest.rows, around)
    if on_device:
        rows = device_work(trace).rows
        sources = launch_sources(trace, rows)
        if sources is None:
            return []
        mark = np.where(sources.operator >= 0, of_operator[np.maximum(sources.operator, 0)], -1)
        weights = events.dur_ns[rows]
    else:
        rows, mark = operators, of_operator[operators]
        weights = host.own_ns
    rows, mark, weights = rows[mark >= 0], mark[mark >= 0], weights[mark >= 0]
    optimizers = []
    many = named(trace, _MANY_TENSORS)
    names = events.name[mark]
    for code in values_of(names).tolist():
        of_name = np.flatnonzero(names == code)
        calls, of = numbered(mark[of_name])
        groups = by_group(of, len(calls))
        time = int(events.dur_ns[calls].sum())
        if on_device:
            ends = events.end_ns[rows[of_name]]
            begins = events.begin_ns[rows[of_name]]
            time = sum(int(ends[group].max() - begins[group].min()) for group in groups)
        name = trace.names[code]
        operators_of = operators[np.isin(of_operator[operators], calls)]
        alone = not many[operators_of].any() and not many[rows[of_name]].any()
        alone &= len(of_name) >= _FEWEST * len(calls)
        added = None
        if ".zero_grad#" in name:
            zeroes = operators_of[named(trace, _ZEROES, operators_of)]
            alone &= len(zeroes) > 0
            cleared = np.searchsorted(calls, of_operator[zeroes])
            adds = _adding_to(trace, nodes, calls, np.bincount(cleared, minlength=len(calls)))
            added = _work_in(trace, base, nodes, adds, on_device)
        optimizers.append(
            OptimizerCalls(
                name=name,
                calls=len(calls),
                time_ns=time,
                parts=len(of_name),
                by_tensor=bool(alone),
                rows=rows[of_name],
                weights=weights[of_name],
                mark=int(calls[np.argmax(events.dur_ns[calls])]),
                added=added,
            )
        )
    return sorted(optimizers, key=lambda each: -each.time_ns)
