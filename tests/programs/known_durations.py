"""Starts a worker for each line `[seed, count, end]`; its durations follow from the seed."""

import json
import multiprocessing
import os
import random
import signal
import sys
import time

import stagespan


def worker(seed: int, count: int, how: str) -> None:
    drawn = random.Random(seed)
    now = time.time_ns()
    for i in range(count):
        duration = int(drawn.lognormvariate(15, 1))
        stagespan.record("decode", now - duration, now, error=i % 10 == 0)
    with stagespan.span("outer") as outer:
        outer.add(tokens=7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "term":
        os.kill(os.getpid(), signal.SIGTERM)
    if how == "exit":
        os._exit(0)


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    print("ready", flush=True)
    for line in sys.stdin:
        child = context.Process(target=worker, args=json.loads(line))
        child.start()
        child.join()
        print(child.exitcode, flush=True)
