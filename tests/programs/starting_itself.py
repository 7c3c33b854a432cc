"""Starts itself in several ways, to call its own function `step`."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from typing import Any


def step():
    """A step."""


def steps(count):
    for _ in range(count):
        step()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(sys.argv, __spec__ is None, __file__, sys.path, step.__doc__)
        steps(int(sys.argv[1]))
    else:
        for kind in ("spawn", "forkserver"):
            context: Any = multiprocessing.get_context(kind)
            process = context.Process(target=steps, args=(2,))
            process.start()
            process.join()
        for command in (["own.py"], ["-m", "own"], ["-X", "dev", "folder/other.py"]):
            subprocess.run([sys.executable, *command, "3"], check=True)
