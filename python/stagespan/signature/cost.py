"""What a run of a debug context costs: the CPU time of its thread, and its launches."""

from __future__ import annotations

import inspect
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from stagespan import settings
from stagespan.contexts.context import Call, Hook
from stagespan.errors import StagespanError
from stagespan.process import imports
from stagespan.signature.store import STORE

_CPU_TIME = "cpu_time"
_LAUNCHES = "launches"
_LATER = (
    inspect.iscoroutinefunction,
    inspect.isgeneratorfunction,
    inspect.isasyncgenfunction,
)


class CpuTimeHook(Hook):
    """Hook ``cpu_time`` of every debug context: reads the CPU clock of the thread at both ends."""

    name = _CPU_TIME

    def wants(self, call: Call) -> bool:
        """Whether this is a debug context whose thread does nothing else meanwhile."""
        if call.kind != "debug":
            return False
        if call.function is not None:
            return not any(runs_later(call.function) for runs_later in _LATER)
        # A `with` block in a running loop can await, and the thread then runs other tasks.
        loops = sys.modules.get("asyncio")
        return loops is None or loops._get_running_loop() is None

    def enter(self, call: Call) -> None:
        """Read the clock before the run."""
        call.state[self.name] = threading.get_ident(), time.thread_time_ns()

    def leave(self, call: Call) -> None:
        """Read the clock after the run."""
        now_ns = time.thread_time_ns()
        thread, began_ns = call.state[self.name]
        is_same = thread == threading.get_ident()
        call.state[self.name] = now_ns - began_ns if is_same else None  # `SignatureHook` stores it


def cpu_time_ns(call: Call) -> int | None:
    """Return the CPU time of a finished run in its thread, in ns; None if it is not known."""
    found = call.state.get(_CPU_TIME)
    return found if type(found) is int else None


class LaunchesHook(Hook):
    """Hook ``launches``: counts the launches of one run of each signature with STAGESPAN_LAUNCHES.

    The second run is counted, because a first run may compile or fill caches. It runs under the
    profiler, which makes it slower, so its time is left out of the figures of the signature.
    """

    name = _LAUNCHES

    def wants(self, call: Call) -> bool:
        """Whether this is a debug context of a function, and launches are to be counted."""
        if call.kind != "debug" or call.function is None or imports.is_loading():
            return False
        return bool(settings.get("STAGESPAN_LAUNCHES"))

    def enter(self, call: Call) -> None:
        """Start the profiler, unless another one runs."""
        controller = imports.load("stagespan.profiling.controller")
        begun = call.state.get("signature")
        if begun is None or controller.open_window() is not None or controller.foreign_profiler():
            return
        if STORE.counts_launches(call.stage, begun[0]):
            imports.load("stagespan.profiling.kernels")  # not while the interpreter ends
            window = controller.profile_window(
                call.stage, max_seconds=controller.MAX_SECONDS, max_bytes=controller.MAX_TRACE_BYTES
            )
            if window.start():
                call.state[self.name] = window
            else:
                STORE.set_launches(call.stage, begun[0], None)

    def leave(self, call: Call) -> None:
        """Stop the profiler."""
        window = call.state.get(self.name)
        if window is not None:
            window.stop()

    def exit(self, call: Call) -> None:
        """Count the launches, as the breakdown of a replay does."""
        window = call.state.get(self.name)
        if window is None:
            return
        count = None
        if window.recorded and not window.ended_early and call.error is None:
            count = _launches(window, call)
        STORE.set_launches(call.stage, call.state["signature"][0], count)


def _launches(window: Any, call: Call) -> int | None:
    from stagespan.trace.analyses.breakdown import breakdown
    from stagespan.trace.read.reader import read_trace

    with tempfile.TemporaryDirectory(prefix="stagespan-launches-") as folder:
        try:
            path = window.export(Path(folder) / "trace.json.gz", {call.span_id: call.end_ns})
            return int(breakdown(read_trace(path), call.stage).to_dict()["num_launches"])
        except (OSError, StagespanError):
            return None


def was_profiled(call: Call) -> bool:
    """Whether a profiler of stagespan ran during a run, or around it, and made it slower."""
    if _LAUNCHES in call.state:
        return True
    controller: Any = imports.loaded("stagespan.profiling.controller")
    return controller is not None and controller.open_window() is not None
