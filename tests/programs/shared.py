"""What programs of tests share."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable


def hold(*words: object) -> str:
    """Print words, by default "ready", and return the next line of standard input.

    It is empty at the end, which also comes if the test has ended.
    """
    print(*(words or ("ready",)), flush=True)
    return sys.stdin.readline()


def in_threads(*calls: Callable[[], object]) -> None:
    """Make each call in a thread of its own, all at once, and wait until they have ended."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
