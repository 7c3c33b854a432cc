"""Asks a live process to do something, through its recording, and waits for the answer."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Callable, Mapping
from typing import Any

from stagespan import _core
from stagespan.errors import StagespanError
from stagespan.pages.amounts import quoted
from stagespan.process.files import cannot_open
from stagespan.process.times import TICKS_PER_S, stat_fields, stat_folder
from stagespan.recording import finding
from stagespan.recording.reading import Recording, open_file

_LONGEST_SILENCE_S = 2.0
"""How long a process has to notice a command, without the time in which it waits for a CPU."""
_LONGEST_WAIT_S = 30.0
"""How long it has with that time."""
_POLL_S, _LIFE_S = 0.02, 0.5
_IN_SPANS, _AT_ONCE, _NOBODY = range(3)
"""Who listens, by the numbers that `_core` uses."""
_MOST_ANSWER_BYTES = 64 << 20
Progress = Callable[[Mapping[str, Any]], None]


class Asker:
    """Asks one process, in a `with` block. Others are refused meanwhile.

    Only the user that the process belongs to can ask it, and root.
    """

    def __init__(self, which: str | int) -> None:
        """``which`` is a process id, or the file of a recording. Raises StagespanError."""
        self.recording = finding.open_recording(which, spans=False)
        self.pid = self.recording.pid
        self._number = 0
        self._must_live()
        self._handle = _open_to_write(self.recording)

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others ask the process."""
        os.close(self._handle)

    @property
    def is_listening(self) -> bool:
        """Whether the process answers at once, also if no span opens in it."""
        return self._state()[1] == _AT_ONCE

    def ask(self, verb: str, **arguments: object) -> None:
        """Send a command. Raises StagespanError if another program is asking the process."""
        if not self._lock():
            raise StagespanError(
                f"Another program is asking the process {self.pid} at the moment"
                f"{self._doing_for_others()}: wait until it has its answer, or end it."
            )
        number, *_ = self._state()
        self._number = number % 0xFFFFFFFF + 1
        wish = {"number": self._number, "verb": verb, "arguments": arguments}
        text = json.dumps(wish).encode()
        try:
            _core.command_write(self._handle, self._number, text)
            # A thread that is not in this copy has begun after the command, and looks for one.
            self.recording = self.recording.refresh()
            _core.command_ask_threads(self._handle, self.recording._copy)
        except OSError as error:
            raise self._cannot_ask(error) from None

    def wait(self, progress: Progress | None = None) -> dict[str, Any]:
        """Return the answer. Calls ``progress`` with each earlier part of it.

        Raises StagespanError if the process refuses, does not notice the command within 2 s (30 s
        if it waits for a CPU meanwhile), or dies or is stopped. An interrupt cancels the command.
        """
        try:
            return self._answer(progress or (lambda _: None))
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Ask the process to end the command. Any thread may call it while another one waits."""
        with contextlib.suppress(OSError):
            _core.command_cancel(self._handle, self._number)

    def cancel_others(self) -> bool:
        """End the command of another program. Returns False if none is asking the process."""
        if self._lock():
            return False
        self._number = self._state()[0]
        _core.command_cancel(self._handle, self._number)
        return True

    def _doing_for_others(self) -> str:
        number, _, _, answered, text = self._state()
        answer = _parsed(text, number) if answered == number else None
        return f", and {answer['doing']}" if answer is not None and "doing" in answer else ""

    def _lock(self) -> bool:
        """Take the lock of programs that ask. Returns False if another one has it."""
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def _answer(self, progress: Progress) -> dict[str, Any]:
        silence = _Silence(self.pid if self._has_same_pids() else None)
        looked_s = time.monotonic()
        before: dict[str, Any] = {}
        while True:
            _, listening, noticed, answered, text = self._state()
            answer = _parsed(text, self._number) if answered == self._number else None
            if answer is not None and answer["state"] == "done":
                return answer
            if answer is not None and answer["state"] == "refused":
                raise StagespanError(str(answer.get("why")))
            if answer is not None and answer != before:
                before = answer
                progress(answer)
            now_s = time.monotonic()
            if now_s - looked_s > _LIFE_S:
                looked_s = now_s
                self._must_live()
                silence.add_step()
                if answer is None and silence.is_over():
                    raise StagespanError(
                        self._why_silent(listening, is_noticed=noticed == self._number)
                    )
            time.sleep(_POLL_S)

    def _state(self) -> tuple[int, int, int, int, bytes]:
        try:
            return _core.command_state(self._handle)
        except OSError as error:
            raise self._cannot_ask(error) from None

    def _cannot_ask(self, error: OSError) -> StagespanError:
        if error.errno == errno.EMSGSIZE:
            return StagespanError("The command is too long: use shorter names and paths.")
        return StagespanError(
            f"The process {self.pid} cannot be asked through {self.recording.path}"
            f" ({error.strerror})."
        )

    def _must_live(self) -> None:
        """Raise StagespanError if the process has ended or is stopped."""
        state = self.recording.refresh().state if self._number else self.recording.state
        if state not in ("alive", "unknown"):
            raise StagespanError(
                f"The process {self.pid} has ended ({state}): `stagespan show {self.pid}` shows"
                " what it has recorded."
            )
        if self._is_stopped():
            raise StagespanError(
                f"The process {self.pid} is stopped by a signal, or by a debugger: `kill -CONT"
                f" {self.pid}` lets it go on."
            )

    def _is_stopped(self) -> bool:
        try:
            return self._has_same_pids() and stat_fields(stat_folder(self.pid))[0] in "Tt"
        except (OSError, IndexError):
            return False

    def _has_same_pids(self) -> bool:
        """Return False if the id of the process is another one's, or no one's, here."""
        return self.recording.pid_namespace == os.stat("/proc/self/ns/pid").st_ino

    def _why_silent(self, listening: int, *, is_noticed: bool) -> str:
        """Return why there is no answer, as a sentence."""
        pid, soon = self.pid, f"within {_LONGEST_SILENCE_S:g} s"
        if is_noticed:
            where = sorted({span["stage"] for span in self.recording.refresh().open_spans()})
            inside = f", in stage {quoted(where)}" if where else ""
            return (
                f"The process {pid} has noticed the command and cannot answer: code in C has held"
                f" the interpreter's lock for {_LONGEST_SILENCE_S:g} s or more{inside}. Wait until"
                f" it returns; `stagespan show {pid}` shows the open spans meanwhile."
            )
        if listening == _NOBODY:
            return (
                f"The process {pid} could not start a thread for commands: its limit of threads or"
                " memory is reached."
            )
        if listening == _AT_ONCE:
            return (
                f"The thread of the process {pid} that waits for commands did not run {soon}: the"
                " machine has no CPU time left, or the process is frozen."
            )
        return (
            f"The process {pid} is not listening: no span has opened in it {soon}. Start it with"
            " STAGESPAN_LISTEN=true, or by `stagespan run`, so that it also answers while it hangs"
            " or waits."
        )


class _Silence:
    """How long a process could have noticed a command and has not.

    A step of time does not count if threads of the process are ready to run at its end and the
    process has got less than half a CPU for each of them: the machine is too busy for it.
    """

    def __init__(self, pid: int | None) -> None:
        """``pid`` is None if the process cannot be looked up in /proc: then all time counts."""
        self._pid = pid
        self._began_s = self._step_s = time.monotonic()
        self._starved_s = 0.0
        self._cpu_s = self._threads_and_cpu_s()[1]

    def add_step(self) -> None:
        """End a step of time, and begin the next one."""
        now_s = time.monotonic()
        threads, cpu_s = self._threads_and_cpu_s()
        if cpu_s - self._cpu_s < threads * (now_s - self._step_s) / 2:
            self._starved_s += now_s - self._step_s
        self._step_s, self._cpu_s = now_s, cpu_s

    def is_over(self) -> bool:
        """Return whether the process has had enough time."""
        waited_s = self._step_s - self._began_s
        return waited_s - self._starved_s > _LONGEST_SILENCE_S or waited_s > _LONGEST_WAIT_S

    def _threads_and_cpu_s(self) -> tuple[int, float]:
        """Return how many threads are ready to run, and the CPU time of the process."""
        if self._pid is None:
            return 0, 0.0
        folder = stat_folder(self._pid)
        threads = 0
        try:
            for task in os.listdir(f"{folder}/task"):
                with contextlib.suppress(OSError, IndexError):  # a thread that has just ended
                    threads += stat_fields(f"{folder}/task/{task}")[0] == "R"
            user_ticks, system_ticks = stat_fields(folder)[11:13]
        except (OSError, ValueError):
            return 0, 0.0
        return threads, (int(user_ticks) + int(system_ticks)) / TICKS_PER_S


def read_answer(recording_folder: str, path: str) -> bytes:
    """Return the file of an answer, and remove it. Raises StagespanError.

    The file must be in the folder of the recording: the process chooses its name.
    """
    path_here = os.path.join(recording_folder, os.path.basename(path))
    handle = open_file(path_here)
    try:
        if os.fstat(handle).st_size > _MOST_ANSWER_BYTES:
            raise StagespanError(f"The answer in {path_here} is too large to be read.")
        with os.fdopen(os.dup(handle), "rb") as file:
            return file.read()
    finally:
        os.close(handle)
        with contextlib.suppress(OSError):
            os.unlink(path_here)


def _open_to_write(recording: Recording) -> int:
    """Open a recording's file for commands. Raises StagespanError if this user may not write it."""
    path = recording.path
    follow = 0 if path.startswith("/proc/") else os.O_NOFOLLOW
    try:
        handle = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | follow)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise StagespanError(
                f"The process {recording.pid} can only be asked by its own user, who may write to"
                f" {path}."
            ) from None
        raise cannot_open(path, error) from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise StagespanError(f"{path} is not the file of a recording.")
    return handle


def _parsed(text: bytes, number: int) -> dict[str, Any] | None:
    """Return an answer; None if it is being replaced, or is about another command."""
    try:
        answer = json.loads(text)
    except ValueError:
        return None
    if not isinstance(answer, dict) or answer.get("number") != number:
        return None
    return answer if answer.get("state") in ("working", "done", "refused") else None
