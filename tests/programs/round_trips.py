"""A front and a worker, to which it hands on its requests. The front prints stamps of the calls.

    round_trips.py front NUMBER EVERY COMMAND...

makes NUMBER requests, and takes the last reply of EVERY. COMMAND starts the worker, which is
`round_trips.py worker`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TypeVar

import stagespan

T = TypeVar("T")


def stamped(call: Callable[[], T]) -> tuple[T, list[int]]:
    """Return what a call returns, and CLOCK_MONOTONIC before and after it in ns."""
    before = time.monotonic_ns()
    returned = call()
    return returned, [before, time.monotonic_ns()]


def front() -> None:
    number, every = map(int, sys.argv[1:3])
    pipe = subprocess.PIPE
    worker = subprocess.Popen(sys.argv[3:], stdin=pipe, stdout=pipe, text=True)
    assert worker.stdin is not None
    assert worker.stdout is not None
    for i in range(number):
        with stagespan.request(f"r{i}"):
            carrier, sent = stamped(lambda: stagespan.inject(queue="tasks"))
            worker.stdin.write(json.dumps(carrier) + "\n")
            worker.stdin.flush()
            received_there, sent_back, reply = json.loads(worker.stdout.readline())
            if i % every == every - 1:
                remote, received = stamped(lambda reply=reply: stagespan.extract(reply))  # type: ignore[misc]
                with remote, stagespan.span("render"):
                    pass
                print(json.dumps([sent, received_there, sent_back, received]))
    worker.stdin.close()
    worker.wait()


def worker() -> None:
    for line in sys.stdin:
        carrier = json.loads(line)
        remote, received = stamped(lambda carrier=carrier: stagespan.extract(carrier))  # type: ignore[misc]
        time.sleep(0.001)
        with remote, stagespan.span("work"):
            time.sleep(0.002)
        reply, sent = stamped(lambda remote=remote: remote.inject(queue="replies"))  # type: ignore[misc]
        print(json.dumps([received, sent, reply]), flush=True)


if __name__ == "__main__":
    globals()[sys.argv.pop(1)]()
