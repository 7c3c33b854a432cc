"""Times a run in itself and in each of three workers: the method that starts them."""

from __future__ import annotations

import logging
import multiprocessing
import sys

from shared import in_workers

from stagespan import ProfilingContext

logging.basicConfig(level="INFO", stream=sys.stdout, format="%(process)d %(message)s")


def work(number):
    with ProfilingContext(f"work{number}"):
        pass


if __name__ == "__main__":
    with ProfilingContext("before"):
        pass
    in_workers(multiprocessing.get_context(sys.argv[1]), work, 3)
    with ProfilingContext("after"):
        pass
