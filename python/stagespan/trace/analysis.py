"""Run the analyses of a trace and collect their results.

To add an analysis of one trace, write a module in `analyses/` with a function
`analyze(trace) -> Result | Unavailable`, and add it to `ANALYSES`. The report keeps that order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import numpy as np
from msgspec import structs

from stagespan.pages.amounts import in_percent, in_words
from stagespan.pages.figures import Count, Figures, Ns
from stagespan.pages.page import Page, Words
from stagespan.pages.result import (
    Finding,
    Gain,
    Result,
    Thresholds,
    Titled,
    Unavailable,
    by_severity,
    of_size,
    share,
    together_ns,
    without_repeats,
    without_restatements,
)
from stagespan.pages.timeline import TimelineRow
from stagespan.trace import analyses, ascend
from stagespan.trace.analyses import (
    communication,
    compiled,
    counters,
    critical_path,
    device_use,
    flame,
    graph_captures,
    host,
    idle,
    kernels,
    launches,
    layers,
    memory,
    rates,
    stages,
    steps,
    structure,
    training,
    verdict,
)
from stagespan.trace.ascend import free_time, graph_mode, host_waits, operators, waits
from stagespan.trace.ascend import report as ascend_report
from stagespan.trace.ascend import steps as ascend_steps
from stagespan.trace.ascend.folder import AscendFolder
from stagespan.trace.derived.compiled_heads import calls_torchair
from stagespan.trace.derived.device import is_ascend
from stagespan.trace.derived.doubt import with_doubt
from stagespan.trace.derived.recording_cost import stack_cost
from stagespan.trace.derived.windows import base_window
from stagespan.trace.evidence import window_of
from stagespan.trace.read.columns import without_events
from stagespan.trace.read.intervals import covered
from stagespan.trace.read.model import Trace
from stagespan.trace.read.other_tools import unknown_categories
from stagespan.trace.read.view import TraceView
from stagespan.trace.remarks import ignored, name_of
from stagespan.trace.timeline import timeline

SCHEMA_VERSION = 1
Analyze = Callable[[Trace], Result | Unavailable]
ANALYSES: dict[str, Analyze] = {
    "verdict": verdict.analyze,
    "device_use": device_use.analyze,
    "communication": communication.analyze,
    "idle": idle.analyze,
    "launches": launches.analyze,
    "host": host.analyze,
    "kernels": kernels.analyze,
    "captures": graph_captures.analyze,
    "rates": rates.analyze,
    "compiled": compiled.analyze,
    "training": training.analyze,
    "steps": steps.analyze,
    "critical_path": critical_path.analyze,
    "stages": stages.analyze,
    "structure": structure.analyze,
    "layers": layers.analyze,
    "memory": memory.analyze,
    "counters": counters.analyze,
    "flame": flame.analyze,
}
"""The analyses of every trace, by their names in the JSON."""
ASCEND: dict[str, Analyze] = {
    "head_overhead": graph_mode.analyze,
    "ascend_steps": ascend_steps.analyze,
    "ascend_free": free_time.analyze,
    "ascend_waits": waits.analyze,
    "ascend_host_waits": host_waits.analyze,
    "ascend_cores": operators.cores,
}
"""Analyses that apply only to traces of torch_npu.profiler."""
# These take much memory and keep little of it, so they run while the view has kept little.
_RUN_FIRST = ("flame", "memory", "steps")


class Results:
    """The results as attributes. An analysis has those that apply to what was analysed."""

    verdict: analyses.verdict.Verdict | Unavailable
    device_use: analyses.device_use.Use | Unavailable
    communication: analyses.communication.Communication | Unavailable
    idle: analyses.idle.Idle | Unavailable
    launches: analyses.launches.Launches | Unavailable
    host: analyses.host.Host | Unavailable
    kernels: analyses.kernels.Kernels | Unavailable
    captures: analyses.graph_captures.Captures | Unavailable
    rates: analyses.rates.Rates | Unavailable
    compiled: analyses.compiled.Compiled | Unavailable
    training: analyses.training.Training | Unavailable
    steps: analyses.steps.Steps | Unavailable
    critical_path: analyses.critical_path.CriticalPath | Unavailable
    stages: analyses.stages.Stages | Unavailable
    structure: analyses.structure.Structure | Unavailable
    layers: analyses.layers.Layers | Unavailable
    memory: analyses.memory.Memory | Unavailable
    counters: analyses.counters.Counters | Unavailable
    flame: analyses.flame.Flame | Unavailable
    head_overhead: ascend.graph_mode.HeadOverhead | Unavailable
    ascend_steps: ascend.steps.AscendSteps | Unavailable
    ascend_free: ascend.free_time.Free | Unavailable
    ascend_waits: ascend.waits.StreamWaits | Unavailable
    ascend_host_waits: ascend.host_waits.HostWaits | Unavailable
    ascend_cores: ascend.operators.Cores | Unavailable
    ascend_operators: ascend.operators.Operators | Unavailable
    ascend_api: ascend.api.Calls | Unavailable
    ascend_collectives: ascend.communication.CollectiveStats | Unavailable
    ascend_memory: ascend.memory.AscendMemory | Unavailable
    ascend_host_operators: ascend.operators.OperatorDetails | Unavailable
    ascend_files: ascend.report.Files | Unavailable


def result_types() -> dict[str, type[Result]]:
    """Return the class of every result of one trace or folder, by its name in the JSON."""
    return {name: get_args(each)[0] for name, each in get_type_hints(Results).items()}


class SettledTime(Figures, frozen=True):
    """A time of a device that two sources of the trace state differently."""

    what: str
    """What the device did, as a verb."""
    device: str
    """The label of the device; "" if it has none."""
    time_ns: Ns
    source: str
    """The source that is used."""
    other_ns: Ns
    other: str
    """The source with less."""
    beside_ns: Ns
    """The time that only this other source shows, which is used as well."""


class TraceFigures(Figures, frozen=True):
    """The facts about the file that was read."""

    path: str
    entries: Count
    window_begin_ns: int | None = msgspec.field(name="window_begin_ns")
    """Unix time in ns, also in JSON, because a Unix time in microseconds would lose digits."""
    window_ns: Ns | None
    incomplete: str | None
    profiled_ratio: float | None
    """How many times its median time without the profiler the profiled iteration took, in traces of
    replays."""
    left_out: dict[str, Count]
    """The number of entries that were not used, by cause."""
    adjusted: dict[str, Count]
    """The number of entries that were used with a change, by cause."""
    ignored_ns: dict[str, Ns]
    """The time that was not used because it cannot be true, by one of these causes."""
    doubtful_ns: Ns
    """The time in which a device's work is unknown, because an event's duration cannot be true."""
    settled: list[SettledTime]
    """What two sources state differently, and which of them is used."""


def _won_together(findings: Sequence[Finding]) -> int:
    """Return what several findings win together in ns."""
    gains = [(each, each.gain) for each in findings if each.gain is not None]
    # These findings look at the same time from other sides.
    of_ascend = [gain for each, gain in gains if each.code.startswith("ascend.")]
    is_idle_explained = any(each.about == "idle" for each, _ in gains)
    seen_elsewhere = ("place", "host") if is_idle_explained else ("place",)
    others = [
        gain
        for each, gain in gains
        if not each.code.startswith("ascend.") and each.about not in seen_elsewhere
    ]
    return max(
        together_ns(of_ascend),
        together_ns(others) + _won_in_places(gains),
        *(gain.time_ns for _, gain in gains),
    )


def _won_in_places(gains: Sequence[tuple[Finding, Gain]]) -> int:
    """Return what steps and modules win that no other finding contains. Their times differ."""
    places: dict[str, int] = {}
    for finding, gain in gains:
        if finding.about == "place" and not any(
            each.code.startswith(finding.seen_as) for each, _ in gains if each is not finding
        ):
            where = finding.evidence[0].event
            places[where] = max(places.get(where, 0), gain.time_ns)
    return sum(places.values())


# Percent of the base that a finding with a known gain wins now.
_WON = Thresholds(25.0, 10.0, -math.inf)


def _as_far_as_they_win(trace: Trace, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings with what they win now, and those with a gain as severe as it is large."""
    base = base_window(trace) if any(each.gain is not None for each in findings) else None
    if base is None:
        return list(findings)
    changes = {
        at: finding.gain.spared
        for at, finding in enumerate(findings)
        if finding.gain is not None and finding.gain.spared is not None
    }
    parts, other = critical_path.parts_won_now(trace, list(changes.values()))
    part_of = dict(zip(changes, parts, strict=True))
    bounded = []
    for at, finding in enumerate(findings):
        gain, part = finding.gain, part_of.get(at)
        if gain is not None and part is not None:
            now = round(gain.time_ns * min(max(part, 0.0), 1.0))
            gain = structs.replace(gain, now_ns=now, other=other)
        severity = finding.severity
        if gain is not None:
            won = _WON.severity(share(gain.sure_ns, base.whole_ns))
            severity = of_size(won or severity, gain.sure_ns)
        bounded.append(structs.replace(finding, gain=gain, severity=severity))
    return bounded


# Percent of the base: recording that costs more is told before all else.
_MOST_RECORDING = 20.0


def _cost_of_stacks(trace: Trace) -> str | None:
    """Return what to do if recording Python's stacks took a large part of the time."""
    cost, base = stack_cost(trace), base_window(trace)
    if cost is None or base is None:
        return None
    begin, end = np.array([base.begin_ns]), np.array([base.end_ns])
    took = int(cost.recorded_ns(begin, end)[0])
    percent = share(took, base.whole_ns)
    if percent <= _MOST_RECORDING:
        return None
    return (
        f"Record again without stacks (with_stack=False): by estimate, recording them took at least"
        f" {in_words(took, 'ns')} of {base.whose} ({in_percent(percent)})."
    )


@dataclass(frozen=True, repr=False)
class Analysis(Page, Results):
    """The results of one trace, which are also attributes: ``analysis.idle``."""

    trace: Trace
    """The trace; a view of it if analyses have run on it."""
    results: dict[str, Result | Unavailable]
    """The results by the name of the analysis, in the order of the report."""

    def __post_init__(self) -> None:
        vars(self).update(self.results)

    words = Words(
        page="Trace analysis",
        timeline="Timeline of steps, stages, device and host",
        axis="time since the start of the trace",
        as_text="stagespan analyze --markdown",
        heights="The height of a bar is its busy share.",
        no_findings="No findings: nothing in this trace needs attention.",
    )
    open_sections = frozenset(("kernels", "critical_path"))

    def name(self) -> str:
        """Return the name of the file or folder."""
        return name_of(Path(self.trace.path))

    def summary(self) -> str:
        """Return the number of entries and the length of the window, or the number of ranks."""
        window, total = window_of(self.trace), self.trace.total
        if not total and "ascend_files" in self.results:
            return "the profiler's tables, without a trace"
        for result in self.results.values():
            if isinstance(result, Titled) and (amount := result.amount()):
                return amount
        length = "" if window is None else f", {in_words(window[1] - window[0], 'ns')} long"
        return f"{total:,} {'entry' if total == 1 else 'entries'}{length}"

    def caveat(self) -> str | None:
        """Return why the figures of this trace are less than they seem."""
        return " ".join(filter(None, (self.trace.caveat, _cost_of_stacks(self.trace)))) or None

    def notes(self) -> list[str]:
        """Return sentences about entries that were not used, or not as they are in the file."""
        return ignored(self.trace)

    def missing(self) -> list[str]:
        """Return a sentence about missing data and how to record it; [] if nothing is missing.

        A recording of stagespan never contains more than spans.
        """
        other = self.trace.metadata.get("otherData")
        if (isinstance(other, dict) and "stagespan" in other) or unknown_categories(self.trace):
            return []
        results = self.results.values()
        needs = dict.fromkeys(each.needs for each in results if isinstance(each, Unavailable))
        listed = [f"{need[0]} ({need[1]})" for need in needs if need is not None]
        return [f"Not in this trace: {', '.join(listed)}."] if listed else []

    def window_ns(self) -> int:
        """Return the length of the trace."""
        window = window_of(self.trace)
        return 0 if window is None else window[1] - window[0]

    def timeline(self) -> list[TimelineRow]:
        """Return rows for steps, stages, the critical path, streams, idle time, and threads."""
        return timeline(self.trace)

    def findings(self) -> list[Finding]:
        """The findings of all analyses, the most severe first, otherwise in the order of the
        report.

        Findings of several analyses about the same lost time are joined. Findings that rest on
        events whose times cannot be true are one grade less severe.
        """
        return list(self._findings)

    @cached_property
    def _findings(self) -> list[Finding]:
        found = [finding for result in self.results.values() for finding in result.findings()]
        judged = _as_far_as_they_win(self.trace, without_repeats(found))
        return by_severity(map(without_restatements, with_doubt(self.trace, judged)))

    def together(self) -> str | None:
        """Return a sentence about what all findings win together; None for fewer than two gains."""
        base = base_window(self.trace)
        if sum(each.gain is not None for each in self.findings()) < 2 or base is None:
            return None
        time = in_words(self.won_together_ns(), "ns")
        which = "known gains" if any(each.no_gain for each in self.findings()) else "gains"
        return f"All {which} together: at most {time} of {base.whose}."

    def won_together_ns(self) -> int:
        """Return what all findings win together, at most the time of the steps; 0 without gains."""
        base = base_window(self.trace)
        if base is None or all(each.gain is None for each in self.findings()):
            return 0
        return min(_won_together(self.findings()), base.whole_ns)

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON: facts about the file, findings, and a key for each analysis."""
        trace = self.trace
        window = window_of(trace)
        read = TraceFigures(
            path=trace.path,
            entries=trace.total,
            window_begin_ns=None if window is None else window[0],
            window_ns=None if window is None else window[1] - window[0],
            incomplete=trace.incomplete,
            profiled_ratio=trace.profiled_ratio,
            left_out=dict(trace.left_out),
            adjusted=dict(trace.adjusted),
            ignored_ns=dict(trace.ignored_ns),
            doubtful_ns=covered(trace.doubtful[:, 0], trace.doubtful[:, 1]),
            settled=[SettledTime(**asdict(each)) for each in trace.settled],
        )
        return {
            "schema_version": SCHEMA_VERSION,
            "trace": read.to_dict(),
            "findings": [finding.to_dict() for finding in self.findings()],
            **{name: result.to_dict() for name, result in self.results.items()},
        }


def analyze(
    trace: Trace, only: Iterable[str] | None = None, captures: Sequence[Trace] = ()
) -> Analysis:
    """Run all analyses on a trace (on an NPU's also `ASCEND`), or only those in `only`.

    `captures` are traces that were made while the device graphs of `trace` were captured: the
    graphs' kernels get their operators and shapes from them.

    Raises KeyError for an unknown name.
    """
    analyses = ANALYSES | ASCEND
    # The pages of the results ask for the same facts again.
    view = TraceView.of(trace)
    if captures:
        view = view.with_capture_traces(captures)
    names = _applicable(view) if only is None else list(only)
    unknown = [name for name in names if name not in analyses]
    if unknown:
        raise KeyError(f"There is no analysis {unknown[0]!r}: choose from {', '.join(analyses)}.")
    in_order = dict.fromkeys([*(name for name in _RUN_FIRST if name in names), *names])
    results = {name: analyses[name](view) for name in in_order}
    return Analysis(view, {name: results[name] for name in names})


def _applicable(trace: Trace) -> list[str]:
    """Return the analyses for a trace. torch.profiler can record Ascend's graph mode too."""
    if is_ascend(trace):
        return [*ANALYSES, *ASCEND]
    return [*ANALYSES, "head_overhead"] if calls_torchair(trace) else list(ANALYSES)


def analyze_ascend(folder: AscendFolder) -> Analysis:
    """Analyse an Ascend folder: the trace if there is one, and every other file that exists."""
    trace = None if folder.trace is None else TraceView.of(folder.trace)
    results: dict[str, Result | Unavailable] = {}
    of_files = ascend_report.analyze_files(structs.replace(folder, trace=trace))
    if trace is not None:
        # The folder's files contain more than the trace about the same.
        covered = {"ascend_steps"}
        by_type = of_files["ascend_operators"]
        if isinstance(by_type, operators.Operators) and any(each.core for each in by_type.types):
            covered.add("ascend_cores")
        names = [name for name in _applicable(trace) if name not in covered]
        results |= analyze(trace, names).results
    results |= of_files
    first = {name: results[name] for name in ("verdict", *ASCEND) if name in results}
    shown = without_events(str(folder.path)) if trace is None else trace
    shown = replace(shown, incomplete=" ".join(folder.problems) or shown.incomplete)
    return Analysis(shown, first | results)
