"""Finds operators of a trace without a device that could be spared or be faster.

The operators are the work itself there, so each finding says what the program would win without
them. A part of an operator's time that two findings are about counts once.
"""

from __future__ import annotations

import json
import re
from functools import cached_property

import msgspec
import numpy as np

from stagespan.pages.amounts import counted, in_words, listed
from stagespan.pages.result import Evidence, Finding, Spared, Thresholds, of_size, share, shortened
from stagespan.trace.derived.compile_events import runs_compiled
from stagespan.trace.derived.gains import PAUSE_NS, gain_of_rows, gain_without, without
from stagespan.trace.derived.gaps import QUIET_NS
from stagespan.trace.derived.idle_causes import loads_data
from stagespan.trace.derived.kernel_kinds import ELEMENTWISE, VIEWS, kind_of
from stagespan.trace.derived.launch_sources import host_operators
from stagespan.trace.derived.missing import unrecorded_device
from stagespan.trace.derived.threads import ThreadIndex, named
from stagespan.trace.derived.trees import Nesting
from stagespan.trace.derived.windows import BaseWindow, base_window
from stagespan.trace.evidence import evidence
from stagespan.trace.rates.calls import call_of
from stagespan.trace.rates.collectives import argument_of
from stagespan.trace.read.groups import distinct, grouped, numbered, values_of
from stagespan.trace.read.intervals import ROW, Cover, Mask, Numbers, Rows
from stagespan.trace.read.model import Trace
from stagespan.trace.read.plausibility import FAR_DEVICES
from stagespan.trace.read.view import once

# Percent of the steps, or of the trace.
_SHARES = Thresholds(25.0, 10.0, 5.0)
SMALL_NS = 10_000
"""Shorter operators take mostly the time of a call, of about 1 µs to 5 µs, not of their work."""
# Small operators that are called less often in a step are not a loop over small tensors.
_OFTEN = 8
_COPIES = re.compile(r"^aten::copy_$")
_AROUND_COPIES = re.compile(
    r"^aten::(?:copy_|clone|contiguous|to|_to_copy|reshape|flatten|type_as|repeat|cpu)$"
)
_EXPANDS = re.compile(r"^aten::(?:expand|expand_as|broadcast_to)$")
_READS_ONE = re.compile(r"^aten::(?:item|_local_scalar_dense|is_nonzero)$")
_CHOOSES_ONE = re.compile(r"^aten::(?:select|slice|index|unbind|squeeze|as_strided|view)$")
_TAKES_APART = re.compile(r"^aten::(?:unbind|split|split_with_sizes|chunk|stack|cat)$")
_NAMED = 3


class _Operators(msgspec.Struct, frozen=True, dict=True):
    """All operators outside of the loading of data as a forest; arrays have one element of each."""

    trace: Trace
    forest: Nesting
    base: BaseWindow

    @property
    def rows(self) -> Rows:
        """Rows of `Trace.events`, by thread and start."""
        return self.forest.rows

    @cached_property
    def own_ns(self) -> Numbers:
        """The time of each without the operators in it."""
        return self.forest.own_ns()

    @cached_property
    def dur_ns(self) -> Numbers:
        """The time of each."""
        return self.forest.end - self.forest.begin

    @cached_property
    def outer(self) -> Rows:
        """The operators that no other operator has called, by thread and start."""
        return np.flatnonzero(self.forest.parent < 0)

    @cached_property
    def pause_ns(self) -> Numbers:
        """The time from each of `outer` to the next of its thread."""
        pauses: Numbers = self.forest.pause_ns()[self.outer]
        return pauses

    @cached_property
    def is_small(self) -> Mask:
        """Which of `outer` do little work: at least half of the calls like it are short.

        These have the same name and, if the trace has them, inputs of the same sizes.
        """
        rows = self.rows[self.outer]
        sizes, _ = argument_of(self.trace, rows, "Input Dims")
        durations = self.dur_ns[self.outer]
        _, which = distinct(self.trace.events.name[rows], sizes)
        order = np.lexsort((durations, which))
        count = np.bincount(which)
        firsts = np.concatenate(([0], np.cumsum(count)[:-1]))
        medians = durations[order][firsts + (count - 1) // 2]
        # A single call can be longer, because another program or a page fault interrupted it, or
        # because it has larger inputs.
        is_same = (sizes >= 0) | (durations < PAUSE_NS)
        small: Mask = (medians[which] < SMALL_NS) & is_same
        return small

    def are(self, pattern: re.Pattern[str]) -> Mask:
        """Which have a name that contains the pattern."""
        found: Mask = named(self.trace, pattern)[self.rows]
        return found

    def inside(self, outer: Rows) -> Mask:
        """Which are one of some operators or in one of them."""
        chosen = np.zeros(len(self.rows), dtype=np.bool_)
        chosen[outer] = True
        found: Mask = self.forest.first_around(chosen) >= 0
        return found

    def without(self, of: Rows) -> Spared:
        """The time of some operators with all in them, and of the pauses after them."""
        return without(self.trace, self.forest, self.inside(of))

    def names(self, of: Rows) -> list[tuple[str, int, int]]:
        """The names of some operators with time and number, the longest first."""
        groups = grouped(self.trace.events.name[self.rows[of]].astype(np.int64), self.dur_ns[of])
        return [(self.trace.names[each.code], each.time_ns, each.count) for each in groups]

    def longest(self, of: Rows) -> Evidence:
        """The longest of some operators."""
        return evidence(self.trace, int(self.rows[of[np.argmax(self.dur_ns[of])]]))

    def in_base(self, of: Rows) -> Rows:
        """Those that begin in the steps, or in the trace if it has no steps."""
        return of[self.base.contains(self.trace, self.rows[of])]


@once
def _operators(trace: Trace) -> _Operators | None:
    host, base = host_operators(trace), base_window(trace)
    if host is None or base is None:
        return None
    events, loading = trace.events, loads_data(trace)
    loads = Cover(events.begin_ns[loading], events.end_ns[loading])
    begin, end = events.begin_ns[host.rows], events.end_ns[host.rows]
    rows = host.rows[2 * loads.length(begin, end) <= end - begin]
    index = ThreadIndex(trace, rows)
    return _Operators(trace, Nesting.of(trace, index.axis, rows, index.of[0]), base)


def operator_findings(trace: Trace) -> list[Finding]:
    """Findings about the operators of a trace without a device."""
    operators = _operators(trace)
    if operators is None or len(operators.rows) == 0 or operators.base.whole_ns == 0:
        return []
    if unrecorded_device(trace) is not None:
        return [_of_device(operators)]
    read = _reads_of_one(operators)
    every = [
        _of_copies(operators),
        _of_double(operators),
        _one_by_one(operators, read),
        _small(operators, read),
        _not_fused(operators),
    ]
    return [each for each in every if each is not None]


def _of_device(operators: _Operators) -> Finding:
    """Return a finding about a program whose device was not recorded.

    The host's times of operators do not show what other operators would win.
    """
    remedy = (
        "torch.profiler.profile() records the device by default; activities=[...] must also contain"
        " the activity of the device, such as ProfilerActivity.CUDA (NVIDIA and AMD) or"
        " ProfilerActivity.XPU."
        if operators.trace.incomplete is None
        else "Copy the file again, or record the trace again: it is cut off, and the device's"
        " events may have been in the part that is missing."
    )
    why = "the trace has no events of the device that the program used"
    if FAR_DEVICES in operators.trace.left_out:
        why = "the times of all events of the device that the program used are far away"
        remedy = "Record the trace again: the clocks of the host and the device differ in this one."
    return Finding(
        "medium",
        "Operators have the times of the host, which does not wait for most of the device's work:"
        f" {why} ({unrecorded_device(operators.trace)}).",
        (operators.longest(operators.outer),),
        "operators.device_not_recorded",
        action=remedy,
    )


def _of_copies(operators: _Operators) -> Finding | None:
    """Return a finding if copies of tensors take much time."""
    copying = operators.are(_AROUND_COPIES)
    parent = operators.forest.parent
    top = np.arange(len(parent))
    # The outermost of the operators that do nothing but copy.
    for _ in range(8):
        above = parent[top]
        rises = (above >= 0) & copying[above]
        if not rises.any():
            break
        top = np.where(rises, above, top)
    copies = np.flatnonzero(operators.are(_COPIES))
    copies = operators.in_base(copies[~_only_fills(operators, copies, top)])
    of = values_of(top[copies])
    spared, base = _with_freeing(operators, of), operators.base
    time = spared.total_ns
    severity = _SHARES.severity(share(time, base.whole_ns))
    if severity is None:
        return None
    names = operators.names(of)
    outside = parent[of]
    hidden = outside[outside >= 0]
    sentence = (
        f"{counted(len(copies), 'copy', 'copies')} of tensors took {base.part(time)} with"
        f" allocating and freeing their memory, mostly {names[0][0]}"
    )
    if len(hidden):
        sentence += f", some of them in {operators.names(hidden)[0][0]}"
    sentence += "."
    return Finding(
        of_size(severity, time),
        sentence,
        (operators.longest(copies), Evidence(names[0][0], None, names[0][2], "events")),
        "operators.copies",
        numbers=base.figures_of(time) | {"copies": len(copies)},
        gain=gain_without(operators.trace, spared, "none of them is necessary"),
        action="Store tensors in the layout and type in which they are used.",
        details="Operators copy a tensor whose layout or type they cannot use.",
    )


def _with_freeing(operators: _Operators, of: Rows) -> Spared:
    """The time of operators that make copies, and of the pauses in which these are freed.

    That is after the next operator that is not a view, which reads the copy.
    """
    forest = operators.forest
    spared = operators.without(of)
    reads = np.flatnonzero(~operators.are(VIEWS))
    at = np.searchsorted(forest.begin[reads], forest.end[of])
    of, at = of[at < len(reads)], at[at < len(reads)]
    reader = reads[at]
    beside = forest.parent[reader] == forest.parent[of]
    of, reader = of[beside], reader[beside]
    most = np.bincount(reader, weights=operators.dur_ns[of] / 2, minlength=len(forest))
    reader = values_of(reader)
    freeing = np.minimum(forest.pause_ns()[reader], most[reader])
    return spared + Spared(~operators.rows[reader], freeing)


def _only_fills(operators: _Operators, copies: Rows, top: Rows) -> Mask:
    """Whether each copy reads a single number, or repeats its source along a dimension.

    These fill a tensor, such as with a bias, and have nothing to do with its layout or type. `top`
    is the outermost operator around each one that does nothing but copy.
    """
    trace, rows = operators.trace, operators.rows[copies]
    is_number, _ = _source_of(trace, rows, "Input Dims")
    strides, _ = argument_of(trace, rows, "Input Strides")
    _, repeats = _source_of(trace, rows, "Input Strides")
    # Older versions of torch do not record strides, but the operator that makes such a source.
    unknown = strides < 0
    repeats[unknown] |= _follow_an_expansion(operators, top[copies[unknown]])
    return is_number | repeats


def _follow_an_expansion(operators: _Operators, of: Rows) -> Mask:
    """Whether the operator before each of some, in the same one, repeats a tensor.

    Such an operator has no time of its own.
    """
    parent = operators.forest.parent
    # One more, for operators without a parent.
    is_around = np.zeros(len(parent) + 1, dtype=np.bool_)
    is_around[parent[of]] = True
    is_around[-1] = False
    order = np.flatnonzero(is_around[parent])
    order = order[np.argsort(parent[order], kind="stable")]  # they ascend by begin
    beside = parent[order[1:]] == parent[order[:-1]]
    before = np.full(len(parent), -1, dtype=ROW)
    before[order[1:][beside]] = order[:-1][beside]
    result: Mask = (before[of] >= 0) & operators.are(_EXPANDS)[before[of]]
    return result


def _source_of(trace: Trace, rows: Rows, key: str) -> tuple[Mask, Mask]:
    """Whether the second element of an argument is empty, and whether it contains 0."""
    codes, texts = argument_of(trace, rows, key)
    broadcasts = np.zeros((2, len(texts) + 1), dtype=np.bool_)
    for code in values_of(codes[codes >= 0]).tolist():
        try:
            written = json.loads(texts[code])
            source = written[1]
        except (ValueError, IndexError, KeyError, TypeError, RecursionError):
            continue
        if isinstance(source, list):
            broadcasts[:, code] = not source, 0 in source
    return broadcasts[0][codes], broadcasts[1][codes]


def _of_double(operators: _Operators) -> Finding | None:
    """Return a finding if operators on tensors in double precision take much time."""
    of = operators.in_base(np.flatnonzero(_in_double(operators.trace)[operators.rows]))
    time, base = int(operators.own_ns[of].sum()), operators.base
    severity = _SHARES.severity(share(time, base.whole_ns))
    if severity is None:
        return None
    rows = operators.rows[of]
    groups = grouped(
        operators.trace.events.name[rows].astype(np.int64), operators.own_ns[of].astype(np.int64)
    )
    names = [operators.trace.names[each.code] for each in groups[:_NAMED]]
    return Finding(
        of_size(severity, time),
        f"Operators on tensors in double precision (float64) took {base.part(time)}, mostly"
        f" {listed(names)}.",
        (operators.longest(of), Evidence(names[0], None, groups[0].count, "events")),
        "operators.float64",
        numbers=base.figures_of(time),
        gain=gain_of_rows(
            operators.trace, rows, operators.own_ns[of] / 2, "float32 takes half of the time"
        ),
        action="If single precision is sufficient, use float32 tensors.",
        details="They take half of the memory, and vector units compute twice as many of them at a"
        " time. Tensors made from numpy arrays are float64 unless you convert them.",
    )


@once
def _in_double(trace: Trace) -> Mask:
    """Which events are operators whose tensors are all in double precision."""
    in_double: Mask = np.zeros(len(trace.events), dtype=np.bool_)
    dims, types = trace.argument("Input Dims"), trace.argument("Input type")
    if dims is None or types is None or dims.numbers is not None or types.numbers is not None:
        return in_double
    rows, of_dims, of_types = np.intersect1d(dims.rows, types.rows, return_indices=True)
    pairs = dims.codes[of_dims] * np.int64(len(types.texts)) + types.codes[of_types]
    used, which = numbered(pairs)
    chosen = np.zeros(len(used), dtype=np.bool_)
    for at, pair in enumerate(used.tolist()):
        of_dim, of_type = divmod(pair, len(types.texts))
        if "double" not in types.texts[of_type]:
            continue
        call = call_of("", dims.texts[of_dim], types.texts[of_type], "", "")
        # A number is a tensor without dimensions.
        tensors = [] if call is None else [each for each in call.all_tensors() if each.dims]
        chosen[at] = bool(tensors) and all(each.type == "double" for each in tensors)
    in_double[rows] = chosen[which]
    return in_double


def _often(operators: _Operators, of: Rows) -> Rows:
    """Those of some operators whose name occurs often in a step."""
    name = operators.trace.events.name[operators.rows[of]]
    _, which = numbered(name)
    count = np.bincount(which)
    often: Rows = of[count[which] >= _OFTEN * max(operators.base.steps, 1)]
    return often


def _reads_of_one(operators: _Operators) -> Rows:
    """Return operators that read one value of a tensor, and those that chose it, by begin."""
    outer = operators.outer
    small = operators.is_small
    reads = operators.are(_READS_ONE)[outer] & small
    chooses = operators.are(_CHOOSES_ONE)[outer] & small
    followed = np.append(reads[1:], False) & chooses & (operators.pause_ns < PAUSE_NS)
    many = np.isin(outer, _often(operators, operators.in_base(outer[reads])))
    found: Rows = outer[many | (followed & np.append(many[1:], False))]
    return found


def _with_neighbours(operators: _Operators, of: Rows) -> Rows:
    """Some of the outermost operators, with those that take tensors apart before, or join them."""
    outer = operators.outer
    chosen = np.isin(outer, of)
    beside = np.append(chosen[1:], False) | np.append(False, chosen[:-1])
    found: Rows = outer[chosen | (beside & operators.are(_TAKES_APART)[outer])]
    return found


def _one_by_one(operators: _Operators, of: Rows) -> Finding | None:
    """Return a finding about values that are read one by one."""
    spared = operators.without(_with_neighbours(operators, of))
    time, base = spared.total_ns, operators.base
    severity = _SHARES.severity(share(time, base.whole_ns))
    if severity is None:
        return None
    reads = of[operators.are(_READS_ONE)[of]]
    return Finding(
        of_size(severity, time),
        f"The program read {counted(len(reads), 'value')} of tensors one by one, for"
        f" {base.part(time)}.",
        (operators.longest(of), Evidence("values read", None, len(reads), "events")),
        "operators.read_one_by_one",
        numbers=base.figures_of(time) | {"values": len(reads)},
        gain=gain_without(operators.trace, spared, "one call reads all of them"),
        action="tolist() or numpy() read all values of a tensor in one call.",
    )


def _small(operators: _Operators, read: Rows) -> Finding | None:
    """Return a finding about small operators other than those that read one value."""
    outer = operators.outer
    small = outer[operators.is_small & ~np.isin(outer, read)]
    of = _often(operators, operators.in_base(small))
    every = _with_neighbours(operators, of)
    spared, base = operators.without(every), operators.base
    time = spared.total_ns
    severity = _SHARES.severity(share(time, base.whole_ns))
    if severity is None:
        return None
    names = operators.names(of)
    around = ", and what takes tensors apart for them or joins them" if len(every) > len(of) else ""
    return Finding(
        of_size(severity, time),
        f"{counted(len(of), 'operator')}, which usually take less than {in_words(SMALL_NS, 'ns')},"
        f" took {base.part(time)} with the short times between them{around}, mostly"
        f" {listed(name for name, _, _ in names[:_NAMED])}.",
        (
            operators.longest(of),
            *(Evidence(name, None, count, "events") for name, _, count in names[:2]),
        ),
        "operators.small",
        numbers=base.figures_of(time) | {"operators": len(of)},
        gain=gain_without(operators.trace, spared, "few operators replace them"),
        action="One operator on a larger tensor, a torch._foreach_ operator on a list, or"
        " torch.compile replaces many small operators.",
    )


def _not_fused(operators: _Operators) -> Finding | None:
    """Return a finding if consecutive elementwise operators take much time."""
    trace = operators.trace
    if runs_compiled(trace):
        return None
    # Small operators and views between two others do not keep a compiler from fusing these.
    of = operators.in_base(operators.outer[~operators.is_small])
    of = of[~operators.are(VIEWS)[of]]
    kinds = {code: kind_of(trace.names[code]) for code in values_of(_name(operators, of)).tolist()}
    fusible = np.array([kinds[code] == ELEMENTWISE for code in _name(operators, of).tolist()])
    if not fusible.any():
        return None
    begin, end = operators.forest.begin[of], operators.forest.end[of]
    follows = fusible & np.append(False, fusible[:-1])
    freeing = (end - begin)[:-1] // 2
    follows &= np.append(False, begin[1:] - end[:-1] < np.maximum(freeing, QUIET_NS))
    run = np.cumsum(fusible & ~follows)[fusible]
    of = of[fusible]
    durations = operators.dur_ns[of]
    # The longest of each run remains.
    order = np.lexsort((-durations, run))
    first = np.append(True, run[order][1:] != run[order][:-1])
    others = np.sort(of[order[~first]])
    alone = np.bincount(run)[run] < 2
    of = of[~alone]
    time, base = operators.without(of).total_ns, operators.base
    severity = _SHARES.severity(share(time, base.whole_ns))
    if severity is None or len(others) == 0:
        return None
    names = operators.names(of)
    how = "each run of them takes as long as its longest operator"
    return Finding(
        of_size(severity, time),
        f"{counted(len(of), 'elementwise operator')} ran one after another for"
        f" {base.part(time)}, in {counted(len(values_of(run[~alone])), 'run')} of several, and no"
        " code in the trace was compiled.",
        (operators.longest(of), Evidence(shortened(names[0][0]), None, names[0][2], "events")),
        "operators.not_fused",
        numbers=base.figures_of(time) | {"operators": len(of)},
        gain=gain_without(trace, operators.without(others), how),
        action="torch.compile fuses a run of elementwise operators into one loop.",
        details="Each of them reads and writes whole tensors.",
    )


def _name(operators: _Operators, of: Rows) -> Numbers:
    result: Numbers = operators.trace.events.name[operators.rows[of]].astype(np.int64)
    return result
