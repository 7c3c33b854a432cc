"""The time that torch.compile spent compiling: by phase, by part, and by frame."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
import numpy as np

from stagespan.pages.figures import Count, Figures, Internal, Ns, first, one_of
from stagespan.pages.result import share
from stagespan.trace.derived.compile_events import (
    COMPILING,
    MOST_IN_JSON,
    REGION,
    Forest,
    forest_of,
    frame_of,
)
from stagespan.trace.derived.threads import named, names_with
from stagespan.trace.derived.trees import Nesting
from stagespan.trace.evidence import window_of
from stagespan.trace.read.groups import grouped
from stagespan.trace.read.intervals import Cover, Mask, Numbers, Rows
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once

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
# The event around a frame's compilation.
_WRAPPER = re.compile(r"^(?:_compile|dynamo|entire_frame_compile|convert_frame)\b")
_MARK = re.compile(r"^(?:dynamo|entire_frame_compile)_data: .*?compile_id=\S+$")
_ID = re.compile(r"compile_id=(?P<frame>\S+)/(?P<variant>\d{1,9})$")


class CompileStep(Figures, frozen=True):
    """A timed part of the compiler."""

    step: str
    self_ns: Ns
    count: Count
    """The number of runs."""


class Compilation(Figures, frozen=True):
    """One frame that was compiled within the window; times in ns."""

    id: str | None
    """Frame and variant as torch writes them."""
    begin_ns: Ns
    """From the start of the trace's window."""
    time_ns: Ns
    recompilation: bool | None
    """Whether the frame had been compiled before; None if the trace does not show the variant."""
    refused: bool
    """Whether Dynamo did not trace the frame because of the limit of recompilations."""
    ran: bool | None
    """False if there is no region, for example because Dynamo skipped the frame."""
    frame: Internal[str | None]
    variant: Internal[int | None]
    """0 for the first compilation of the frame; None if the trace does not show the number."""
    row: Internal[int]

    @property
    def again(self) -> bool:
        """Whether the frame had been compiled before."""
        return bool(self.recompilation)


class CompileTime(Figures, frozen=True):
    """The compilation in all threads within the window; times in ns."""

    time_ns: Ns
    percent_of_window: float
    phases: dict[Annotated[str, one_of(PHASES)], Ns] = msgspec.field(name="phases_us")
    """The most time first; the times sum to `time_ns`."""
    steps: Annotated[list[CompileStep], first(MOST_IN_JSON)]
    compilations: Annotated[list[Compilation], first(MOST_IN_JSON)]
    first_phases: Internal[dict[str, int]]
    """The same as `phases`, without frames that had been compiled before."""
    first_steps: Internal[list[CompileStep]]
    """The same as `steps`, without frames that had been compiled before."""
    first_rows: Internal[Rows]
    """The events of the compiler, without those of frames that had been compiled before."""
    first_own_ns: Internal[Numbers]
    """The own time of each."""


def compile_time(forest: Forest, ran: set[str]) -> CompileTime | None:
    """Sum up the times measured by dynamo; None if nothing was compiled in the window."""
    trace, events = forest.trace, forest.trace.events
    index = np.flatnonzero(forest.having(COMPILING))
    if len(index) == 0:
        return None
    nodes = forest.nodes
    timed = Nesting(forest.index.axis, index, nodes.begin[index], nodes.end[index])
    own_ns = timed.own_ns()
    name = forest.name[timed.rows].astype(np.int64)
    frames, ids, traced = _compiled_frames(forest)
    begin, end = window_of(trace) or (0, 0)
    compilations = []
    for at, node in enumerate(frames.tolist()):
        (frame, variant), row = ids[at], int(nodes.rows[node])
        id_ = None if frame is None else f"{frame}/{variant}"
        refused = bool(variant) and not traced[at]
        compilations.append(
            Compilation(
                id=id_,
                begin_ns=int(events.begin_ns[row]) - begin,
                time_ns=int(events.dur_ns[row]),
                recompilation=None if variant is None else bool(variant) and not refused,
                refused=bool(refused),
                ran=None if id_ is None else id_ in ran,
                frame=frame,
                variant=variant,
                row=row,
            )
        )
    again = frames[np.array([each.again for each in compilations], dtype=np.bool_)]
    # The last element is for parts before the first of these frames.
    within = np.searchsorted(nodes.begin[again], timed.begin, side="right") - 1
    is_first = timed.begin >= np.append(nodes.end[again], np.iinfo(np.int64).min)[within]
    phases, steps = _by_part(trace, name, own_ns)
    first_phases, first_steps = _by_part(trace, name[is_first], own_ns[is_first])
    time = int(own_ns.sum())
    return CompileTime(
        time_ns=time,
        percent_of_window=share(time, end - begin),
        phases=phases,
        steps=steps,
        compilations=compilations,
        first_phases=first_phases,
        first_steps=first_steps,
        first_rows=nodes.rows[timed.rows[is_first]],
        first_own_ns=own_ns[is_first],
    )


def _compiled_frames(
    forest: Forest,
) -> tuple[Rows, list[tuple[str | None, int | None]], Mask]:
    """Return the nodes that compile a frame, frame and variant of each, and whether it was traced.

    Dynamo does not trace a frame that has reached the limit of recompilations.
    """
    nodes, index = forest.nodes, np.flatnonzero(forest.having(COMPILING))
    names = forest.names(index)
    is_frame = np.array([_FRAME.match(text) is not None for text in names], dtype=np.bool_)
    is_part = [_WRAPPER.match(text) is None for text in names]
    chosen = np.zeros(len(nodes), dtype=np.bool_)
    chosen[index[is_frame]] = True
    frames = forest.outermost(chosen)
    begins = nodes.begin[index[~is_frame & np.array(is_part, dtype=np.bool_)]]
    traced = np.searchsorted(begins, nodes.begin[frames]) < np.searchsorted(
        begins, nodes.end[frames]
    )
    return frames, _ids(forest, frames), traced


@once
def compiled_again(trace: Trace) -> Cover:
    """Return when frames were compiled that had been compiled before."""
    none = np.empty(0, dtype=np.int64)
    forest = forest_of(trace) if names_with(trace, _TIMED).any() else None
    if forest is None:
        return Cover(none, none)
    frames, ids, traced = _compiled_frames(forest)
    again = np.array([bool(variant) for _, variant in ids], dtype=np.bool_) & traced
    rows = forest.nodes.rows[frames[again]]
    return Cover(trace.events.begin_ns[rows], trace.events.end_ns[rows])


def _by_part(
    trace: Trace, name: Numbers, own_ns: Numbers
) -> tuple[dict[str, int], list[CompileStep]]:
    """Return the own times of timed parts by phase and by part, the most time first."""
    steps: dict[str, tuple[int, int]] = {}
    phases: dict[str, int] = {}
    for group in grouped(name, own_ns):
        step = _TIMED.sub("", trace.names[group.code])
        # Current torch records each part twice, one around the other.
        time, count = steps.get(step, (0, 0))
        steps[step] = (time + group.time_ns, max(count, group.count))
        phases[_phase(step)] = phases.get(_phase(step), 0) + group.time_ns
    return (
        dict(sorted(phases.items(), key=lambda item: -item[1])),
        [CompileStep(step, *both) for step, both in sorted(steps.items(), key=lambda s: -s[1][0])],
    )


def _phase(step: str) -> str:
    return next((phase for phase, rule in _RULES if rule.search(step)), "other")


def _ids(forest: Forest, frames: Rows) -> list[tuple[str | None, int | None]]:
    """Return frame and variant of each compilation, from the mark before or the region after it."""
    trace, nodes = forest.trace, forest.nodes
    marks = np.flatnonzero(trace.rows_of(["user_annotation", "cpu_op"]) & named(trace, _MARK))
    places = forest.places(marks)
    order = np.argsort(places, kind="stable")
    marks, places = marks[order], places[order]
    regions = np.flatnonzero(forest.having(REGION))
    ids: list[tuple[str | None, int | None]] = []
    before = -1
    for node in frames.tolist():
        begin, end = int(nodes.begin[node]), int(nodes.end[node])
        at = int(np.searchsorted(places, begin, side="right")) - 1
        if at >= 0 and places[at] > before:
            mark = _ID.search(trace.names[trace.events.name[marks[at]]])
            ids.append((mark["frame"], int(mark["variant"])) if mark else (None, None))
        else:
            at = int(np.searchsorted(nodes.begin[regions], end))
            stride = forest.index.axis.stride
            known = at < len(regions) and nodes.begin[regions[at]] // stride == begin // stride
            ids.append(frame_of(forest.names(regions[at : at + 1])[0]) if known else (None, None))
        before = end
    return ids
