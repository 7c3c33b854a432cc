"""What every thread is in right now, with the names that Python's threads have."""

from __future__ import annotations

import threading
from typing import TypedDict, cast

from stagespan import _core
from stagespan.requests import id_of


def threads() -> list[threading.Thread]:
    """Python's threads that run now.

    As `threading.enumerate` without its lock, for which a signal handler, or who it waits for,
    would wait while the code that the signal has interrupted holds it.
    """
    active: dict[int, threading.Thread] | None = getattr(threading, "_active", None)
    return threading.enumerate() if active is None else list(active.copy().values())


class OpenSpan(TypedDict):
    """A span that has not ended, as `open_spans` returns it."""

    stage: str
    thread: int
    thread_name: str | None
    id: int
    parent: int
    depth: int
    begin_ns: int
    elapsed_ns: int
    request: str | None
    request_number: int | None
    detached: bool


def open_spans() -> list[OpenSpan]:
    """Return what every thread is in right now, outermost first.

    Each has ``stage``, ``thread`` (the system's id), ``thread_name``, ``id``, ``parent``,
    ``depth``, ``begin_ns`` (Unix time), ``elapsed_ns``, ``request`` (the id of its request, or
    None), ``request_number`` (None outside of requests) and ``detached``: no thread's stack holds
    it at the moment, as with tokens and suspended coroutines; its ``thread_name`` is None.
    """
    found = _core.open_spans()
    if found:
        # The system knows Python's names from 3.14 on, and 15 characters of them.
        names = {thread.native_id: thread.name for thread in threads()}
        for span in found:
            if span["thread_name"] is not None:
                span["thread_name"] = names.get(span["thread"], span["thread_name"])
            number = span["request"]
            span["request"] = id_of(number)
            span["request_number"] = number or None
    return cast("list[OpenSpan]", found)
