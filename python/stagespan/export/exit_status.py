"""How a process has ended, as the system tells those that are not its parent."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
from typing import TYPE_CHECKING, Literal, get_args

from stagespan.process.times import stat_fields, stat_folder
from stagespan.recording.reading import ENDED_STATES, runs, shows_this_namespace

if TYPE_CHECKING:
    from stagespan.recording.reading import Recording

End = Literal["exit", "signal", "killed", "crashed", "unknown"]
ENDS: tuple[End, ...] = get_args(End)
_STOPS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_GET_INFO = 0xC040FF0B
"""PIDFD_GET_INFO with a structure of 64 bytes: the mask is the first field, and the status the last
one. Linux 6.15 and later tell it once the parent has read it."""
_INFO_EXIT = 1 << 3
_EXIT_CODE = 49
"""The place of the status in `stat_fields`, which has it until the parent has read it."""


class Watch:
    """The exit status of a process, from the time on that this object was made."""

    def __init__(self, of: Recording, *, may_open: bool) -> None:
        """Without ``may_open``, no file is opened."""
        self._pid = of.pid
        self._handle = -1
        with contextlib.suppress(OSError):
            is_here = of.pid_namespace == os.stat("/proc/self/ns/pid").st_ino
            if may_open and is_here and of.state == "alive" and shows_this_namespace():
                self._handle = os.pidfd_open(of.pid)
                if not runs(of.pid, of.start_ticks):
                    self.close()

    def status(self) -> int | None:
        """Return the status as `os.waitpid` does; None if it is unknown, or the process runs."""
        if self._handle < 0:
            return None
        answer = bytearray(64)
        struct.pack_into("Q", answer, 0, _INFO_EXIT)
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._handle, _GET_INFO, answer)
            if struct.unpack_from("Q", answer)[0] & _INFO_EXIT:
                return int(struct.unpack_from("i", answer, 60)[0])
        # The process still has its number, because the handle is open and nobody has read it.
        with contextlib.suppress(OSError):
            fields = stat_fields(stat_folder(self._pid))
            if fields[0] in ENDED_STATES and len(fields) > _EXIT_CODE:
                return int(fields[_EXIT_CODE])
        return None

    def close(self) -> None:
        """Close the file."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def how(recording: Recording, status: int | None) -> End:
    """Return how the process of a recording has ended.

    exit: by itself. signal: by SIGTERM, SIGHUP or SIGINT. killed: by SIGKILL, or by something
    unknown while a span was open. crashed: by another signal. unknown: by something unknown while
    no span was open.
    """
    if recording.state == "exited":
        return "exit"
    if status is not None:
        if os.WIFEXITED(status):
            return "exit" if recording.stop_signal is None else "signal"
        number = os.WTERMSIG(status)
        return "killed" if number == signal.SIGKILL else "signal" if number in _STOPS else "crashed"
    if recording.stop_signal is not None:
        return "signal"
    return "killed" if recording.state == "died" else "unknown"
