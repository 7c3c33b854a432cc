"""What is worth a look about torch.compile, with the figures that say so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stagespan.trace.analysis.compiled_forest import GRAPH, LOOKUP, REGION, frame_of
from stagespan.trace.analysis.compiled_work import COPIES, EXTERN, FALLBACK, Work
from stagespan.trace.analysis.kinds import ELEMENTWISE, kind_of
from stagespan.trace.analysis.result import (
    Evidence,
    Finding,
    Severity,
    evidence,
    in_words,
    of_size,
    share,
)
from stagespan.trace.device import device_work

if TYPE_CHECKING:
    from stagespan.trace.analysis.compiled import Compiled

Shares = tuple[tuple[float, Severity], ...]
_BREAK_SHARES: Shares = ((25.0, "high"), (5.0, "medium"), (0.0, "low"))
_COMPILE_SHARES: Shares = ((10.0, "medium"), (2.0, "low"))
_AGAIN_SHARES: Shares = ((20.0, "high"), (5.0, "medium"), (0.0, "low"))
_FALLBACK_SHARES: Shares = ((30.0, "medium"), (10.0, "low"))
_LOOKUP_SHARES: Shares = ((25.0, "medium"), (10.0, "low"))
_LIMIT_SHARES: Shares = ((10.0, "medium"), (0.0, "low"))
_EAGER_SHARE = 10.0
# Shorter than this nothing is worth a sentence.
_LEAST_NS = 1_000_000
_LEAST_LOOKUPS = 10


def findings_of(compiled: Compiled) -> list[Finding]:
    """Empty for a function that was compiled before the window, in one piece."""
    found = [
        _breaks(compiled),
        _recompiled(compiled),
        _variants(compiled),
        _limit_reached(compiled),
        _compiled_in_window(compiled),
        _no_inductor(compiled) or _fallbacks(compiled),
        _lookups(compiled),
    ]
    return [each for each in found if each is not None]


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
    where = "" if first.before == "?" else f": frame {first.before} goes on in frame {first.after}"
    if where and len(compiled.breaks) > 1:
        where += f", and {_counted(len(compiled.breaks) - 1, 'more such pair')}"
    if between:
        where += f"; between them ran {between}" if where else f": between them ran {between}"
    lines = [compiled.functions.get(each.after) for each in compiled.breaks]
    known = list(dict.fromkeys(line for line in lines if line))
    advice = "TORCH_LOGS=graph_breaks names the lines."
    if known:
        advice = f"They are at {', '.join(known[:3])}{', ...' if len(known) > 3 else ''}."
    rows = compiled.forest.nodes.rows
    sentence = (
        f"{_counted(count, 'graph break')} in {_counted(frames.calls, 'call')} of compiled"
        f" functions{where}."
    )
    severity: Severity = "medium"
    seen: list[Evidence] = []
    if time is not None:
        percent = share(time, frames.call_ns)
        severity = _severity(percent, _BREAK_SHARES) or "low"
        # A break also keeps what lies around it from being fused, however short it is.
        if severity == "high" and of_size(severity, time) != "high":
            severity = "medium"
        sentence += (
            f" Between graphs passed {least}{in_words(time, 'ns')} ({percent:.1f} % of the calls'"
            " time)."
        )
        seen.append(Evidence("from graph to graph", None, time, "ns"))
    # What the host loses there the device need not lose.
    if severity == "high" and device_work(compiled.forest.trace).kind.any():
        severity = "medium"
    return Finding(
        severity,
        f"{sentence} {advice}",
        (evidence(compiled.forest.trace, int(rows[first.nodes[0]])), *seen),
        "compiled.graph_break",
    )


def _recompiled(compiled: Compiled) -> Finding | None:
    """Frames that were compiled again within the window."""
    compiling = compiled.compiling
    again = [each for each in compiling.compilations if each.again] if compiling else []
    if not again:
        return None
    time = sum(each.time_ns for each in again)
    percent = share(time, compiled.window_ns)
    frames = list(dict.fromkeys(str(each.frame) for each in again))
    ids = ", ".join(str(each.id) for each in again[:4]) + (", ..." if len(again) > 4 else "")
    known = compiled.functions.get(frames[0])
    name = f"{frames[0]} ({known})" if known else frames[0]
    what = f"Frame {name} was" if len(frames) == 1 else f"{len(frames)} frames were"
    return Finding(
        of_size(_severity(percent, _AGAIN_SHARES) or "low", time),
        f"{what} compiled again, {_counted(len(again), 'time')} ({ids}), for {in_words(time, 'ns')}"
        f" ({percent:.1f} % of the window): something that the compiled code relies on changed,"
        " such as a shape, a number or the grad mode. TORCH_LOGS=recompiles says what;"
        " torch._dynamo.mark_dynamic, or a tensor in place of the number, avoids it.",
        tuple(evidence(compiled.forest.trace, each.row) for each in again[:3]),
        "compiled.recompiled",
    )


def _variants(compiled: Compiled) -> Finding | None:
    """Frames that ran in several variants, which were compiled before the window."""
    in_window = compiled.compiling.compilations if compiled.compiling else []
    told = {each.frame for each in in_window if each.again}
    several = [
        frame
        for frame in compiled.frames.frames
        if len(frame.variants) > 1 and frame.frame not in told
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
        " again before the window because something that it relies on changed. Each new variant"
        " costs a compilation, and each call checks the guards of several. TORCH_LOGS=recompiles"
        " says what changed.",
        tuple(evidence(compiled.forest.trace, row) for row in list(firsts.values())[:3]),
        "compiled.variants",
    )


def _limit_reached(compiled: Compiled) -> Finding | None:
    """Calls that found no compiled version, and ran eagerly instead of being compiled again."""
    compilations = compiled.compiling.compilations if compiled.compiling else []
    refused = [each for each in compilations if each.refused]
    eager, count = compiled.eager_calls, max(compiled.lookups[0], compiled.eager_calls)
    if eager == 0:
        return None
    trace, rows = compiled.forest.trace, compiled.forest.nodes.rows
    percent = share(eager, count)
    variants = max((max(f.variants, default=0) for f in compiled.frames.frames), default=0) + 1
    known = f" ({variants} variants of a frame)" if variants > 1 else ""
    return Finding(
        _severity(percent, _LIMIT_SHARES) or "low",
        f"{eager:,} of {_counted(count, 'call')} of compiled functions ({percent:.1f} %) found no"
        " compiled version that fits and ran eagerly: the limit of recompilations is"
        f" reached{known}, or the program asked for it. TORCH_LOGS=recompiles says what changes"
        " from call to call;"
        " torch._dynamo.mark_dynamic, or a tensor in place of a number, avoids it, and"
        " torch._dynamo.config.recompile_limit raises the limit.",
        (
            *(evidence(trace, each.row) for each in refused[:1]),
            *(evidence(trace, int(rows[node])) for node in compiled.eager[:2].tolist()),
        ),
        "compiled.recompile_limit",
    )


def _compiled_in_window(compiled: Compiled) -> Finding | None:
    """Compiling for the first time, which belongs before what is measured."""
    compiling = compiled.compiling
    if compiling is None:
        return None
    again = sum(each.time_ns for each in compiling.compilations if each.again)
    time = compiling.time_ns - again
    percent = share(time, compiled.window_ns)
    severity = _severity(percent, _COMPILE_SHARES)
    first = [each for each in compiling.compilations if not each.variant]
    if severity is None or not first:
        return None
    phase, longest = next(iter(compiling.phases.items()))
    step, own, _ = compiling.steps[0]
    return Finding(
        severity,
        f"torch.compile compiled for {in_words(time, 'ns')} ({percent:.1f} % of the window),"
        f" {_counted(len(first), 'frame')} for the first time; of all compiling"
        f" {in_words(longest, 'ns')} were {_PHASE_WORDS[phase]}. If the steady state is meant, run"
        " the program once before the window.",
        (
            *(evidence(compiled.forest.trace, each.row) for each in first[:2]),
            Evidence(f"{step}, its own time", None, own, "ns"),
        ),
        "compiled.in_window",
    )


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
    """Graphs that run aten operators one by one: a backend without code generation."""
    forest = compiled.forest
    names = forest.names(np.flatnonzero(forest.role == GRAPH))
    if compiled.triton or not names or any(name.startswith("##") for name in names):
        return None
    total = sum(_time(work) for work in compiled.work)
    plain = [
        work
        for work in compiled.work
        if work.of in (FALLBACK, COPIES) and work.name.startswith("aten::")
    ]
    elementwise = [work for work in plain if kind_of(work.name) == ELEMENTWISE]
    time = sum(_time(work) for work in plain)
    percent = share(time, total)
    if not elementwise or percent < _EAGER_SHARE or time < _LEAST_NS:
        return None
    listed = ", ".join(work.name for work in plain[:3])
    return Finding(
        "medium",
        f"The compiled graphs ran aten's own kernels and none of Inductor's: {in_words(time, 'ns')}"
        f" ({percent:.1f} % of what ran in graphs) went into {listed} and the like, one by one. The"
        " backend makes no code (eager, aot_eager): backend='inductor' would fuse them.",
        _evidence_of(compiled, plain),
        "compiled.no_inductor",
    )


def _fallbacks(compiled: Compiled) -> Finding | None:
    """Operators within Inductor's graphs for which it has no code of its own."""
    left = [work for work in compiled.work if work.of == FALLBACK]
    total = sum(_time(work) for work in compiled.work)
    time = sum(_time(work) for work in left)
    percent = share(time, total)
    severity = _severity(percent, _FALLBACK_SHARES)
    if severity is None or time < _LEAST_NS:
        return None
    libraries = sum(_time(work) for work in compiled.work if work.of == EXTERN)
    listed = ", ".join(work.name for work in left[:3])
    return Finding(
        severity,
        f"In compiled graphs {in_words(time, 'ns')} ({percent:.1f} %) went into operators that"
        f" Inductor left to aten: {listed} (libraries for products, convolutions and attention,"
        f" {in_words(libraries, 'ns')}, are not counted). Nothing is fused with these.",
        _evidence_of(compiled, left),
        "compiled.fallback",
    )


def _lookups(compiled: Compiled) -> Finding | None:
    """Guards that cost a good part of the calls."""
    count, time = compiled.lookups
    percent = share(time, compiled.frames.call_ns + time)
    severity = _severity(percent, _LOOKUP_SHARES)
    if severity is None or count < _LEAST_LOOKUPS or time < _LEAST_NS:
        return None
    forest = compiled.forest
    index = np.flatnonzero(forest.role == LOOKUP)
    longest = index[forest.dur_ns(index).argmax()]
    return Finding(
        severity,
        f"{in_words(time, 'ns')} ({percent:.1f} % of the calls of compiled functions) went into"
        f" {count:,} look-ups of compiled code, which check its guards: fewer graph breaks and"
        " variants, or larger compiled functions, need fewer.",
        (evidence(forest.trace, int(forest.nodes.rows[longest])),),
        "compiled.guards",
    )


def _evidence_of(compiled: Compiled, works: list[Work]) -> tuple[Evidence, ...]:
    return tuple(Evidence(work.name, None, _time(work), "ns") for work in works[:3])


def _time(work: Work) -> int:
    """On the device if there is one."""
    return work.device_ns if work.device_ns is not None else work.host_ns or 0


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _severity(percent: float, shares: Shares) -> Severity | None:
    return next((severity for least, severity in shares if percent >= least), None)
