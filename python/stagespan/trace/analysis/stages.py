"""Stages: annotations and stagespan's spans, each with its time on the host and on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stagespan.trace.analysis.call_tree import DEEPEST_PATH, sums
from stagespan.trace.analysis.result import (
    Evidence,
    Finding,
    Nothing,
    Severity,
    Table,
    in_words,
    largest,
    share,
    shortened,
    window_of,
)
from stagespan.trace.analysis.stage_tree import StageTree, stage_tree
from stagespan.trace.analysis.step_ranges import length_of_work, step_ranges
from stagespan.trace.arrays import Numbers
from stagespan.trace.model import Trace

_SHOWN = 40
_MOST_IN_JSON = 1_000
_MOST_CELLS = 5_000_000
# A stage whose launches are told as the cause: so many a call, of so little work.
_LEAST_LAUNCHES = 20
_MOST_KERNEL_NS = 20_000
# Of the host for each: where it takes longer, it does something else than launching.
_MOST_LAUNCH_NS = 300_000
# Of the time from the first work to the end of the last.
_SHARES: tuple[tuple[float, Severity], ...] = ((50.0, "high"), (25.0, "medium"), (10.0, "low"))
_MOST_FINDINGS = 2


@dataclass(frozen=True, slots=True)
class Stage:
    """All calls of a stage at one place in the tree; times in ns, on all threads."""

    path: tuple[str, ...]
    """The names of the stages around it, and its own."""
    calls: int
    host_ns: int
    host_self_ns: int
    """Less the stages within it."""
    device_ns: int | None
    """Durations of what it launched; overlaps counted twice. None without a device."""
    device_self_ns: int | None
    """Less what the stages within it launched."""
    launched: int | None
    """Device events."""
    launched_self: int | None
    calls_made: int
    """The calls that launched these: one of a graph launches many."""
    idle_self_ns: int | None
    """How long all devices were idle during its calls, outside of the stages within it."""
    steps: int | None
    """In how many steps it occurs; None where there are none."""
    step_host_ns: int | None
    """Its median in these."""
    step_device_ns: int | None
    longest: Evidence
    """Its longest call."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON, in microseconds."""
        return {
            "path": list(self.path),
            "calls": self.calls,
            "host_us": self.host_ns / 1000,
            "host_self_us": self.host_self_ns / 1000,
            "device_us": _us(self.device_ns),
            "device_self_us": _us(self.device_self_ns),
            "device_events": self.launched,
            "device_events_self": self.launched_self,
            "launches_self": self.calls_made,
            "device_idle_self_us": _us(self.idle_self_ns),
            "steps": self.steps,
            "host_us_a_step": _us(self.step_host_ns),
            "device_us_a_step": _us(self.step_device_ns),
        }


@dataclass(frozen=True, slots=True)
class Stages:
    """All stages, each behind the one around it; times in ns."""

    stages: list[Stage]
    device_ns: int | None
    """All device events' durations: those of the stages' own, and what no stage launched."""
    outside: tuple[int, int]
    """Device events that no stage launched, and their durations' sum."""
    by_time: int
    """Device events given to the stage that another thread was in as they were launched."""
    work_ns: int
    """From the first operator or device event to the end of the last."""
    on_device: bool
    deeper: int = 0
    """Annotations too deep within others to be stages of their own."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON, in microseconds; of very many stages those that took the most time."""
        kept = largest(self.stages, _MOST_IN_JSON, lambda stage: stage.host_ns)
        return {
            "stages": [stage.to_dict() for stage in kept],
            "stages_left_out": len(self.stages) - len(kept),
            "device_us": _us(self.device_ns),
            "device_events_outside": self.outside[0],
            "device_events_outside_us": self.outside[1] / 1000,
            "device_events_told_by_time": self.by_time,
        }

    def findings(self) -> list[Finding]:
        """Stages in which the host mostly launches small work."""
        found = []
        for stage in sorted(self.stages, key=lambda each: -each.host_self_ns):
            launched, device = stage.launched_self or 0, stage.device_self_ns or 0
            idle = stage.idle_self_ns or 0
            severity = next((s for least, s in _SHARES if share(idle, self.work_ns) >= least), None)
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
                f" which run for {in_words(device // launched, 'ns')} on average: the device was"
                f" idle for {in_words(idle, 'ns')} of it. Fewer and larger operators, a device"
                " graph, or torch.compile would help there."
            )
            figure = Evidence(stage.path[-1], None, launched, "device events")
            found.append(
                Finding(severity, sentence, (stage.longest, figure), "stages.launch", "idle.launch")
            )
        return found[:_MOST_FINDINGS]

    def tables(self) -> list[Table]:
        """The stages that took the most time, in the order of the tree."""
        count = len(self.stages)
        kept = largest(self.stages, _SHOWN, lambda stage: stage.host_ns)
        note = f"The {len(kept):,} longest of {count:,}." if len(kept) < count else ""
        if self.on_device:
            note += (
                " Device time is that of what the stage launched, whenever it ran;"
                f" {self.outside[0]:,} device events ({in_words(self.outside[1], 'ns')}) were"
                " launched by no stage."
            )
        if self.deeper:
            note += (
                f" {self.deeper:,} annotations lie more than {DEEPEST_PATH} deep and count to the"
                " stage around them."
            )
        if self.by_time:
            note += (
                f" {self.by_time:,} were launched by other threads and count to the stage that the"
                " program was in then."
            )
        columns = [("stage", ""), ("calls", ""), ("host", "ns"), ("host, own", "ns")]
        if self.on_device:
            columns += [("device", "ns"), ("device, own", "ns"), ("device events", "")]
        with_steps = any(stage.steps for stage in self.stages)
        if with_steps:
            columns += [("host a step", "ns")]
        rows: list[tuple[str | int | None, ...]] = []
        for stage in kept:
            row: list[str | int | None] = [". " * (len(stage.path) - 1) + stage.path[-1]]
            row += [stage.calls, stage.host_ns, stage.host_self_ns]
            if self.on_device:
                row += [stage.device_ns, stage.device_self_ns, stage.launched]
            if with_steps:
                row.append(stage.step_host_ns)
            rows.append(tuple(row))
        return [Table("Stages", tuple(columns), rows, note.strip())]


def analyze(trace: Trace) -> Stages | Nothing:
    """Sum up the stages; Nothing for traces without annotations."""
    tree = stage_tree(trace) if len(trace.events) else None
    if tree is None:
        return Nothing(
            "The trace has no annotations, so nothing is known about stages: mark them by"
            " torch.profiler.record_function or stagespan.span."
        )
    events = trace.events
    durations = events.dur_ns[tree.launches]
    own_device = tree.of_node(durations)
    own_count = tree.of_node(np.ones_like(durations))
    outside = tree.stage_of < 0
    on_device = len(durations) > 0
    per_step = _per_step(trace, tree)
    device, launched = tree.inclusive(own_device), tree.inclusive(own_count)
    apart = np.flatnonzero(~tree.folded)
    rows, nodes = tree.rows[apart], tree.node[apart]
    longest = rows[np.lexsort((-events.dur_ns[rows], nodes))]
    firsts = np.searchsorted(np.sort(nodes), np.arange(len(tree.names)))
    begin, _ = window_of(trace) or (0, 0)
    paths: list[tuple[str, ...]] = []
    stages = []
    for node, name in enumerate(tree.names):
        above = int(tree.parent[node])
        paths.append((*(paths[above] if above >= 0 else ()), name))
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
                longest=_evidence(trace, int(longest[firsts[node]]), begin),
            )
        )
    return Stages(
        stages=_as_read(tree, stages),
        device_ns=int(durations.sum()) if on_device else None,
        outside=(int(outside.sum()), int(durations[outside].sum())),
        by_time=tree.by_time,
        work_ns=length_of_work(trace),
        on_device=on_device,
        deeper=int(tree.folded.sum()),
    )


def _evidence(trace: Trace, row: int, begin_ns: int) -> Evidence:
    """As `result.evidence`, without a look at the whole trace for each."""
    events = trace.events
    name = trace.names[int(events.name[row])]
    return Evidence(name, int(events.begin_ns[row]) - begin_ns, int(events.dur_ns[row]), "ns")


def _as_read(tree: StageTree, stages: list[Stage]) -> list[Stage]:
    """Each stage with those within behind it, the longest first."""
    below: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parent.tolist()):
        below.setdefault(parent, []).append(node)
    ordered, waiting = [], [below.get(-1, [])]
    waiting = [sorted(waiting[0], key=lambda node: stages[node].host_ns)]
    while waiting:
        if not waiting[-1]:
            waiting.pop()
            continue
        node = waiting[-1].pop()
        ordered.append(stages[node])
        waiting.append(sorted(below.get(node, []), key=lambda each: stages[each].host_ns))
    return ordered


def _per_step(trace: Trace, tree: StageTree) -> list[tuple[int, int, int]] | None:
    """Of each stage in how many steps it is, and the medians in these of host and device time."""
    ranges = step_ranges(trace)
    if ranges is None or not ranges.on_host or len(ranges) * len(tree.names) > _MOST_CELLS:
        return None
    events, count = trace.events, len(ranges)
    step = ranges.at(events.begin_ns[tree.rows])
    cell = np.where(step >= 0, tree.node * count + step, -1)
    size = len(tree.names) * count
    apart = (~tree.folded).astype(np.int64)
    calls = sums(cell, apart, size).reshape(-1, count)
    host = sums(cell, events.dur_ns[tree.rows] * apart, size).reshape(-1, count)
    launching = tree.stage_of
    of_launch = np.where(launching >= 0, cell[launching], -1)
    device = sums(of_launch, events.dur_ns[tree.launches], size).reshape(-1, count)
    device = tree.inclusive(device)
    found = []
    for node in range(len(tree.names)):
        in_steps = calls[node] > 0
        medians = (_median(host[node][in_steps]), _median(device[node][in_steps]))
        found.append((int(in_steps.sum()), *medians))
    return found


def _median(figures: Numbers) -> int:
    return int(np.median(figures)) if len(figures) else 0


def _us(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1000
