"""Profiles the first call of a compiled stage, in which torch.compile compiles it."""

from __future__ import annotations

import json
import logging
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagespan.errors import HarnessError
from stagespan.live.lines import log_info
from stagespan.pages.escaping import one_line
from stagespan.process.files import write_whole

if TYPE_CHECKING:
    from stagespan.harness.standalone.replay import Replay
    from stagespan.profiling.controller import Window

_log = logging.getLogger("stagespan")
_DRIVER_FILE = Path("/proc/driver/nvidia/version")
_DRIVER = re.compile(r"\b(\d+)\.(\d+)(?:\.(\d+))?\b")
# With earlier versions, CUDA graphs fail under the profiler unless a profiler has run before.
_FIRST_GOOD_CUDA, _FIRST_GOOD_DRIVER = 12, (525, 85, 12)


def needs_early_profiler(cuda: str | None, driver: str | None) -> bool:
    """Whether a profiler must have run before the first CUDA graph is captured.

    This applies to CUDA before 12 and to drivers before 525.85.12. `cuda` is None without CUDA, and
    `driver` is None if it is not known.
    """
    if cuda is None:
        return False
    if int(cuda.partition(".")[0]) < _FIRST_GOOD_CUDA:
        return True
    version = _DRIVER.search(driver or "")
    if version is None:
        return False
    return tuple(int(part or 0) for part in version.groups()) < _FIRST_GOOD_DRIVER


def init_for_cuda_graphs() -> None:
    """Run an empty profiler if CUDA graphs need it."""
    import torch

    try:
        driver = _DRIVER_FILE.read_text(errors="replace") if torch.cuda.is_available() else None
    except OSError:
        driver = None
    if torch.cuda.is_available() and needs_early_profiler(torch.version.cuda, driver):
        torch.profiler._utils._init_for_cuda_graphs()


def compile_something_tiny(device: str) -> None:
    """Compile a function of two operators, so that torch's one-time set-up is not measured later.

    Logs a warning if that fails, for example without a C++ compiler. The stage may still use a
    backend that needs none.
    """
    import torch

    def tiny(value: Any) -> Any:
        return value.sin().relu()

    try:
        with torch.enable_grad(), torch.inference_mode(False):
            value = torch.rand(2, 2, device=device, requires_grad=True)
            torch.compile(tiny)(value).sum().backward()
    except Exception as error:
        _log.warning(
            "[Harness] The pre-compilation failed (%s: %s), so the time of the first call may"
            " include torch's one-time set-up.",
            type(error).__name__,
            str(error).strip().partition("\n")[0],
        )
    finally:
        # Compile the stage in the window even if it has run before.
        torch._dynamo.reset()


@dataclass(frozen=True)
class FirstCall:
    """The first call, before its files are written."""

    stage: str
    window: Window
    took_ms: float
    seconds: dict[str, list[float]]
    """The times of each run of each part of the compiler, as torch measured them."""


def run_first_call(replay: Replay, stage: str, device: str) -> FirstCall:
    """Clear all compiled code, then run a stage's step once under the profiler.

    Raises HarnessError if this torch has no torch.compile.
    """
    import torch

    from stagespan.harness.standalone.torch_state import run_context, seed_all, synchronize
    from stagespan.profiling.controller import profile_window

    if not hasattr(torch, "compile"):
        raise HarnessError(
            f"profile_compile needs torch.compile, which torch {torch.__version__} does not have:"
            " install torch 2.0 or later."
        )
    log_info("[Harness] Running the first call, in which the stage is compiled...")
    compile_something_tiny(device)
    step = replay.prepare()
    synchronize(device)
    before = _compile_times()
    window = profile_window(f"{stage}, first call", max_events=math.inf)
    seed_all(replay.seed)
    with window, run_context(replay.context):
        begin = time.perf_counter_ns()
        step()
        synchronize(device)
        took_ms = (time.perf_counter_ns() - begin) / 1e6
    return FirstCall(stage, window, took_ms, _since(before, _compile_times()))


def write_first_call(call: FirstCall, path: Callable[[str], Path]) -> dict[str, Any] | None:
    """Write `{stage}_compile_times.json` and `{stage}_compile_trace.json.gz`.

    `path` returns the path of a file by its key in `config.FILES`. Returns the figures, with times
    in ms. If nothing was compiled, logs a warning and returns None. Raises OSError if a file cannot
    be written.
    """
    if not call.seconds:
        _log.warning(
            "[Harness] The first call of stage '%s' compiled nothing: use torch.compile in it, or "
            "turn profile_compile off.",
            one_line(call.stage),
        )
        return None
    times_path = path("compile_times")
    content = {"name": call.stage, "first_call_ms": call.took_ms, "seconds": call.seconds}
    write_whole(times_path, json.dumps(content, indent=2) + "\n")
    log_info("[Harness] Compile times saved to: %s", times_path)
    figures: dict[str, Any] = {"first_call_ms": call.took_ms, "times_path": times_path}
    if not call.window.recorded:
        _log.warning("[Harness] The first call has no trace: %s", call.window.skipped)
        return figures
    trace_path = call.window.export(path("compile_trace"))
    log_info("[Harness] Compile trace saved to: %s", trace_path)
    return {**figures, "trace_path": trace_path, **_summary(trace_path)}


def _summary(trace_path: Path) -> dict[str, Any]:
    """Return the time of compilation by phase, graph breaks and recompilations of a trace."""
    from stagespan.trace.analyses.compiled import Compiled, analyze
    from stagespan.trace.read.reader import read_trace

    compiled = analyze(read_trace(trace_path))
    if not isinstance(compiled, Compiled) or compiled.compiling is None:
        return {}
    compiling = compiled.compiling
    again = [entry for entry in compiling.compilations if entry.variant]
    return {
        "compile_ms": compiling.time_ns / 1e6,
        "phases_ms": {phase: time / 1e6 for phase, time in compiling.phases.items()},
        "frames": len(compiling.compilations) - len(again),
        "recompilations": len(again),
        "graph_breaks": None
        if compiled.breaks is None
        else sum(entry.count for entry in compiled.breaks),
    }


def _compile_times() -> dict[str, list[float]]:
    """Return the seconds of each run of each part of the compiler, by part."""
    from torch._dynamo.utils import compile_times

    times = compile_times(repr="csv")
    if not isinstance(times, tuple):
        return {}
    return {
        name: [float(value) for value in values.split(", ") if value]
        for name, values in zip(*times, strict=True)
    }


def _since(before: dict[str, list[float]], after: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return the new items of each list. If a list became shorter, all of its items are new."""
    added = {}
    for name, values in after.items():
        known = len(before.get(name, ()))
        added[name] = values[known:] if len(values) >= known else values
    return {name: values for name, values in added.items() if values}
