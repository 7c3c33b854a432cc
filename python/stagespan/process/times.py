"""When processes of this machine started, and the present time on the same clock."""

from __future__ import annotations

import os
import time

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def stat_folder(pid: int) -> str:
    """Return the folder in /proc whose file `stat` is that of a process."""
    if pid != os.getpid():
        return f"/proc/{pid}"
    # In /proc/self/stat, qemu-user shows a time of its own. In a container with the /proc of
    # another one, the process has another number there.
    folder = f"/proc/self/task/{pid}"
    return folder if os.path.isdir(folder) else "/proc/self"


def stat_fields(folder: str) -> list[str]:
    """Return the fields of /proc/PID/stat from the third one, the state."""
    with open(f"{folder}/stat", encoding="utf-8", errors="replace") as file:
        # The second field is the command in parentheses, which can itself contain blanks.
        return file.read().rpartition(")")[2].split()


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in ticks of the system since the boot; None if unknown."""
    try:
        return int(stat_fields(stat_folder(pid))[19])
    except (OSError, ValueError, IndexError):
        return None


def now_ticks() -> int:
    """Return the present time in the same unit, rounded down."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_S)


def boot_s() -> int | None:
    """Return when the machine booted, in whole Unix seconds; None if unknown.

    All processes get the same answer, until the clock is set.
    """
    try:
        with open("/proc/stat", encoding="utf-8") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("btime "))
    except (OSError, ValueError, IndexError, StopIteration):
        return None
