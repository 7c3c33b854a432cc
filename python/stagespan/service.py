"""The one background thread: it writes the log lines and keeps the snapshots of the past.

It is a daemon, started when it is first needed, and asleep while nothing happens. A forked child
has none until it needs one.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from stagespan import _core, context, device, lines, memory, settings
from stagespan.history import SPACING_S, History

_LONGEST_SLEEP_S = 60.0
_LONGEST_FORK_WAIT_S = 2.0
_LONGEST_DEVICE_WAIT_S = 2.0
_MOST_THREAD_NAMES = 1024

_on_tick: list[Callable[[], None]] = []
_on_exit: list[Callable[[], None]] = []


class _Service:
    """What belongs to one process; a forked child gets a new one."""

    def __init__(self) -> None:
        self.history: History[_core.Snapshot] = History()
        self._draining = threading.RLock()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._exited = False
        self._thread_names: dict[int, str] = {}

    # --- the thread -----------------------------------------------------------------------------

    def start(self) -> None:
        with self._starting:
            if self._stopping or (self._thread is not None and self._thread.is_alive()):
                return
            thread = threading.Thread(target=self._run, name="stagespan", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is shutting down: the exit handler drains
                return
            self._thread = thread

    def _run(self) -> None:
        sleep_s, before = SPACING_S, -1
        while not self._stopping:
            _core.wait_for_work(sleep_s)
            self.drain()
            for callback in tuple(_on_tick):
                _guarded(callback)
            snapshot = _guarded(self._snapshot_if_due)
            if snapshot is not None:
                spans = _spans_in(snapshot)
                # Without spans nothing changes: sleep longer and longer, but never miss a minute.
                sleep_s = SPACING_S if spans != before else min(2 * sleep_s, _LONGEST_SLEEP_S)
                before = spans

    def _snapshot_if_due(self) -> _core.Snapshot | None:
        now = _core.now_ns()
        last = self.history.nearest(now)
        # The system's clock may have been set back since.
        if last is not None and 0 <= now - last.time_ns < 0.9 * SPACING_S * 1e9:
            return None
        snapshot = _core.snapshot()
        self.history.add(snapshot)
        return snapshot

    def pause(self, timeout_s: float) -> bool:
        """Keep lines from being written until `resume`; False if that took too long to reach."""
        return self._draining.acquire(timeout=timeout_s)

    def resume(self) -> None:
        """Let lines be written again; the thread that called `pause` calls it."""
        self._draining.release()

    # --- the lines ------------------------------------------------------------------------------

    def drain(self, timeout_s: float = -1, *, everything: bool = False) -> bool:
        """Write the lines of all that has finished; False if another thread was at it too long.

        Lines whose device time is pending wait for it, unless ``everything`` is asked for.
        """
        if not self._draining.acquire(timeout=timeout_s):
            return False
        # A last drain asks for all that there is; where no device is timed, nothing is kept back.
        is_last = everything and device.is_attached()
        try:
            if lines.is_wanted():
                while finished := _core.drain_completions(is_last):
                    self._tell(finished)
            else:
                # Summed up: many short stages would keep this thread, and with it theirs, busy.
                for stage, peak in _core.drain_peaks(is_last).items():
                    memory.note_rss(stage, peak)
        finally:
            self._draining.release()
        return True

    def _tell(self, finished: list[tuple[str, int, int, int, int, int, int]]) -> None:
        rank = settings.rank()
        self._learn_thread_names()
        for stage, begin_ns, end_ns, thread, native, peak, flags in finished:
            is_device = bool(flags & _core.COMPLETION_DEVICE_MEMORY)
            records = [lines.duration_line(stage, begin_ns, end_ns)]
            if peak >= 0:
                kind = "Peak Memory" if is_device else "Peak RSS"
                records.append(lines.memory_line(stage, rank, kind, peak))
                if not is_device:
                    memory.note_rss(stage, peak)
            name = self._thread_names.get(thread, f"Thread-{native}")
            for record in records:
                lines.date(record, end_ns, thread, name)
                _guarded(lambda record=record: lines.emit(record))  # type: ignore[misc]

    def _learn_thread_names(self) -> None:
        # Threads that have ended since are remembered, as long as there are not too many.
        if len(self._thread_names) > _MOST_THREAD_NAMES:
            self._thread_names.clear()
        for thread in threading.enumerate():
            if thread.ident is not None:
                self._thread_names[thread.ident] = thread.name

    # --- the end --------------------------------------------------------------------------------

    def exit(self) -> None:
        """Stop the thread, write what is left, then let the reports be written. Once a process."""
        self._stopping = True
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            _core.wake_service()
            thread.join(timeout=5.0)
        _guarded(lambda: device.wait(_LONGEST_DEVICE_WAIT_S))
        self.drain(timeout_s=5.0, everything=True)
        if not self._exited:
            self._exited = True
            for callback in tuple(_on_exit):
                _guarded(callback)


def _guarded(callback: Callable[[], Any]) -> Any:
    """Call, and count an exception instead of passing it on: nobody here could handle it."""
    try:
        return callback()
    except Exception:
        _core.count_lost("hook_errors")
        logging.getLogger("stagespan").debug("[Profiler] in the service thread", exc_info=True)
        return None


def _spans_in(snapshot: _core.Snapshot) -> int:
    return sum(stage.count for stage in snapshot.stages().values())


_service = _Service()


# --- what other rooms use -------------------------------------------------------------------------


def ensure_running() -> None:
    """Start the background thread of this process if it does not run yet."""
    _service.start()


def flush(timeout_s: float = 10.0) -> bool:
    """Wait until the device time of spans that have ended is known, and their lines are written.

    Returns False when that took longer than ``timeout_s`` seconds, because a device still works or
    a log handler blocks.
    """
    until = time.monotonic() + max(timeout_s, 0.0)
    is_resolved = device.wait(max(timeout_s, 0.0))
    return _service.drain(timeout_s=max(until - time.monotonic(), 0.0)) and is_resolved


def history() -> History[_core.Snapshot]:
    """The snapshots of this process's past."""
    return _service.history


def on_tick(callback: Callable[[], None]) -> None:
    """Call ``callback`` in the background thread each time it wakes, at least once a minute."""
    _on_tick.append(callback)


def on_exit(callback: Callable[[], None]) -> None:
    """Call ``callback`` once when the process ends, after the last line and while logging works."""
    _on_exit.append(callback)


# --- processes ------------------------------------------------------------------------------------


def _exit() -> None:
    _service.exit()


def _exit_as_worker(_: object = None) -> None:
    """Have multiprocessing, whose children leave without atexit, call the exit handler."""
    from multiprocessing import util

    util.Finalize(None, _exit, exitpriority=1)


def _exit_once_started() -> None:
    """Do so a bit later: multiprocessing clears the finalizers when it starts a worker's work."""
    from multiprocessing import util

    util.register_after_fork(_service, _exit_as_worker)


_forking = threading.local()


def _before_fork() -> None:
    # A file that the service thread is writing to at this moment would stay locked in the child.
    _forking.service = _service if _service.pause(_LONGEST_FORK_WAIT_S) else None


def _after_fork_in_parent() -> None:
    # Nothing was paused when this module was imported between the two.
    service = getattr(_forking, "service", None)
    if service is not None:
        service.resume()


def _after_fork_in_child() -> None:
    global _service
    _service = _Service()
    if "multiprocessing.util" in sys.modules:
        _exit_once_started()


def _prepare_worker() -> None:
    """Be called at the end of a worker that multiprocessing started and that imports this late."""
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return
    if process.parent_process() is not None:
        _exit_as_worker()
    elif getattr(process.current_process(), "_inheriting", False):
        _exit_once_started()


on_tick(memory.watch_accelerator)
on_tick(device.watch)
context.register_service(ensure_running)
os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
# logging registered its own handler when it was imported, above: this one runs before it.
atexit.register(_exit)
_prepare_worker()
