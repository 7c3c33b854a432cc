"""This process, as a monitoring system sees it."""

from __future__ import annotations

import os

from stagespan import _core
from stagespan.errors import StagespanError
from stagespan.export.totals import Exported, ReadProcess, Totals
from stagespan.export.traces import Pending, Rules
from stagespan.recording.finding import open_recording


class ThisProcess(Exported):
    """The recording of this process, which is read like that of another one."""

    def __init__(self, rules: Rules | None = None) -> None:
        """With ``rules``, `complete` returns the requests that they choose.

        Raises StagespanError if this process has no recording.
        """
        self._rules = rules
        if _core.recording_place()["kind"] in ("off", "memory"):
            raise StagespanError(
                "This process has no recording to export: remove STAGESPAN_RECORDING=off, or see "
                "`stagespan doctor`."
            )
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        # A lock that another thread held during a fork would stay locked in the child.
        super().__init__(Totals(None if self._rules is None else Pending(self._rules)))

    def read(self, *, at_end: bool = False) -> None:
        """Read the recording again; with ``at_end`` for the last time."""
        if os.getpid() != self._pid:
            losses = self.losses
            self._begin()
            self.losses = losses
        try:
            copy = open_recording(self._pid, spans=self._rules is not None)
        except StagespanError:  # no span was opened yet
            return
        with self._lock:
            if not self._processes:
                self._processes[copy.identity] = ReadProcess(copy)
            for process in self._processes.values():
                self._totals.update(process, copy, at_end=at_end)

    def choose(self, rules: Rules) -> None:
        """Choose by other rules those requests that end from now on."""
        with self._lock:
            self._rules, self._totals.requests = rules, Pending(rules)

    @property
    def identity(self) -> str | None:
        """What identifies this process, as in `Recording.identity`; None before it was read."""
        return next(iter(self._processes), None)
