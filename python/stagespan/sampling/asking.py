"""Samples of a live process, which it takes when it is asked."""

from __future__ import annotations

import os
import sys
import threading

from stagespan.errors import StagespanError
from stagespan.pages.page import Page
from stagespan.recording.asking import Asker, Progress, read_answer
from stagespan.sampling.page import print_sampled, sampled_page
from stagespan.sampling.result import Sampled, decoded
from stagespan.sampling.stages import command_line

INTERVAL_MS = 10.0
_PAUSE_S, _LONG_PAUSE_S = 3.0, 10.0
"""Between two rounds of `Rounds`, in which others can ask the process; the longer one follows a
refusal."""


def _answer_of(asker: Asker, seconds: float, progress: Progress | None = None) -> Sampled:
    """Have a process sample itself, and wait for the answer. Raises StagespanError."""
    asker.ask("sample", seconds=seconds, interval_ms=INTERVAL_MS)
    answer = asker.wait(progress)
    text = read_answer(os.path.dirname(asker.recording.path), str(answer.get("path")))
    try:
        return decoded(text)
    except ValueError as error:
        raise StagespanError(f"The answer of {asker.pid} is damaged: {error}.") from None


class Samples:
    """Where the time of a process went while it was sampled."""

    def __init__(self, which: str | int, seconds: float, progress: Progress | None = None) -> None:
        """Ask the process, and wait for the answer. Raises StagespanError."""
        with Asker(which) as asker:
            self.result = _answer_of(asker, seconds, progress)
            self.recording = asker.recording

    def page(self) -> Page:
        """Return a page with the result."""
        name = f"{self.recording.name} (pid {self.recording.pid})"
        return sampled_page(self.result, name, "stagespan show PID --sample SECONDS")

    def print(self) -> None:
        """Print the tables, and the command that times the suggested stages."""
        program = self.recording.program
        is_script = program.startswith("python ")
        parts = program.split()[1:] if is_script else ["-m", *program.split()]
        print_sampled(self.result, command_line(self.result.suggested_stages, parts), sys.stdout)


class Rounds:
    """Has a process sample itself again and again, in a thread, until `close`."""

    def __init__(self, which: str, seconds: float) -> None:
        """Each round takes some seconds."""
        self.latest: Sampled | None = None
        """What the latest round has found."""
        self.why_not: str | None = None
        """Why there was no answer to the latest round, as a sentence."""
        self._which, self._seconds = which, seconds
        self._lock = threading.Lock()
        self._asker: Asker | None = None
        self._ended, self._answered = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the end of the first round."""
        self._answered.wait()

    def close(self) -> None:
        """End the samples."""
        self._ended.set()
        with self._lock:
            if self._asker is not None:
                self._asker.cancel()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self.latest, self.why_not = self._round(), None
            except StagespanError as error:
                self.latest, self.why_not = None, str(error)
            self._answered.set()
            self._ended.wait(_PAUSE_S if self.why_not is None else _LONG_PAUSE_S)

    def _round(self) -> Sampled:
        with Asker(self._which) as asker:
            try:
                with self._lock:  # `close` must not use it after its end
                    self._asker = asker
                return _answer_of(asker, self._seconds)
            finally:
                with self._lock:
                    self._asker = None
