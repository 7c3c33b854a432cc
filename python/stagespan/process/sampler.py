"""The sampler of this process: a thread of the extension that takes the frames of all threads.

It writes what it has seen to a file in the folder of a command: when it is stopped, and in the
processes that the command's own one starts also every second, as they may end in any way. The
thread ends before a fork, because Python 3.12 and later warn of forks with threads, and starts
again in the parent and in the child.
"""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Callable

from stagespan import _core
from stagespan.process import forks

SUFFIX = ".samples"
"""The suffix of the files. Their lines have fields with tabs between them:

- ``process``: role, worker's name, interval, samples, wall time, garbage collections of the main
  thread and of the others. Times are in ns.
- ``code``: module, qualified name, file, first line.
- ``class``: the name of a class.
- ``node``: parent, code, class, line, operation, wall time, CPU time, time of waiting. The first
  two nodes are the main thread and the other threads. Numbers count the lines of their kind from 0;
  -1 is none. Only a node with a line, which is a place in the code of its parent, has times.
"""
MAIN = "main process"
CELL = "this cell"
"""The role of a process that runs a cell of a notebook."""
_MOST_FILES = 1000

_is_set_up = False


def start(
    folder: str, role: str, interval_ms: float, callback: Callable[[str], bool] | None = None
) -> None:
    """Sample this process and its forked children until they end or call `stop`.

    What an earlier call has seen is forgotten. ``role`` says what kind of process this is. Nothing
    happens in a folder with very many files; without one (""), what is seen stays in memory. After
    2, 4, 8 s and so on, the sampler's thread calls ``callback`` with what it has seen, until that
    returns True; it must not import anything.
    """
    global _is_set_up
    try:
        if folder and len(os.listdir(folder)) > _MOST_FILES:
            return
    except OSError:  # the command has ended
        return
    is_read_by_others = role not in (MAIN, CELL)
    interval_us = round(interval_ms * 1000)
    _core.sampler_start(os.fsencode(folder), role, interval_us, is_read_by_others, callback)
    if _core.sampler_collection not in gc.callbacks:
        gc.callbacks.append(_core.sampler_collection)
    if _is_set_up:
        return
    _is_set_up = True
    after_fork = _core.sampler_after_fork
    forks.around(_core.sampler_before_fork, lambda: after_fork(False), lambda: after_fork(True))
    atexit.register(stop)
    forks.at_worker_exit(stop, priority=1)


def stop() -> None:
    """End the sampling, and write what was seen. Has no effect if nothing is sampled."""
    _core.sampler_stop()
    if _core.sampler_collection in gc.callbacks:
        gc.callbacks.remove(_core.sampler_collection)


def is_on() -> bool:
    """Whether this process is being sampled."""
    return _core.sampler_collection in gc.callbacks
