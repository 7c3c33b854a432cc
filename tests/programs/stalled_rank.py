"""Eight ranks of torch.distributed, of which rank 3 stalls: how it does."""

from __future__ import annotations

import ctypes
import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import stagespan


def run(rank):
    os.environ.update(RANK=str(rank), WORLD_SIZE="8", TORCHELASTIC_RUN_ID="job-8")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{os.getcwd()}/store",
        rank=rank,
        world_size=8,
        timeout=datetime.timedelta(seconds=300),
    )
    for step in range(1000):
        with stagespan.span("step"):
            with stagespan.span("load"):
                if rank == 3 and step == 5:
                    stop()
            with stagespan.span("all_reduce"):
                dist.all_reduce(torch.ones(16))


def stop():
    if sys.argv[1] == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        ctypes.PyDLL(None).pause()  # waits forever, and holds Python's lock


os.setsid()
print(os.getpid(), flush=True)
for rank in range(8):
    if os.fork() == 0:
        try:
            run(rank)
        finally:
            os._exit(1)
time.sleep(300)
