"""A service of a gateway and two workers, which is slower for a while, for a picture."""

import multiprocessing
import random
import sys
import threading
import time
from typing import Any

import stagespan


def about(drawn: random.Random, seconds: float) -> None:
    """Wait for about so long."""
    time.sleep(seconds * drawn.lognormvariate(0, 0.25))


def work(tasks: Any, replies: Any, seed: int, slower: Any) -> None:
    """Answer requests."""
    drawn = random.Random(seed)
    while True:
        carrier, at = tasks.get()
        with stagespan.extract(carrier) as remote:
            with stagespan.span("encode"):
                about(drawn, 0.012)
            with stagespan.span("denoise") as denoise:
                about(drawn, 0.1 * slower.value)
                denoise.add(steps=20)
            with stagespan.span("decode"):
                about(drawn, 0.027)
            replies[at].put(remote.inject(queue="replies"))


def ask(tasks: Any, replies: Any, at: int, sessions: threading.Semaphore) -> None:
    """Send requests, some of which are refused."""
    drawn = random.Random(at)
    while True:
        about(drawn, 0.1)
        try:
            with stagespan.request():
                with stagespan.queued("session"):
                    sessions.acquire()
                try:
                    with stagespan.span("validate"):
                        about(drawn, 0.002)
                        if drawn.random() < 0.02:
                            raise ValueError("this request is refused")
                    tasks.put((stagespan.inject(queue="tasks"), at))
                    with stagespan.extract(replies[at].get()), stagespan.span("write"):
                        about(drawn, 0.007)
                finally:
                    sessions.release()
        except ValueError:
            pass


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    tasks, replies = context.SimpleQueue(), [context.SimpleQueue() for _ in range(6)]
    slower, seconds = context.Value("d", 1.0), float(sys.argv[1])
    for seed in range(2):
        context.Process(target=work, args=(tasks, replies, seed, slower), daemon=True).start()
    sessions = threading.Semaphore(4)
    for at in range(6):
        arguments = tasks, replies, at, sessions
        threading.Thread(target=ask, args=arguments, daemon=True).start()
    for factor in (1.0, 1.6, 1.0):
        slower.value = factor
        time.sleep(seconds / 3)
