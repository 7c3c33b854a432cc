"""Programs that are asked through their recordings."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time

from shared import hold

from stagespan import span


def work():
    return sum(i * i for i in range(20_000))


def serve():
    while True:
        with span("serve"):
            work()


def busy() -> None:
    threading.Thread(target=serve, daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()


def locked() -> None:
    with span("inside C"):
        pass
    hold()
    with span("inside C"):
        ctypes.PyDLL(None).sleep(60)  # with the interpreter's lock


def starved() -> None:
    os.sched_setaffinity(0, {0})
    with span("serve"):
        # In the same session, because the kernel shares CPUs among sessions first.
        hog = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    print(hog.pid, flush=True)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while True:
        with span("serve"):
            sum(range(5_000_000))


def later_thread() -> None:
    def serve():
        while True:
            with span("serve"):
                time.sleep(0.001)
            if not told:
                print("serves", flush=True)
                told.append(None)

    told: list[None] = []
    with span("first"):
        print("ready", flush=True)
    sys.stdin.readline()
    threading.Thread(target=serve, daemon=True).start()
    sys.stdin.read()


def parent():
    while True:
        with span("parent"):
            sum(range(1000))


def child():
    while True:
        with span("child"):
            sum(range(1000))


def forks() -> None:
    threading.Thread  # the fork must not see one
    with span("parent"):
        pass
    hold()
    pid = os.fork()
    if pid == 0:
        child()
    print(pid, flush=True)
    parent()


if __name__ == "__main__":
    globals()[sys.argv.pop(1)]()
