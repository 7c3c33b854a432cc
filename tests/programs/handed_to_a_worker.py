"""Serves a request of which a forked worker does a part, and which ends as its argument says."""

import contextlib
import multiprocessing
import os
import signal
import sys
from typing import Any

from shared import hold

import stagespan


def worker(tasks: Any, replies: Any, how: str) -> None:
    remote = stagespan.extract(tasks.get())
    with remote:
        with stagespan.span("work"):
            for n in range(98):
                with stagespan.span("step") as step:
                    step.add(tokens=n, seconds=0.25)
        replies.put(remote.inject(queue="replies"))
        tasks.get()
        if how == "return":
            return
    if how == "exit":
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGTERM)


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    tasks, replies = context.SimpleQueue(), context.SimpleQueue()
    child = context.Process(target=worker, args=(tasks, replies, sys.argv[1]))
    child.start()
    with stagespan.request("req-1"):
        with stagespan.span("parse"):
            tasks.put(stagespan.inject(queue="tasks"))
        with stagespan.extract(replies.get()), stagespan.span("render"):
            pass
        with contextlib.suppress(ValueError), stagespan.span("check"):
            raise ValueError
    tasks.put(None)
    child.join()
    hold()
