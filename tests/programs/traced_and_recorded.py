"""Times stages before, in and after a trace of torch.profiler, which it writes to a file."""

from __future__ import annotations

import os
import sys
import threading
import time

import torch

import stagespan


def work(name):
    with stagespan.span(name):
        torch.ones(64, 64) @ torch.ones(64, 64)
        time.sleep(0.01)


work("before")
time.sleep(0.05)
with stagespan.span("open"):
    with torch.profiler.profile() as profiler:
        work("here")
        other = threading.Thread(target=work, args=("there",), name="other")
        other.start()
        other.join()
    time.sleep(0.05)
    work("after")
    profiler.export_chrome_trace(sys.argv[1])
    print(os.getpid(), flush=True)
    sys.stdin.read()
