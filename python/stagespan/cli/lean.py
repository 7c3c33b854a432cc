"""How commands start and run with few threads and collections of garbage that they do not need."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

# What numpy reads when it is imported: it starts no threads, because no analysis has much linear
# algebra, and does not ask for huge pages, because most columns of an analysis are soon freed, and
# the system clears whole pages.
_OF_NUMPY = {"OPENBLAS_NUM_THREADS": "1", "NUMPY_MADVISE_HUGEPAGE": "0"}
# The number of new objects after which the garbage collector looks for cycles, of which there are
# few.
_MANY_OBJECTS = 100_000


@contextmanager
def trace_analyses() -> Iterator[None]:
    """Import all analyses for a command, which then runs with few collections of garbage."""
    with few_collections("stagespan.recording.any_path"):
        yield


@contextmanager
def few_collections(*modules: str) -> Iterator[None]:
    """Import modules for a command whose objects make few cycles."""
    usual = gc.get_threshold()
    gc.set_threshold(_MANY_OBJECTS, *usual[1:])
    try:
        with _variables_of_numpy():
            for name in modules:
                importlib.import_module(name)
        # Nobody looks at frozen objects again, also not when the interpreter ends.
        gc.freeze()
        yield
    finally:
        gc.set_threshold(*usual)


@contextmanager
def _variables_of_numpy() -> Iterator[None]:
    added = {name: value for name, value in _OF_NUMPY.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
