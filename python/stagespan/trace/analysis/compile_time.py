"""What compiling took within the window, by phase and by frame."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from stagespan.trace.analysis.compiled_forest import COMPILING, REGION, Forest, frame_of
from stagespan.trace.analysis.grouping import grouped
from stagespan.trace.analysis.host_time import named
from stagespan.trace.analysis.nesting import Nesting, Rows

_TIMED = re.compile(r" \(dynamo_timed\)$")
# The first that is found decides.
PHASES: dict[str, str] = {
    "guards": "building guards",
    "autotuning": "autotuning",
    "kernels": "compiling and loading kernels",
    "dynamo": "tracing Python (Dynamo)",
    "autograd": "forward and backward graphs (AOTAutograd)",
    "inductor": "lowering and code (Inductor)",
    "other": "other",
}
_RULES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (phase, re.compile(pattern, re.IGNORECASE))
    for phase, pattern in (
        ("guards", r"guard"),
        ("autotuning", r"autotun|benchmark|AlgorithmSelector|CachingAutotuner"),
        (
            "kernels",
            (
                r"^async_compile|^compile_file|CodeCache\.|^triton|triton_compile|precompile|parallel_compile"
                r"|_compile_to_|cudagraph"
            ),
        ),
        (
            "dynamo",
            (
                r"^_compile\b|^_compile\.|^compile_attempt|bytecode|^OutputGraph\.|^entire_frame|^gc$"
                r"|insert_deferred|^convert_frame|^dynamo$|^backend_compile"
            ),
        ),
        (
            "autograd",
            (
                r"^create_aot|^entire_backward|^aot_|aot_autograd|min_cut|^backward\.|joint_graph|fw_compiler|bw_compiler"
                r"|AOTAutogradCache"
            ),
        ),
        (
            "inductor",
            (
                r"^compile_fx|^fx_codegen|^GraphLowering|^Scheduler|_grad_passes|^pass\.|WrapperCodegen"
                r"|^inductor|fake_tensor_prop|FxGraphCache|FxGraphHash|CacheBase|TritonBundler|^code_gen"
                r"|CompiledFxGraph"
            ),
        ),
    )
)
_FRAME = re.compile(r"^_compile(?:\.<locals>)?(?:\.compile_inner)? \(dynamo_timed\)$")
# What surrounds a frame's compilation.
_WRAPPER = re.compile(r"^(?:_compile|dynamo|entire_frame_compile|convert_frame)\b")
_MARK = re.compile(r"^(?:dynamo|entire_frame_compile)_data: .*?compile_id=\S+$")
_ID = re.compile(r"compile_id=(?P<frame>\S+)/(?P<variant>\d{1,9})$")


@dataclass(frozen=True, slots=True)
class Compilation:
    """One frame that was compiled within the window; times in ns."""

    frame: str | None
    variant: int | None
    """0 for the first compilation of the frame; None where the trace does not tell which it is."""
    row: int
    time_ns: int
    refused: bool = False
    """Dynamo did not begin to trace the frame: it had reached the limit of recompilations."""

    @property
    def again(self) -> bool:
        """Whether the frame had been compiled before and now was once more."""
        return bool(self.variant) and not self.refused

    @property
    def id(self) -> str | None:
        """Frame and variant as torch writes them."""
        return None if self.frame is None else f"{self.frame}/{self.variant}"


@dataclass(frozen=True, slots=True)
class CompileTime:
    """Compiling in all threads; times in ns."""

    time_ns: int
    phases: dict[str, int]
    """Time by PHASES, the most first; they sum to `time_ns`."""
    steps: list[tuple[str, int, int]]
    """The timed parts: name, own time, how often it ran."""
    compilations: list[Compilation]


def compile_time(forest: Forest) -> CompileTime | None:
    """Sum up what dynamo has timed; None when nothing was compiled in the window."""
    trace, events = forest.trace, forest.trace.events
    index = np.flatnonzero(forest.having(COMPILING))
    if len(index) == 0:
        return None
    nodes = forest.nodes
    timed = Nesting(forest.lanes.axis, index, nodes.begin[index], nodes.end[index])
    own = timed.own_ns()
    name = forest.name[timed.rows].astype(np.int64)
    steps: dict[str, tuple[int, int]] = {}
    phases: dict[str, int] = {}
    for group in grouped(name, own):
        step = _TIMED.sub("", trace.names[group.code])
        # Today's torch holds each part twice, one around the other.
        time, count = steps.get(step, (0, 0))
        steps[step] = (time + group.time_ns, max(count, group.count))
        phases[_phase(step)] = phases.get(_phase(step), 0) + group.time_ns
    frames = index[[_FRAME.match(text) is not None for text in forest.names(index)]]
    chosen = np.zeros(len(nodes), dtype=np.bool_)
    chosen[frames] = True
    frames = forest.outermost(chosen)
    ids = _ids(forest, frames)
    parts = index[[_FRAME.match(text) is None for text in forest.names(index)]]
    parts = parts[[_WRAPPER.match(text) is None for text in forest.names(parts)]]
    traced = np.searchsorted(nodes.begin[parts], nodes.begin[frames]) < np.searchsorted(
        nodes.begin[parts], nodes.end[frames]
    )
    return CompileTime(
        time_ns=int(own.sum()),
        phases=dict(sorted(phases.items(), key=lambda item: -item[1])),
        steps=[(step, *both) for step, both in sorted(steps.items(), key=lambda s: -s[1][0])],
        compilations=[
            Compilation(
                *ids[at],
                int(nodes.rows[node]),
                int(events.dur_ns[nodes.rows[node]]),
                refused=bool(ids[at][1]) and not traced[at],
            )
            for at, node in enumerate(frames.tolist())
        ],
    )


def _phase(step: str) -> str:
    return next((phase for phase, rule in _RULES if rule.search(step)), "other")


def _ids(forest: Forest, frames: Rows) -> list[tuple[str | None, int | None]]:
    """Frame and variant of each compilation: from the mark before it, else the region behind it."""
    trace, nodes = forest.trace, forest.nodes
    marks = np.flatnonzero(trace.rows_of(["user_annotation", "cpu_op"]) & named(trace, _MARK))
    places = forest.places(marks)
    order = np.argsort(places, kind="stable")
    marks, places = marks[order], places[order]
    regions = np.flatnonzero(forest.having(REGION))
    found: list[tuple[str | None, int | None]] = []
    before = -1
    for node in frames.tolist():
        begin, end = int(nodes.begin[node]), int(nodes.end[node])
        at = int(np.searchsorted(places, begin, side="right")) - 1
        if at >= 0 and places[at] > before:
            mark = _ID.search(trace.names[trace.events.name[marks[at]]])
            found.append((mark["frame"], int(mark["variant"])) if mark else (None, None))
        else:
            at = int(np.searchsorted(nodes.begin[regions], end))
            stride = forest.lanes.axis.stride
            known = at < len(regions) and nodes.begin[regions[at]] // stride == begin // stride
            found.append(frame_of(forest.names(regions[at : at + 1])[0]) if known else (None, None))
        before = end
    return found
