"""Profiler windows: one at a time, of bounded length, without errors for the pipeline."""

from __future__ import annotations

import contextlib
import gzip
import io
import logging
import math
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from stagespan import settings
from stagespan.device.platforms import current_platform
from stagespan.errors import StagespanError
from stagespan.process import forks, run, threads
from stagespan.process.files import stage_path, whole_file
from stagespan.profiling import forked_export, pauses
from stagespan.profiling.backends import Backend, Options, make_backend
from stagespan.profiling.bounds import Watch, check_bounds
from stagespan.profiling.running import foreign_profiler
from stagespan.profiling.timeline import compressed_with_spans, recorded_spans, shows_work

LOGGER = logging.getLogger("stagespan")

MAX_SECONDS = 120.0
"""Windows of stages and loops end after this time, so that hours of work do not fill a trace."""
MAX_TRACE_BYTES = 512 << 20
"""Their larger traces are not written."""

# The open window, under _OPEN. This is not a lock: no thread waits for it.
_turn: dict[str, Window] = {}
_OPEN = "open"
_warned: set[str] = set()
_of_thread = threading.local()


class Window:
    """A period under the platform's profiler. `profile_window` creates it.

    Use it as a context, or call `start` and `stop` on one thread. It raises no exception into the
    pipeline: if the profiler cannot run, `skipped` says why, and one warning is logged. A window
    that has reached a bound records no more events, and ends on its own thread as soon as possible.
    """

    def __init__(
        self,
        name: str,
        options: Options,
        max_seconds: float | None = None,
        max_bytes: int | None = None,
        max_events: float = math.inf,
    ) -> None:
        self.name = name
        self.title = f"stage {name!r}"
        """What the window records, as messages call it."""
        self.how_to_leave_out = "remove the stage from the profiler's names"
        """How the user can do without the window, as messages say it."""
        self.skipped: str | None = None
        """Why nothing was recorded, as a sentence, or None."""
        self.recorded = False
        """True if the window has been closed and has recorded something."""
        self.ended_early: str | None = None
        """The bound at which the recording ended before the window was closed, as a part of a
        sentence, or None."""
        self.is_discarded = False
        """Whether the trace is not needed, so that it may end early without a message."""
        self.shows_work = True
        """False if the window was exported and its trace contains no operators, kernels or calls of
        a device's runtime."""
        self.begin_ns = 0
        self.end_ns = 0
        """The window in Unix ns."""
        self.events: int | None = None
        """How many operators and annotations were recorded, in whole blocks of torch's memory; None
        before the end, or if the profiler does not show it."""
        self.before_stop: Callable[[], object] | None = None
        """Called in the thread of the window immediately before the profiler stops."""
        self.exports_in_child = False
        """Whether `export` lets a forked child write the profiler's trace, where that is safe and
        the process itself would stop all its Python threads for it."""
        self.in_place: str | None = None
        """Why the latest `export` has stopped all Python threads, as a part of a sentence; None if
        it has not."""
        self._options = options
        if max_seconds is None or max_seconds >= threading.TIMEOUT_MAX:
            max_seconds = math.inf
        self._max_seconds = float(max_seconds)
        self._max_bytes = max_bytes
        self._max_events = max_events
        self._backend: Backend | None = None
        self._watch: Watch | None = None
        self._running: list[Backend] = []  # the call that takes it from here stops the profiler
        self._is_counted = False
        self._native_id = 0  # of the thread that has opened it; greenlets have other identifiers
        self._pid = 0  # of its process
        # What the profiler has written, until it is exported; then the first file.
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._copy: _Copy | None = None
        self._refused: str | None = None

    @property
    def profiler(self) -> object:
        """The profiler object of torch or torch_npu behind the window; None before `start`."""
        return None if self._backend is None else self._backend.profiler

    @property
    def all_threads(self) -> bool:
        """Whether the operators of all threads are recorded. False before `start`."""
        return self._backend is not None and self._backend.all_threads

    @property
    def pause_bound_ns(self) -> int | None:
        """An upper bound of the longest pause of all Python threads at the end of the window.

        None if no earlier window of this process has measured the costs, or without `max_events`.
        """
        return pauses.bound_ns(
            self._options,
            self._max_events,
            in_child=self.exports_in_child and forked_export.why_in_place() is None,
        )

    def recorded_events(self) -> int | None:
        """Return how many operators and annotations have been recorded so far, in whole blocks.

        None if the profiler does not show it, or before `start`.
        """
        return None if self._backend is None else self._backend.recorded_operators()

    def start(self) -> bool:
        """Open the window. Returns False, and sets `skipped`, if it cannot be opened."""
        left_open = _turn.get(_OPEN)
        if left_open is not None and left_open.skipped:  # its profiler still runs, see `stop`
            left_open.stop()
        try:
            holder = _turn.setdefault(_OPEN, self)
            if holder is not self or self._running:
                return self._skip(
                    "nested",
                    f"{self.title} is not profiled: a profiler is already running for"
                    f" {holder.title}. Profile only one of them.",
                )
            if foreign_profiler():
                return self._give_up(
                    "foreign",
                    f"{self.title} is not profiled: a profiler of the application is running."
                    f" Stop it, or {self.how_to_leave_out}.",
                )
            if current_platform.is_capturing():
                return self._give_up(
                    "capture",
                    f"{self.title} is not profiled: it starts while a device graph is being"
                    " captured. Profile a stage around the capture.",
                )
            self._backend = make_backend(current_platform.device, self._options)
            if self._backend.missing:
                _warn_once(
                    "missing",
                    f"the profiler cannot record {', '.join(self._backend.missing)} here:"
                    f" {current_platform.device.advice} CPU events are recorded.",
                )
            self.begin_ns = time.time_ns()
            self._backend.start()
            self._running.append(self._backend)
            self._native_id, self._pid = threading.get_native_id(), os.getpid()
            if self._native_id != threads.native_id(threading.main_thread()):
                _of_thread.end = _ThreadEnd(self)
            self._start_watch(self._backend)
        except ImportError as error:
            return self._give_up("torch", f"{self.title} is not profiled: {error}. Install torch.")
        except Exception as error:
            return self._give_up(
                "start",
                f"{self.title} is not profiled: the profiler did not start ({error}).",
            )
        except BaseException:
            self._release()
            raise
        return True

    def stop(self) -> None:
        """Close the window, if it is open.

        In another thread than `start`, this loses the profile: the profiler then runs until that
        thread ends, or opens the next window. In a forked process, nothing is recorded.
        """
        if self._watch is not None:
            self._watch.cancel()
        if self._running and self._pid != os.getpid():
            self._running.clear()
            self._skip(
                "fork",
                f"{self.title} is not profiled in this process, which was forked while it was"
                " being profiled: a forked process has no profiler. The process in which it began"
                " writes the profile.",
            )
            return
        if self._running and not self.is_open_here():
            self._running[0].pause()
            self._skip(
                "thread",
                f"the profile of {self.title} is lost: it was closed in a thread other than the"
                " one that opened it. Profile a stage that begins and ends in one thread.",
            )
            return
        try:
            backend = self._running.pop()
        except IndexError:
            return
        if self.ended_early is not None and not self.is_discarded:
            LOGGER.warning(
                "[Profiler] The profile of %s is incomplete: it ends after %s.",
                self.title,
                self.ended_early,
            )
        self.events = backend.recorded_operators()
        try:
            if self.before_stop is not None:
                self.before_stop()
            begin_ns = time.perf_counter_ns()
            backend.stop()
            taken_ns = time.perf_counter_ns() - begin_ns
            if not backend.is_unlocked:
                pauses.note_stop(self._options, self.events, backend.stop_ns, taken_ns)
            self.recorded = True
        except Exception as error:
            self._skip(
                "stop",
                f"the profile of {self.title} is lost: the profiler failed ({error}).",
            )
        finally:
            self.end_ns = time.time_ns()
            self._release()

    def note_pause(self, longest_ns: int) -> None:
        """Note the longest pause that was measured around its end, for `pause_bound_ns`."""
        if self._backend is not None and self._backend.is_unlocked:
            pauses.note_unlocked(self._options, longest_ns)

    def is_open_here(self) -> bool:
        """Whether the window is open, and this thread has opened it."""
        return bool(self._running) and self._native_id == threading.get_native_id()

    def end_soon(self, why: str) -> None:
        """Make the thread of the window close it soon; `why` is what `ended_early` says then.

        Any thread can call this. It has no effect without `max_seconds` and `max_events`.
        """
        if self._running and self._watch is not None:
            self.ended_early = self.ended_early or why
            self._watch.end()

    def close_if_due(self) -> None:
        """Close the window if it has reached a bound; not every thread can be interrupted."""
        if self._running and (self.ended_early is not None or self._is_due()):
            self.stop()

    def export(
        self, path: str | os.PathLike[str], finished: Mapping[int, int] | None = None
    ) -> Path:
        """Write the trace to `path`, completely or not at all, with the spans of stagespan.

        The file is gzip if its name ends in ".gz", else plain JSON. `finished` contains the ends,
        in Unix ns by id, of spans that are still open for the recorder. A window can be exported
        again; the trace is then a copy of the first file that was written.

        Raises StagespanError if nothing was recorded, if the trace is larger than `max_bytes` (as
        gzip), or if the first file was changed meanwhile; and OSError if the file cannot be
        written.
        """
        if not self.recorded or self._backend is None:
            raise StagespanError(
                self.skipped or f"the window of {self.name!r} is still open: call stop() first."
            )
        if self._refused is not None:
            raise StagespanError(self._refused)
        packed = self._packed(finished or {}) if self._copy is None else self._copy.packed()
        if self._max_bytes is not None and len(packed) > self._max_bytes:
            self._refused = (
                f"the trace of {self.title} takes {len(packed) / 1e6:.3g} MB, more than"
                f" {self._max_bytes / 1e6:.3g} MB: profile a shorter stage, or one step of it."
            )
            self._drop_scratch()
            raise StagespanError(self._refused)
        target = Path(path)
        with whole_file(target) as file:
            if target.suffix == ".gz":
                file.write(packed)
            else:
                shutil.copyfileobj(gzip.GzipFile(fileobj=io.BytesIO(packed)), file)
        if self._copy is None:
            self._copy = _Copy(target.absolute())
        self._drop_scratch()
        return target

    def _packed(self, ends: Mapping[int, int]) -> bytes:
        """Return the trace as gzip. The profiler writes its events only once."""
        assert self._backend is not None
        spans = [
            replace(span, end_ns=ends[span.id], unfinished=False)
            if span.unfinished and span.id in ends
            else span
            for span in recorded_spans(self.begin_ns, self.end_ns)
        ]
        if self._scratch is None:
            scratch = tempfile.TemporaryDirectory(prefix="stagespan-")
            try:
                self.in_place = self._write(self._backend, Path(scratch.name, _PLAIN))
            except BaseException as error:
                scratch.cleanup()
                if isinstance(error, (OSError, ValueError, RuntimeError)):
                    raise _not_written(scratch.name, error) from error
                raise
            self._scratch = scratch
        plain = Path(self._scratch.name, _PLAIN)
        try:
            self.shows_work = shows_work(plain)
            return compressed_with_spans(plain, spans)
        except (OSError, ValueError) as error:
            raise _not_written(self._scratch.name, error) from error

    def discard(self) -> None:
        """Give the trace up if it was not exported, and remove what the profiler has written."""
        self._drop_scratch()

    def _drop_scratch(self) -> None:
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def _write(self, backend: Backend, plain: Path) -> str | None:
        """Write the profiler's trace. Returns why all Python threads had to wait, or None."""
        why: str | None = "no child was asked for"
        if backend.is_unlocked:
            backend.write(plain)
            return None
        if self.exports_in_child:
            save = backend.saver()
            why = "the profiler has no function for it" if save is None else None
            why = why or forked_export.why_in_place()
            if save is not None and why is None:
                child = forked_export.save_in_child(save, plain)
                pauses.note_fork(self._options, child.fork_ns)
                why = child.failed
        if why is not None:
            begin_ns = time.perf_counter_ns()
            backend.write(plain)
            pauses.note_write(self._options, self.events, time.perf_counter_ns() - begin_ns)
        return why

    def __enter__(self) -> Window:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _start_watch(self, backend: Backend) -> None:
        has_count = backend.recorded_operators() is not None
        if self._max_events < math.inf and not has_count:
            LOGGER.info(
                "[Profiler] The profiler does not show how many events it has recorded, so"
                " max_events does not limit the profile of %s.",
                self.title,
            )
        self._is_counted = has_count and self._max_events < math.inf
        if self._is_counted or self._max_seconds < math.inf:
            self._watch = Watch(
                self._max_seconds, self._is_counted, self._is_due, backend.pause, self.stop
            )
            self._watch.start()

    def _is_due(self) -> bool:
        """Whether the window has reached a bound, which `ended_early` names then."""
        open_s = (time.time_ns() - self.begin_ns) / 1e9
        if open_s >= self._max_seconds:
            self.ended_early = f"{self._max_seconds:g} seconds (max_seconds)"
        elif self._is_counted and self._backend is not None:
            events = self._backend.recorded_operators() or 0
            if events >= self._max_events:
                self.ended_early = f"{events:,} events (max_events is {self._max_events:,})"
        return self.ended_early is not None

    def _give_up(self, reason: str, sentence: str) -> bool:
        self._release()
        return self._skip(reason, sentence)

    def _release(self) -> None:
        """Let another window be opened. If this one could not be bounded, its profiler stops."""
        while self._running:
            with contextlib.suppress(Exception):
                self._running.pop().stop()
        if _turn.get(_OPEN) is self:
            _turn.pop(_OPEN, None)

    def _skip(self, reason: str, sentence: str) -> bool:
        self.skipped = sentence[:1].upper() + sentence[1:]
        _warn_once(reason, self.skipped)
        return False


_PLAIN = "trace.json"


def _not_written(folder: str, error: BaseException) -> OSError:
    return OSError(
        f"the profiler's trace could not be written to {folder} ({error});"
        " set TMPDIR to a folder with free space"
    )


class _Copy:
    """A file that was written, from which others are made while it is as it was."""

    def __init__(self, path: Path) -> None:
        self._path, self._state = path, _state_of(path)

    def packed(self) -> bytes:
        """Return the content as gzip. Raises StagespanError if the file has changed."""
        content = b""
        if _state_of(self._path) == self._state:
            with contextlib.suppress(OSError):
                content = self._path.read_bytes()
        if not content:
            raise StagespanError(
                f"the trace was exported to {self._path}, which was changed or removed since:"
                " further copies are made from that file."
            )
        return content if self._path.suffix == ".gz" else gzip.compress(content, 6)


def _state_of(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


class _ThreadEnd:
    """Closes a window when its thread ends: otherwise torch crashes the process at its end."""

    def __init__(self, window: Window) -> None:
        self._window = weakref.ref(window)

    def __del__(self) -> None:
        window = self._window()
        if window is not None and open_window() is window:  # not in a forked child
            window.stop()


def profile_window(
    name: str,
    activities: Iterable[str] | None = None,
    *,
    record_shapes: bool = False,
    with_stack: bool = False,
    profile_memory: bool = False,
    max_seconds: float | None = None,
    max_bytes: int | None = None,
    max_events: float | None = None,
    all_threads: bool = False,
    trace_only: bool = False,
    keep_npu_result: bool | None = None,
) -> Window:
    """Return a window that runs a block under the profiler of the platform.

    Stacks, memory and shapes are off by default, because they make a trace several times larger.

    Args:
        name: Name of the window in messages.
        activities: Names of ProfilerActivity members, by default CPU and those of the platform.
        record_shapes: Whether the trace contains the shapes of each operator's inputs.
        with_stack: Whether the trace contains Python stacks.
        profile_memory: Whether the trace contains each allocation.
        max_seconds: The recording ends after this time, by default never.
        max_bytes: `Window.export` refuses to write a larger file, by default none.
        max_events: The recording ends after this many operators and annotations, including nested
            ones, by default STAGESPAN_PROFILER_MAX_EVENTS; infinity means no limit. It bounds the
            time for which the end of the window stops all Python threads.
        all_threads: Whether the operators of all threads are recorded, if torch can do that, and
            not only those of the thread that opens the window. torch may crash if another thread
            runs an operator while a window ends and the next one begins. Not with `profile_memory`.
        trace_only: Whether only `Window.export` is needed. `Window.profiler` then has no lists and
            sums of events, which makes the end of the window faster if torch can do that.
        keep_npu_result: Whether torch_npu.profiler keeps its result folder in the output folder,
            by default STAGESPAN_NPU_RESULT. STAGESPAN_NPU_LEVEL is the level of that profiler.

    Returns:
        A window that is not open yet.

    Raises:
        SettingsError: If ``max_seconds``, ``max_bytes`` or ``max_events`` is not a number above 0.

    Example:
        ```python
        with stagespan.profile_window("denoise") as window:
            step()
        if window.recorded:
            window.export("denoise_trace.json.gz")
        ```
    """
    if max_events is None:
        max_events = default_max_events()
    check_bounds(
        "profile_window", max_seconds=max_seconds, max_events=max_events, max_bytes=max_bytes
    )
    chosen = current_platform.profiler_activities() if activities is None else activities
    if keep_npu_result is None:
        keep_npu_result = bool(settings.get("STAGESPAN_NPU_RESULT"))
    folder = run.output_dir()
    options = Options(
        ("CPU", *chosen),
        record_shapes,
        with_stack,
        profile_memory,
        npu_level=str(settings.get("STAGESPAN_NPU_LEVEL")),
        npu_result_dir=stage_path(folder / "npu", name, run.whose_file(folder))
        if keep_npu_result
        else None,
        all_threads=all_threads,
        trace_only=trace_only,
    )
    return Window(name, options, max_seconds, max_bytes, max_events)


def default_max_events() -> float:
    """Return STAGESPAN_PROFILER_MAX_EVENTS, or infinity if it is 0."""
    return int(settings.get("STAGESPAN_PROFILER_MAX_EVENTS")) or math.inf


def open_window() -> Window | None:
    """Return the open window of this process, or None."""
    return _turn.get(_OPEN)


def _warn_once(reason: str, sentence: str) -> None:
    if reason not in _warned:
        _warned.add(reason)
        LOGGER.warning("[Profiler] %s", sentence[:1].upper() + sentence[1:])


# A forked child has no profiler.
forks.after_in_child(_turn.clear)
