"""The running threads of Python, and the system's ids of them."""

from __future__ import annotations

import os
import threading


def running() -> list[threading.Thread]:
    """Return the running threads of Python.

    This is `threading.enumerate` without its lock. A signal handler would wait forever for that
    lock if the interrupted code holds it.
    """
    active: dict[int, threading.Thread] | None = getattr(threading, "_active", None)
    return threading.enumerate() if active is None else list(active.copy().values())


def native_id(thread: threading.Thread) -> int | None:
    """Return the system's id of a thread; None if it has not started.

    Unlike `threading.Thread.native_id`, it is right in a forked child: Python, 3.13.0 included,
    keeps the id there that the main thread had in the parent. Only multiprocessing sets it again.
    """
    kept = thread.native_id
    is_of_parent = thread is threading.main_thread() and not os.path.exists(
        f"/proc/self/task/{kept}"
    )
    return os.getpid() if is_of_parent else kept


def by_native_id() -> dict[int | None, threading.Thread]:
    """Return the running threads of Python by the system's ids."""
    return {native_id(thread): thread for thread in running()}
