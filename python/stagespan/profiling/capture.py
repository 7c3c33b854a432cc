"""Captures on demand: a trace of some runs of one stage of a running program, and what it cost."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stagespan import _core
from stagespan.contexts.context import Call, Hook, hook_failed, register_hook
from stagespan.contexts.requests import UnboundThread
from stagespan.errors import SettingsError, StagespanError
from stagespan.live import lines, service
from stagespan.pages.amounts import in_words, quoted
from stagespan.process import forks, imports, run
from stagespan.process.atomic import Count
from stagespan.process.files import stage_path
from stagespan.process.imports import importing
from stagespan.profiling.bounds import check_bounds
from stagespan.profiling.capture_result import CaptureResult
from stagespan.profiling.controller import Window, open_window, profile_window
from stagespan.profiling.names import set_captured
from stagespan.profiling.pauses import PauseWatch
from stagespan.profiling.running import foreign_profiler
from stagespan.signature.resources import free_host_bytes

MAX_EVENTS = 20_000
"""The operators and annotations of a capture, which bound the pause at its end."""
MAX_SECONDS = 120.0
PROBE_EVENTS = 1000
"""Those of the window that measures what an event costs."""
_BYTES_OF_EVENT, _BYTES_WITH_STACK = 6_000, 30_000
"""The memory that an event takes until its trace is written, with a margin."""
_POLL_S = 0.1
_LONGEST_CLOSE_S = 5.0
"""How long a capture that must end waits for the thread that has opened its window."""
_LONGEST_EXIT_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class _Wish:
    """What a capture was asked for."""

    stage: str
    wanted: int
    is_steps: bool
    max_events: float
    max_seconds: float
    shapes: bool
    stacks: bool
    memory: bool
    all_threads: bool
    probe: bool
    output: Path | None
    first: int | None = None
    """The number of the run with which it begins, as in the statistics; None: the next one."""

    @property
    def unit(self) -> str:
        return "step" if self.is_steps else "run"

    def window(self, max_events: float) -> Window:
        """Return a window for runs of the stage that is not open yet."""
        window = profile_window(
            self.stage,
            record_shapes=self.shapes,
            with_stack=self.stacks,
            profile_memory=self.memory,
            all_threads=self.all_threads,
            max_events=max_events,
            max_seconds=self.max_seconds,
            trace_only=True,
        )
        window.how_to_leave_out = "capture the stage later"
        window.exports_in_child = True
        return window


class _Recording:
    """One window of a capture, and the runs in it. Most of it runs in the thread of the stage.

    A run counts if it begins while the window is open, in the thread that has opened it, and is one
    of the first that do. Other runs in the window are those that overlap these.
    """

    def __init__(self, wish: _Wish, window: Window, wanted: int, is_steps: bool) -> None:
        self.window = window
        self.begun = 0
        self.ended = 0
        self.in_part = 0
        """The runs of which the window has only a part, as of its end."""
        self.others = 0
        """The runs that the window contains besides those that count."""
        self.elsewhere = 0
        """The runs that began meanwhile in other threads."""
        self.passed: int | None = None
        """The number of the run that was too late to be the first one."""
        self.reached: str | None = None
        """Why it has ended before all runs, as a part of a sentence, or None."""
        self.pauses = PauseWatch()
        self._wish = wish
        self._wanted = wanted
        self._is_steps = is_steps
        self._first = wish.first if window.is_discarded is False else None
        self._openers: dict[str, object] = {}
        self._others_open = 0
        self._first_number = 0
        self._step: Any = None  # the open range of a step
        self._changed = threading.Lock()  # a plain lock: releasing it never waits
        self._changed.acquire()
        window.before_stop = self._before_stop

    # --- in the thread of the stage -----------------------------------------------------------

    def enter(self) -> object | None:
        """Note that a run begins; opens the window before the first one.

        Returns what `leave` needs at its end; None if the run is not in the window.
        """
        if "opener" not in self._openers:
            if not self._is_due():
                return None
            me = object()
            if self._openers.setdefault("opener", me) is me and not self._open():
                return None
        if not self.window.is_open_here():
            self.elsewhere += not self.is_over()
            return None
        self.window.close_if_due()
        if self._is_steps and self.begun and self.begun == self.ended:
            self._end_step()
            if self.ended >= self._wanted or self._is_full():
                self.window.stop()
        if not self.window.is_open_here():
            self._note()
            return None
        if self._is_steps and self.begun > self.ended:
            return None  # a run inside a run belongs to the same step
        if self.begun >= self._wanted:
            self.others += 1
            self._others_open += 1
            return "other"
        self.begun += 1
        if self._is_steps:
            self._begin_step()
        return "counted"

    def leave(self, kind: object) -> None:
        """Note that a run ends, and close the window after the last one."""
        if self.is_over():
            return  # it is one of those of which there is a part
        if kind == "other":
            self._others_open -= 1
            return
        self.ended += 1
        if self._is_steps:
            return
        if self.ended >= self._wanted or self._is_full():
            if self.window.is_open_here():
                self.window.stop()
            else:
                self.window.end_soon("the end of the last run in another thread")
            self._note()

    def _is_due(self) -> bool:
        """Whether the run that begins is the one with which the capture begins."""
        if self._first is None:
            return True
        number = runs_begun(self._wish.stage) + 1
        if number > self._first:
            self.passed = number
            self._note()
        return number == self._first

    def _open(self) -> bool:
        self._others_open = self.others = sum(
            span["stage"] == self._wish.stage and span["thread"] == threading.get_native_id()
            for span in _core.open_spans()
        )
        if self._is_steps:
            known = _core.snapshot().stages().get(self._wish.stage)
            self._first_number = (0 if known is None else known.count) + self._others_open
        is_open = self.window.start()
        self._note()
        return is_open

    def _is_full(self) -> bool:
        """Whether another run would probably exceed the largest number of events."""
        events = self.window.recorded_events()
        if events is None or not self.ended:
            return False
        per_run = events / self.ended
        if events + per_run <= self._wish.max_events or self.ended >= self._wanted:
            return False
        self.reached = (
            f"max_events ({self._wish.max_events:,}) ended it after {self.ended} of"
            f" {self._wanted} {self._wish.unit}s: another one has about {per_run:,.0f} events"
        )
        return True

    def _begin_step(self) -> None:
        with importing():
            from torch.autograd.profiler import record_function

        self._step = record_function(f"ProfilerStep#{self._first_number + self.begun - 1}")
        self._step.__enter__()

    def _end_step(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    def _before_stop(self) -> None:
        self._end_step()
        self.in_part = self.begun - self.ended + self._others_open
        self.pauses.begin()

    def _note(self) -> None:
        with contextlib.suppress(RuntimeError):  # nobody has seen the last change yet
            self._changed.release()

    # --- in the thread of the capture ---------------------------------------------------------

    def is_over(self) -> bool:
        """Whether the window was closed, or could not be opened."""
        return bool(self.window.end_ns) or self.window.skipped is not None

    def never_open(self) -> bool:
        """Keep the window closed. Returns False if a run has opened it before."""
        return self._openers.setdefault("opener", self) is self

    def wait(self, timeout_s: float) -> None:
        """Wait until something has changed, or that long."""
        self._changed.acquire(timeout=max(timeout_s, 0.0))


class CaptureHook(Hook):
    """Tells the capture that is in progress of the runs of its stage."""

    name = "capture"
    of_spans = True

    def wants(self, call: Call) -> bool:
        """Whether a capture of the stage is in progress."""
        capture_ = _in_progress.get(_ONLY)
        # A handler that has interrupted an import cannot make the imports of `enter`.
        return capture_ is not None and call.stage == capture_.stage and not imports.is_loading()

    def enter(self, call: Call) -> None:
        """Open the window if this is the first run."""
        capture_ = _in_progress.get(_ONLY)
        recording = None if capture_ is None else capture_._recording
        kind = None if recording is None else recording.enter()
        if kind is not None:
            call.state[self.name] = (recording, kind)

    def exit(self, call: Call) -> None:
        """Close the window if this was the last run. The clock of the span has stopped."""
        recording, kind = call.state.pop(self.name, (None, None))
        if recording is not None:
            recording.leave(kind)


class Capture:
    """A capture of some runs of a stage, as `capture` returns it. It works in its own thread."""

    def __init__(self, wish: _Wish) -> None:
        self.stage = wish.stage
        self.pause_bound_ns: int | None = None
        """An upper bound of the longest pause of all Python threads at the end of the capture, from
        what an event has cost in this process; None as long as that is not known."""
        self.result: CaptureResult | None = None
        """The result, or None as long as there is none."""
        self.refused: str | None = None
        """Why there will be no result, as a sentence, or None."""
        self._wish = wish
        self._until_s = time.monotonic() + wish.max_seconds
        self._recording: _Recording | None = None
        self._doing = "prepares the profiler"
        self._is_over = False
        self._is_cancelled = False
        self._runs_before = _runs_of(wish.stage)
        self._thread = UnboundThread(target=self._work, name="stagespan-capture", daemon=True)

    def wait(self, timeout_s: float | None = None) -> CaptureResult:
        """Wait for the result and return it.

        Raises StagespanError, with the reason, if there is no result, and TimeoutError if that is
        not known within `timeout_s` seconds.
        """
        self._thread.join(timeout_s)
        if self.result is not None:
            return self.result
        if self.refused is not None:
            raise StagespanError(self.refused)
        raise TimeoutError(f"After {timeout_s:g} s, the capture {self.progress()}.")

    def cancel(self) -> None:
        """End the capture without a result. Its window is closed in its own thread."""
        self._is_cancelled = True
        recording = self._recording
        if recording is not None and not recording.never_open():
            recording.window.end_soon("the capture was cancelled")

    def is_over(self) -> bool:
        """Return whether there is a result, or a reason why there is none."""
        return self._is_over

    def progress(self) -> str:
        """Return what the capture does at the moment, in words that follow "the capture"."""
        recording = self._recording
        if recording is None or not recording.begun or recording.is_over():
            return self._doing
        wish = self._wish
        events = recording.window.recorded_events()
        counted = "" if events is None else f", {events:,} events"
        return (
            f"records {wish.unit} {min(recording.begun, wish.wanted)} of {wish.wanted} of"
            f" {quoted([wish.stage])}{counted}"
        )

    def left_s(self) -> float:
        """Return after how many seconds it ends at the latest, but for the end of its window."""
        return max(self._until_s - time.monotonic(), 0.0)

    def _work(self) -> None:
        try:
            self.result = self._captured()
        except StagespanError as error:
            self.refused = str(error)
        except OSError as error:
            self.refused = f"The trace was not written: {error}."
        except Exception as error:
            hook_failed("capture", error)
            self.refused = f"The capture failed with {type(error).__name__}: {error}."
        finally:
            if self.result is None and self.refused is None:
                self.refused = "The capture was interrupted."
            self._recording = None
            _in_progress.pop(_ONLY, None)
            set_captured()
            self._is_over = True  # who sees this can begin the next one

    def _captured(self) -> CaptureResult:
        wish = self._wish
        window = wish.window(wish.max_events)
        self.pause_bound_ns = window.pause_bound_ns
        if self.pause_bound_ns is None and wish.probe:
            self._probe()
            self.pause_bound_ns = window.pause_bound_ns
        bound = "not known"
        if self.pause_bound_ns is not None:
            bound = f"at most {in_words(self.pause_bound_ns, 'ns')}"
        lines.log_info(
            "[Profiler] Capture of stage %r: the pause at its end is %s.", wish.stage, bound
        )
        recording = _Recording(wish, window, wish.wanted, wish.is_steps)
        try:
            self._record(recording, f"waits for a run of {quoted([wish.stage])}")
            return self._written(recording)
        finally:
            recording.pauses.end()
            window.discard()

    def _probe(self) -> None:
        wish = self._wish
        lines.log_info(
            "[Profiler] Capture of stage %r: a first window of one run and at most %d events"
            " measures what an event costs.",
            wish.stage,
            PROBE_EVENTS,
        )
        window = wish.window(min(PROBE_EVENTS, wish.max_events))
        window.is_discarded = True
        recording = _Recording(wish, window, 1, False)
        try:
            self._record(
                recording,
                f"waits for a run of {quoted([wish.stage])}, of which {PROBE_EVENTS:,} events show"
                " what an event costs",
            )
            with tempfile.TemporaryDirectory(prefix="stagespan-") as folder:
                window.export(Path(folder, "probe.json.gz"))
        finally:
            recording.pauses.end()
        window.note_pause(recording.pauses.longest_ns)

    def _record(self, recording: _Recording, doing: str) -> None:
        """Wait until the window of a recording is closed. Raises StagespanError if it never is."""
        window, must_end_s = recording.window, math.inf
        recording.pauses.start()
        self._recording = recording
        self._doing = doing
        while not recording.is_over():
            why = self._why_end()
            if recording.passed is not None and recording.never_open():
                raise StagespanError(_too_late(self._wish, recording.passed))
            if why is not None:
                if recording.never_open():
                    raise StagespanError(self._why_never())
                window.end_soon(why)  # again, because the window may not have been open
                must_end_s = min(must_end_s, time.monotonic() + _LONGEST_CLOSE_S)
            if time.monotonic() > must_end_s:
                window.stop()  # in this thread, it only gives the trace up
                raise StagespanError(
                    f"The thread that ran stage {quoted([self.stage])} did not close the window of"
                    f" the profiler within {_LONGEST_CLOSE_S:g} s, because it runs no Python code:"
                    " the trace is lost."
                )
            recording.wait(_POLL_S)
        self._recording = None
        self._doing = "writes the trace"
        if self._is_cancelled:
            raise StagespanError(_CANCELLED)
        if not window.recorded:
            raise StagespanError(window.skipped or "The capture has recorded nothing.")

    def _why_end(self) -> str | None:
        """Return why the window must be closed now, as a part of a sentence, or None."""
        if self._is_cancelled:
            return "the capture was cancelled"
        is_late = time.monotonic() >= self._until_s
        return f"{self._wish.max_seconds:g} seconds (max_seconds)" if is_late else None

    def _why_never(self) -> str:
        if self._is_cancelled:
            return _CANCELLED
        stage, limit = quoted([self.stage]), f"within {self._wish.max_seconds:g} s (max_seconds)"
        if self._runs_before != _runs_of(self.stage):
            return (
                f"No run of stage {stage} could be captured {limit}, although it ran: it is a"
                " function that was decorated with span before the capture, or a span that was made"
                " before it. Use ProfilingContext for this stage, or make the span in its `with`"
                " statement."
            )
        ran = sorted(name for name, known in _core.snapshot().stages().items() if known.count)
        others = f"stages that ran: {quoted(ran)}" if ran else "no stage has run in this process"
        return (
            f"Stage {stage} did not run {limit}; {others}. A stage inside code that torch.compile"
            " has compiled does not run as a stage."
        )

    def _written(self, recording: _Recording) -> CaptureResult:
        wish, window = self._wish, recording.window
        path = wish.output
        if path is None:
            folder = run.output_dir()
            path = stage_path(folder, wish.stage, run.whose_file(folder) + _file_name())
        written = window.export(path)
        recording.pauses.end()
        window.note_pause(recording.pauses.longest_ns)
        lines.log_info("[Profiler] Chrome trace saved to: %s", written)
        return CaptureResult(
            stage=wish.stage,
            unit=wish.unit,
            asked=wish.wanted,
            runs=recording.ended,
            events=window.events,
            bytes=written.stat().st_size,
            path=str(written),
            pause_bound_ns=self.pause_bound_ns,
            longest_pause_ns=recording.pauses.longest_ns,
            requests_delayed=_delayed(recording.pauses.pauses),
            in_place=window.in_place,
            remarks=tuple(self._remarks(recording)),
        )

    def _remarks(self, recording: _Recording) -> list[str]:
        wish, window = self._wish, recording.window
        unit = wish.unit
        remarks = []
        if recording.reached is not None:
            remarks.append(recording.reached)
        elif recording.ended < wish.wanted:
            why = window.ended_early or "the end of its thread"
            remarks.append(
                f"it contains {recording.ended} of {wish.wanted} {unit}s, because it ended after"
                f" {why}"
            )
        if recording.in_part:
            count = recording.in_part
            runs = "another run" if count == 1 else f"{count} other runs"
            remarks.append(f"it also contains a part of {runs} of the stage")
        if whole := recording.others - recording._others_open:
            runs = "another run" if whole == 1 else f"{whole} other runs"
            remarks.append(f"it also contains {runs} of the stage, which overlap the captured ones")
        if recording.elsewhere and not window.all_threads:
            runs = "1 run" if recording.elsewhere == 1 else f"{recording.elsewhere} runs"
            remarks.append(f"{runs} in other threads meanwhile are not in it")
        if not window.shows_work:
            remarks.append(
                "it contains no operators: the stage's work ran without torch, in other processes,"
                " or in other threads (all_threads)"
            )
        if window.in_place is not None:
            remarks.append(
                "all Python threads had to wait while the trace was written, because"
                f" {window.in_place}"
            )
        return [f"{remark[:1].upper()}{remark[1:]}." for remark in remarks]


_ONLY = "only"
_in_progress: dict[str, Capture] = {}
"""The capture of this process. This is not a lock: a second capture is refused."""
_CANCELLED = "The capture was cancelled."
_files = Count()


def capture(
    stage: str,
    *,
    runs: int | None = None,
    steps: int | None = None,
    max_events: float = MAX_EVENTS,
    max_seconds: float = MAX_SECONDS,
    shapes: bool = False,
    stacks: bool = False,
    memory: bool = False,
    all_threads: bool = False,
    probe: bool = True,
    output: str | os.PathLike[str] | None = None,
    first: int | None = None,
) -> Capture:
    """Capture a kernel trace of the next runs of a stage in this process, which goes on.

    The first run that begins from now on opens a window of torch.profiler in its own thread, and
    the end of the last one closes it. Runs that are in progress already are not captured. The end
    of a window stops all Python threads for a time that is proportional to `max_events`.

    Args:
        stage: The name of the stage.
        runs: The number of runs, by default 1.
        steps: The number of steps, in place of `runs`: a step lasts from the start of a run until
            the next run begins in the same thread, and is a range ``ProfilerStep#N`` in the trace.
        max_events: The most operators and annotations, including nested ones. If another run would
            exceed them, the capture ends before it, and the result says so.
        max_seconds: The capture ends so many seconds after this call, also if the stage never runs.
        shapes: Whether the trace contains the shapes of each operator's inputs.
        stacks: Whether the trace contains Python stacks, which make the pause several times longer.
        memory: Whether the trace contains each allocation.
        all_threads: Whether the operators of all threads are recorded, if torch can do that.
        probe: Whether, in the first capture of a process, a window of one run and at most 1,000
            events comes first, which shows what an event costs. Without it, the bound of the pause
            is then not known.
        output: The path of the trace, by default ``{stage}_capture_trace.json.gz`` in the output
            folder.
        first: The number of the run with which the capture begins, counted as in `stats`, so that
            ranks capture the same steps. By default, it is the next one.

    Returns:
        The capture in progress: `wait()` returns its result, `progress()` says what it does,
        `cancel()` ends it, and `pause_bound_ns` is an upper bound of the pause.

    Raises:
        SettingsError: If an argument is not valid.
        StagespanError: If another capture or a profiler is running, torch was not imported or has
            no profiler, or there is too little memory.

    Example:
        ```python
        capture = stagespan.capture("denoise", runs=2)
        ...  # the program goes on
        print(capture.wait().path)
        ```
    """
    given_stage: object = stage
    if not isinstance(given_stage, str) or not stage or stage == "*":
        raise SettingsError(f"capture(stage={stage!r}) must be the name of one stage.")
    check_bounds("capture", max_events=max_events, max_seconds=max_seconds)
    try:
        path = None if output is None else Path(output)
    except TypeError:
        raise SettingsError(f"capture(output={output!r}) must be the path of a file.") from None
    wish = _Wish(
        stage=stage,
        wanted=_wanted(runs, steps),
        is_steps=steps is not None,
        max_events=max_events,
        max_seconds=min(max_seconds, threading.TIMEOUT_MAX),
        shapes=shapes,
        stacks=stacks,
        memory=memory,
        all_threads=all_threads,
        probe=probe,
        output=path,
        first=_number_of_first(first),
    )
    _check(wish)
    started = Capture(wish)
    before = _in_progress.setdefault(_ONLY, started)
    if before is not started:
        raise StagespanError(
            f"A capture of stage {quoted([before.stage])} is in progress, and {before.progress()}:"
            f" it ends in {before.left_s():.0f} s at the latest."
        )
    try:
        register_hook(_hook, first=True)
        set_captured(stage)
        started._thread.start()
    except BaseException:
        _in_progress.pop(_ONLY, None)
        raise
    return started


def in_progress() -> Capture | None:
    """Return the capture that is in progress in this process, if there is one."""
    return _in_progress.get(_ONLY)


def _wanted(runs: object, steps: object) -> int:
    """Return the number of runs or steps. Raises SettingsError."""
    if runs is not None and steps is not None:
        raise SettingsError("capture() takes a number of runs or of steps, not both.")
    name, number = ("runs", 1 if runs is None else runs) if steps is None else ("steps", steps)
    if type(number) is not int or number < 1:
        raise SettingsError(f"capture({name}={number!r}) must be a whole number of at least 1.")
    return number


def _number_of_first(first: object) -> int | None:
    """Return the number of the first run. Raises SettingsError."""
    if first is None or (type(first) is int and first >= 1):
        return first
    raise SettingsError(f"capture(first={first!r}) must be a whole number of at least 1.")


def _too_late(wish: _Wish, number: int) -> str:
    return (
        f"The capture should begin with run {wish.first:,} of stage {quoted([wish.stage])}, but run"
        f" {number:,} had begun before: ask for a later one."
    )


def runs_begun(stage: str) -> int:
    """Return how many runs of a stage have begun in this process, with those that are open."""
    still_open = [span for span in _core.open_spans() if span["stage"] == stage]
    return _runs_of(stage) + len(still_open)


def _check(wish: _Wish) -> None:
    """Raise StagespanError if a capture cannot begin in this process."""
    _core.call_in_child  # noqa: B018 (refused here where the extension cannot be imported)
    if imports.loaded("torch") is None:
        installed = importlib.util.find_spec("torch") is not None
        raise StagespanError(
            "Nothing can be captured: this process has not imported torch."
            if installed
            else "Nothing can be captured: torch is not installed."
        )
    with importing():
        from torch import profiler
    if not profiler.kineto_available():
        raise StagespanError("Nothing can be captured: torch was built without its profiler.")
    if foreign_profiler() and open_window() is None:
        raise StagespanError(
            "A profiler of the application is running. Stop it, or capture the stage later."
        )
    if wish.first is not None and (begun := runs_begun(wish.stage)) >= wish.first:
        raise StagespanError(_too_late(wish, begun))
    needed_bytes = wish.max_events * (_BYTES_WITH_STACK if wish.stacks else _BYTES_OF_EVENT)
    free = free_host_bytes()
    if free is not None and not math.isinf(wish.max_events) and needed_bytes > free:
        raise StagespanError(
            f"{wish.max_events:,} events (max_events) can take"
            f" {needed_bytes / 2**30:.2f} GiB, but only {free / 2**30:.2f} GiB of memory are free."
        )


def _runs_of(stage: str) -> int:
    known = _core.snapshot().stages().get(stage)
    return 0 if known is None else known.count


def _file_name() -> str:
    number = _files.add()
    return f"_capture{'' if number == 1 else number}_trace.json.gz"


def _delayed(pauses: list[tuple[int, int]]) -> int | None:
    """Return how many requests had a span during one of the pauses; None without requests."""
    if not _core.requests_known():
        return None
    spans, still_open = _core.spans(), _core.open_spans()
    delayed: set[int] = set()
    for begin_ns, end_ns in pauses:
        during = (spans["begin_ns"] < end_ns) & (spans["end_ns"] > begin_ns)
        delayed.update(spans["request"][during].tolist())
        delayed.update(int(span["request"]) for span in still_open if span["begin_ns"] < end_ns)
    return len(delayed - {0})


def _end_at_exit() -> None:
    """End a capture when the process ends: its window must be closed in the thread that exits."""
    started = _in_progress.get(_ONLY)
    if started is None:
        return
    started.cancel()
    recording = started._recording
    if recording is not None and recording.window.is_open_here():
        recording.window.stop()
    started._thread.join(_LONGEST_EXIT_WAIT_S)


def _after_fork() -> None:
    # A forked child has neither the thread of the capture nor a profiler.
    _in_progress.clear()
    set_captured()


_hook = CaptureHook()
forks.after_in_child(_after_fork)
service.on_exit(_end_at_exit)
