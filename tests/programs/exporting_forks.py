"""Sends the requests of a process and of those that it forks: URL, who exports, how it forks."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import stagespan
from stagespan.export import otlp

URL, WHERE, HOW = sys.argv[1:]


def work(who):
    for n in range(5):
        with stagespan.request(f"{who}-{n}"), stagespan.span("work"):
            pass
    if HOW != "executor":
        time.sleep(0.1)  # so that other workers of the pool get some, too


def begin():
    if WHERE != "parent":
        otlp.start(URL)


def child(who):
    begin()
    work(who)


if __name__ == "__main__":
    if WHERE != "child":
        otlp.start(URL)
        work("parent")
    names = [f"child{k}" for k in range(3)]
    context = multiprocessing.get_context("fork")
    if HOW == "process":
        processes = [context.Process(target=child, args=(name,)) for name in names]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    elif HOW == "pool":  # whose workers are ended by SIGTERM
        with context.Pool(3, initializer=begin) as pool:
            pool.map(work, names, chunksize=1)
    elif HOW == "executor":
        with ProcessPoolExecutor(3, context, initializer=begin) as executor:
            list(executor.map(work, names))
    elif HOW == "fork" or os.fork() == 0:  # in a child
        for name in names:
            if os.fork() == 0:
                child(name)
                sys.exit()
        for name in names:
            os.wait()
    else:
        os.wait()
