"""Programs whose samples are compared with what they do."""

import gc
import hashlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

if sys.argv[1:] == ["all_kinds"]:
    import slow_module  # noqa: F401


def work(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


# --- a function that holds the interpreter's lock, and one that does not ---


def holds():
    began = time.perf_counter()
    re.match("(a+)+$", "a" * 20 + "b")
    return time.perf_counter() - began


def runs(seconds):
    work(seconds)


def lock():
    runs(sum(holds() for _ in range(8)) / 2)


# --- processes of all kinds ---


def forked():
    if os.fork() == 0:
        work(0.4)
        os._exit(0)
    os.wait()


def processes():
    os.register_at_fork(after_in_child=lambda: time.sleep(0.1))  # before it is a worker
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(work, [0.4, 0.4])
    forked()
    killed = multiprocessing.get_context("fork").Process(target=work, args=(60,), name="encoder-1")
    killed.start()
    time.sleep(2.5)
    killed.kill()
    killed.join()
    call = f"import sys; sys.path[:0] = [{os.path.dirname(__file__)!r}]; import sampled; sampled."
    subprocess.run([sys.executable, "-c", f"{call}work(0.4)"], check=True)


# --- others ---


def deep_stacks():
    """Print which part of the CPU time the sampler has taken."""
    is_over = threading.Event()

    def deep(left):
        if left:
            return deep(left - 1)
        while not is_over.is_set():
            sum(range(10_000))
            time.sleep(0.0005)
        return None

    threads = [threading.Thread(target=deep, args=(100,)) for _ in range(20)]
    for thread in threads:
        thread.start()
    while time.process_time() < 3:
        sum(range(10_000))
    is_over.set()
    for thread in threads:
        thread.join()
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text() == "stagespan-sampl\n":
            own_s = int((task / "schedstat").read_text().split()[0]) / 1e9
            print(own_s / time.process_time())


class Large:
    def forward(self):
        time.sleep(0.2)


def drops():
    large = Large()
    large.forward()
    gone = weakref.ref(large)
    time.sleep(0.2)
    del large
    print(gone() is None)


def own_stage():
    import stagespan

    with stagespan.span("step"):
        work(0.3)


def waits():
    time.sleep(0.2)


def computes():
    for _ in range(40):
        hashlib.sha256(b"x" * 5_000_000)


def collects():
    keep = [[number] for number in range(300_000)]
    for _ in range(15):
        gc.collect()
    return keep


def all_kinds():
    waits(), computes(), collects()


def wait():
    print("ready", flush=True)
    while True:
        time.sleep(0.01)


def samplers():
    time.sleep(0.05)
    tasks = os.listdir("/proc/self/task")
    names = [Path(f"/proc/self/task/{task}/comm").read_text() for task in tasks]
    return names.count("stagespan-sampl\n")


def forks():
    for _ in range(5):
        assert samplers() == 1
        if (pid := os.fork()) == 0:
            os._exit(samplers())
        assert os.waitpid(pid, 0)[1] >> 8 == 1


def ends_its_children():
    for _ in range(3):
        time.sleep(0.05)
        if (pid := os.fork()) == 0:
            time.sleep(60)
        os.kill(pid, signal.SIGTERM)
        assert os.waitpid(pid, 0)[1] == signal.SIGTERM
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


def handle(number):
    work(0.05)
    time.sleep(0.01)


def greenlets():
    from gevent import monkey

    monkey.patch_all()
    import gevent

    gevent.joinall([gevent.spawn(handle, number) for number in range(20)])


class Images:
    def __len__(self):
        return 60

    def __getitem__(self, at):
        return augment(at)


def augment(at):
    work(0.02)
    return at


def loads():
    from torch.utils.data import DataLoader

    for _ in DataLoader(Images(), num_workers=1, batch_size=4):
        pass


def event_loop():
    import asyncio

    import uvloop

    async def poll():
        for _ in range(20):
            await asyncio.sleep(0.05)

    uvloop.new_event_loop().run_until_complete(poll())


def sorts():
    until = time.time() + 0.5
    while time.time() < until:
        sorted(range(100_000))
    assert sys.argv[2:] == ["--json", "-"]


if __name__ == "__main__":
    globals()[sys.argv[1]]()
