"""Time a service in production: always-on spans, percentiles, and the current stage of each thread.

    python examples/service.py

Needs no torch. The spans stay on in production: each costs less than 0.1 µs.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import stagespan


@stagespan.ProfilingContext("tokenize")
def tokenize(text: str) -> list[str]:
    """A stage as a decorated function."""
    time.sleep(0.001)
    return text.split()


def answer(number: int) -> int:
    """Serve one request. All spans inside belong to it."""
    with stagespan.request(f"request-{number}", user="example"):
        words = tokenize("which stage of this request takes the time")
        with stagespan.span("generate") as span:
            time.sleep(random.uniform(0.002, 0.02))
            # The amount of work, so that the figures also show rates.
            span.add(tokens=len(words))
        return len(words)


def main() -> None:
    """Serve a hundred requests on four threads, then print the figures."""
    logging.getLogger("stagespan").setLevel(logging.WARNING)  # no line for every call
    with ThreadPoolExecutor(max_workers=4) as pool:
        list(pool.map(answer, range(100)))

    print(stagespan.stats())
    generate = stagespan.stats(window_s=60)["generate"]
    print(f"generate in the last minute: p50 {generate.p50_ns / 1e6:.1f} ms, ", end="")
    print(f"p99 {generate.p99_ns / 1e6:.1f} ms, {generate.count} calls")

    # From any thread, at any time, without stopping the others:
    started, unlocked = threading.Event(), threading.Event()

    def stuck() -> None:
        with stagespan.span("waiting for a lock"):
            started.set()
            unlocked.wait()

    thread = threading.Thread(target=stuck)
    thread.start()
    started.wait()
    time.sleep(0.05)
    for open_span in stagespan.open_spans():
        seconds = open_span["elapsed_ns"] / 1e9
        print(f"right now: {open_span['stage']!r} for {seconds:.2f} s")
    unlocked.set()
    thread.join()


if __name__ == "__main__":
    main()
