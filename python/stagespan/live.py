"""What every thread is in right now, with the names that Python's threads have."""

from __future__ import annotations

import threading
from typing import TypedDict, cast

from stagespan import _core


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
    detached: bool


def open_spans() -> list[OpenSpan]:
    """Return what every thread is in right now, outermost first.

    Each has ``stage``, ``thread`` (the system's id), ``thread_name``, ``id``, ``parent``,
    ``depth``, ``begin_ns`` (Unix time), ``elapsed_ns`` and ``detached``: no thread's stack holds it
    at the moment, as with tokens and suspended coroutines; its ``thread_name`` is None.
    """
    found = _core.open_spans()
    if found:
        # The system knows Python's names from 3.14 on, and 15 characters of them.
        names = {thread.native_id: thread.name for thread in threading.enumerate()}
        for span in found:
            if span["thread_name"] is not None:
                span["thread_name"] = names.get(span["thread"], span["thread_name"])
    return cast("list[OpenSpan]", found)
