"""Allow long cells in CSV files for the time of a read."""

from __future__ import annotations

import contextlib
import csv
import threading
from collections.abc import Iterator

_LONGEST_BYTES = 1 << 27
# Re-entrant: a signal handler may read a file as well.
_lock = threading.RLock()


@contextlib.contextmanager
def long_cells() -> Iterator[None]:
    """Let csv read cells of up to 128 MiB; for one thread at a time, as the limit is the process's.

    Call stacks stand in one cell, and can be longer than the 128 KiB that are usual.
    """
    with _lock:
        before = csv.field_size_limit(_LONGEST_BYTES)
        try:
            yield
        finally:
            csv.field_size_limit(before)
