"""The background thread, which writes log lines and takes snapshots for time windows.

It is a daemon thread that starts on first use and sleeps while nothing happens. A forked child
starts its own thread when it needs one.
"""

from __future__ import annotations

import atexit
import collections
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from stagespan import _core
from stagespan.contexts import context, requests
from stagespan.device import memory, times
from stagespan.live import lines
from stagespan.live.history import SPACING_S, History
from stagespan.process import forks, run, termination, threads

_LONGEST_SLEEP_S = 60.0  # `tick_every` can shorten it
_GREENLET_SLEEP_S = 0.1
_LONGEST_FORK_WAIT_S = 0.01
_LONGEST_WAIT_FOR_FORKS_S = 1.0
_LONGEST_DEVICE_WAIT_S = 2.0
_LONGEST_EXIT_WAIT_S = 5.0
_MOST_THREAD_NAMES = 1024

_longest_sleep_s = _LONGEST_SLEEP_S
_on_tick: list[Callable[[], None]] = []
_on_exit: list[Callable[[], None]] = []


class _Service:
    """The state of the background thread in one process; a forked child gets a new object."""

    def __init__(self) -> None:
        self.history: History[_core.PackedSnapshot] = History()
        self._has_warned_of_cut_off = False
        # Log handlers run while these two locks are held, so garbage collections and signal
        # handlers can run too. Both locks know their owner: see `drain` and `pause`.
        self._draining = threading.RLock()  # held during a `drain`
        self._line = threading.RLock()  # held while one line is written; a fork takes it
        self._threads: dict[str, threading.Thread] = {}
        self._finished: collections.deque[tuple[str, int, int, int, int, int, int, int]] = (
            collections.deque()
        )
        self._stopping = False
        self._exited = False
        self._ending = threading.RLock()
        self._deadline_s = math.inf
        self._thread_names: dict[int, str] = {}

    # --- the thread -----------------------------------------------------------------------------

    @property
    def _thread(self) -> threading.Thread | None:
        return self._threads.get("service")

    def start(self) -> None:
        running = self._thread
        if self._stopping or forks.is_forking_here() or (running is not None and _runs(running)):
            return
        if running is not None:
            self._threads.pop("service", None)
        thread = requests.UnboundThread(
            target=self._run, args=(threading.get_native_id(),), name="stagespan", daemon=True
        )
        # If several callers get here at the same time, one of them starts the thread. There is no
        # lock, because a handler that interrupts that caller may get here too.
        if self._threads.setdefault("service", thread) is not thread:
            return
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down, and the exit handler drains
            self._threads.pop("service", None)

    def _run(self, starter: int) -> None:
        """Write lines and take snapshots; ``starter`` is the native id of the starting thread."""
        # gevent and eventlet replace threads by greenlets of the thread that starts them. If one
        # waits in the extension, all greenlets of that thread wait; if it sleeps, they run.
        is_greenlet = threading.get_native_id() == starter
        sleep_s, before = SPACING_S, -1
        while not self._stopping:
            if is_greenlet:
                time.sleep(min(_GREENLET_SLEEP_S, _longest_sleep_s))
            else:
                _core.service_wait(min(sleep_s, _longest_sleep_s))
            self.drain()
            for callback in tuple(_on_tick):
                _guarded(callback)
            _guarded(self._warn_if_cut_off)
            _guarded(requests.settle_figures)
            snapshot = _guarded(self._snapshot_if_due)
            if snapshot is not None:
                spans = sum(stage.count for stage in snapshot.stages().values())
                # While there are no new spans, double the sleep each time, up to a minute.
                sleep_s = SPACING_S if spans != before else min(2 * sleep_s, _LONGEST_SLEEP_S)
                before = spans

    def _warn_if_cut_off(self) -> None:
        if _core.recording_is_cut_off() and not self._has_warned_of_cut_off:
            self._has_warned_of_cut_off = True
            why = _core.recording_place()["why"]
            self.write(lines.warning_line(f"Nothing is recorded any more, because {why}."))

    def _snapshot_if_due(self) -> _core.Snapshot | None:
        now = _core.now_ns()
        last = self.history.nearest(now)
        # `now - last.time_ns` is negative if the system's clock was set back in the meantime.
        if last is not None and 0 <= now - last.time_ns < 0.9 * SPACING_S * 1e9:
            return None
        snapshot = _core.snapshot()
        self.history.add(snapshot.pack())
        return snapshot

    def pause(self, timeout_s: float) -> bool:
        """Prevent other threads from writing lines until `resume` is called.

        Returns False if the current line is not finished within ``timeout_s`` seconds. Does not
        wait if this thread is itself writing a line and was interrupted by a handler.
        """
        return self._line.acquire(timeout=timeout_s)

    def resume(self) -> None:
        """Allow lines to be written again. Call it in the thread that called `pause`."""
        self._line.release()

    # --- the lines ------------------------------------------------------------------------------

    def drain(self, timeout_s: float = -1, *, everything: bool = False) -> bool:
        """Write the lines of all runs that have finished.

        Lines whose device time is pending wait for it, unless ``everything`` is True. Returns False
        if not all lines were written within ``timeout_s`` seconds; a negative number means no
        limit. Also returns False, at once, in a signal handler or finalizer that has interrupted
        this thread while it was logging; the interrupted code then writes the remaining lines.
        """
        if lines.is_mine(self._draining) or lines.is_in_handler() or forks.is_forking_here():
            return False
        until_s = time.monotonic() + timeout_s if timeout_s >= 0 else math.inf
        # If no device is timed, no line waits for a device time.
        is_last = everything and times.is_attached()
        try:
            if not self._draining.acquire(timeout=timeout_s):
                return False
            if not lines.is_enabled():
                _core.device_drop_completions(is_last)
                self._finished.clear()
                return True
            self._finished.extend(_core.device_drain_completions(is_last))
            self._learn_thread_names()
            is_service = threading.current_thread() is self._thread
            while self._finished:
                if (is_service and self._stopping) or time.monotonic() > until_s:
                    return False
                self._write_lines(self._finished.popleft())
            return True
        finally:
            # An interrupt may have come between taking the lock and returning from `acquire`.
            if lines.is_mine(self._draining):
                self._draining.release()

    def _write_lines(self, finished: tuple[str, int, int, int, int, int, int, int]) -> None:
        stage, begin_ns, end_ns, thread, native, peak, flags, number = finished
        is_device = bool(flags & _core.COMPLETION_DEVICE_MEMORY)
        id_ = _core.request_known(number)[0] if number else ""
        request = requests.shown_id(id_) if id_ else None
        records = [lines.duration_line(stage, begin_ns, end_ns, request)]
        if peak >= 0:
            kind = "Peak Memory" if is_device else "Peak RSS"
            records.append(lines.memory_line(stage, run.rank(), kind, peak, request))
        name = self._thread_names.get(thread, f"Thread-{native}")
        for record in records:
            lines.date(record, end_ns, thread, name)
            self.write(record)

    def write(self, record: logging.LogRecord) -> None:
        """Write a line. A fork waits until it is written, and it waits until a fork is done."""
        until_s = time.monotonic() + _LONGEST_WAIT_FOR_FORKS_S
        # Locks are not fair: without this, a thread that forks would rarely get this one.
        while forks.is_forking_elsewhere() and time.monotonic() < until_s:
            time.sleep(0.0005)
        with self._line:
            _guarded(lambda: lines.emit(record))

    def _learn_thread_names(self) -> None:
        # Names of threads that have ended are kept, up to a limit.
        if len(self._thread_names) > _MOST_THREAD_NAMES:
            self._thread_names.clear()
        for thread in threads.running():
            if thread.ident is not None:
                self._thread_names[thread.ident] = thread.name

    # --- the end --------------------------------------------------------------------------------

    def exit(self, within_s: float = math.inf) -> None:
        """Stop the thread, write the remaining lines, then run the exit callbacks once.

        ``within_s`` limits the total time that this and every later `flush` wait.
        """
        self._deadline_s = min(self._deadline_s, time.monotonic() + within_s)
        # The SIGTERM thread can get here while the main thread exits.
        with self._ending:
            self._stopping = True
            thread = self._thread
            # A thread that another thread is starting at this moment ends by itself.
            is_started = thread is not None and thread.ident is not None
            if thread is not None and is_started and thread is not threading.current_thread():
                _core.service_wake()
                thread.join(timeout=self.at_most(_LONGEST_EXIT_WAIT_S))
            _guarded(lambda: times.wait(self.at_most(_LONGEST_DEVICE_WAIT_S)))
            if not self.drain(timeout_s=self.at_most(_LONGEST_EXIT_WAIT_S), everything=True):
                _core.lost_add("log_lines", len(self._finished))
            if not self._exited:
                self._exited = True
                for callback in tuple(_on_exit):
                    _guarded(callback)

    def at_most(self, timeout_s: float) -> float:
        """Return ``timeout_s``, or less if the process has less time left."""
        return max(min(timeout_s, self._deadline_s - time.monotonic()), 0.0)


def _guarded(callback: Callable[[], Any]) -> Any:
    """Call `callback` and return its result; count an exception and return None.

    The exception is not raised, because the background thread has no caller to handle it.
    """
    try:
        return callback()
    except Exception:
        _core.lost_add("hook_errors")
        logging.getLogger("stagespan").debug("[Profiler] in the service thread", exc_info=True)
        return None


def _runs(thread: threading.Thread) -> bool:
    """Whether a thread is running or starting."""
    return thread.ident is None or thread.is_alive()


_service = _Service()


# --- the interface for other modules --------------------------------------------------------------


def ensure_running() -> None:
    """Start the background thread of this process if it is not running."""
    _service.start()


def flush(timeout_s: float = 10.0) -> bool:
    """Wait until the device times of ended spans are known and their log lines are written.

    Returns False if that takes longer than ``timeout_s`` seconds, because a device is still working
    or a log handler blocks. Also returns False if a signal handler or finalizer that has
    interrupted logging in this thread calls it; the interrupted code then writes the lines.
    """
    timeout_s = _service.at_most(timeout_s)
    until = time.monotonic() + timeout_s
    is_resolved = times.wait(timeout_s)
    return _service.drain(timeout_s=max(until - time.monotonic(), 0.0)) and is_resolved


def settle() -> None:
    """Wait up to 10 s until the device times of ended spans are known, without writing lines."""
    times.wait(10.0)


def history() -> History[_core.PackedSnapshot]:
    """Return the snapshots that this process has taken."""
    return _service.history


def on_tick(callback: Callable[[], None]) -> None:
    """Call ``callback`` in the background thread each time it wakes, at least once a minute."""
    _on_tick.append(callback)


def tick_every(seconds: float) -> None:
    """Make the background thread wake at least every ``seconds`` seconds (0.05 or more)."""
    global _longest_sleep_s
    _longest_sleep_s = min(_longest_sleep_s, max(seconds, 0.05))


def warn(message: str) -> None:
    """Log a warning from the background thread, so that it cannot block a fork."""
    _service.write(lines.warning_line(message))


def on_exit(callback: Callable[[], None]) -> None:
    """Call ``callback`` once when the process ends, after the last line, while logging works."""
    _on_exit.append(callback)


def exit_soon() -> None:
    """Run the exit handler now, waiting at most `termination.WRITING_S` seconds in total."""
    _service.exit(termination.WRITING_S)


# --- processes ------------------------------------------------------------------------------------


def _exit() -> None:
    _service.exit()


_paused = threading.local()


def _before_fork() -> None:
    # A file that the service thread is writing to at the fork would stay locked in the child.
    _paused.service = _service if _service.pause(_LONGEST_FORK_WAIT_S) else None


def _after_fork_in_parent() -> None:
    if _paused.service is not None:
        _paused.service.resume()


def _after_fork_in_child() -> None:
    global _service
    _service = _Service()
    if _paused.service is None:
        lines.renew_streams()


on_tick(memory.watch_accelerator)
on_tick(times.watch)
context.register_service(ensure_running)
forks.around(_before_fork, _after_fork_in_parent, _after_fork_in_child)
# This runs before the exit handler that logging registered when it was imported.
atexit.register(_exit)
forks.at_worker_exit(_exit, priority=1)
