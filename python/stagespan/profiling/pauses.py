"""For how long the end of a profiler's window stops all Python threads: measured, and foretold."""

from __future__ import annotations

import collections
import math
import threading
import time
from collections.abc import Hashable
from dataclasses import dataclass, field

from stagespan import _core
from stagespan.contexts.requests import UnboundThread

_TICK_S = 0.001
_SHORTEST_PAUSE_NS = 5_000_000
"""Shorter than this, a thread may have waited for its turn: Python changes threads after 5 ms."""
_MOST_PAUSES = 64
_LONGEST_JOIN_S = 5.0

_FEWEST_EVENTS = 500
"""What a window costs at least is counted as the cost of so many events."""
_MOST_KEPT = 8
_LEAST_UNLOCKED_NS = 40_000_000
"""A request needs several turns of the interpreter's lock, and waits for each of them."""
_MARGIN = 2.0
"""A pause depends on what else the machine does, so the bound is this times what was measured."""


class PauseWatch:
    """A thread that takes the time whenever it can run, from `begin` to `end`.

    It sleeps until `begin`, so that what it measures costs nothing before.
    """

    def __init__(self) -> None:
        self.longest_ns = 0
        """The longest time for which the thread could not run, by the clock of the core."""
        self.pauses: list[tuple[int, int]] = []
        """The longer pauses: when they began and ended, in Unix ns."""
        self._last_ns = 0
        self._is_over = False
        self._begun = threading.Lock()  # a plain lock: releasing it never waits
        self._begun.acquire()
        self._thread = UnboundThread(target=self._run, name="stagespan-pauses", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def begin(self) -> None:
        """Measure from now on. Has no effect if it measures already."""
        if not self._last_ns:
            self._last_ns = _core.now_ns()
            self._begun.release()

    def end(self) -> None:
        """End the thread, and measure the last pause."""
        self._is_over = True
        self.begin()
        self._thread.join(_LONGEST_JOIN_S)

    def _run(self) -> None:
        self._begun.acquire()
        tick_ns = 0  # the first time, it did not sleep
        while True:
            now_ns = _core.now_ns()
            pause_ns = now_ns - self._last_ns - tick_ns
            self.longest_ns = max(self.longest_ns, pause_ns)
            if pause_ns >= _SHORTEST_PAUSE_NS and len(self.pauses) < _MOST_PAUSES:
                self.pauses.append((self._last_ns, now_ns))
            if self._is_over:
                return
            self._last_ns = now_ns
            tick_ns = int(_TICK_S * 1e9)
            time.sleep(_TICK_S)


def _latest() -> collections.deque[float]:
    return collections.deque(maxlen=_MOST_KEPT)


@dataclass(slots=True)
class _Costs:
    """What the latest windows with the same options have cost, in ns."""

    stop: collections.deque[float] = field(default_factory=_latest)
    """The profiler's end, for each event."""
    check: collections.deque[float] = field(default_factory=_latest)
    """What is done before it, which does not depend on the events."""
    write: collections.deque[float] = field(default_factory=_latest)
    """For each event, if the process itself writes the trace."""
    fork: collections.deque[float] = field(default_factory=_latest)
    """The fork, if a child writes the trace."""
    unlocked: collections.deque[float] = field(default_factory=_latest)
    """The longest pause of a thread, if other threads have the interpreter's lock all the time. It
    does not depend on the events."""


_costs: dict[Hashable, _Costs] = {}
"""By the options of the window."""


def note_stop(options: Hashable, events: int | None, stop_ns: int, whole_ns: int) -> None:
    """Note what the end of a window has cost, of which ``stop_ns`` are the profiler's own end."""
    if events is not None:
        costs = _costs.setdefault(options, _Costs())
        costs.stop.append(stop_ns / max(events, _FEWEST_EVENTS))
        costs.check.append(whole_ns - stop_ns)


def note_write(options: Hashable, events: int | None, write_ns: int) -> None:
    """Note for how long this process has written the trace of a window."""
    if events is not None:
        costs = _costs.setdefault(options, _Costs())
        costs.write.append(write_ns / max(events, _FEWEST_EVENTS))


def note_fork(options: Hashable, fork_ns: int) -> None:
    """Note for how long a fork has stopped this process."""
    _costs.setdefault(options, _Costs()).fork.append(fork_ns)


def note_unlocked(options: Hashable, longest_ns: int) -> None:
    """Note the longest pause around the end of a window that has left the lock to others."""
    _costs.setdefault(options, _Costs()).unlocked.append(longest_ns)


def bound_ns(options: Hashable, max_events: float, *, in_child: bool) -> int | None:
    """Return an upper bound of the longest pause that the end of a window causes, in ns.

    It follows from what earlier windows with the same options have cost in this process. `in_child`
    says whether a child will write the trace. None if this is not known, or if there is no limit.
    """
    costs = _costs.get(options)
    if costs is not None and costs.unlocked:
        return round(_MARGIN * max(*costs.unlocked, _LEAST_UNLOCKED_NS))
    if costs is None or not costs.stop or math.isinf(max_events):
        return None
    events = max(max_events, _FEWEST_EVENTS)
    if in_child and costs.fork:
        written_ns = max(costs.fork)
    elif costs.write:
        written_ns = max(costs.write) * events
    else:
        return None
    return round(_MARGIN * max(max(costs.stop) * events, *costs.check, written_ns))
