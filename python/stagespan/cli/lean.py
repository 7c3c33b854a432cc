"""How commands start that read traces, so that a small trace does not take longer to begin with."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

_THREADS = "OPENBLAS_NUM_THREADS"
# The number of new objects after which the garbage collector looks for cycles, of which the
# analyses make few.
_MANY_OBJECTS = 100_000


@contextmanager
def trace_analyses() -> Iterator[None]:
    """Import all analyses for a command, which then runs with few collections of garbage.

    No analysis has much linear algebra, so numpy starts no threads for it.
    """
    usual = gc.get_threshold()
    gc.set_threshold(_MANY_OBJECTS, *usual[1:])
    try:
        with _without_threads():
            importlib.import_module("stagespan.recording.any_path")
        # Nobody looks at frozen objects again, also not when the interpreter ends.
        gc.freeze()
        yield
    finally:
        gc.set_threshold(*usual)


@contextmanager
def _without_threads() -> Iterator[None]:
    is_set = _THREADS in os.environ
    os.environ.setdefault(_THREADS, "1")
    try:
        yield
    finally:
        if not is_set:
            del os.environ[_THREADS]
