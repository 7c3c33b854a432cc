"""torch.compile: regions, frames, graph breaks, recompilations, compile time, and work."""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np

from stagespan.pages.amounts import counted, in_percent, in_words, listed
from stagespan.pages.figures import Count, CountedTime, Figures, Internal, Ns, first
from stagespan.pages.result import (
    Evidence,
    Finding,
    Gain,
    Severity,
    StructResult,
    Table,
    Thresholds,
    Unavailable,
    at_most,
    of_size,
    share,
    shortened,
)
from stagespan.trace.analyses.idle_time import mostly_compiles
from stagespan.trace.derived.advice import START_UP
from stagespan.trace.derived.compile_events import (
    CLASSES,
    COPIES,
    EXTERN,
    FALLBACK,
    GRAPH,
    LOOKUP,
    MOST_IN_JSON,
    REGION,
    SIGNS,
    Break,
    Forest,
    Frame,
    Frames,
    Work,
    breaks_of,
    eager_calls,
    forest_of,
    frame_of,
    frames_of,
    launched_in_graphs,
    lookups,
    triton_by_kind,
    work_in_graphs,
)
from stagespan.trace.derived.compile_times import PHASES, Compilation, CompileTime, compile_time
from stagespan.trace.derived.device import device_work
from stagespan.trace.derived.gains import gain_of_rows, gain_on_host, gain_without_rows
from stagespan.trace.derived.kernel_kinds import ELEMENTWISE, kind_of
from stagespan.trace.derived.launch_sources import stages_around
from stagespan.trace.derived.missing import DAMAGED_TIMES
from stagespan.trace.evidence import evidence, window_of
from stagespan.trace.read.groups import grouped
from stagespan.trace.read.intervals import Rows
from stagespan.trace.read.model import Trace

_BREAK_SHARES = Thresholds(25.0, 5.0, 0.0)
_COMPILE_SHARES = Thresholds(25.0, 10.0, 2.0)
_AGAIN_SHARES = Thresholds(20.0, 5.0, 0.0)
_FALLBACK_SHARES = Thresholds(medium=30.0, low=10.0)
_LOOKUP_SHARES = Thresholds(medium=25.0, low=10.0)
_LIMIT_SHARES = Thresholds(medium=10.0, low=0.0)
_EAGER_SHARE = 10.0
# Shorter times are not reported.
_LEAST_NS = 1_000_000
# The most ranges of the program that a finding on its compilation names.
_RANGES_NAMED = 3
_NO_TIME = "the trace does not show the time between the graphs"
_BUSY = "the device did not wait for the host"
_BEFORE = "it is compiled before"
_LEAST_LOOKUPS = 10


def analyze(trace: Trace) -> Compiled | Unavailable:
    """Analyse the use of torch.compile; Unavailable if the trace shows no sign of it."""
    if not any(map(SIGNS.search, trace.names)):
        return _NOTHING
    forest = forest_of(trace)
    if forest is None:
        return DAMAGED_TIMES
    frames = frames_of(forest)
    compiling = compile_time(forest, frames.ran)
    triton = triton_by_kind(forest)
    if not frames.frames and compiling is None and not triton:
        return _NOTHING
    begin, end = window_of(trace) or (0, 0)
    breaks = breaks_of(forest, frames.functions) if frames.regions else None
    eager, seen = eager_calls(forest), breaks is not None
    return Compiled(
        regions=frames.regions if seen else None,
        calls=frames.calls if seen else None,
        frames_run=frames.frames,
        graphs=GraphCounts(frames.forward_graphs, frames.backward_graphs, frames.linked),
        breaks=breaks,
        recompilations=_recompilations(frames, compiling),
        compiling=compiling,
        lookups=lookups(forest),
        eager_calls=len(eager) + _refused(compiling) if seen else None,
        work=work_in_graphs(forest),
        triton=triton,
        forest=forest,
        window_ns=end - begin,
        frames=frames,
        eager=eager,
    )


class Compiled(StructResult, frozen=True):
    """What the trace shows of torch.compile; times in ns."""

    regions: Count | None
    calls: Count | None
    """The number of regions that no other region has called."""
    frames_run: Annotated[list[Frame], first(MOST_IN_JSON)] = msgspec.field(name="frames")
    graphs: GraphCounts
    breaks: Annotated[list[Break], first(MOST_IN_JSON)] | None = msgspec.field(name="graph_breaks")
    """None for a trace without regions (before torch 2.2), which does not show them."""
    recompilations: list[Recompilation]
    compiling: CompileTime | None = msgspec.field(name="compile_time")
    """None when nothing was compiled within the window."""
    lookups: CountedTime = msgspec.field(name="cache_lookups")
    """Look-ups of compiled code, which include guards."""
    eager_calls: Count | None
    """The number of calls that found no compiled version and were not compiled; None for a trace
    without regions."""
    work: Annotated[list[Work], first(MOST_IN_JSON)] = msgspec.field(name="in_graphs")
    triton: dict[str, CountedTime] = msgspec.field(name="triton_kinds")
    """Inductor's Triton kernels by kind."""
    forest: Internal[Forest]
    window_ns: Internal[int]
    frames: Internal[Frames] = msgspec.field(name="every_frame")
    eager: Internal[Rows]
    """The look-ups after which the call ran eagerly, as nodes of the forest."""

    @property
    def number_of_eager_calls(self) -> int:
        """As `eager_calls`, also for a trace without regions."""
        return len(self.eager) + _refused(self.compiling)

    def findings(self) -> list[Finding]:
        """Breaks, recompilations, compiling within the window, and what was not compiled."""
        findings = [
            _breaks(self),
            _recompiled(self),
            _variants(self),
            _limit_reached(self),
            _compiled_in_window(self),
            _no_inductor(self) or _fallbacks(self),
            _lookups(self),
        ]
        return [each for each in findings if each is not None]

    def tables(self) -> list[Table]:
        """Frames, breaks, compiling by phase and by frame, and work in graphs."""
        tables = [self._frame_table(), self._break_table()]
        if self.compiling is not None:
            tables += _compile_tables(self.compiling)
        tables += [self._work_table(), self._triton_table()]
        return [table for table in tables if table.rows]

    def line(self) -> str:
        """The numbers of graphs, breaks, recompilations and eager calls."""
        again = self.recompilations
        counts = (
            (self.frames.forward_graphs, "forward graph", ""),
            (self.frames.backward_graphs, "backward graph", ""),
            (sum(each.count for each in self.breaks or []), "graph break", ""),
            (sum(each.in_window for each in again), "recompilation", ""),
            (sum(each.before_window for each in again), "recompilation", " before the trace"),
            (self.eager_calls or 0, "call", " that ran eagerly"),
        )
        return ", ".join(f"{counted(n, what)}{more}" for n, what, more in counts if n)

    def _frame_table(self) -> Table:
        unseen = "" if self.breaks is not None else " Graph breaks cannot be seen without regions."
        return Table.of(
            "Compiled frames",
            self.frames.frames[:_SHOWN],
            ("frame", "frame", ""),
            ("function", "function", ""),
            (lambda frame: ", ".join(frame.variants) or None, "variants that ran", ""),
            ("calls", "calls", ""),
            ("time_ns", "time", "ns"),
            ("graph_ns", "in graphs", "ns"),
            ("backward_calls", "backward calls", ""),
            ("backward_ns", "backward", "ns"),
            note=f"Host time, without compilation and without called frames.{unseen}",
        )

    def _break_table(self) -> Table:
        return Table.of(
            "Graph breaks",
            (self.breaks or [])[:_SHOWN],
            ("before", "from frame", ""),
            ("after", "to frame", ""),
            ("line", "line", ""),
            ("count", "count", ""),
            ("time_ns", "time", "ns"),
            (_between, "between", ""),
        )

    def _work_table(self) -> Table:
        left = len(self.work) - _SHOWN
        return Table.of(
            "Work in compiled graphs",
            self.work[:_SHOWN],
            (lambda work: CLASSES[work.of], "what", ""),
            ("name", "name", ""),
            ("calls", "calls", ""),
            ("host_ns", "host", "ns"),
            ("device_ns", "device", "ns"),
            note=f"{left:,} more are not shown." if left > 0 else "",
        )

    def _triton_table(self) -> Table:
        return Table(
            "Triton kernels of Inductor",
            (("kind", ""), ("kernels", ""), ("time", "ns")),
            [(kind, each.count, each.time_ns) for kind, each in self.triton.items()],
        )


def _breaks(compiled: Compiled) -> Finding | None:
    if not compiled.breaks:
        return None
    frames = compiled.frames
    count = sum(each.count for each in compiled.breaks)
    times = [each.time_ns for each in compiled.breaks if each.time_ns is not None]
    time = sum(times) if times else None
    least = "at least " if len(times) < len(compiled.breaks) else ""
    first = compiled.breaks[0]
    between = ", ".join(list(first.operators or {})[:3])
    where = (
        "" if first.before == "?" else f": frame {first.before} continues in frame {first.after}"
    )
    if where and len(compiled.breaks) > 1:
        where += f", and {counted(len(compiled.breaks) - 1, 'more such pair')}"
    if between:
        where += f" ({between} ran between them)"
    sources = list(dict.fromkeys(each.line for each in compiled.breaks if each.line))
    action, details = "TORCH_LOGS=graph_breaks names the lines of graph breaks.", ""
    if sources:
        lines = f"{', '.join(sources[:3])}{', ...' if len(sources) > 3 else ''}"
        action = f"Remove the graph breaks at {lines}."
    rows = compiled.forest.nodes.rows
    sentence = (
        f"{counted(count, 'graph break')} in {counted(frames.calls, 'call')} of compiled"
        f" functions{where}."
    )
    severity: Severity = "medium"
    seen: list[Evidence] = []
    numbers: dict[str, float] = {"breaks": count, "calls": frames.calls}
    if time is not None:
        percent = share(time, frames.call_ns)
        severity = _BREAK_SHARES.severity(percent) or "low"
        # Even a short break prevents fusion across it.
        if severity == "high" and of_size(severity, time) != "high":
            severity = "medium"
        details = (
            f"The time between graphs was {least}{in_words(time, 'ns')}"
            f" ({in_percent(percent)} of the calls' time)."
        )
        seen.append(Evidence("from graph to graph", None, time, "ns"))
        numbers |= {"time_ns": time, "percent": percent}
    # The device may be busy while the host loses this time.
    on_device = bool(device_work(compiled.forest.trace).kind.any())
    if severity == "high" and on_device:
        severity = "medium"
    gain = gain_on_host(compiled.forest.trace, time or 0, "one graph does the work of all")
    return Finding(
        severity,
        sentence,
        (evidence(compiled.forest.trace, int(rows[first.nodes[0]])), *seen),
        "compiled.graph_break",
        action=action,
        details=details,
        numbers=numbers,
        gain=gain,
        no_gain="" if gain else _NO_TIME if time is None else _BUSY,
        about="host",
    )


def _recompiled(compiled: Compiled) -> Finding | None:
    """Return a finding if frames were compiled again within the window."""
    compiling = compiled.compiling
    again = [each for each in compiling.compilations if each.again] if compiling else []
    if not again:
        return None
    time = sum(each.time_ns for each in again)
    percent = share(time, compiled.window_ns)
    frames = list(dict.fromkeys(str(each.frame) for each in again))
    ids = ", ".join(str(each.id) for each in again[:4]) + (", ..." if len(again) > 4 else "")
    known = compiled.frames.functions.get(frames[0])
    name = f"{frames[0]} ({known})" if known else frames[0]
    what = f"Frame {name} was" if len(frames) == 1 else f"{len(frames)} frames were"
    return Finding(
        of_size(_AGAIN_SHARES.severity(percent) or "low", time),
        f"{what} compiled again, {counted(len(again), 'time')} ({ids}), for {in_words(time, 'ns')}"
        f" ({in_percent(percent)} of the trace): something that the compiled code relies on"
        " changed, such as a shape, a number or the grad mode.",
        tuple(evidence(compiled.forest.trace, each.row) for each in again[:3]),
        "compiled.recompiled",
        action="TORCH_LOGS=recompiles shows what changed: torch._dynamo.mark_dynamic, or a tensor"
        " instead of a number, avoids that code is compiled again.",
        numbers={
            "frames": len(frames),
            "compilations": len(again),
            "time_ns": time,
            "percent": percent,
        },
        gain=_gain(compiled, again, "nothing is compiled again"),
        about="host",
        covers=("idle.compilation",),
    )


def _gain(compiled: Compiled, compilations: list[Compilation], how: str) -> Gain | None:
    """Return the gain if some compilations do not happen in the steps.

    With a device, it is at most the time: the device can be busy while the host compiles.
    """
    rows = np.array([each.row for each in compilations], dtype=np.intp)
    time = np.array([each.time_ns for each in compilations], dtype=np.int64)
    return gain_without_rows(compiled.forest.trace, rows, time, how)


def _gain_of_fusion(compiled: Compiled, works: list[Work]) -> Gain | None:
    """Return the gain if the kernels of some operators in graphs become part of others.

    Without a device, it is the time of the operators.
    """
    how, trace = "all of them become part of other kernels", compiled.forest.trace
    rows = launched_in_graphs(compiled.forest, {work.name for work in works})
    if not len(device_work(trace).rows):
        return gain_on_host(trace, _sum(works), how)
    return gain_of_rows(trace, rows, trace.events.dur_ns[rows], how)


def _variants(compiled: Compiled) -> Finding | None:
    """Return a finding if frames ran in several variants that were compiled before the window."""
    in_window = compiled.compiling.compilations if compiled.compiling else []
    recompiled = {each.frame for each in in_window if each.again}
    several = [
        frame
        for frame in compiled.frames.frames
        if len(frame.variants) > 1 and frame.frame not in recompiled
    ]
    if not several:
        return None
    most = max(several, key=lambda frame: len(frame.variants))
    regions = np.flatnonzero(compiled.forest.role == REGION)
    names = compiled.forest.names(regions)
    rows = compiled.forest.nodes.rows
    firsts: dict[str, int] = {}
    for region, name in zip(regions.tolist(), names, strict=True):
        if frame_of(name)[0] == most.frame:
            firsts.setdefault(name, int(rows[region]))
    others = f" (and {len(several) - 1} more frames in several)" if len(several) > 1 else ""
    return Finding(
        "low",
        f"Frame {most.frame} ran in {len(most.variants)} compiled variants{others}: it was compiled"
        " again before the trace began, because something that it relies on changed.",
        tuple(evidence(compiled.forest.trace, row) for row in list(firsts.values())[:3]),
        "compiled.variants",
        action="TORCH_LOGS=recompiles shows what changed.",
        details="Each new variant costs a compilation, and each call checks the guards of several.",
        numbers={"frames": len(several), "variants": len(most.variants)},
        no_gain="it was compiled before the trace began",
    )


def _limit_reached(compiled: Compiled) -> Finding | None:
    """Return a finding if calls found no compiled version and ran eagerly."""
    compilations = compiled.compiling.compilations if compiled.compiling else []
    refused = [each for each in compilations if each.refused]
    # The call for which a function is compiled first has no look-up.
    first = sum(not each.variant for each in compilations)
    eager = compiled.number_of_eager_calls
    count = max(compiled.lookups.count, eager) + first
    if eager == 0:
        return None
    trace, rows = compiled.forest.trace, compiled.forest.nodes.rows
    percent = share(eager, count)
    variants = max((int(v) for f in compiled.frames.frames for v in f.variants), default=0) + 1
    with_variants = f" ({variants} variants of a frame)" if variants > 1 else ""
    return Finding(
        _LIMIT_SHARES.severity(percent) or "low",
        f"{eager:,} of {counted(count, 'call')} of compiled functions ({in_percent(percent)})"
        " found no compiled version that fits and ran eagerly: the limit of recompilations is"
        f" reached{with_variants}, or the program requested this.",
        (
            *(evidence(trace, each.row) for each in refused[:1]),
            *(evidence(trace, int(rows[node])) for node in compiled.eager[:2].tolist()),
        ),
        "compiled.recompile_limit",
        action="TORCH_LOGS=recompiles shows what changes from call to call:"
        " torch._dynamo.mark_dynamic, or a tensor instead of a number, avoids that, and"
        " torch._dynamo.config.recompile_limit raises the limit.",
        numbers={"eager_calls": eager, "calls": count, "percent": percent},
        no_gain="the trace does not show how long these calls would take if they were compiled",
    )


def _compiled_in_window(compiled: Compiled) -> Finding | None:
    """Return a finding if frames were compiled for the first time within the window."""
    compiling = compiled.compiling
    if compiling is None:
        return None
    again = sum(each.time_ns for each in compiling.compilations if each.again)
    time = compiling.time_ns - again
    percent = share(time, compiled.window_ns)
    severity = _COMPILE_SHARES.severity(percent)
    first = [each for each in compiling.compilations if not each.variant]
    if severity is None or not first:
        return None
    phase, longest = next(iter(compiling.first_phases.items()))
    slowest = compiling.first_steps[0]
    trace = compiled.forest.trace
    on_device = len(device_work(trace).rows) > 0
    # On a device it is a part of what a program does once, which is no gain.
    severity = at_most(severity, "medium" if on_device else "high")
    return Finding(
        of_size(severity, time),
        f"torch.compile compiled for {in_words(time, 'ns')} ({in_percent(percent)} of the trace),"
        f" {counted(len(first), 'frame')} for the first time.",
        (
            *(evidence(trace, each.row) for each in first[:2]),
            Evidence(f"{slowest.step}, its own time", None, slowest.self_ns, "ns"),
        ),
        "compiled.in_window",
        action=START_UP.text,
        details=f"The longest phase was {_PHASE_WORDS[phase]} ({in_words(longest, 'ns')})."
        f"{_in_ranges(trace, compiling)}",
        numbers={
            "time_ns": time,
            "percent": percent,
            "frames": len(first),
            "longest_phase_ns": longest,
        },
        gain=None
        if on_device
        else gain_of_rows(trace, compiling.first_rows, compiling.first_own_ns, _BEFORE),
        about="host",
        covers=("idle.start_up",) if mostly_compiles(trace) else (),
    )


def _in_ranges(trace: Trace, compiling: CompileTime) -> str:
    """Return a sentence about the ranges of the program in which frames were compiled first."""
    around = stages_around(trace, compiling.first_rows)
    inside = around >= 0
    names = trace.events.name[around[inside]].astype(np.int64)
    ranges = grouped(names, compiling.first_own_ns[inside])
    listed_ranges = listed(
        f"{shortened(trace.names[each.code])} ({in_words(each.time_ns, 'ns')})"
        for each in ranges[:_RANGES_NAMED]
    )
    return f" It compiled in {listed_ranges}." if ranges else ""


_PHASE_WORDS = {
    "guards": "building guards",
    "autotuning": "autotuning",
    "kernels": "compiling and loading kernels",
    "dynamo": "Dynamo's tracing of Python",
    "autograd": "AOTAutograd's",
    "inductor": "Inductor's lowering",
    "other": "other steps",
}


def _no_inductor(compiled: Compiled) -> Finding | None:
    """Return a finding if graphs run aten operators, so the backend generates no code."""
    forest = compiled.forest
    names = forest.names(np.flatnonzero(forest.role == GRAPH))
    if compiled.triton or not names or any(name.startswith("##") for name in names):
        return None
    plain = [
        work
        for work in compiled.work
        if work.of in (FALLBACK, COPIES) and work.name.startswith("aten::")
    ]
    elementwise = [work for work in plain if kind_of(work.name) == ELEMENTWISE]
    time = _sum(plain)
    percent = share(time, _sum(compiled.work))
    if not elementwise or percent < _EAGER_SHARE or time < _LEAST_NS:
        return None
    listed = ", ".join(work.name for work in plain[:3])
    return Finding(
        "medium",
        f"The compiled graphs ran only aten's kernels, not Inductor's: {in_words(time, 'ns')}"
        f" ({in_percent(percent)} of the time in graphs) went into {listed} and similar kernels."
        " The backend generates no code (eager, aot_eager).",
        _evidence_of(plain),
        "compiled.no_inductor",
        action="backend='inductor' would fuse them.",
        numbers={"time_ns": time, "percent": percent},
        gain=_gain_of_fusion(compiled, plain),
    )


def _fallbacks(compiled: Compiled) -> Finding | None:
    """Return a finding about operators in Inductor's graphs for which it generates no code."""
    left = [work for work in compiled.work if work.of == FALLBACK]
    time = _sum(left)
    percent = share(time, _sum(compiled.work))
    severity = _FALLBACK_SHARES.severity(percent)
    if severity is None or time < _LEAST_NS:
        return None
    libraries = _sum([work for work in compiled.work if work.of == EXTERN])
    listed = ", ".join(work.name for work in left[:3])
    return Finding(
        severity,
        f"In compiled graphs {in_words(time, 'ns')} ({in_percent(percent)}) went into operators"
        f" that Inductor left to aten: {listed}. They cannot be fused.",
        _evidence_of(left),
        "compiled.fallback",
        details="Libraries for products, convolutions and attention,"
        f" {in_words(libraries, 'ns')}, are not counted.",
        numbers={"time_ns": time, "percent": percent, "libraries_ns": libraries},
        gain=_gain_of_fusion(compiled, left),
    )


def _lookups(compiled: Compiled) -> Finding | None:
    """Return a finding if guards take a large part of the calls' time."""
    count, time = compiled.lookups.count, compiled.lookups.time_ns
    percent = share(time, compiled.frames.call_ns + time)
    severity = _LOOKUP_SHARES.severity(percent)
    if severity is None or count < _LEAST_LOOKUPS or time < _LEAST_NS:
        return None
    forest = compiled.forest
    index = np.flatnonzero(forest.role == LOOKUP)
    longest = index[forest.dur_ns(index).argmax()]
    return Finding(
        severity,
        f"{in_words(time, 'ns')} ({in_percent(percent)} of the calls of compiled functions) went"
        f" into {count:,} look-ups of compiled code, which check its guards.",
        (evidence(forest.trace, int(forest.nodes.rows[longest])),),
        "compiled.guards",
        action="Fewer graph breaks, fewer variants, or larger compiled functions reduce look-ups.",
        numbers={"time_ns": time, "percent": percent, "lookups": count},
        gain=(gain := gain_on_host(forest.trace, time, "no call looks up compiled code")),
        no_gain="" if gain else _BUSY,
        about="host",
    )


def _evidence_of(works: list[Work]) -> tuple[Evidence, ...]:
    return tuple(Evidence(work.name, None, _time(work), "ns") for work in works[:3])


def _time(work: Work) -> int:
    """Return the time on the device, or on the host if there is no device."""
    return work.device_ns if work.device_ns is not None else work.host_ns or 0


def _sum(works: list[Work]) -> int:
    return sum(map(_time, works))


_NOTHING = Unavailable(
    "The trace contains no sign of torch.compile: no compiled region, no graph, no kernel of"
    " Inductor.",
    "not_compiled",
)


_YES = {True: "yes", False: "no", None: None}


_SHOWN = 15


class GraphCounts(Figures, frozen=True):
    """The numbers of runs of graphs."""

    forward: Count
    backward: Count
    backward_linked: Count


class Recompilation(Figures, frozen=True):
    """A frame that was compiled more than once."""

    frame: str
    times: Count
    in_window: Count
    before_window: int
    compiled: list[str]
    time_ns: Ns
    variants_run: list[str]


def _between(graph_break: Break) -> str | None:
    if graph_break.operators is None:
        return None
    shown = [f"{name} x {count:,}" for name, count in list(graph_break.operators.items())[:5]]
    shown += [f"frame {frame} x {count:,}" for frame, count in list(graph_break.called.items())[:5]]
    return ", ".join(shown) or "no operator"


def _compile_tables(compiling: CompileTime) -> list[Table]:
    return [
        Table(
            "Compiling by phase",
            (("phase", ""), ("time", "ns"), ("of all", "%")),
            [
                (PHASES[phase], time, share(time, compiling.time_ns))
                for phase, time in compiling.phases.items()
            ],
        ),
        Table.of(
            "Compiling by step",
            compiling.steps[:_SHOWN],
            ("step", "step", ""),
            ("self_ns", "own time", "ns"),
            ("count", "times", ""),
        ),
        Table.of(
            "Frames compiled during the trace",
            compiling.compilations[:_SHOWN],
            ("id", "frame/variant", ""),
            ("time_ns", "time", "ns"),
            (lambda each: _YES[each.ran], "ran in the trace", ""),
            note="Dynamo may have skipped frames that did not run.",
        ),
    ]


def _refused(compiling: CompileTime | None) -> int:
    """Return the number of calls that were not compiled because of the limit."""
    return sum(each.refused for each in compiling.compilations) if compiling else 0


def _recompilations(frames: Frames, compiling: CompileTime | None) -> list[Recompilation]:
    """Return the frames that were compiled more than once, within the window or before it."""
    recompilations = []
    again: dict[str, list[tuple[int, int]]] = {}
    for each in compiling.compilations if compiling else []:
        if each.frame is not None and each.variant is not None and each.again:
            again.setdefault(each.frame, []).append((each.variant, each.time_ns))
    ran = {f.frame: list(map(int, f.variants)) for f in frames.frames if f.frame is not None}
    for frame in dict.fromkeys([*again, *ran]):
        compiled, variants = sorted(again.get(frame, ())), ran.get(frame, [])
        most = max([*variants, *(variant for variant, _ in compiled)], default=0)
        if most == 0:
            continue
        recompilations.append(
            Recompilation(
                frame=frame,
                times=most,
                in_window=len(compiled),
                before_window=most - len({variant for variant, _ in compiled}),
                compiled=[f"{frame}/{variant}" for variant, _ in compiled],
                time_ns=sum(time for _, time in compiled),
                variants_run=[f"{frame}/{variant}" for variant in variants],
            )
        )
    return recompilations
