"""Runs named stages under a profiler, and writes a trace and a breakdown of each."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagespan import settings
from stagespan.contexts.context import Call, Hook
from stagespan.device.platforms import current_platform
from stagespan.errors import StagespanError
from stagespan.live import lines, service
from stagespan.process import forks, imports, run
from stagespan.process.atomic import Count
from stagespan.process.files import json_bytes, stage_path, write_whole
from stagespan.profiling.controller import (
    MAX_SECONDS,
    MAX_TRACE_BYTES,
    Window,
    default_max_events,
    profile_window,
)
from stagespan.profiling.names import is_profiled, note_context, times_named

if TYPE_CHECKING:
    from stagespan.trace.read.model import Trace

LOGGER = logging.getLogger("stagespan")


@dataclass
class _Group:
    """Several runs of a stage in one window."""

    window: Window
    runs: dict[int, object]
    """All profiled runs of the stage."""
    depth: int = 1
    """Runs that are open: more than 1 if the stage runs inside itself."""
    count: int = 1
    """Runs in this window."""


class ProfiledHook(Hook):
    """Profiles runs of each stage that ENABLE_PROFILER_NAMES lists.

    STAGESPAN_PROFILER_SKIP runs (0 by default) come first. The next STAGESPAN_PROFILER_RUNS runs (2
    by default) are profiled. Later runs are not, so that a stage in a loop neither fills the disk
    nor stays slow. Each profiled run replaces the files of the previous one: with 2, the files show
    a warm run if the stage runs more than once. A stage that is named again at run time is profiled
    again. A run that was left out because another profiler was running does not count. With
    STAGESPAN_PROFILER_ONE_TRACE, one window contains all these runs of a thread.
    """

    name = "profiled"
    trace_only = True
    """Whether nothing else than traces is needed of the profiler."""

    def __init__(self) -> None:
        self.options = {"record_shapes": False, "profile_memory": False, "with_stack": False}
        """The default options of the windows, which the environment can change."""
        self._runs: dict[tuple[str, int], dict[int, object]] = {}
        """By stage, and how often it was named: the profiled runs, by number."""
        self._seen: dict[str, Count] = {}
        """All runs of named stages."""
        self._groups: dict[tuple[str, int], _Group] = {}
        self._warned: set[str] = set()
        service.on_exit(self.finish_groups)
        forks.after_in_child(self._groups.clear)  # a forked child has no profiler

    def wants(self, call: Call) -> bool:
        """Whether the stage is named and has runs left to profile."""
        # A handler that has interrupted an import cannot make the imports of `enter`.
        if not is_profiled(call.stage) or imports.is_loading():
            return False
        note_context(call.stage)
        number = self._seen.setdefault(call.stage, Count()).add()
        if number <= int(settings.get("STAGESPAN_PROFILER_SKIP")):
            return False
        return len(self._runs.get(_key(call.stage), ())) < self.limit()

    def enter(self, call: Call) -> None:
        """Open the window, unless another profiler runs."""
        self._finish_groups_before(call.stage)
        # Without a lock, because a finalizer that runs a stage meanwhile would wait for it. If
        # several threads want the same number, one of them gets it.
        runs, mine, number = self._runs.setdefault(_key(call.stage), {}), object(), 0
        while runs.setdefault(number, mine) is not mine:
            number = max(number + 1, len(runs) - 1)
        if number >= self.limit():
            runs.pop(number, None)
            return
        try:
            is_profiled_now = self._open(call, runs)
        except BaseException:
            runs.pop(number, None)
            raise
        if not is_profiled_now:
            runs.pop(number, None)

    def _open(self, call: Call, runs: dict[int, object]) -> bool:
        """Open the window of a run, unless that of its group is open. False if there is none."""
        # Programs that profile nothing do not need the reader of traces. It cannot be imported when
        # a trace is written, because that may be while the interpreter ends.
        imports.load("stagespan.profiling.kernels")
        group = self._groups.get(_key(call.stage))
        if group is not None and group.window.is_open_here():
            group.depth += 1
            group.count += 1
            call.state[self.name] = group
            return True
        chosen = {
            option: bool(settings.get(f"STAGESPAN_PROFILER_{option.upper()}", default))
            for option, default in self.options.items()
        }
        window = profile_window(
            call.stage,
            record_shapes=chosen["record_shapes"],
            profile_memory=chosen["profile_memory"],
            with_stack=chosen["with_stack"],
            max_seconds=MAX_SECONDS,
            max_bytes=MAX_TRACE_BYTES,
            max_events=self.max_events(),
            trace_only=self.trace_only,
        )
        if window.start():
            call.state[self.name] = window
            if settings.get("STAGESPAN_PROFILER_ONE_TRACE"):
                group = _Group(window, runs)
                call.state[self.name] = self._groups[_key(call.stage)] = group
            self.log_started(call.stage)
            return True
        return False

    def leave(self, call: Call) -> None:
        """Close the window."""
        opened = call.state.get(self.name)
        if isinstance(opened, Window):
            if opened.recorded and opened.ended_early is None:
                self._warn_once(
                    f"The profile of stage {call.stage!r} is incomplete: it ends with the thread"
                    " in which the stage began."
                )
            opened.stop()
        elif isinstance(opened, _Group):
            opened.depth -= 1
            if opened.depth == 0 and len(opened.runs) >= self.limit():
                opened.window.stop()

    def exit(self, call: Call) -> None:
        """Write `{stage}_trace.json.gz` and `{stage}_breakdown.json`."""
        opened = call.state.pop(self.name, None)
        # The record of the stage itself is complete only after this hook.
        finished = {call.span_id: call.end_ns}
        if isinstance(opened, Window) and opened.recorded:
            self._write(opened, call.stage, finished)
        elif isinstance(opened, _Group) and opened.depth == 0 and opened.window.recorded:
            for key, group in self._groups.copy().items():
                if group is opened and self._groups.pop(key, None) is opened:
                    self._write(opened.window, call.stage, finished, opened.count)

    def finish_groups(self) -> None:
        """Write the windows of several runs that are still open when the program ends."""
        for key in tuple(self._groups):
            self._finish_group(key)

    def _finish_groups_before(self, stage: str) -> None:
        """Write the windows of a stage that can contain no more runs, before its next run."""
        for key, group in self._groups.copy().items():
            if key[0] != stage or group.depth:
                continue
            is_open_here = group.window.is_open_here()
            if is_open_here:
                group.window.close_if_due()  # not every thread can be interrupted
            if group.window.end_ns or (is_open_here and key != _key(stage)):
                self._finish_group(key)

    def _finish_group(self, key: tuple[str, int]) -> None:
        group = self._groups.pop(key, None)
        if group is None:
            return
        group.window.stop()
        if group.window.recorded:
            self._write(group.window, key[0], {}, group.count)

    def _write(
        self, window: Window, stage: str, finished: dict[int, int], runs: int | None = None
    ) -> None:
        from stagespan.profiling.kernels import missing_kernels
        from stagespan.trace.read.reader import read_trace

        folder = run.output_dir()
        try:
            path = window.export(self.path(folder, stage, "trace.json.gz"), finished)
            self.log_written("Chrome trace", path)
            trace = read_trace(path)
            target = self.path(folder, stage, "breakdown.json")
            table = self.breakdown(trace, stage)
            if runs is not None:
                table["runs"] = runs
            sentence = missing_kernels(trace, current_platform.device)
            if sentence is not None:
                LOGGER.error(
                    "[Profiler] The trace of stage %r is not complete: %s", stage, sentence
                )
            write_whole(target, json_bytes(table, indent=2))
            self.log_written("Kernel breakdown", target)
        except OSError as error:
            self._warn_once(
                f"The profile of stage {stage!r} could not be written to {folder}"
                f" ({error.strerror or error}): free some space, or choose another folder with"
                " STAGESPAN_OUTPUT_DIR.",
            )
        except StagespanError as error:
            self._warn_once(f"The profile of stage {stage!r} was not written: {error}")

    def path(self, folder: Path, stage: str, kind: str) -> Path:
        """Return the path of a stage's ``trace.json.gz`` or ``breakdown.json``."""
        return stage_path(folder, stage, f"{run.whose_file(folder)}_{kind}")

    def breakdown(self, trace: Trace, stage: str) -> dict[str, Any]:
        """Return the content of a stage's ``breakdown.json``."""
        from stagespan.trace.analyses.breakdown import breakdown

        return breakdown(trace, stage).to_dict()

    def log_started(self, stage: str) -> None:
        """Do nothing. A subclass can log that the profiler is running."""

    def log_written(self, what: str, path: Path) -> None:
        """Log the path of a written file."""
        lines.log_info("[Profiler] %s saved to: %s", what, path)

    def limit(self) -> int:
        """Return how many runs of each stage are profiled."""
        return int(settings.get("STAGESPAN_PROFILER_RUNS"))

    def max_events(self) -> float:
        """Return how many operators and annotations a window records at most."""
        return default_max_events()

    def _warn_once(self, sentence: str) -> None:
        if sentence not in self._warned:
            self._warned.add(sentence)
            LOGGER.warning("[Profiler] %s", sentence)


def _key(stage: str) -> tuple[str, int]:
    return stage, times_named(stage)
