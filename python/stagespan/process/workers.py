"""How this process was started: by the user, or as a worker of another process.

A worker is recognised by its own command and state, because its parent may not use stagespan.
"""

from __future__ import annotations

import os
import re
import sys

# The commands with which multiprocessing, libraries derived from it, and loky start workers and the
# servers that fork them.
_COMMAND = re.compile(
    r"(?:import sys; *)?from (?:multiprocessing|multiprocess|billiard)\.(\w+) import \w+; *\w+\("
    r"|.*\bpopen_loky_\w+$"
)
_MOST_ANCESTORS = 16


def is_worker() -> bool:
    """Whether a pool of workers started this process, or forked it before this import."""
    if any(_COMMAND.match(argument) for argument in sys.orig_argv[1:4]):
        return True
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def started_by() -> list[int]:
    """Return the processes that started this one, up to the one that the user started.

    The last one is the process whose command names the program; the others are those of commands
    of pools. It is this process if no pool started it.
    """
    ancestors = [os.getpid()]
    while len(ancestors) < _MOST_ANCESTORS:
        arguments = arguments_of(ancestors[-1])
        if not any(_COMMAND.match(argument) for argument in arguments[1:4]):
            break
        parent = _parent_of(ancestors[-1])
        if parent is None:
            break
        ancestors.append(parent)
    return ancestors


def arguments_of(pid: int) -> list[str]:
    """Return the arguments with which a process was started; an empty list if they are unknown.

    A process title (of the package setproctitle, for example) overwrites /proc/PID/cmdline, so this
    process's own arguments are Python's copy of them. Another process whose command is one text has
    a title, or no arguments. multiprocessing tells its workers the script of the program.
    """
    if pid == os.getpid():
        return sys.orig_argv
    arguments = _read(pid, "cmdline").rstrip("\0").split("\0")
    if len(arguments) > 1:
        return arguments
    return [sys.executable, sys.argv[0]] if sys.argv[0] else []


def variable_at_start(pid: int, name: str) -> str:
    """Return an environment variable with which a process was started; "" if it is unknown."""
    found = (text for text in _read(pid, "environ").split("\0") if text.startswith(f"{name}="))
    return next(found, "").partition("=")[2]


def _parent_of(pid: int) -> int | None:
    for line in _read(pid, "status").splitlines():
        if line.startswith("PPid:"):
            parent = int(line.split()[1])
            return parent if parent > 0 else None
    return None


def _read(pid: int, what: str) -> str:
    try:
        with open(f"/proc/{pid}/{what}", encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""
