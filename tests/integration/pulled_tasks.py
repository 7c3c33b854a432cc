"""Workers that pull tasks from one queue; prints their own stamps of each task.

Arguments: the number of workers, the number of tasks. No worker ends its first task before all have
been sent. Stamps are times of CLOCK_MONOTONIC before and after a call, in ns: [before, after].
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event

import stagespan

WORK_S = 0.01


def _work(tasks: Queue, replies: Queue, are_sent: Event) -> None:
    replies.put("ready")
    for number, carrier in iter(tasks.get, None):
        before = time.monotonic_ns()
        remote = stagespan.extract(carrier)
        extracted = [before, time.monotonic_ns()]
        with remote:
            with stagespan.span("work"):
                are_sent.wait(60)
                time.sleep(WORK_S)
                before = time.monotonic_ns()
            ended = [before, time.monotonic_ns()]
        replies.put((number, os.getpid(), extracted, ended))
    replies.put("done")


def _request(
    number: int, tasks: Queue, answered: threading.Event, sent: dict[int, list[int]]
) -> None:
    with stagespan.request(f"r{number}"):
        before = time.monotonic_ns()
        carrier = stagespan.inject(queue="tasks")
        after = time.monotonic_ns()
        tasks.put((number, carrier))
        sent[number] = [before, after]
        answered.wait(60)


def _main(workers: int, count: int) -> None:
    context = multiprocessing.get_context("spawn")
    tasks, replies, are_sent = context.Queue(), context.Queue(), context.Event()
    arguments = tasks, replies, are_sent
    processes = [context.Process(target=_work, args=arguments) for _ in range(workers)]
    for process in processes:
        process.start()
    for _ in processes:
        replies.get(timeout=60)
    answered = [threading.Event() for _ in range(count)]
    sent: dict[int, list[int]] = {}
    fronts = [
        threading.Thread(target=_request, args=(number, tasks, event, sent))
        for number, event in enumerate(answered)
    ]
    for front in fronts:
        front.start()
    while len(sent) < count:
        time.sleep(0.001)
    are_sent.set()
    stamps = {}
    for _ in range(count):
        number, pid, extracted, ended = replies.get(timeout=60)
        answered[number].set()
        stamps[f"r{number}"] = {"pid": pid, "extracted": extracted, "ended": ended}
    for front in fronts:
        front.join()
    for number, one in sent.items():
        stamps[f"r{number}"]["sent"] = one
    for _ in processes:
        tasks.put(None)
    for process in processes:
        process.join()
    print(json.dumps(stamps), flush=True)


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]))
