"""The rates of operators: operations and bytes from shapes, per second and in percent of peaks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Annotated

import msgspec
import numpy as np

from stagespan.pages.amounts import counted, in_percent, in_words, listed, three_digits
from stagespan.pages.figures import Count, Figures, Internal, MeanNs, Ns, one_of
from stagespan.pages.result import Chart, Finding, Gain, StructResult, Table, Unavailable, share
from stagespan.trace.analyses.kernel_rows import KIND_OF_CODE, KernelRows, kernel_rows
from stagespan.trace.analyses.rate_findings import (
    OTHER_DEVICE,
    Appends,
    appended,
    appends_to_larger,
    at_the_peak,
    below_the_peak,
    dominant_on_host,
    slow_in_memory,
    unaligned,
)
from stagespan.trace.derived.gains import gain_of_rows, gain_without_rows
from stagespan.trace.derived.kernel_kinds import (
    ATTENTION,
    COMMUNICATION,
    CONVOLUTION,
    KINDS,
    MATMUL,
    MOE,
    TRITON,
)
from stagespan.trace.derived.launch_sources import values_at
from stagespan.trace.derived.missing import (
    needs_device,
    needs_operators,
    no_device_events,
    unrecorded_device,
)
from stagespan.trace.derived.modules import class_of_module, module_calls
from stagespan.trace.derived.threads import ThreadIndex, name_codes
from stagespan.trace.derived.trees import Nesting, with_those_below
from stagespan.trace.derived.windows import BaseWindow, base_window, steps_of
from stagespan.trace.derived.work_table import Column, WorkTable
from stagespan.trace.evidence import evidence
from stagespan.trace.rates.calls import Call, Cost, call_of, inputs_in_words
from stagespan.trace.rates.costs import Unknown, cost_of, formula_of
from stagespan.trace.rates.limits import (
    LIMITS,
    has_other_algorithm,
    limit_of,
    reason_of,
)
from stagespan.trace.rates.peaks import (
    Peaks,
    device_names,
    device_peaks,
    host_peaks,
    vendor_of,
)
from stagespan.trace.rates.work import Rate, ShapeRate, Work, ideal_ns, together
from stagespan.trace.read.groups import firsts_of, grouped, pairs, values_of
from stagespan.trace.read.intervals import Numbers, Rows
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once

_SHOWN = 15
_DRAWN = 100
# Percent of all work: with less in products that have no rate, the sum is almost complete.
_MUCH_UNRATED = 5.0
_MOSTLY_UNRATED = 50.0
_MAY_BE_PRODUCTS = [
    KIND_OF_CODE.index(kind) for kind in (MATMUL, CONVOLUTION, ATTENTION, MOE, TRITON)
]
_CALLED = KINDS | {TRITON: "Triton kernels"}
# The least part of the time without a rate: kinds that take less of it are not named.
_NAMED = 0.1
_ARGUMENTS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
NO_SHAPES, GRAPH, NO_OPERATOR = "no_shapes", "device_graph", "no_operator"
NO_FORMULA, UNKNOWN, COMMUNICATES, WRAPS = "no_formula", "unknown", "communication", "wrapper"
_WHY_LEFT_OUT = {
    NO_SHAPES: "no shapes were recorded",
    GRAPH: "ran in a device graph, whose operators or shapes are not in the trace: see --capture",
    NO_OPERATOR: "no operator launched it in the trace",
    NO_FORMULA: "no formula is known: see stagespan.trace.register_cost",
    UNKNOWN: "its work is unknown",
    COMMUNICATES: "communication",
    WRAPS: "calls operators that have rates",
}


class DevicePeaks(Figures, frozen=True):
    """The device of a trace and its highest rates."""

    device: str
    """Its name in the trace."""
    known_as: str | None
    """The device in the table of peaks; None if it is not in it."""
    source: str | None
    date: str | None
    tflop_s: dict[str, float]
    """The peak of each kind of product, such as "bf16"."""
    memory_tb_s: float | None


class PartRate(Rate, frozen=True):
    """The rate of all calls of an operator, of a stage or in a step."""

    name: str | None


class LeftOut(Figures, frozen=True):
    """Device work without a rate."""

    reason: Annotated[str, one_of(_WHY_LEFT_OUT)]
    detail: str
    operator: str | None
    time_ns: Ns
    percent: float
    count: Count


class Rates(StructResult, frozen=True):
    """The rates of a trace whose operators have shapes."""

    base: BaseWindow
    devices: list[DevicePeaks]
    work_ns: Ns
    """The sum of the durations of all device events in the base, or of operators on a host."""
    rated: Rate
    """All calls that have a rate; `peak_percent` is of the time of these calls."""
    at_peak_ns: MeanNs | None
    """The time of all products if each ran at the peak of its type."""
    mfu_percent: float | None
    """Operations in percent of what the devices could compute in the whole time of the base."""
    by_shape: list[ShapeRate]
    by_operator: list[PartRate]
    by_kernel: list[PartRate]
    """By the kernel that takes most of the time of calls with the same shapes."""
    by_stage: list[PartRate] | None
    """By the innermost stage around the launch; None without stages."""
    by_layer: list[PartRate] | None
    """By the classes of the two innermost modules around the operator, such as "Block > Linear";
    None without modules. Operators of the backward pass are in no module."""
    by_step: list[PartRate] | None
    """Rates while the calls ran, not over the whole step; None without steps."""
    left_out: list[LeftOut]
    on_device: bool
    vendor: Internal[str | None] = None
    appends: Internal[Appends | None] = None
    unrated_ns: Internal[dict[str, int]] = msgspec.field(default_factory=dict)
    """The time of products, convolutions, attention and Triton kernels without a rate by kind, the
    longest first."""

    @property
    def work(self) -> str:
        """What the percentages of times refer to."""
        return "device work" if self.on_device else "the operators' time"

    def line(self) -> str:
        """The rate of all products, and the part of the device's work that has a rate."""
        rated = self.rated
        if rated.tflop_s is None:
            return f"{in_percent(rated.percent)} of {self.work} has a rate, but no products do"
        peak = "" if self.mfu_percent is None else f", {in_percent(self.mfu_percent)} of the peak"
        if (rated.peak_percent or 0.0) > OTHER_DEVICE:
            peak = ", more than its peak: the device is another one"
        whole, flops = self.base.whole_ns, rated.flops or 0.0
        unrated_ns = sum(self.unrated_ns.values())
        unrated = share(unrated_ns, self.work_ns)
        least = "at least " if unrated >= _MUCH_UNRATED else ""
        text = (
            f"{least}{in_words(flops, 'FLOP')} in {in_words(whole, 'ns')} of {self.base.label}:"
            f" {least}{in_words(flops / max(whole, 1) * 1e9, 'FLOP/s')}{peak}"
        )
        if least:
            kinds = [_CALLED[k] for k, ns in self.unrated_ns.items() if ns >= _NAMED * unrated_ns]
            part = f"{in_percent(unrated)} of {self.work} is {listed(kinds)} without a rate"
            text = f"unknown: {part}" if unrated > _MOSTLY_UNRATED else f"{text}. {part}"
        return text

    def findings(self) -> list[Finding]:
        """Work that is slow because of its sizes, or for another reason."""
        shapes, work_ns = self.by_shape, self.work_ns
        findings = [None if self.appends is None else appended(self.appends, work_ns, self.work)]
        if not self.on_device:
            findings.append(dominant_on_host(shapes, work_ns))
        else:
            findings.append(unaligned(shapes, work_ns, self.work))
            findings += below_the_peak(shapes, work_ns, self.base.whole_ns, self.vendor)
            findings.append(slow_in_memory(shapes, work_ns, self.vendor))
            findings.append(at_the_peak(shapes, work_ns))
        return [each for each in findings if each is not None]

    def chart(self) -> Chart | None:
        """Return a roofline: operations per second against operations per byte.

        Its points are the shapes with both, and its roofs are the peaks of the first device with a
        known memory, of the types that the points have.
        """
        drawn = [each for each in self.by_shape[:_DRAWN] if each.flops and each.bytes]
        if not drawn:
            return None
        device = next((each for each in self.devices if each.memory_tb_s), None)
        types = dict.fromkeys(each.type for each in drawn)
        roofs = [] if device is None else [t for t in types if t in device.tflop_s]
        return {
            "kind": "roofline",
            "device": "" if device is None else device.known_as or device.device,
            "bytes_s": None if device is None else (device.memory_tb_s or 0.0) * 1e12,
            "roofs": [(name, device.tflop_s[name] * 1e12) for name in roofs] if device else [],
            "points": [_point(each) for each in drawn],
        }

    def tables(self) -> list[Table]:
        """By shape, by operator, by stage, and what has no rate."""
        of = "of device work" if self.on_device else "of operators"
        tables = [
            Table.of(
                "Rates by shape",
                self.by_shape[:_SHOWN],
                ("operator", "operator", ""),
                ("shape", "inputs", ""),
                ("calls", "calls", ""),
                ("time_ns", "time", "ns"),
                ("percent", of, "%"),
                ("tflop_s", "TFLOP/s", ""),
                ("peak_percent", "of peak", "%"),
                ("tb_s", "TB/s", ""),
                ("memory_percent", "of memory's peak", "%"),
                (lambda row: "" if row.limit is None else LIMITS[row.limit], "limit", ""),
                ("reason", "because", ""),
                note=self._note(),
            ),
        ]
        parts = [
            ("operator", self.by_operator),
            ("kernel", self.by_kernel),
            ("stage", self.by_stage),
            ("layer", self.by_layer),
            ("step", self.by_step),
        ]
        for what, rows in parts:
            tables.append(
                Table.of(f"Rates by {what}", (rows or [])[:_SHOWN], ("name", what, ""), *_RATE)
            )
        tables.append(
            Table.of(
                "Work without a rate",
                self.left_out[:_SHOWN],
                ("operator", "operator", ""),
                ("time_ns", "time", "ns"),
                ("percent", of, "%"),
                ("count", "device events" if self.on_device else "calls", ""),
                ("detail", "reason", ""),
            )
        )
        return [table for table in tables if table.rows]

    def _note(self) -> str:
        notes = []
        for device in self.devices:
            if device.known_as is None:
                notes.append(
                    f"The peaks of {device.device or 'the device'} are unknown, so there are no"
                    " percentages: STAGESPAN_PEAKS can name a file with them."
                )
            else:
                rates = [f"{name} {three_digits(value)}" for name, value in device.tflop_s.items()]
                notes.append(
                    f"Peaks of {device.known_as} in TFLOP/s: {', '.join(rates)}; memory"
                    f" {three_digits(device.memory_tb_s or 0.0)} TB/s"
                    f" ({device.source}{device.date and f', {device.date}'})."
                )
        if any(row.bytes_at_least for row in self.by_shape[:_SHOWN]):
            notes.append("Kernels of Triton may move more bytes than their arguments show.")
        return " ".join(notes)


_RATE = (
    ("calls", "calls", ""),
    ("time_ns", "time", "ns"),
    ("percent", "of all", "%"),
    ("tflop_s", "TFLOP/s", ""),
    ("peak_percent", "of peak", "%"),
    ("tb_s", "TB/s", ""),
    ("memory_percent", "of memory's peak", "%"),
)


class IterationRates(Figures, frozen=True):
    """What one iteration of a replayed stage computes, by its time without the profiler."""

    tflop: float
    tflop_s: float
    mfu_percent: float | None
    """Model FLOPs utilisation: in percent of what the device computes at its peak in that time;
    None if the peak is unknown."""
    peaks_of: str | None
    rated_percent: float
    """The part of the trace's device work, or operators, that has rates."""


def rates_of_iteration(trace: Trace, iterations: int, time_ns: float) -> IterationRates | None:
    """Return the rates of one of the iterations in a trace, which takes `time_ns` without profiler.

    None if the trace has no shapes, or no products.
    """
    rates = analyze(trace)
    if isinstance(rates, Unavailable) or not rates.rated.flops or iterations < 1 or time_ns <= 0:
        return None
    tflop = rates.rated.flops / iterations / 1e12
    at_peak = rates.at_peak_ns
    return IterationRates(
        tflop=tflop,
        tflop_s=tflop / time_ns * 1e9,
        mfu_percent=None if at_peak is None else share(at_peak / iterations, time_ns),
        peaks_of=next((each.known_as for each in rates.devices), None),
        rated_percent=rates.rated.percent,
    )


@once
def analyze(trace: Trace) -> Rates | Unavailable:
    """Return the rates of operators; Unavailable if the trace has no shapes or no work."""
    kernels = kernel_rows(trace)
    base = base_window(trace)
    if isinstance(kernels, Unavailable) or base is None:
        return Unavailable(
            "The trace has neither kernels nor operators, so there are no rates.",
            "no_operators",
            needs=needs_operators(trace),
        )
    device = unrecorded_device(trace)
    if device is not None:
        return Unavailable(
            f"The program used a device ({device}), but {no_device_events(trace)}. So there are no"
            " rates.",
            "device_not_recorded",
            needs=needs_device(trace),
        )
    if kernels.hosts.argument("Input Dims") is None:
        return Unavailable(
            "The trace does not contain the shapes of operators' inputs, from which rates are"
            " computed: record it with torch.profiler.profile(record_shapes=True).",
            "no_shapes",
            needs=("shapes of inputs", "record_shapes=True"),
        )
    return _Found(trace, kernels, base).rates()


# --- which call of an operator has which time ---


class _Kind(msgspec.Struct):
    """All calls of one operator with the same arguments."""

    call: Call
    cost: Cost | Unknown | None
    shape: str


class _PartTime(Figures, frozen=True):
    """The time of the calls of one kind in a part of the trace."""

    part: str | None
    kind: int
    time_ns: Ns
    calls: Count | None
    count: Count
    min_ns: Ns
    max_ns: Ns


class _Found:
    """The calls of a trace: their times, their costs, and what is left out."""

    def __init__(self, trace: Trace, kernels: KernelRows, base: BaseWindow) -> None:
        self._trace, self._base = trace, base
        self._hosts = kernels.hosts
        self._kernels = work = kernels.of(base.contains(trace, kernels.rows))
        self._on_device = work.on_device
        self._rows, self._time = work.rows, work.time_ns
        self._call: Rows = np.where(work.without_shapes, -1, work.call)
        self._kinds: list[_Kind] = []
        self._find()

    def _find(self) -> None:
        """Set the kind of the call of each row; -1 without a call."""
        # They take much memory, and are not kept.
        columns = [_Column(self._hosts, key) for key in _ARGUMENTS]
        called = self._different_calls()
        kind = self._kinds_of(called, self._call, columns)
        other, wraps = self._around(called, kind)
        if (other != called).any():
            moved = self._call >= 0
            self._call[moved] = other[np.searchsorted(called, self._call[moved])]
            self._kinds = []
            called = self._different_calls()
            kind = self._kinds_of(called, self._call, columns)
        self._called, self._kind, self._wraps = called, kind, wraps

    def _different_calls(self) -> Rows:
        return values_of(self._call[self._call >= 0])

    def _events(self, called: Rows) -> Rows:
        """Return the row of each call in the trace that has the operators."""
        return called % max(len(self._hosts.events), 1)

    def _kinds_of(self, called: Rows, launched: Rows, columns: list[_Column]) -> Numbers:
        """Add the different kinds of some calls, and return the kind of each call."""
        if len(called) == 0:
            return np.empty(0, dtype=np.int64)
        rows = self._events(called)
        codes = [self._hosts.events.name[rows], *(each.code[rows] for each in columns)]
        kind = np.zeros(len(called), dtype=np.int64)
        for code in codes:
            _, kind = pairs(kind, code.astype(np.int64))
        places = np.empty(int(kind.max()) + 1, dtype=np.intp)
        places[kind] = np.arange(len(called))
        different = zip(*(code[places].tolist() for code in codes), strict=True)
        kernels = self._kernels_of(called, kind, launched)
        for number, (name, *arguments) in enumerate(different):
            dims, types, strides, values = (
                column.text(code) for column, code in zip(columns, arguments, strict=True)
            )
            operator, ran = self._trace.names[name], kernels.get(number, ())
            call = call_of(operator, dims, types, strides, values, ran)
            if call is None or not any(call.arguments):
                self._kinds.append(_Kind(Call(operator, ()), None, ""))
            else:
                self._kinds.append(_Kind(call, cost_of(call), inputs_in_words(dims)))
        return kind

    def _kernels_of(self, called: Rows, kind: Numbers, call: Rows) -> dict[int, list[str]]:
        """Return the names of the kernels of each kind of calls, the one with most time first."""
        if not self._on_device:
            return {}
        with_call = np.flatnonzero(call >= 0)
        of_kind = kind[np.searchsorted(called, call[with_call])]
        size = len(self._trace.names)
        names: dict[int, list[str]] = defaultdict(list)
        for group in grouped(of_kind * size + self._kernels.name[with_call], self._time[with_call]):
            names[group.code // size].append(self._trace.names[group.code % size])
        return names

    def _around(self, called: Rows, kind: Numbers) -> tuple[Rows, Rows]:
        """Return the call whose work each call is, and the calls that only call others.

        It is the call itself or, if that has no cost, the innermost call with a formula around it.
        Work that an inner call counts is not counted again by an outer call.
        """
        trace, events, row_of = self._hosts, self._hosts.events, self._events(called)
        names = np.array([formula_of(name) is not None for name in trace.names] + [False])
        rows = np.flatnonzero(names[events.name] & trace.rows_of(["cpu_op"]))
        index = ThreadIndex(trace, rows, row_of)
        if len(rows) == 0 or len(called) == 0 or not index.fits:
            return called, called[:0]
        forest = Nesting.of(trace, index.axis, rows, index.of[0])
        if len(forest) == 0:
            return called, called[:0]
        costs = [each.cost for each in self._kinds]
        rated = np.array([isinstance(each, Cost) for each in costs])[kind]
        computes = np.array([isinstance(each, Cost) and each.flops is not None for each in costs])
        computes = computes[kind]
        inside = []
        for chosen in (rated, computes):
            # One more, for rows of -1.
            is_chosen = np.zeros(len(events) + 1, dtype=np.bool_)
            is_chosen[row_of[chosen]] = True
            is_own = is_chosen[forest.rows].astype(np.int64)
            inside.append(with_those_below(forest.parent, is_own) - is_own)
        at = forest.at(index.axis.place(index.of[1], events.begin_ns[row_of]))
        is_own = (at >= 0) & (forest.rows[at] == row_of)
        wraps = is_own & rated & (np.where(computes, inside[1][at], inside[0][at]) > 0)
        at = np.where(is_own, forest.parent[at], at)
        usable = ~rated & (at >= 0) & (inside[0][at] == 0)
        # The same launch of a graph.
        return np.where(usable, called - row_of + forest.rows[at], called), called[wraps]

    # --- sums ---

    def rates(self) -> Rates:
        """Sum up by shape, operator, kernel, stage and step."""
        of_row = np.full(len(self._call), -1, dtype=np.int64)
        known = self._call >= 0
        if known.any():
            of_row[known] = self._kind[np.searchsorted(self._called, self._call[known])]
        rated = np.array([isinstance(each.cost, Cost) for each in self._kinds] + [False])
        self._of_row = of_row
        self._is_rated = rated[of_row] & ~np.isin(self._call, self._wraps)
        self._total = int(self._time.sum())
        # Each call belongs to the part of its first row.
        rows = np.flatnonzero(self._is_rated)
        _, first = firsts_of(self._call[rows])
        self._first_call = np.full(len(of_row), -1, dtype=np.intp)
        self._first_call[rows[first]] = self._call[rows[first]]
        work = [each for _, each in self._work()]
        devices = self._devices()
        whole = self._base.whole_ns * max(len(devices), 1)
        ideal = ideal_ns(work)
        return Rates(
            base=self._base,
            devices=self._described(devices),
            work_ns=self._total,
            rated=together(work, self._total),
            at_peak_ns=ideal,
            mfu_percent=None if ideal is None else share(ideal, whole),
            by_shape=[self._shape_rate(each) for each in work],
            by_operator=self._parts((each.call.name, each) for each in work),
            by_kernel=self._parts(
                (each.call.kernels[0], each) for each in work if each.call.kernels
            ),
            by_stage=self._by(Column(self._kernels.stage, self._trace.names)),
            by_layer=self._by_layer(),
            by_step=self._by_step(),
            left_out=self._left_out(),
            on_device=self._on_device,
            vendor=vendor_of(self._trace),
            appends=self._appends(),
            unrated_ns=self._unrated_ns(),
        )

    def _appends(self) -> Appends | None:
        """Return the calls that join a large tensor and small ones; None if there are none."""
        kinds = [at for at, each in enumerate(self._kinds) if appends_to_larger(each.call)]
        rows = np.flatnonzero(np.isin(self._of_row, kinds))
        if len(rows) == 0:
            return None
        times = self._time[rows]
        how = "the small part alone is written"
        return Appends(
            longest=evidence(self._trace, int(self._rows[rows[times.argmax()]])),
            calls=len(values_of(self._call[rows])),
            sizes=len(values_of(self._of_row[rows])),
            time_ns=int(times.sum()),
            gain=gain_without_rows(self._trace, self._rows[rows], times, how),
        )

    def _unrated_ns(self) -> dict[str, int]:
        may_be = np.isin(self._kernels.kind, _MAY_BE_PRODUCTS)
        unrated = may_be & ~self._is_rated & ~np.isin(self._call, self._wraps)
        found = grouped(self._kernels.kind[unrated].astype(np.int64), self._time[unrated])
        return {KIND_OF_CODE[each.code]: each.time_ns for each in found}

    def _work(self, part: Column | None = None) -> list[tuple[str | None, Work]]:
        """Return the work of each part by kind, with the part's name, the longest first."""
        kind = Column(self._of_row)
        table = WorkTable(self._time, self._first_call, {"part": part or kind, "kind": kind})
        columns = ("kind",) if part is None else ("part", "kind")
        peaks, parts = self._peaks(), []
        for row in table.by(_PartTime, *columns, where=self._is_rated):
            made = self._kinds[row.kind]
            assert isinstance(made.cost, Cost)
            is_one = row.count == row.calls
            extremes = (row.min_ns, row.max_ns) if is_one else (None, None)
            calls = row.calls or 0
            work = Work(row.kind, made.call, made.cost, row.time_ns, calls, peaks, *extremes)
            parts.append((row.part, work))
        return parts

    def _by(self, part: Column) -> list[PartRate] | None:
        return self._parts(self._work(part)) if (part.codes >= 0).any() else None

    def _by_layer(self) -> list[PartRate] | None:
        trace, modules = self._hosts, module_calls(self._hosts)
        if modules is None:
            return None
        at = modules.around(np.where(self._call >= 0, self._events(self._call), -1))
        own, around = (values_at(modules.rows, each) for each in (at, modules.tree.parent[at]))
        keys, layer = pairs(name_codes(trace, around), name_codes(trace, own))
        names = [
            " > ".join(str(class_of_module(trace.names[code])) for code in key if code >= 0)
            for key in keys.tolist()
        ]
        return self._by(Column(np.where(at >= 0, layer, -1), names))

    def _by_step(self) -> list[PartRate] | None:
        steps = steps_of(self._trace)
        if steps is None:
            return None
        begin = self._trace.events.begin_ns[self._rows]
        at = np.searchsorted(steps.begin_ns, begin, side="right") - 1
        inside = (at >= 0) & (begin < steps.end_ns[at])
        found = self._by(Column(np.where(inside, at, -1), steps.names))
        order = {name: number for number, name in enumerate(steps.names)}
        return sorted(found or [], key=lambda each: order.get(each.name or "", len(order)))

    def _parts(self, work: Iterable[tuple[str | None, Work]]) -> list[PartRate]:
        groups: dict[str | None, list[Work]] = defaultdict(list)
        for name, each in work:
            groups[name].append(each)
        parts = [
            PartRate(**msgspec.structs.asdict(together(each, self._total)), name=name)
            for name, each in groups.items()
        ]
        return sorted(parts, key=lambda each: -each.time_ns)

    def _devices(self) -> list[int]:
        if not self._on_device:
            return []
        return [int(each) for each in values_of(self._trace.events.device[self._rows])]

    def _peaks(self) -> Peaks | None:
        """Return the peaks of the devices in use; None if they are unknown or differ."""
        if not self._on_device:
            return host_peaks(self._trace)
        peak_of = device_peaks(self._trace)
        peaks = [peak_of.get(each) for each in self._devices()]
        if any(each is None for each in peaks):
            # Some traces number devices in another way than the list of them.
            peaks = list(peak_of.values())
        return peaks[0] if peaks and all(each is peaks[0] for each in peaks) else None

    def _described(self, devices: list[int]) -> list[DevicePeaks]:
        names, peaks = device_names(self._trace), self._peaks()
        other = next(iter(names.values()), "")
        used = dict.fromkeys(names.get(each, other) for each in devices)
        if not self._on_device:
            used = {} if peaks is None else {peaks.name: None}
        if peaks is None:
            return [DevicePeaks(name, None, None, None, {}, None) for name in used]
        tflop_s = dict(peaks.tflops)
        known = (peaks.name, peaks.source, peaks.date, tflop_s, peaks.memory_tb_s)
        return [DevicePeaks(name, *known) for name in used]

    def _shape_rate(self, work: Work) -> ShapeRate:
        total = together([work], self._total)
        kernels = work.call.kernels
        mean_ns = work.time_ns / work.calls
        limit = None
        if not has_other_algorithm(kernels):
            limit = limit_of(total.peak_percent, total.memory_percent, mean_ns)
        units = None if work.peaks is None else work.peaks.units
        return ShapeRate(
            **msgspec.structs.asdict(total),
            operator=work.call.name,
            shape=self._kinds[work.kind].shape,
            type=self._type(work),
            kernel=kernels[0] if kernels else None,
            shortest_ns=work.shortest_ns,
            longest_ns=work.longest_ns,
            bytes_at_least=work.cost.bytes_at_least,
            limit=limit,
            reason=reason_of(work.call, work.cost, limit, mean_ns, units),
            units=units,
            call=work.call,
            cost=work.cost,
            gain_at=partial(self._gain_at, work),
        )

    def _gain_at(self, work: Work, percent: float) -> Gain | None:
        """Return the gain if calls reach a percentage of the peak, but not more than the memory's.

        For calls that only move data, it is a percentage of the memory's peak. None on a host, or
        if the peak is unknown.
        """
        memory = None if work.peaks is None else work.peaks.memory_tb_s
        moved = None if memory is None or work.bytes is None else work.bytes / memory / 1e3
        peak = "the peak"
        if not self._on_device:
            return None
        if work.flops is None:
            if moved is None:
                return None
            least, peak = moved / (percent / 100), "the memory's peak"
        elif work.peak is None:
            return None
        else:
            least = max(work.flops / (work.peak[1] * percent / 100) / 1e3, moved or 0.0)
        rated = np.flatnonzero(self._is_rated & (self._of_row == work.kind))
        spared = self._time[rated] * max(1 - least / work.time_ns, 0.0)
        how = f"they reach {percent:.0f} % of {peak}"
        return gain_of_rows(self._trace, self._rows[rated], spared, how)

    def _type(self, work: Work) -> str:
        if work.flops is None:
            return ""
        return work.cost.type if work.peak is None else work.peak[0]

    def _left_out(self) -> list[LeftOut]:
        whys = [_why(each) for each in self._kinds]
        others = (NO_OPERATOR, COMMUNICATES, GRAPH, WRAPS)
        whys += [(each, _WHY_LEFT_OUT[each]) for each in others]
        count, kernels = len(self._kinds), self._kernels
        why = np.where(self._of_row >= 0, self._of_row, count)
        why = np.where(np.isin(self._call, self._wraps), count + 3, why)
        why = np.where(kernels.without_shapes, count + 2, why)
        why = np.where(kernels.kind == KIND_OF_CODE.index(COMMUNICATION), count + 1, why)
        distinct = {each: number for number, each in enumerate(dict.fromkeys(whys))}
        number = np.array([distinct[each] for each in whys])[why]
        columns = {
            "operator": Column(kernels.operator, self._trace.names),
            "reason": Column(number, [reason for reason, _ in distinct]),
            "detail": Column(number, [detail for _, detail in distinct]),
        }
        table = WorkTable(self._time, self._call, columns)
        return table.by(LeftOut, "operator", "reason", "detail", where=~self._is_rated)


class _Column:
    """An argument of all events as codes of texts; code -1 is absent."""

    def __init__(self, trace: Trace, key: str) -> None:
        column = trace.argument(key)
        self.code = np.full(len(trace.events), -1, dtype=np.int32)
        self._texts: list[str] = []
        if column is not None and column.numbers is None:
            self.code[column.rows] = column.codes
            self._texts = column.texts

    def text(self, code: int) -> str:
        return self._texts[code] if code >= 0 else ""


def _point(rate: ShapeRate) -> tuple[str, float, float, float, list[str]]:
    """Return operator, operations per byte and per second, percent of the time, and a text."""
    flops, moved = rate.flops or 0.0, rate.bytes or 0.0
    per_byte, per_s = flops / moved, flops / max(rate.time_ns, 1) * 1e9
    at_most = "at most " if rate.bytes_at_least else ""
    peak = "" if rate.peak_percent is None else f", {in_percent(rate.peak_percent)} of the peak"
    text = [
        f"{rate.operator} {rate.shape}",
        f"{in_words(per_s, 'FLOP/s')}{peak}",
        f"{at_most}{three_digits(per_byte)} FLOP per byte",
        f"{in_words(rate.time_ns, 'ns')} in {counted(rate.calls, 'call')}",
    ]
    return rate.operator, per_byte, per_s, rate.percent, text


def _why(kind: _Kind) -> tuple[str, str]:
    if not any(kind.call.arguments):
        return NO_SHAPES, _WHY_LEFT_OUT[NO_SHAPES]
    if isinstance(kind.cost, Unknown):
        return UNKNOWN, kind.cost.reason
    return NO_FORMULA, _WHY_LEFT_OUT[NO_FORMULA]
