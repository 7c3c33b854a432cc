"""Layers: the modules that the profiler recorded, or else repeated blocks, marked as inferred."""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from stagespan.pages.amounts import in_percent, in_words
from stagespan.pages.figures import Count, Figures, Internal, Ns, Path, one_of
from stagespan.pages.result import (
    Column,
    Evidence,
    Finding,
    Gain,
    StructResult,
    Table,
    Unavailable,
    largest,
    share,
    shortened,
)
from stagespan.trace.derived.captures import captured_work
from stagespan.trace.derived.device import device_work, launch_of, streams
from stagespan.trace.derived.idle_causes import MARKS
from stagespan.trace.derived.kernel_kinds import ATTENTION, KINDS, kind_of
from stagespan.trace.derived.launch_sources import launch_sources
from stagespan.trace.derived.modules import MODULE, class_of_module, module_calls
from stagespan.trace.derived.step_ranges import (
    Repeat,
    StepRanges,
    all_repeats,
    longest_repeat,
    same_block,
    step_ranges,
    trains,
)
from stagespan.trace.derived.threads import named, outermost, threads
from stagespan.trace.derived.trees import (
    Paths,
    depth_first,
    levels,
    paths_to,
    with_those_below,
)
from stagespan.trace.evidence import window_of
from stagespan.trace.read.groups import counts_of, median, numbered, pairs, sums
from stagespan.trace.read.intervals import Numbers, Rows, exclusive
from stagespan.trace.read.model import MISSING, Trace
from stagespan.trace.read.view import operators_of

_LEAST_TIMES = 4
_LEAST_LENGTH = 3
_MOST = 6
# The most layers relative to the repetitions.
_MOST_MORE = 2.0
# The most layers in a block, and the fraction of it that belongs to only one of them.
_MOST_PARTS = 4
_FEW = 0.1
# The least part of the calls of a model that is in layers.
_MOSTLY = 0.75
# The largest difference of the time of an attention call from that in the block.
_ALIKE = 0.5
# Percent of the time: layers that take less are not named in the line of the result.
_LEAST_PERCENT_IN_LINE = 50.0
# The least fraction of the events' time: shorter repetitions do not count as layers.
_LEAST_SHARE = 0.05


def analyze(trace: Trace) -> Layers | Unavailable:
    """Find layers by modules, or else by repetition; Unavailable if there is neither."""
    modules = modules_of(trace) if len(trace.events) else None
    if modules is not None and _has_large_class(modules):
        return Layers.of(modules, None)
    blocks = blocks_of(trace, step_ranges(trace)) if len(trace.events) else None
    if modules is not None or blocks is not None:
        return Layers.of(modules, blocks)
    return Unavailable(
        "Layers are unknown: the trace contains no modules, and no block of kernels repeats."
        " Record it with stacks (with_stack=True), which name the modules.",
        "no_layers",
        needs=("modules", "with_stack=True"),
    )


class Layers(StructResult, frozen=True):
    """The modules; if they do not show the layers, also the repeated blocks."""

    source: Annotated[str, one_of(("modules", "repetition"))]
    """What shows the layers."""
    inferred: bool
    longest: list[Module] = msgspec.field(name="modules")
    """The modules or, if there are many, those with the most time."""
    modules_left_out: Count
    outside: Count | None = msgspec.field(name="device_events_outside")
    outside_ns: Ns | None = msgspec.field(name="device_events_outside_us")
    repeated: list[LayerBlock] = msgspec.field(name="blocks")
    what: Annotated[str, one_of(("kernels", "operators"))] | None = msgspec.field(name="blocks_of")
    step: str | None = msgspec.field(name="blocks_in_step")
    may_be_iterations: bool
    """Whether the blocks can also be iterations of a loop, because the trace shows no step around
    them."""
    median_layer: MedianLayer | None
    """The median repetition of the block with the most time."""
    modules: Internal[Modules | None] = msgspec.field(name="every_module")
    blocks: Internal[Blocks | None] = msgspec.field(name="every_block")

    @classmethod
    def of(cls, modules: Modules | None, blocks: Blocks | None) -> Layers:
        """Return the result on modules and blocks."""
        every = modules.modules if modules else []
        largest_modules = largest(every, _MOST_IN_JSON, lambda module: module.host_ns)
        return cls(
            source="modules" if modules else "repetition",
            inferred=modules is None,
            longest=largest_modules,
            modules_left_out=len(every) - len(largest_modules),
            outside=modules.outside if modules else None,
            outside_ns=modules.outside_ns if modules else None,
            repeated=blocks.blocks if blocks else [],
            what=blocks.what if blocks else None,
            step=blocks.step if blocks else None,
            may_be_iterations=blocks is not None and blocks.step is None,
            median_layer=blocks.median_layer if blocks else None,
            modules=modules,
            blocks=blocks,
        )

    def findings(self) -> list[Finding]:
        """Findings about modules that take much longer than the same module in other layers."""
        findings: list[Finding] = []
        if self.modules is None or not self.modules.device_ns:
            return findings
        slow = [(each, extra) for each in self.modules.modules if (extra := _extra_ns(each))]
        for module, extra in slow:
            median, most = module.call_ns.median, module.call_ns.max
            path = module.path
            inside = [more for each, more in slow if each.path[: len(path)] == path != each.path]
            # A module that is slow because one inside it is slow is not a second cause.
            if 2 * max(inside, default=0) > extra:
                continue
            if share(extra, self.modules.device_ns) < _LEAST_PERCENT:
                continue
            numbers = {"call_ns": most, "median_call_ns": median, "instances": module.instances}
            findings.append(
                Finding(
                    "low",
                    f"{shortened(module.slowest)} takes {in_words(most, 'ns')} of device time per"
                    f" call. The median of its {module.instances:,} instances"
                    f" ({shortened(' / '.join(module.path), 80)}) is {in_words(median, 'ns')}.",
                    (Evidence(f"{MODULE}{module.slowest}", None, most, "ns"),),
                    "layers.slow_module",
                    numbers,
                    Gain(extra, at_most=True, how="it takes as long as the median"),
                    about="place",
                )
            )
        return findings[:2]

    def line(self) -> str:
        """The modules or the repeated block with the most time."""
        if self.blocks is None:
            return _modules_line(self.modules)
        most = max(self.blocks.blocks, key=lambda block: block.total_ns)
        percent = share(most.total_ns, self.blocks.total_ns)
        if percent < _LEAST_PERCENT_IN_LINE:
            return ""
        where = "the trace" if self.step is None else shortened(self.step)
        what = " layers or iterations" if self.may_be_iterations else ""
        return (
            f"{most.layers:,}{what}, by {most.times:,} repetitions of"
            f" {most.length:,} {self.blocks.what}, {in_words(most.block_ns.median, 'ns')} each in"
            f" the median: {in_percent(percent)} of the {self.blocks.what}' time in {where}"
        )

    def tables(self) -> list[Table]:
        """The modules, or the blocks."""
        tables = [] if self.modules is None else [_modules_table(self.modules)]
        if self.blocks is None:
            return tables
        return [*tables, _blocks_table(self.blocks), _layer_table(self.blocks)]


class Spread(Figures, frozen=True):
    """The spread of several times in ns."""

    min: Ns
    median: Ns
    max: Ns


class LayerBlock(Figures, frozen=True):
    """A sequence that repeats, at least four times in a row; times in ns."""

    first: str
    """The name of its first event."""
    heaviest: str
    """The name of the event that takes the most time in it."""
    length: Count = msgspec.field(name="events")
    """Events in each repetition."""
    times: Count
    layers: Count
    """The number of layers (or iterations), which exceeds `times` if the first or last layer
    differs slightly, or if a block contains several layers."""
    begin_ns: Ns = msgspec.field(name="time_us")
    """From the start of the trace's window."""
    total_ns: Ns
    """Durations of all its events; overlaps counted twice."""
    block_ns: Spread
    """The spread of the repetitions' times."""
    slowest: Count
    """The number of the longest repetition, from 1."""


class LayerPart(Figures, frozen=True):
    """Events of one name that follow one another in a layer."""

    name: str
    kind: Annotated[str, one_of(KINDS)]
    stream: int | None
    """None for operators."""
    count: Count
    time_ns: Ns
    percent: float
    """Of the durations of all events of the layer."""


class MedianLayer(Figures, frozen=True):
    """One repetition of a block, with what other streams did meanwhile; times in ns."""

    number: Count
    """Of the repetition, from 1."""
    times: Count
    """The number of repetitions."""
    begin_ns: Ns = msgspec.field(name="time_us")
    """From the start of the trace's window."""
    dur_ns: Ns = msgspec.field(name="layer_us")
    """To the next repetition or, if none follows, to the end of its last event."""
    parts: list[LayerPart]
    """In the order in which they begin."""


class Blocks(msgspec.Struct, frozen=True):
    """All repetitions of a trace, or of one of its steps."""

    blocks: list[LayerBlock]
    """The blocks in the order of time."""
    what: str
    """What repeats: "kernels" on the device, or "operators" on the host."""
    step: str | None
    """The examined step; None for the whole trace."""
    total_ns: int
    """The sum of the durations of all examined events."""
    median_layer: MedianLayer
    """The median repetition of the block with the most time."""


def blocks_of(trace: Trace, ranges: StepRanges | None) -> Blocks | None:
    """Find repeated blocks in the middle step, or in the whole trace if it has no steps."""
    events = trace.events
    rows = device_work(trace).rows
    of_kernels = len(rows) > 0
    step, chosen = None, None
    if ranges is not None:
        chosen = int(np.argsort(ranges.end_ns - ranges.begin_ns, kind="stable")[len(ranges) // 2])
        step = ranges.names[chosen]
    if of_kernels:
        times = events.begin_ns[rows]
        if ranges is not None and ranges.on_host:
            calls = launch_of(trace, rows)
            times = np.where(calls >= 0, events.begin_ns[calls], np.iinfo(np.int64).min)
        if ranges is not None:
            rows = rows[ranges.at(times) == chosen]
        if len(rows) == 0:
            return None
        _, of_stream = pairs(*streams(trace, rows))
        rows = rows[of_stream == np.argmax(np.bincount(of_stream))]
        rows = rows[np.argsort(events.begin_ns[rows], kind="stable")]
    else:
        rows = _outermost(trace)
        if ranges is not None:
            rows = rows[ranges.at(events.begin_ns[rows]) == chosen]
    total = int(events.dur_ns[rows].sum())
    codes = events.name[rows].astype(np.int64)
    begin, _ = window_of(trace) or (0, 0)
    # A block with a forward and a backward pass is a part of a step that accumulates gradients.
    groups = [
        runs
        for runs in _equal_runs(codes)
        if of_kernels or not trains(trace, rows[runs[0].begin : runs[0].end], runs[0])
    ]
    repeated = [(_block(trace, rows, runs, begin), runs) for runs in groups]
    repeated = [each for each in repeated if each[0].total_ns >= _LEAST_SHARE * total]
    if not repeated:
        return None
    _, heaviest = max(repeated, key=lambda each: each[0].total_ns)
    return Blocks(
        sorted((block for block, _ in repeated), key=lambda block: block.begin_ns),
        "kernels" if of_kernels else "operators",
        step,
        total,
        _median_layer(trace, rows, heaviest, begin, of_kernels),
    )


def _median_layer(
    trace: Trace, rows: Rows, runs: list[Repeat], origin_ns: int, of_kernels: bool
) -> MedianLayer:
    """Return the median of the repetitions of a block among `rows`, by the time of its events."""
    events, length = trace.events, runs[0].length
    firsts = np.concatenate([np.arange(run.begin, run.end, length) for run in runs])
    times = np.array([int(events.dur_ns[rows[at : at + length]].sum()) for at in firsts.tolist()])
    median = int(np.argsort(times, kind="stable")[len(times) // 2])
    first = int(firsts[median])
    inside = rows[first : first + length]
    begin, end = int(events.begin_ns[inside[0]]), int(events.end_ns[inside].max())
    if median + 1 < len(firsts) and firsts[median + 1] == first + length:
        end = int(events.begin_ns[rows[first + length]])
    if of_kernels:
        # Collectives and copies run on other streams.
        work = device_work(trace).rows
        at = events.begin_ns[work]
        same = events.device[work] == events.device[inside[0]]
        inside = work[(at >= begin) & (at < end) & same]
        inside = inside[np.argsort(events.begin_ns[inside], kind="stable")]
    if not len(inside):  # its events have no duration
        return MedianLayer(median + 1, len(firsts), begin - origin_ns, end - begin, [])
    name, stream = events.name[inside], events.stream[inside]
    starts = np.append(True, (name[1:] != name[:-1]) | (stream[1:] != stream[:-1]))
    part = np.cumsum(starts) - 1
    total = int(events.dur_ns[inside].sum())
    parts = [
        LayerPart(
            name=trace.names[int(name[at])],
            kind=kind_of(trace.names[int(name[at])]),
            stream=int(stream[at]) if of_kernels and stream[at] != MISSING else None,
            count=count,
            time_ns=time,
            percent=share(time, total),
        )
        for at, count, time in zip(
            np.flatnonzero(starts).tolist(),
            np.bincount(part).tolist(),
            sums(part, events.dur_ns[inside], int(part[-1]) + 1).tolist(),
            strict=True,
        )
    ]
    return MedianLayer(median + 1, len(firsts), begin - origin_ns, end - begin, parts)


def _equal_runs(codes: Numbers) -> list[list[Repeat]]:
    """Group the repetitions by block."""
    groups: list[list[Repeat]] = []
    found = all_repeats(codes, _LEAST_TIMES, _LEAST_LENGTH, _MOST)
    for repeat in (inner for outer in found for inner in _of_calls(codes, outer)):
        block = codes[repeat.begin : repeat.begin + repeat.length]
        for group in groups:
            first = group[0]
            if same_block(codes[first.begin : first.begin + first.length], block):
                group.append(repeat)
                break
        else:
            groups.append([repeat])
    return groups


def _of_calls(codes: Numbers, calls: Repeat) -> list[Repeat]:
    """Return the layers of each repetition if it mostly repeats a block, as calls of a model do.

    Otherwise, return the repetition itself. A call can begin in the middle of a layer.
    """
    length = calls.length
    inner = longest_repeat(codes[calls.begin :][: 2 * length], _LEAST_TIMES, _LEAST_LENGTH)
    if inner is None or inner.length * inner.times < _MOSTLY * length:
        return [calls]
    layer = codes[calls.begin + inner.begin :][: inner.length]
    inside = codes[calls.begin : calls.end]
    begins = np.arange(len(inside) - len(layer) + 1)
    for at, code in enumerate(layer.tolist()):
        begins = begins[inside[begins + at] == code]
    firsts = begins[np.append(True, np.diff(begins) != len(layer))]
    times = np.diff(np.append(np.searchsorted(begins, firsts), len(begins)))
    each = zip((calls.begin + firsts).tolist(), times.tolist(), strict=True)
    return [Repeat(begin, len(layer), count) for begin, count in each]


def _block(trace: Trace, rows: Rows, runs: list[Repeat], origin_ns: int) -> LayerBlock:
    events = trace.events
    here = np.concatenate([rows[run.begin : run.end] for run in runs])
    length = runs[0].length
    times: Numbers = events.dur_ns[here].reshape(-1, length).sum(axis=1)
    names, of = numbered(events.name[here])
    heaviest = names[np.argmax(np.bincount(of, weights=events.dur_ns[here]))]
    return LayerBlock(
        first=trace.names[events.name[here[0]]],
        heaviest=trace.names[heaviest],
        length=length,
        times=len(times),
        layers=_layers(rows, here.reshape(-1, length)[0], len(times), trace),
        begin_ns=int(events.begin_ns[here[0]]) - origin_ns,
        total_ns=int(times.sum()),
        block_ns=Spread(int(times.min()), int(median(times)), int(times.max())),
        slowest=int(np.argmax(times)) + 1,
    )


def _layers(rows: Rows, block: Rows, times: int, trace: Trace) -> int:
    """The number of layers in a repeated block, counted by calls of attention if it has any.

    The work at the beginning or end of the model can be adjacent to the first or last layer, and
    times that are inexact can exchange events of two layers. These then do not repeat exactly, but
    most of a block's events still occur once in each. Layers that alternate, such as two kinds of
    attention, form one block, in which almost every event occurs several times.

    Layers that are not part of a repetition at all are found by their attention, which takes about
    as long as that in the block.
    """
    inside, per_block = counts_of(trace.events.name[block])
    found, counts = counts_of(trace.events.name[rows])
    total = counts[np.searchsorted(found, inside)]
    layers = times
    for more in range(times + 1, int(_MOST_MORE * times) + 1):
        fits = total == more * per_block
        # Of a name that occurs in all of a block, the number is not evidence.
        if per_block[fits].sum() > len(block) / 2 and fits.sum() > len(inside) / 2:
            layers = more
    for parts in range(_MOST_PARTS, 1, -1):
        single = per_block[per_block % parts != 0].sum()
        if single <= _FEW * len(block):
            return max(layers * parts, _by_attention(rows, block, times, parts, trace))
    return max(layers, _by_attention(rows, block, times, 1, trace))


def _by_attention(rows: Rows, block: Rows, times: int, parts: int, trace: Trace) -> int:
    """Return the number of layers by the calls of the heaviest attention; 0 if it has none.

    `parts` is the number of layers in the block, which repeats `times` times among `rows`.
    """
    events = trace.events
    # A model without fused attention has a softmax in each layer.
    names = {row: trace.names[int(events.name[row])] for row in block.tolist()}
    of_kind = [row for row, name in names.items() if kind_of(name) == ATTENTION]
    of_kind = of_kind or [row for row, name in names.items() if "softmax" in name.lower()]
    if not of_kind:
        return 0
    heaviest = max(of_kind, key=lambda row: int(events.dur_ns[row]))
    same = events.name[rows] == events.name[heaviest]
    usual = float(events.dur_ns[heaviest])
    alike = np.abs(events.dur_ns[rows] - usual) <= _ALIKE * usual
    in_block = int((events.name[block] == events.name[heaviest]).sum())
    found = int((same & alike).sum()) * parts // in_block
    # Far more than the repetitions are calls of another model.
    return found if found <= _MOST_MORE * times * parts else 0


def _outermost(trace: Trace) -> Rows:
    """Return the outermost operators of the thread that has the most operators."""
    events = trace.events
    rows = np.flatnonzero(trace.rows_of(["cpu_op"]) & ~named(trace, MARKS) & (events.dur_ns > 0))
    if len(rows) == 0:
        return rows
    _, thread = threads(trace, rows)
    rows = rows[thread == np.argmax(np.bincount(thread))]
    return outermost(trace, rows)


# --- Modules that the profiler recorded ---


class Module(Figures, frozen=True):
    """All calls of modules of one class at one place in the model; times in ns."""

    path: Path
    """The classes of the modules around it, and its own."""
    instances: Count
    """Different modules."""
    calls: Count
    host_ns: Ns
    host_self_ns: Ns
    """The time without the modules inside it."""
    device_ns: Ns | None
    """Durations of the work that it and the modules inside it launched; None without a device."""
    device_self_ns: Ns | None
    launched: Count | None = msgspec.field(name="device_events")
    backward_ns: Ns | None = msgspec.field(name="backward_device_us")
    """Durations of the work of its operators' backward passes; not a part of `device_ns`."""
    call_ns: Spread = msgspec.field(name="call_of_an_instance_us")
    """The spread of its instances' time per call, on the device if there is one, else on the
    host."""
    slowest: str
    """The instance with the longest time."""

    @property
    def work_ns(self) -> int:
        """The durations of the work of its forward and backward passes."""
        return (self.device_ns or 0) + (self.backward_ns or 0)


class Modules(msgspec.Struct, frozen=True):
    """The tree of modules; times in ns."""

    modules: list[Module]
    """The modules in the order of their first calls, each after the module that contains it."""
    outside: int
    """The number of device events that no module's forward or backward launched."""
    outside_ns: int
    """Their total duration."""
    device_ns: int | None


def modules_of(trace: Trace) -> Modules | None:
    """Sum up the modules' calls; None if the trace has none."""
    calls = module_calls(operators_of(trace))
    if calls is None:
        return None
    events, rows, tree = calls.trace.events, calls.rows, calls.tree
    codes, instance = numbered(events.name[rows])
    instance = instance.astype(np.int64)
    classes = [class_of_module(trace.names[code]) or trace.names[code] for code in codes]
    number = {name: at for at, name in enumerate(dict.fromkeys(classes))}
    word = np.array([number[name] for name in classes], dtype=np.int64)[instance]
    paths = Paths(tree.parent, word)
    device = device_work(trace).rows
    durations = trace.events.dur_ns[device]
    forward, backward = np.full((2, len(device)), -1, dtype=np.intp)
    times = np.ones(len(rows), dtype=np.int64)
    found_by = launch_sources(trace, device) if len(device) else None
    if found_by is not None:
        # A queue may launch the work of operators from another thread.
        sources, forwards = [found_by.calls, found_by.operator], found_by.forward
        captured = captured_work(trace)
        if captured is not None:
            sources, forwards = [captured.call, *sources], captured.forward_or(found_by)
        for at in sources:
            forward = np.where(forward >= 0, forward, calls.around(at))
        backward = np.where(forward < 0, calls.around(forwards), -1)
        if captured is not None:
            times = _replays(tree.parent, forward, captured.launch)
    on_device = len(device) > 0
    self_ns = _by_node(paths, forward, durations)
    counts = paths.inclusive(_by_node(paths, forward, np.ones_like(durations)))
    behind = paths.inclusive(_by_node(paths, backward, durations))
    inclusive_ns = paths.inclusive(self_ns)
    host_ns = np.where(rows < len(trace.events), events.dur_ns[rows], 0)
    of_call = events.dur_ns[rows]
    if on_device:
        of_call = with_those_below(tree.parent, sums(forward, durations, len(rows))) // times
    # A module that is nested too deep counts as a part of the module that contains it.
    separate = ~paths.folded
    spread = _spread(paths.node[separate], instance[separate], of_call[separate], len(codes))
    host = paths.sums(np.where(separate, host_ns, 0))
    own_ns = exclusive(events.begin_ns[rows], events.end_ns[rows], calls.thread)
    host_own = paths.sums(np.where(rows < len(trace.events), own_ns, 0))
    counted = sums(paths.node[separate], times[separate], len(paths))
    words = list(number)
    named_so = paths_to(paths.parent, [words[each] for each in paths.word])
    timings = []
    for node in range(len(paths)):
        instances, call_ns, slowest = spread[node]
        timings.append(
            Module(
                path=named_so[node],
                instances=instances,
                calls=int(counted[node]),
                host_ns=int(host[node]),
                host_self_ns=int(host_own[node]),
                device_ns=int(inclusive_ns[node]) if on_device else None,
                device_self_ns=int(self_ns[node]) if on_device else None,
                launched=int(counts[node]) if on_device else None,
                backward_ns=int(behind[node]) if on_device else None,
                call_ns=call_ns,
                slowest=trace.names[codes[slowest]].removeprefix(MODULE),
            )
        )
    outside = (forward < 0) & (backward < 0)
    first = np.full(len(paths), np.iinfo(np.int64).max)
    np.minimum.at(first, paths.node, events.begin_ns[rows])
    by_first = np.argsort(first, kind="stable").tolist()
    return Modules(
        modules=[timings[node] for node in depth_first(paths.parent, by_first)],
        outside=int(outside.sum()),
        outside_ns=int(durations[outside].sum()),
        device_ns=int(durations.sum()) if on_device else None,
    )


def _replays(parent: Rows, call: Rows, launch: Numbers) -> Numbers:
    """Return how often the work of each module call ran: once, or for each launch of its graph.

    `call` is the module call that launched each event of the device, or -1, and `launch` the number
    of the graph's launch.
    """
    known = np.flatnonzero((call >= 0) & (launch > 0))
    different, _ = pairs(call[known].astype(np.int64), launch[known])
    times = np.bincount(different[:, 0], minlength=len(parent))
    # A module call contains those inside it, which ran as often.
    level = levels(parent)
    for depth in range(int(level.max()), 0, -1):
        here = np.flatnonzero(level == depth)
        np.maximum.at(times, parent[here], times[here])
    result: Numbers = np.maximum(times, 1)
    return result


def _by_node(paths: Paths, call: Rows, figure: Numbers) -> Numbers:
    return sums(np.where(call >= 0, paths.node[call], -1), figure, len(paths))


def _spread(
    node: Rows, instance: NDArray[np.int64], of_call: Numbers, count: int
) -> list[tuple[int, Spread, int]]:
    """Return, by node, its instances and the least, median and longest of their mean calls."""
    cells, of = numbered(node * count + instance)
    mean = sums(of, of_call, len(cells)) // np.bincount(of)
    nodes = cells // count
    bounds = np.searchsorted(nodes, np.arange(int(node.max()) + 2))
    spreads = []
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        here = mean[low:high]
        most = int(np.argmax(here))
        figures = Spread(int(here.min()), int(median(here)), int(here[most]))
        spreads.append((high - low, figures, int(cells[low + most] % count)))
    return spreads


_SHOWN = 40


_MOST_IN_JSON = 2_000


# A module is reported if it takes this many times the median, and this part of the whole.
_LEAST_CLASS_SHARE = 40.0


_TIMES, _LEAST_PERCENT, _LEAST_LIKE = 1.5, 5.0, 4


def _has_large_class(modules: Modules) -> bool:
    """Whether a class with several modules takes a large part of the time."""
    whole = modules.device_ns or sum(module.host_self_ns for module in modules.modules)
    times = [
        module.work_ns if modules.device_ns else module.host_ns
        for module in modules.modules
        if module.instances >= _LEAST_LIKE
    ]
    return share(max(times, default=0), whole) >= _LEAST_CLASS_SHARE


def _extra_ns(module: Module) -> int:
    """Return how much longer the slowest instance takes than the median; 0 for usual spreads."""
    median, most = module.call_ns.median, module.call_ns.max
    if not median or module.instances < _LEAST_LIKE or most <= _TIMES * median:
        return 0
    return (most - median) * module.calls // module.instances


def _modules_line(modules: Modules | None) -> str:
    """Return the class of several modules with the most time; of equal ones, the outermost."""
    several = [] if modules is None else [m for m in modules.modules if m.instances >= _LEAST_LIKE]
    if modules is None or not several or not modules.device_ns:
        return ""
    most = max(several, key=lambda module: module.work_ns)
    percent = share(most.work_ns, modules.device_ns)
    if percent < _LEAST_PERCENT_IN_LINE:
        return ""
    return (
        f"{most.instances:,} x {shortened(most.path[-1])}, {in_words(most.call_ns.median, 'ns')} a"
        f" call in the median: {in_percent(percent)} of device work"
    )


def _modules_table(modules: Modules) -> Table:
    kept = largest(modules.modules, _SHOWN, lambda module: module.host_ns + module.work_ns)
    on_device = modules.device_ns is not None
    columns: list[Column] = [
        (lambda module: ". " * (len(module.path) - 1) + module.path[-1], "module", ""),
        ("instances", "instances", ""),
        ("calls", "calls", ""),
        ("host_ns", "host", "ns"),
    ]
    if on_device:
        columns += [("device_ns", "device", "ns"), ("device_self_ns", "device, own", "ns")]
    if any(module.backward_ns for module in kept):
        columns.append(("backward_ns", "backward", "ns"))
    columns += [
        ("call_ns.median", "per call", "ns"),
        (lambda module: module.slowest if module.instances > 1 else None, "slowest", ""),
    ]
    note = ""
    if len(kept) < len(modules.modules):
        note = f"The {len(kept):,} longest of {len(modules.modules):,}."
    if on_device:
        note += (
            f" {modules.outside:,} device events ({in_words(modules.outside_ns, 'ns')}) were"
            " not launched by a module's forward or backward."
        )
    return Table.of("Modules", kept, *columns, note=note.strip())


def _blocks_table(blocks: Blocks) -> Table:
    what = blocks.what
    where = "the trace" if blocks.step is None else shortened(blocks.step)
    return Table.of(
        "What repeats",
        blocks.blocks,
        (lambda b: f"{b.length:,} {what} from {shortened(b.first, 40)}", "block", ""),
        ("times", "times", ""),
        ("layers", "layers" if blocks.step else "layers or iterations", ""),
        ("total_ns", "time", "ns"),
        (lambda block: share(block.total_ns, blocks.total_ns), "of all", "%"),
        ("block_ns.median", "a block", "ns"),
        ("block_ns.max", "most", "ns"),
        (lambda block: shortened(block.heaviest, 40), "heaviest", ""),
        note=f"Inferred: the same {what} in the same order, several times in a row, in {where}.",
    )


def _layer_table(blocks: Blocks) -> Table:
    layer = blocks.median_layer
    streams = {part.stream for part in layer.parts}
    of_stream: list[Column] = [("stream", "stream", "")] if len(streams) > 1 else []
    return Table.of(
        "The median layer" if blocks.step else "The median layer or iteration",
        layer.parts,
        ("name", blocks.what.removesuffix("s"), ""),
        *of_stream,
        ("count", "count", ""),
        ("time_ns", "time", "ns"),
        ("percent", "of the layer's work" if blocks.step else "of its work", "%"),
        (lambda part: KINDS[part.kind], "kind", ""),
        note=f"Repetition {layer.number:,} of {layer.times:,}, in the order of time:"
        f" {in_words(layer.dur_ns, 'ns')} from its first event to the next repetition.",
    )
