"""Profiles some steps of a running loop in repeated cycles: wait, warm up, record."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from stagespan.errors import SettingsError, StagespanError
from stagespan.live import lines
from stagespan.process import run
from stagespan.process.files import stage_path
from stagespan.process.imports import importing
from stagespan.profiling.bounds import check_bounds
from stagespan.profiling.controller import MAX_SECONDS, MAX_TRACE_BYTES, Window, profile_window

LOGGER = logging.getLogger("stagespan")


class profile_steps:
    """Profile some steps of a loop: ``with profile_steps(...) as steps``, then ``steps.step()``.

    In each cycle ``wait`` steps run as usual, ``warmup`` steps run under a profiler whose trace is
    discarded, and ``active`` steps are recorded to one trace. Each recorded step is a range
    ``ProfilerStep#N`` in it. Use it on one thread.

    Args:
        wait: Steps without the profiler, at the beginning of each cycle.
        warmup: Steps whose trace is discarded, because the profiler's start makes them slow.
        active: Steps that are recorded.
        repeat: Number of cycles.
        name: Stem of the files: ``{name}_trace.json.gz``, from the second cycle on
            ``{name}_cycle2_trace.json.gz``.
        record_shapes: Whether the trace contains the shapes of each operator's inputs.
        profile_memory: Whether the trace contains each allocation.
        with_stack: Whether the trace contains Python stacks.
        all_threads: Whether operators of all threads are recorded, such as those of a pool that
            does the work, if torch can do that. No other thread may run an operator between two
            steps, because torch may crash then. Not with ``profile_memory``.
        max_seconds: A trace ends after this time; None means never.
        max_events: A trace ends after this many operators and annotations, including nested ones,
            by default STAGESPAN_PROFILER_MAX_EVENTS; infinity means no limit. The end of a trace
            stops all Python threads of the process for a time that is proportional to them.
        max_bytes: A larger trace is not written; None means no limit.
        output_dir: Folder for the files, by default the output folder of the run.

    Raises:
        SettingsError: If a number of steps is negative, ``active``, ``repeat``, ``max_seconds``,
            ``max_events`` or ``max_bytes`` is not more than 0, ``name`` is empty or not a string,
            or ``output_dir`` is not a path.

    Example:
        ```python
        with stagespan.profile_steps(wait=10, warmup=2, active=3) as steps:
            for batch in batches:
                engine.step(batch)
                steps.step()
        print(steps.traces)
        ```
    """

    def __init__(
        self,
        wait: int = 1,
        warmup: int = 1,
        active: int = 3,
        repeat: int = 1,
        *,
        name: str = "steps",
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        all_threads: bool = False,
        max_seconds: float | None = MAX_SECONDS,
        max_events: float | None = None,
        max_bytes: int | None = MAX_TRACE_BYTES,
        output_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        given = {"wait": wait, "warmup": warmup, "active": active, "repeat": repeat}
        for what, number in given.items():
            least = 1 if what in ("active", "repeat") else 0
            if type(number) is not int or number < least:
                endless = (
                    " 0, which means 'until the end' in torch.profiler.schedule, has no meaning "
                    "here: pass the number of cycles to record."
                )
                raise SettingsError(
                    f"profile_steps({what}={number!r}) must be a whole number of at least {least}."
                    + (endless if what == "repeat" and number == 0 else "")
                )
        check_bounds(
            "profile_steps", max_seconds=max_seconds, max_events=max_events, max_bytes=max_bytes
        )
        given_name: object = name
        if not isinstance(given_name, str) or not given_name:
            raise SettingsError(
                f"profile_steps(name={name!r}) must be a string with at least one character."
            )
        try:
            self._folder = None if output_dir is None else Path(output_dir)
        except TypeError:
            raise SettingsError(
                f"profile_steps(output_dir={output_dir!r}) must be the path of a folder."
            ) from None
        self.traces: list[Path] = []
        """The traces that have been written."""
        self.skipped: str | None = None
        """A sentence that explains why a trace is missing or too short, or None."""
        self._wait, self._warmup, self._active, self._repeat = wait, warmup, active, repeat
        self._name = name
        self._options = (record_shapes, profile_memory, with_stack, all_threads)
        self._bounds = (max_seconds, max_events, max_bytes)
        self._step = 0  # the number of steps so far, in all cycles
        self._window: Window | None = None
        self._is_recording = False
        self._marks = contextlib.ExitStack()
        self._is_open = False

    def __enter__(self) -> profile_steps:
        try:
            self._enter_step()
        except BaseException:
            self._marks.close()
            self._close()
            raise
        self._is_open = True
        return self

    def step(self) -> None:
        """End a step and begin the next one."""
        if not self._is_open:
            raise StagespanError("step() was called outside of `with profile_steps(...)`.")
        self._leave_step()
        self._step += 1
        self._enter_step()

    def __exit__(self, *error: object) -> None:
        self._is_open = False
        try:
            self._marks.close()
            self._end()
        finally:
            self._close()

    def _end(self) -> None:
        """Write the trace of the steps so far, or say why there is none."""
        cycle, at = self._place()
        if self._window is not None and self._is_recording:
            done = at - self._wait - self._warmup
            self._close()
            if self._finished.skipped is not None:
                self.skipped = self._finished.skipped
            elif done:
                self._say(f"the loop ended after {done} of {self._active} steps to record")
                self._write(cycle)
                self._say_if_ended_early()
            else:
                self._say("the loop ended before the first step to record was complete")
        elif cycle < self._repeat and not self.skipped:
            first = cycle * (self._wait + self._warmup + self._active) + self._wait + self._warmup
            ran = f"{self._step} step{'' if self._step == 1 else 's'}"
            self._say(
                f"the loop ended after {ran}, but the first step to record is step "
                f"{first}: pass a smaller wait or warmup"
            )

    def _place(self) -> tuple[int, int]:
        """Return the number of the cycle and of the step in it, from 0."""
        return divmod(self._step, self._wait + self._warmup + self._active)

    def _enter_step(self) -> None:
        cycle, at = self._place()
        if cycle >= self._repeat:
            return
        if self._wait <= at < self._wait + self._warmup and self._window is None:
            self._open(is_warmup=True)
        if at == self._wait + self._warmup:
            self._close()  # discard the events of the warm-up
            self._is_recording = self._open()
        if self._is_recording:
            with importing():
                from torch.autograd.profiler import record_function

            self._marks.enter_context(record_function(f"ProfilerStep#{self._step}"))

    def _leave_step(self) -> None:
        self._marks.close()
        if self._window is not None and self._is_recording:
            self._window.close_if_due()  # not every thread can be interrupted
        cycle, at = self._place()
        if self._is_recording and at == self._wait + self._warmup + self._active - 1:
            self._close()
            self._write(cycle)
            self._say_if_ended_early()

    def _open(self, is_warmup: bool = False) -> bool:
        shapes, memory, stack, all_threads = self._options
        max_seconds, max_events, max_bytes = self._bounds
        window = profile_window(
            self._name,
            record_shapes=shapes,
            profile_memory=memory,
            with_stack=stack,
            max_seconds=max_seconds,
            max_bytes=max_bytes,
            max_events=max_events,
            all_threads=all_threads,
            trace_only=True,
            keep_npu_result=False if is_warmup else None,
        )
        window.title = f"the loop of profile_steps(name={self._name!r})"
        window.how_to_leave_out = "remove profile_steps"
        window.is_discarded = is_warmup
        self._window = window
        if window.start():
            return True
        self.skipped = window.skipped
        return False

    def _close(self) -> None:
        if self._window is not None:
            self._window.stop()
            self._finished, self._window = self._window, None
        self._is_recording = False

    def _write(self, cycle: int) -> None:
        if self._finished.skipped is not None:
            self.skipped = self._finished.skipped
            return
        folder = run.output_dir() if self._folder is None else self._folder
        number = f"_cycle{cycle + 1}" if cycle else ""
        path = stage_path(folder, self._name, f"{run.whose_file(folder)}{number}_trace.json.gz")
        try:
            self.traces.append(self._finished.export(path))
        except (OSError, StagespanError) as error:
            self._say(f"the trace was not written: {str(error).rstrip('.')}")
            return
        lines.log_info("[Profiler] Chrome trace saved to: %s", path)
        if not self._finished.shows_work:
            self._say(f"the trace contains steps but no operators: {self._where_work_ran()}")

    def _say_if_ended_early(self) -> None:
        if self._finished.ended_early is not None:
            self._say(
                f"a trace ends after {self._finished.ended_early}, before the last of its"
                f" {self._active} steps: record fewer steps, or pass a larger limit"
            )

    def _where_work_ran(self) -> str:
        if self._finished.all_threads:
            return "the work ran in other processes, or without torch"
        advice = "call profile_steps in the thread that works"
        if self._options[1]:
            advice += ", or pass all_threads=True without profile_memory"
        elif not self._options[3]:
            advice += ", or pass all_threads=True"
        return f"the work ran in other threads, which were not recorded; {advice}"

    def _say(self, sentence: str) -> None:
        self.skipped = f"profile_steps: {sentence}."
        LOGGER.warning("[Profiler] %s", self.skipped)
