"""Serves requests in two threads for some seconds: one stage becomes slower, and one request waits.

It is killed at the end, so that its recording stays.
"""

import os
import signal
import threading
import time

import stagespan

BEGAN = time.monotonic()


def serve(first: int) -> None:
    number = first
    while (age := time.monotonic() - BEGAN) < 6:
        with stagespan.request(f"clip-{number}"), stagespan.span("generate"):
            with stagespan.span("encode"):
                time.sleep(0.02)
            with stagespan.span("denoise"):
                for _ in range(4):
                    with stagespan.span("step"):
                        time.sleep(0.03 if age < 4 else 0.05)
            with stagespan.span("decode"):
                time.sleep(0.3 if number == 18 else 0.05)
        number += 2


threads = [threading.Thread(target=serve, args=(n,), name=f"worker {n + 1}") for n in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
os.kill(os.getpid(), signal.SIGKILL)
