"""Allow long cells in CSV files for the time of a read."""

from __future__ import annotations

import contextlib
import csv
import threading
from collections.abc import Iterator

_LONGEST_BYTES = 1 << 27
# Re-entrant, because a signal handler may also read a file.
_lock = threading.RLock()


@contextlib.contextmanager
def long_cells() -> Iterator[None]:
    """Allow cells of up to 128 MiB, for one thread at a time, because the limit is global.

    A call stack is in one cell, and can exceed the default limit of 128 KiB.
    """
    with _lock:
        before = csv.field_size_limit(_LONGEST_BYTES)
        try:
            yield
        finally:
            csv.field_size_limit(before)
