"""torch.compile: regions and frames, graph breaks, recompilations, compiling, and what ran."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stagespan.trace.analysis.compile_time import PHASES, CompileTime, compile_time
from stagespan.trace.analysis.compiled_breaks import Break, breaks_of
from stagespan.trace.analysis.compiled_findings import findings_of
from stagespan.trace.analysis.compiled_forest import SIGNS, Forest, forest_of
from stagespan.trace.analysis.compiled_frames import Frames, frames_of
from stagespan.trace.analysis.compiled_work import (
    CLASSES,
    Work,
    eager_calls,
    lookups,
    triton_by_kind,
    work_in_graphs,
)
from stagespan.trace.analysis.nesting import Rows
from stagespan.trace.analysis.result import Finding, Nothing, Table, share, window_of
from stagespan.trace.model import Trace

_NOTHING = Nothing(
    "The trace shows nothing of torch.compile: neither a compiled region, nor a graph, nor a kernel"
    " that Inductor made."
)
_YES = {True: "yes", False: "no"}
_SHOWN = 15
_MOST = 50


@dataclass(frozen=True, slots=True)
class Compiled:
    """What the trace shows of torch.compile; times in ns."""

    forest: Forest
    window_ns: int
    frames: Frames
    breaks: list[Break] | None
    """None for a trace without regions, as before torch 2.2: then they cannot be seen."""
    compiling: CompileTime | None
    """None when nothing was compiled within the window."""
    work: list[Work]
    triton: dict[str, tuple[int, int]]
    """Inductor's Triton kernels: by kind how many, and their time on the device."""
    lookups: tuple[int, int]
    """Look-ups of compiled code, guards among them: how many, and their time."""
    eager: Rows
    """Of them those after which the call ran eagerly: nodes of the forest."""

    @property
    def functions(self) -> dict[str, str]:
        """By frame the function that it is, where known."""
        frames = self.frames.frames
        return {f.frame: f.function for f in frames if f.frame is not None and f.function}

    @property
    def eager_calls(self) -> int:
        """Calls that found no compiled version and were not compiled either."""
        refused = sum(each.refused for each in self.compiling.compilations) if self.compiling else 0
        return len(self.eager) + refused

    @property
    def _ran(self) -> set[str]:
        """Frames and variants that ran within the window, as torch writes them."""
        return {f"{f.frame}/{variant}" for f in self.frames.frames for variant in f.variants}

    def to_dict(self) -> dict[str, Any]:
        """For JSON, in microseconds; lists are cut at 50 rows."""
        frames, compiling = self.frames, self.compiling
        seen = self.breaks is not None
        functions = self.functions
        return {
            "regions": frames.regions if seen else None,
            "calls": frames.calls if seen else None,
            "frames": [
                {
                    "frame": frame.frame,
                    "function": frame.function,
                    "variants": {str(v): n for v, n in sorted(frame.variants.items())},
                    "calls": frame.calls,
                    "time_us": frame.time_ns / 1000,
                    "graph_us": frame.graph_ns / 1000,
                    "backward_calls": frame.backward_calls,
                    "backward_us": frame.backward_ns / 1000,
                }
                for frame in frames.frames[:_MOST]
            ],
            "graphs": {
                "forward": frames.forward_graphs,
                "backward": frames.backward_graphs,
                "backward_linked": frames.linked,
            },
            "graph_breaks": None
            if self.breaks is None
            else [
                {
                    "before": each.before,
                    "after": each.after,
                    "line": functions.get(each.after),
                    "count": each.count,
                    "time_us": None if each.time_ns is None else each.time_ns / 1000,
                    "operators": each.operators,
                    "called": each.called,
                }
                for each in self.breaks[:_MOST]
            ],
            "recompilations": self._recompilations(),
            "compile_time": None if compiling is None else self._compile_time(compiling),
            "cache_lookups": {"count": self.lookups[0], "time_us": self.lookups[1] / 1000},
            "eager_calls": self.eager_calls if seen else None,
            "in_graphs": [
                {
                    "of": work.of,
                    "name": work.name,
                    "calls": work.calls,
                    "host_us": None if work.host_ns is None else work.host_ns / 1000,
                    "device_us": None if work.device_ns is None else work.device_ns / 1000,
                }
                for work in self.work[:_MOST]
            ],
            "triton_kinds": {
                kind: {"count": count, "time_us": time / 1000}
                for kind, (count, time) in self.triton.items()
            },
        }

    def findings(self) -> list[Finding]:
        """Breaks, recompilations, compiling within the window, and what was not compiled."""
        return findings_of(self)

    def tables(self) -> list[Table]:
        """Frames, breaks, compiling by phase and by frame, and work in graphs."""
        tables = [self._frame_table(), self._break_table()]
        if self.compiling is not None:
            tables += _compile_tables(self.compiling, self._ran)
        tables += [self._work_table(), self._triton_table()]
        return [table for table in tables if table.rows]

    def _recompilations(self) -> list[dict[str, Any]]:
        """Frames known to have been compiled more than once, within the window or before it."""
        found = []
        compilations = self.compiling.compilations if self.compiling else []
        again: dict[str, list[tuple[int, int]]] = {}
        for each in compilations:
            if each.frame is not None and each.variant is not None and each.again:
                again.setdefault(each.frame, []).append((each.variant, each.time_ns))
        ran = {f.frame: f.variants for f in self.frames.frames if f.frame is not None}
        for frame in dict.fromkeys([*again, *ran]):
            compiled = sorted(again.get(frame, ()))
            variants = sorted(ran.get(frame, {}))
            most = max([*variants, *(variant for variant, _ in compiled)], default=0)
            if most == 0:
                continue
            found.append(
                {
                    "frame": frame,
                    "times": most,
                    "in_window": len(compiled),
                    "before_window": most - len({variant for variant, _ in compiled}),
                    "compiled": [f"{frame}/{variant}" for variant, _ in compiled],
                    "time_us": sum(time for _, time in compiled) / 1000,
                    "variants_run": [f"{frame}/{variant}" for variant in variants],
                }
            )
        return found

    def _compile_time(self, compiling: CompileTime) -> dict[str, Any]:
        begin, _ = window_of(self.forest.trace) or (0, 0)
        begins = self.forest.trace.events.begin_ns
        ran = self._ran
        return {
            "time_us": compiling.time_ns / 1000,
            "percent_of_window": share(compiling.time_ns, self.window_ns),
            "phases_us": {phase: time / 1000 for phase, time in compiling.phases.items()},
            "steps": [
                {"step": step, "self_us": time / 1000, "count": count}
                for step, time, count in compiling.steps[:_MOST]
            ],
            "compilations": [
                {
                    "id": each.id,
                    "begin_us": (int(begins[each.row]) - begin) / 1000,
                    "time_us": each.time_ns / 1000,
                    "recompilation": None if each.variant is None else each.again,
                    "refused": each.refused,
                    # False: it made no region, as when Dynamo gives a frame up.
                    "ran": None if each.id is None else each.id in ran,
                }
                for each in compiling.compilations[:_MOST]
            ],
        }

    def _frame_table(self) -> Table:
        return Table(
            "Compiled frames",
            (
                ("frame", ""),
                ("function", ""),
                ("variants that ran", ""),
                ("calls", ""),
                ("time", "ns"),
                ("in graphs", "ns"),
                ("backward calls", ""),
                ("backward", "ns"),
            ),
            [
                (
                    frame.frame,
                    frame.function,
                    ", ".join(map(str, sorted(frame.variants))) or None,
                    frame.calls,
                    frame.time_ns,
                    frame.graph_ns,
                    frame.backward_calls,
                    frame.backward_ns,
                )
                for frame in self.frames.frames[:_SHOWN]
            ],
            "Times on the host, compiling and the frames that a frame calls left out."
            + ("" if self.breaks is not None else " Graph breaks cannot be seen without regions."),
        )

    def _break_table(self) -> Table:
        return Table(
            "Graph breaks",
            (
                ("from frame", ""),
                ("to frame", ""),
                ("line", ""),
                ("count", ""),
                ("time", "ns"),
                ("between", ""),
            ),
            [
                (
                    each.before,
                    each.after,
                    self.functions.get(each.after),
                    each.count,
                    each.time_ns,
                    _between(each),
                )
                for each in (self.breaks or [])[:_SHOWN]
            ],
        )

    def _work_table(self) -> Table:
        left = len(self.work) - _SHOWN
        return Table(
            "Work in compiled graphs",
            (("what", ""), ("name", ""), ("calls", ""), ("host", "ns"), ("device", "ns")),
            [
                (CLASSES[work.of], work.name, work.calls, work.host_ns, work.device_ns)
                for work in self.work[:_SHOWN]
            ],
            f"{left:,} more are left out." if left > 0 else "",
        )

    def _triton_table(self) -> Table:
        return Table(
            "Triton kernels of Inductor",
            (("kind", ""), ("kernels", ""), ("time", "ns")),
            [(kind, count, time) for kind, (count, time) in self.triton.items()],
        )


def _between(each: Break) -> str | None:
    if each.operators is None:
        return None
    shown = [f"{name} x {count:,}" for name, count in list(each.operators.items())[:5]]
    shown += [f"frame {frame} x {count:,}" for frame, count in list(each.called.items())[:5]]
    return ", ".join(shown) or "no operator"


def _compile_tables(compiling: CompileTime, ran: set[str]) -> list[Table]:
    return [
        Table(
            "Compiling by phase",
            (("phase", ""), ("time", "ns"), ("of all", "%")),
            [
                (PHASES[phase], time, share(time, compiling.time_ns))
                for phase, time in compiling.phases.items()
            ],
        ),
        Table(
            "Compiling by step",
            (("step", ""), ("own time", "ns"), ("times", "")),
            [(step, time, count) for step, time, count in compiling.steps[:_SHOWN]],
        ),
        Table(
            "Compiled frames in the window",
            (("frame/variant", ""), ("time", "ns"), ("ran in the window", "")),
            [
                (each.id, each.time_ns, None if each.id is None else _YES[each.id in ran])
                for each in compiling.compilations[:_SHOWN]
            ],
            "What did not run Dynamo may have given up.",
        ),
    ]


def analyze(trace: Trace) -> Compiled | Nothing:
    """Look for torch.compile; Nothing when the trace holds no sign of it."""
    if not any(map(SIGNS.search, trace.names)):
        return _NOTHING
    forest = forest_of(trace)
    if forest is None:
        return Nothing("The trace's events lie years apart: its times are damaged.")
    frames = frames_of(forest)
    compiling = compile_time(forest)
    triton = triton_by_kind(forest)
    if not frames.frames and compiling is None and not triton:
        return _NOTHING
    begin, end = window_of(trace) or (0, 0)
    return Compiled(
        forest=forest,
        window_ns=end - begin,
        frames=frames,
        breaks=breaks_of(forest) if frames.regions else None,
        compiling=compiling,
        work=work_in_graphs(forest),
        triton=triton,
        lookups=lookups(forest),
        eager=eager_calls(forest),
    )
