"""Runs a function on a processor core that another program uses at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

_COMPETITOR = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
print(flush=True)
while True:
    pass
"""


def on_a_shared_core(function: Callable[[], T]) -> T:
    """Call a function in a thread that shares its core with a program that never waits.

    The other threads of this process keep their cores.
    """

    def call() -> T:
        core = min(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {core})
        command = [sys.executable, "-c", _COMPETITOR, str(core)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as competitor:
            try:
                assert competitor.stdout is not None
                competitor.stdout.readline()  # it computes from now on
                return function()
            finally:
                competitor.kill()

    with ThreadPoolExecutor(1) as executor:
        return executor.submit(call).result()
