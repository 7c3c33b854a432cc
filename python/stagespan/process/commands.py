"""What other programs of the same user ask of this process, through its recording.

A thread of the extension waits for commands (csrc/bindings/listener.cpp). It exists from the import
on if STAGESPAN_LISTEN is set or under `stagespan run`. Otherwise the first command starts it, in
the next span that opens, and it ends 60 s after the last one. It works in turns: `turn` returns
when it wants to be called again, so that a fork can end the thread between two turns.
"""

from __future__ import annotations

import atexit
import math
import os
import time
from collections.abc import Callable, Generator
from typing import Any

from stagespan import _core
from stagespan.errors import StagespanError
from stagespan.process import forks, imports
from stagespan.process.files import json_bytes

Answer = dict[str, Any]
Work = Generator[tuple[Answer, float], None, Answer]
"""What a command does: yields what it has done so far, and after how many seconds it goes on, and
returns the answer. Raises StagespanError if it refuses the command. `Cancelled` is thrown into it
once; it may go on until it has ended what it does."""

_VERBS = {
    "sample": "stagespan.sampling.on_request:sample",
    "capture": "stagespan.profiling.on_request:requested_capture",
    "prepare_capture": "stagespan.profiling.on_request:prepare_capture",
    "cancel_capture": "stagespan.profiling.on_request:cancel_capture",
    "watch": "stagespan.signature.watch:watched",
}
"""The functions that begin a command, by its verb. They take its arguments by name."""
_RETRY_S, _MOST_RETRIES = 0.001, 1000
_NEVER = math.inf


class Cancelled(Exception):
    """The program that asked does not want the answer any more."""


class _Listener:
    """The command in progress. Only one thread uses it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._number = 0
        """Of the latest command that was begun, or could not be."""
        self._retries = 0
        self._work: Work | None = None
        """That of this command while it is in progress."""
        self._is_cancelled = False
        self._due_s = _NEVER

    def turn(self) -> float:
        """Begin the latest command or go on with it. Returns the seconds until the next turn."""
        number, cancelled, text = _core.command_read()
        if number != self._number and number != 0:
            wish = _wish(number, text)
            if wish is None and self._retries < _MOST_RETRIES:  # it is being written
                self._retries += 1
                return _RETRY_S
            self._number, self._retries = number, 0
            if self._work is not None:  # whoever asked for it has gone
                self._work.close()
                self._work = None
            if cancelled != number:
                self._begin(number, wish)
        elif self._work is not None and (
            cancelled == self._number or time.monotonic() >= self._due_s
        ):
            self._advance(self._work, is_cancelled=cancelled == self._number)
        return _NEVER if self._work is None else max(self._due_s - time.monotonic(), 0.0)

    def _begin(self, number: int, wish: Answer | None) -> None:
        # At once, because the imports can take longer than the program waits for a sign of life.
        _core.command_answer(number, b'{"number":%d,"state":"working"}' % number)
        try:
            verb, arguments = (None, {}) if wish is None else (wish["verb"], wish["arguments"])
            place = _VERBS.get(str(verb))
            if place is None:
                version = imports.load("stagespan").__version__
                raise StagespanError(
                    f"The process has stagespan {version}, which does not know this command: use"
                    " the same version for both."
                )
            module, _, name = place.partition(":")
            begin: Callable[..., Work] = getattr(imports.load(module), name)
            self._work, self._is_cancelled = begin(**arguments), False
        except Exception as error:
            _refuse(number, error)
            return
        self._advance(self._work)

    def _advance(self, work: Work, *, is_cancelled: bool = False) -> None:
        try:
            if is_cancelled and not self._is_cancelled:
                self._is_cancelled = True
                done, pause_s = work.throw(Cancelled())
            else:
                done, pause_s = next(work)
        except StopIteration as end:
            self._work = None
            _answer(self._number, "done", end.value)
        except Exception as error:
            self._work = None
            _refuse(self._number, error)
        else:
            self._due_s = time.monotonic() + pause_s
            _answer(self._number, "working", done)


def _wish(number: int, text: bytes) -> Answer | None:
    """Return a command; None if the text is not that of this number."""
    try:
        wish = imports.load("json").loads(text)
        return wish if wish["number"] == number else None
    except (ValueError, KeyError, TypeError):
        return None


def _answer(number: int, state: str, facts: Answer) -> None:
    answer = json_bytes({**facts, "number": number, "state": state})
    if not _core.command_answer(number, answer):
        why = f"The answer has {len(answer):,} bytes, which is more than the recording takes."
        _core.command_answer(number, json_bytes({"number": number, "state": "refused", "why": why}))


def _refuse(number: int, error: Exception) -> None:
    if isinstance(error, Cancelled):
        why = "The command was cancelled."
    elif isinstance(error, StagespanError):
        why = str(error)
    else:
        why = f"The process could not do this: {type(error).__name__}: {error}"[:1000]
    _answer(number, "refused", {"why": why})


_listener = _Listener()


def turn() -> float:
    """Handle what was asked. Called by the thread of the extension, and by nothing else."""
    global _listener
    if _listener.pid != os.getpid():  # a child that was forked without Python's handlers
        _listener = _Listener()
    return _listener.turn()


def listen() -> None:
    """Wait for commands until the process ends."""
    _core.listener_start()


def _after_fork_in_child() -> None:
    global _listener
    _listener = _Listener()
    _core.listener_after_fork(True)


forks.around(
    _core.listener_before_fork, lambda: _core.listener_after_fork(False), _after_fork_in_child
)
atexit.register(_core.listener_stop)
forks.at_worker_exit(_core.listener_stop, priority=2)
