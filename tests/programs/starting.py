"""Starts processes in every way, each of which calls functions of the module `work`."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from typing import Any

import work


def times(name, count):
    for _ in range(count):
        getattr(work, name)()


def is_killed():
    times("killed", 3)
    os.kill(os.getpid(), signal.SIGKILL)


def main():
    times("here", 2)
    for count, kind in enumerate(("fork", "spawn", "forkserver"), 3):
        context: Any = multiprocessing.get_context(kind)
        process = context.Process(target=times, args=(kind, count))
        process.start()
        process.join()
    with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        pool.starmap(times, [("pool", 1)] * 20, chunksize=1)
    if (child := os.fork()) == 0:
        times("left", 4)
        os._exit(0)
    os.waitpid(child, 0)
    process = multiprocessing.get_context("fork").Process(target=is_killed)
    process.start()
    process.join()
    call = "import work; work.command(); work.command()"
    subprocess.run([sys.executable, "-c", call], check=True)
    try:
        import joblib
    except ImportError:
        times("loky", 5)
    else:
        joblib.Parallel(2)(joblib.delayed(times)("loky", 1) for _ in range(5))


if __name__ == "__main__":
    main()
