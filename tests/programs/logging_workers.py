"""Times a run in itself and in each of three workers: the method that starts them."""

from __future__ import annotations

import logging
import multiprocessing
import sys
from typing import Any

from stagespan import ProfilingContext

logging.basicConfig(level="INFO", stream=sys.stdout, format="%(process)d %(message)s")


def work(number):
    with ProfilingContext(f"work{number}"):
        pass


if __name__ == "__main__":
    with ProfilingContext("before"):
        pass
    context: Any = multiprocessing.get_context(sys.argv[1])
    workers = [context.Process(target=work, args=(i,)) for i in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0, worker.exitcode
    with ProfilingContext("after"):
        pass
