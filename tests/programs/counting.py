"""Programs that add amounts to spans."""

from __future__ import annotations

import os
import signal
import sys
import threading

import stagespan
from stagespan import batch, request, span


def many_keys() -> None:
    for i in range(6_000):
        with span("s") as s:
            s.add(**{f"key{i}": i})
    found = stagespan.stats()["s"]
    others = found.work["(other)"], found.amounts["(other)"].count, stagespan.lost()["work"]
    print(len(found.work), len(found.amounts), *others, flush=True)
    input()


def adds() -> None:
    def add(number, pipeline="chat"):
        with request(f"r{number}") as r:
            r.pipeline = pipeline
            with span("decode") as decode:
                decode.add(tokens=number)
        with batch("forward", [r] * (number % 4)):
            pass

    for number in range(1, 101):
        add(number)
    print("ready", flush=True)

    def forever():
        while True:
            add(1, "other")

    for _ in range(4):
        threading.Thread(target=forever, daemon=True).start()
    input()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    globals()[sys.argv.pop(1)]()
