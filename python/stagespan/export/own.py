"""This process, as a monitoring system sees it."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable

from stagespan import _core
from stagespan.errors import StagespanError
from stagespan.export.figures import Figures
from stagespan.export.requests import Part
from stagespan.export.totals import Exemplars, Gauges, Group, Process, Totals
from stagespan.export.traces import Requests, Rules
from stagespan.recording.finding import open_recording


class Own:
    """The recording of this process, which is read like that of another one."""

    def __init__(self, rules: Rules | None = None) -> None:
        """With ``rules``, `complete` returns the requests that they choose.

        Raises StagespanError if this process has no recording.
        """
        self._rules = rules
        self.losses: list[Callable[[], dict[str, int]]] = []
        """Functions that return what others have lost, by cause."""
        if _core.recording_place()["kind"] in ("off", "memory"):
            raise StagespanError(
                "This process has no recording to export: remove STAGESPAN_RECORDING=off, or see "
                "`stagespan doctor`."
            )
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        # A lock that another thread held during a fork would stay locked in the child.
        self._lock = threading.Lock()
        self._totals = Totals(None if self._rules is None else Requests(self._rules))
        self._process: Process | None = None

    def read(self, *, at_end: bool = False) -> None:
        """Read the recording again; with ``at_end`` for the last time."""
        if os.getpid() != self._pid:
            self._begin()
        try:
            copy = open_recording(self._pid, spans=self._rules is not None)
        except StagespanError:  # no span was opened yet
            return
        with self._lock:
            if self._process is None:
                self._process = Process(copy)
            self._totals.roles.learn(copy)
            self._totals.update(self._process, copy, at_end=at_end)

    def complete(self, *, at_end: bool = False) -> list[list[Part]]:
        """Return the parts of each request that has ended and was chosen, each one once."""
        with self._lock:
            return self._totals.complete(self._processes(), time.time_ns(), at_end=at_end)

    def _processes(self) -> list[Process]:
        return [] if self._process is None else [self._process]

    @property
    def identity(self) -> str | None:
        """What identifies this process, as in `Recording.identity`; None before it was read."""
        return None if self._process is None else self._process.identity

    def totals(self) -> dict[Group, Figures]:
        """Return the figures of this process."""
        with self._lock:
            return self._totals.sums(self._processes())

    def lost(self) -> dict[str, int]:
        """Return what others have lost, by cause. What the process has lost is in its figures."""
        found: Counter[str] = Counter()
        for losses in self.losses:
            found.update(losses())
        return dict(found)

    def exemplars(self) -> Exemplars:
        """Return the latest request of each bucket."""
        with self._lock:
            return {key: dict(found) for key, found in self._totals.exemplars.items()}

    def gauges(self) -> Gauges:
        """Return what is going on in this process."""
        with self._lock:
            return self._totals.gauges(self._processes())
