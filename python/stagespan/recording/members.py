"""The stages of the processes that a command has started, from their recordings."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from stagespan.errors import StagespanError
from stagespan.recording.reading import Recording
from stagespan.report import merged

if TYPE_CHECKING:
    from stagespan.process.command import Command
    from stagespan.report.merged import Stages


class Members:
    """The processes whose recordings are in the folder of a command, except for its own."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self._removed: Stages = {}
        self._reading = threading.RLock()

    def remove_ended(self) -> None:
        """Read and remove the recordings of ended processes."""
        if not self._reading.acquire(blocking=False):
            return
        try:
            for copy in self._recordings():
                if copy.has_gone:
                    os.unlink(copy.path)
                    self._removed = merged.merged([self._removed, copy.snapshot().stages()])
        except OSError:
            return
        finally:
            self._reading.release()

    def recorded(self) -> list[Stages]:
        """Return the stages in recordings, of processes that are alive or not."""
        with self._reading:
            found = [copy.snapshot().stages() for copy in self._recordings()]
            return [stages for stages in (self._removed, *found) if stages]

    def handed_over(self) -> list[Stages]:
        """Return the stages of processes whose recordings could not be read at their end."""
        stages: list[Stages] = []
        for path in self._command.figures():
            try:
                stages.append(merged.decoded(path.read_bytes()))
            except (OSError, ValueError):  # the disk was full
                continue
        return stages

    def _recordings(self) -> list[Recording]:
        recordings = []
        for path in self._command.recordings():
            try:
                recordings.append(Recording(path, everything=False))
            except StagespanError:  # it was cut off, or is damaged
                continue
        return recordings
