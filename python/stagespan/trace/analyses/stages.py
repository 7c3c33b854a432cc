"""Stages: annotations and stagespan's spans, with their time on the host and the device."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from stagespan.pages.amounts import counted, in_words
from stagespan.pages.figures import Count, Figures, Internal, Ns, Path
from stagespan.pages.result import (
    Block,
    Column,
    Evidence,
    Finding,
    StructResult,
    Table,
    Thresholds,
    Unavailable,
    largest,
    share,
    shortened,
)
from stagespan.trace.derived.device import device_work, launch_of
from stagespan.trace.derived.gains import idle_gain
from stagespan.trace.derived.launch_sources import launch_sources, stage_calls, stages_around
from stagespan.trace.derived.step_ranges import length_of_work, step_ranges
from stagespan.trace.derived.threads import threads_of
from stagespan.trace.derived.trees import (
    DEEPEST_PATH,
    Paths,
    depth_first,
    paths_to,
    with_those_below,
)
from stagespan.trace.derived.windows import BaseWindow, base_window
from stagespan.trace.evidence import evidence
from stagespan.trace.read.groups import counts_of, firsts_of, median, numbered, sums
from stagespan.trace.read.intervals import Cover, Intervals, Numbers, Rows, exclusive
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once

_DIGITS = re.compile(r"\d+")
# If there are more different names, they contain numbers of requests or steps.
_MOST_NAMES = 300


def analyze(trace: Trace) -> Stages | Unavailable:
    """Sum up the stages; Unavailable if the trace has no annotations."""
    tree = stage_tree(trace) if len(trace.events) else None
    if tree is None:
        return Unavailable(
            "The trace has no annotations, so its stages are unknown: mark them with"
            " torch.profiler.record_function or stagespan.span.",
            "no_annotations",
            needs=("stages", "use record_function or stagespan.span"),
        )
    events = trace.events
    durations = events.dur_ns[tree.device_rows]
    own_device = tree.of_node(durations)
    own_count = tree.of_node(np.ones_like(durations))
    outside = tree.stage_of < 0
    on_device = len(durations) > 0
    per_step = _per_step(trace, tree)
    device, launched = tree.inclusive(own_device), tree.inclusive(own_count)
    separate = np.flatnonzero(~tree.folded)
    rows, nodes = tree.rows[separate], tree.node[separate]
    longest = rows[np.lexsort((-events.dur_ns[rows], nodes))]
    firsts = np.searchsorted(np.sort(nodes), np.arange(len(tree.names)))
    paths = paths_to(tree.parent, tree.names)
    stages = []
    for node in range(len(tree.names)):
        steps, step_host, step_device = per_step[node] if per_step else (None, None, None)
        stages.append(
            Stage(
                path=paths[node],
                calls=int(tree.calls[node]),
                host_ns=int(tree.host_ns[node]),
                host_self_ns=int(tree.host_self_ns[node]),
                device_ns=int(device[node]) if on_device else None,
                device_self_ns=int(own_device[node]) if on_device else None,
                launched=int(launched[node]) if on_device else None,
                launched_self=int(own_count[node]) if on_device else None,
                calls_made=int(tree.calls_made[node]),
                idle_self_ns=None if tree.idle_ns is None else int(tree.idle_ns[node]),
                steps=steps,
                step_host_ns=step_host,
                step_device_ns=step_device if on_device else None,
                longest=evidence(trace, int(longest[firsts[node]])),
            )
        )
    # Each is followed by its nested stages, the longest first.
    longest_first = sorted(range(len(stages)), key=lambda at: (-stages[at].host_ns, -at))
    return Stages.of(
        [stages[node] for node in depth_first(tree.parent, longest_first)],
        work_ns=length_of_work(trace),
        device_ns=int(durations.sum()) if on_device else None,
        outside=int(outside.sum()),
        outside_ns=int(durations[outside].sum()),
        by_time=tree.by_time,
        deeper=int(tree.folded.sum()),
        own_times=_own_times(trace, tree),
    )


class Stages(StructResult, frozen=True):
    """All stages, each after the stage that contains it; times in ns."""

    longest: list[Stage] = msgspec.field(name="stages")
    """The stages or, if there are many, those with the most time."""
    stages_left_out: Count
    device_ns: Ns | None
    """The sum of the durations of all device events, with and without a stage."""
    outside: Count = msgspec.field(name="device_events_outside")
    """The number of device events that were not launched in a stage."""
    outside_ns: Ns = msgspec.field(name="device_events_outside_us")
    """Their total duration."""
    by_time: Count = msgspec.field(name="device_events_assigned_by_time")
    """The number of device events that count for a stage of another thread."""
    stages: Internal[list[Stage]] = msgspec.field(name="every_stage")
    work_ns: Internal[int]
    """From the first operator or device event to the end of the last."""
    deeper: Internal[int]
    """The number of annotations that are nested too deep to be stages."""
    own_times: Internal[list[OwnTime]]
    """The times of the stages in the base."""

    @classmethod
    def of(
        cls,
        stages: list[Stage],
        work_ns: int,
        device_ns: int | None = None,
        outside: int = 0,
        outside_ns: int = 0,
        by_time: int = 0,
        deeper: int = 0,
        own_times: Sequence[OwnTime] = (),
    ) -> Stages:
        """Return the result on stages, in JSON limited to those with the most time."""
        longest = largest(stages, _MOST_IN_JSON, lambda stage: stage.host_ns)
        return cls(
            longest=longest,
            stages_left_out=len(stages) - len(longest),
            device_ns=device_ns,
            outside=outside,
            outside_ns=outside_ns,
            by_time=by_time,
            stages=stages,
            work_ns=work_ns,
            deeper=deeper,
            own_times=list(own_times),
        )

    @property
    def on_device(self) -> bool:
        """Whether the trace has device events."""
        return self.device_ns is not None

    def findings(self) -> list[Finding]:
        """Findings about stages in which the host mostly launches small work."""
        findings = []
        for stage in sorted(self.stages, key=lambda each: -each.host_self_ns):
            launched, device = stage.launched_self or 0, stage.device_self_ns or 0
            idle = stage.idle_self_ns or 0
            severity = _SHARES.severity(share(idle, self.work_ns))
            if (
                severity is None
                or stage.calls_made < _LEAST_LAUNCHES * stage.calls
                or device > _MOST_KERNEL_NS * launched
                or stage.host_self_ns > _MOST_LAUNCH_NS * stage.calls_made
                or 2 * idle < stage.host_self_ns
            ):
                continue
            sentence = (
                f"The stage {shortened(' / '.join(stage.path), 90)} took the host"
                f" {in_words(stage.host_self_ns, 'ns')} to launch {launched:,} kernels and copies,"
                f" which run for {in_words(device // launched, 'ns')} on average. The device was"
                f" idle for {in_words(idle, 'ns')} of this time."
            )
            figure = Evidence(stage.path[-1], None, launched, "device events")
            findings.append(
                Finding(
                    severity,
                    sentence,
                    (stage.longest, figure),
                    "stages.launch",
                    numbers={
                        "host_ns": stage.host_self_ns,
                        "launched": launched,
                        "mean_ns": device // launched,
                        "idle_ns": idle,
                    },
                    gain=idle_gain(idle),
                    action="Fewer and larger operators, a device graph, or torch.compile would"
                    " help.",
                    about="host",
                )
            )
        return findings[:_MOST_FINDINGS]

    def head(self) -> list[Block]:
        """The stages with the most time of their own in the base."""
        times = self.own_times
        kept = sorted(times, key=lambda own: -own.host_ns - (own.device_ns or 0))[:_ON_SCREEN]
        count = "" if len(kept) == len(times) else f", {len(kept)} of {len(times):,}"
        columns: list[Column] = [
            ("name", f"stage, own time{count}", ""),
            ("host_ns", "host", "ns"),
        ]
        if self.on_device:
            columns += [
                ("device_ns", "device", "ns"),
                ("launched", "launches", ""),
                ("idle_ns", "device idle", "ns"),
            ]
        return [Table.of("", kept, *columns)]

    def tables(self) -> list[Table]:
        """The stages that took the most time, in the order of the tree."""
        count = len(self.stages)
        kept = largest(self.stages, _SHOWN, lambda stage: stage.host_ns)
        note = f"The {len(kept):,} longest of {count:,}." if len(kept) < count else ""
        if self.on_device:
            note += (
                " Device time is that of the work launched in the stage, no matter when it ran;"
                " idle time is that during its calls."
                f" {self.outside:,} device events ({in_words(self.outside_ns, 'ns')}) were"
                " not launched in a stage."
            )
        if self.deeper:
            note += (
                f" {self.deeper:,} annotations are nested more than {DEEPEST_PATH} deep and count"
                " towards the enclosing stage."
            )
        if self.by_time:
            note += (
                f" {self.by_time:,} were launched by other threads and count towards the stage that"
                " was open at that time."
            )
        own_ns = sum(stage.host_self_ns for stage in self.stages)
        columns: list[Column] = [
            (lambda stage: ". " * (len(stage.path) - 1) + stage.path[-1], "stage", ""),
            ("calls", "calls", ""),
            ("host_ns", "host", "ns"),
            ("host_self_ns", "host, own", "ns"),
        ]
        if self.on_device:
            columns += [
                ("device_ns", "device", "ns"),
                ("device_self_ns", "device, own", "ns"),
                ("launched", "device events", ""),
                ("idle_self_ns", "device idle, own", "ns"),
            ]
        else:
            columns.append((lambda stage: share(stage.host_self_ns, own_ns), "of all", "%"))
        if any(stage.steps for stage in self.stages):
            columns.append(("step_host_ns", "host per step", "ns"))
        return [Table.of("Stages", kept, *columns, note=note.strip())]


class StageTree(msgspec.Struct, frozen=True):
    """Stages by path; times in ns. `rows`, `node` and `folded` have one element for each call."""

    rows: Rows
    """The annotations, rows of `trace.events`."""
    node: Rows
    """The stage of each call."""
    folded: NDArray[np.bool_]
    """Calls at too great a depth, which count as part of the enclosing stage."""
    names: list[str]
    """The name of each stage; stages come after the enclosing stage."""
    parent: Rows
    """The enclosing stage of each stage, or -1."""
    calls: Numbers
    host_ns: Numbers
    host_self_ns: Numbers
    """Less the stages within it."""
    device_rows: Rows
    """All device events."""
    stage_of: Rows
    """The innermost call (an index into `rows`) around the launch of each of them, or -1."""
    by_time: int
    """The number of them that were assigned to the stage of another thread at that time."""
    calls_made: Numbers
    """The number of launching calls in each stage, without nested stages."""
    idle_ns: Numbers | None
    """The idle time of all devices during the calls of each stage, without nested stages; None
    without a device."""

    def of_node(self, figure: Numbers) -> Numbers:
        """Sum a figure of the device events by stage, without nested stages."""
        node = np.where(self.stage_of >= 0, self.node[self.stage_of], -1)
        return sums(node, figure, len(self.names))

    def inclusive(self, figures: Numbers) -> Numbers:
        """Return for each stage its own figure plus those of nested stages."""
        return with_those_below(self.parent, figures)


@once
def stage_tree(trace: Trace) -> StageTree | None:
    """Find the stages, and the stage that launched each device event; None without stages."""
    events = trace.events
    marks = stage_calls(trace)
    if marks is None:
        return None
    rows, thread, tree = marks.rows, marks.thread, marks.tree
    device = device_work(trace).rows
    calls = launch_of(trace, device)
    names, word = _words(trace, rows)
    paths = Paths(tree.parent, word)
    sources = launch_sources(trace, device)
    origin = calls if sources is None else sources.origin
    stage_of = marks.index(stages_around(trace, origin))
    in_stage = np.flatnonzero(stage_of >= 0)
    by_time = thread[stage_of[in_stage]] != threads_of(marks.threads, trace, origin[in_stage])
    in_stage = in_stage[calls[in_stage] >= 0]
    launch, first = firsts_of(calls[in_stage])
    launched_in = paths.node[stage_of[in_stage[first]]]
    idle_ns = None
    if len(device):
        owner, begin, end = tree.stretches()
        idle_ns = paths.sums(sums(owner, _idle_in(trace, device, begin, end), len(rows)))
    return StageTree(
        rows=rows,
        node=paths.node,
        names=[names[code] for code in paths.word],
        parent=paths.parent,
        folded=paths.folded,
        calls=np.bincount(paths.node[~paths.folded], minlength=len(paths)),
        host_ns=paths.sums(np.where(paths.folded, 0, events.dur_ns[rows])),
        host_self_ns=paths.sums(exclusive(events.begin_ns[rows], events.end_ns[rows], thread)),
        device_rows=device,
        stage_of=stage_of,
        by_time=int(by_time.sum()),
        calls_made=sums(launched_in, np.ones_like(launch), len(paths)),
        idle_ns=idle_ns,
    )


class IdleStage(NamedTuple):
    """The stage in which most of some idle time passed."""

    name: str
    idle_ns: int
    launched: int
    """The device events that it launched and that began in the base, without nested stages."""
    mean_ns: int
    """Their mean duration."""
    operators: list[str]
    """The operators that launched most of them, the most frequent first."""

    def __str__(self) -> str:
        text = f"the stage {shortened(self.name)} ({in_words(self.idle_ns, 'ns')}"
        if not self.launched:
            return f"{text})"
        launches = counted(self.launched, "launch", "launches")
        operators = ", ".join(shortened(name) for name in self.operators)
        of = f": {operators}" if operators else ""
        return f"{text}, {launches} of work of {in_words(self.mean_ns, 'ns')} on average{of})"

    @property
    def numbers(self) -> dict[str, float]:
        """The figures of the text."""
        figures = {"stage_idle_ns": self.idle_ns}
        if self.launched:
            figures |= {"stage_launches": self.launched, "stage_mean_ns": self.mean_ns}
        return {**figures}


def stage_of_idle(trace: Trace, idle: Intervals, all_ns: int) -> IdleStage | None:
    """Return the innermost stage during which most of `all_ns` passed, or None.

    `idle` are disjoint intervals of that time, ascending. A stage that takes nearly all of the base
    is not named, because this says nothing.
    """
    tree, base = stage_tree(trace), base_window(trace)
    if tree is None or base is None:
        return None
    node, begin, end = _stretches(trace, tree, base)
    idle_ns = sums(node, Cover(*idle).length(begin, end), len(tree.names))
    most = int(np.argmax(idle_ns))
    taken = int((end - begin)[node == most].sum())
    if 2 * int(idle_ns[most]) <= all_ns or share(taken, base.whole_ns) > _NEARLY_ALL:
        return None
    in_stage = _launched_in(trace, tree, base) == most
    count = int(in_stage.sum())
    return IdleStage(
        tree.names[most],
        int(idle_ns[most]),
        count,
        int(trace.events.dur_ns[tree.device_rows[in_stage]].sum()) // max(count, 1),
        _most_frequent_operators(trace, tree.device_rows, in_stage),
    )


def _stretches(trace: Trace, tree: StageTree, base: BaseWindow) -> tuple[Numbers, Numbers, Numbers]:
    """Return stage, begin and end of the parts of the base in which a stage is the innermost."""
    calls = stage_calls(trace)
    assert calls is not None
    owner, begin, end = calls.tree.stretches()
    begin = np.clip(begin, base.begin_ns, base.end_ns)
    end = np.clip(end, base.begin_ns, base.end_ns)
    inside = (owner >= 0) & (end > begin)
    return tree.node[owner[inside]], begin[inside], end[inside]


def _launched_in(trace: Trace, tree: StageTree, base: BaseWindow) -> Rows:
    """Return the stage of the device events that began in the base; -1 for others."""
    began = base.contains(trace, tree.device_rows) & (tree.stage_of >= 0)
    return np.where(began, tree.node[tree.stage_of], -1)


class OwnTime(NamedTuple):
    """The time of a stage in the base, without nested stages."""

    name: str
    host_ns: int
    device_ns: int | None
    """Of the work that it launched and that began in the base; None without a device."""
    launched: int | None
    idle_ns: int | None


def _own_times(trace: Trace, tree: StageTree) -> list[OwnTime]:
    """Return the times of the stages in the base."""
    base = base_window(trace)
    if base is None:
        return []
    events, rows, count = trace.events, tree.device_rows, len(tree.names)
    node, begin, end = _stretches(trace, tree, base)
    host = sums(node, end - begin, count)
    if len(rows) == 0:
        times = zip(tree.names, host.tolist(), strict=True)
        return [OwnTime(name, time, None, None, None) for name, time in times if time]
    idle = sums(node, _idle_in(trace, rows, begin, end), count)
    of = _launched_in(trace, tree, base)
    device, launched = sums(of, events.dur_ns[rows], count), sums(of, np.ones_like(of), count)
    columns = (each.tolist() for each in (host, device, launched, idle))
    own = [OwnTime(*row) for row in zip(tree.names, *columns, strict=True)]
    return [each for each in own if each.host_ns or each.device_ns]


def _most_frequent_operators(trace: Trace, rows: Rows, chosen: NDArray[np.bool_]) -> list[str]:
    """Return the operators that launched a good part of some of the device events `rows`."""
    sources = launch_sources(trace, rows)
    if sources is None:
        return []
    operators = sources.operator[chosen]
    names, counts = counts_of(trace.events.name[operators[operators >= 0]])
    most = np.argsort(-counts, kind="stable")[:_NAMED_OPERATORS]
    many = [int(at) for at in most if counts[at] * _LEAST_PART_OF_LAUNCHES >= len(operators)]
    return [trace.names[int(names[at])] for at in many]


def _idle_in(trace: Trace, device: Rows, begin: Numbers, end: Numbers) -> Numbers:
    """Return how long no device event of `device` ran in each interval."""
    events = trace.events
    origin = int(events.begin_ns.min())
    busy = Cover(events.begin_ns[device] - origin, events.end_ns[device] - origin)
    return end - begin - busy.length(begin - origin, end - origin)


def _words(trace: Trace, rows: Rows) -> tuple[list[str], NDArray[np.int64]]:
    """Return the names of stages and calls, without numbers if there are too many names."""
    codes, word = numbered(trace.events.name[rows])
    names = [trace.names[code] for code in codes]
    if len(names) <= _MOST_NAMES:
        return names, word.astype(np.int64)
    plain = [_DIGITS.sub("#", name) for name in names]
    number = {name: at for at, name in enumerate(dict.fromkeys(plain))}
    of = np.array([number[name] for name in plain], dtype=np.int64)
    return list(number), of[word]


_SHOWN, _ON_SCREEN = 40, 3


# The operators that are named with a stage, each with at least the fifth part of its launches.
_NAMED_OPERATORS, _LEAST_PART_OF_LAUNCHES = 2, 5


# Percent of the base: a stage that takes more is not named as the place of idle time.
_NEARLY_ALL = 90.0


_MOST_IN_JSON = 1_000


_MOST_CELLS = 5_000_000


# A finding needs at least this many launches per call, each with at most this much work.
_LEAST_LAUNCHES = 20


_MOST_KERNEL_NS = 20_000


# The most host time per launch. If it takes longer, the host also does other work.
_MOST_LAUNCH_NS = 300_000


# The least percentage of the time from the first work to the end of the last.
_SHARES = Thresholds(50.0, 25.0, 10.0)


_MOST_FINDINGS = 2


class Stage(Figures, frozen=True, kw_only=True):
    """All calls of a stage at one place in the tree; times in ns, on all threads."""

    path: Path
    """The names of the enclosing stages, and its own name."""
    calls: Count
    host_ns: Ns
    host_self_ns: Ns
    """Less the stages within it."""
    # The defaults are for timing reports, which do not show this.
    device_ns: Ns | None = None
    """Durations of the work that it launched, with overlaps counted twice; None without a
    device."""
    device_self_ns: Ns | None = None
    """Device time without nested stages."""
    launched: Count | None = msgspec.field(name="device_events", default=None)
    launched_self: Count | None = msgspec.field(name="device_events_self", default=None)
    calls_made: Count = msgspec.field(name="launches_self", default=0)
    """The number of launching calls; the launch of a graph starts many kernels."""
    idle_self_ns: Ns | None = msgspec.field(name="device_idle_self_us", default=None)
    """Idle time of all devices during its calls, without nested stages."""
    steps: Count | None = None
    """The number of steps that contain it; None if the trace has no steps."""
    step_host_ns: Ns | None = msgspec.field(name="host_us_a_step", default=None)
    """The median of its time in these steps."""
    step_device_ns: Ns | None = msgspec.field(name="device_us_a_step", default=None)
    longest: Internal[Evidence]
    """Its longest call."""


def _per_step(trace: Trace, tree: StageTree) -> list[tuple[int, int, int]] | None:
    """Return for each stage the number of steps with it, and its median times in these."""
    ranges = step_ranges(trace)
    if ranges is None or not ranges.on_host or len(ranges) * len(tree.names) > _MOST_CELLS:
        return None
    events, count = trace.events, len(ranges)
    step = ranges.at(events.begin_ns[tree.rows])
    cell = np.where(step >= 0, tree.node * count + step, -1)
    size = len(tree.names) * count
    separate = (~tree.folded).astype(np.int64)
    calls = sums(cell, separate, size).reshape(-1, count)
    host = sums(cell, events.dur_ns[tree.rows] * separate, size).reshape(-1, count)
    launching = tree.stage_of
    of_launch = np.where(launching >= 0, cell[launching], -1)
    device = sums(of_launch, events.dur_ns[tree.device_rows], size).reshape(-1, count)
    device = tree.inclusive(device)
    times = []
    for node in range(len(tree.names)):
        in_steps = calls[node] > 0
        medians = (_median(host[node][in_steps]), _median(device[node][in_steps]))
        times.append((int(in_steps.sum()), *medians))
    return times


def _median(figures: Numbers) -> int:
    return int(median(figures)) if len(figures) else 0
