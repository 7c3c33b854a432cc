"""Programs whose recordings are read while they run."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import signal
import sys
import threading
import time
from functools import partial

from shared import hold, in_threads

import stagespan
from stagespan import _core


def inside() -> None:
    """Open the stages that the arguments name, one inside of the other."""
    with contextlib.ExitStack() as stack:
        for name in sys.argv[1:]:
            stack.enter_context(stagespan.span(name))
        hold(os.getpid())


def left_open() -> None:
    for _ in range(20):
        with stagespan.request("r"), stagespan.span("stage") as span:
            span.add(tokens=3)
    token = stagespan.begin("token")
    span = stagespan.span("open")
    span.__enter__()
    print(stagespan._core.recording_place()["path"], flush=True)
    os._exit(0)


def native_call() -> None:
    with stagespan.span("request"), stagespan.span("native call"):
        print("ready", flush=True)
        ctypes.PyDLL(None).pause()


def named_threads() -> None:
    def work(wait):
        with stagespan.span("work"):
            wait()

    ended = threading.Thread(target=work, args=(bool,), name="loader of the first shard")
    ended.start()
    ended.join()
    # Before Python 3.13, `join` returns before the system has ended the thread.
    while os.path.exists(f"/proc/self/task/{ended.native_id}"):
        time.sleep(0.001)
    working = threading.Event()

    def wait():
        working.set()
        time.sleep(60)

    threading.Thread(target=work, args=(wait,), name="\u00e9" * 100, daemon=True).start()
    working.wait()
    with stagespan.span("main"):
        hold()


def traced_requests() -> None:
    header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with stagespan.request("alone"), stagespan.span("first"):
        with stagespan.request("traced", traceparent=header), stagespan.span("second"):
            hold()


def rank() -> None:
    for step in range(int(sys.argv[1])):
        with stagespan.span("step"), stagespan.span("forward"):
            pass
    with stagespan.span("step"), stagespan.span(sys.argv[2]):
        hold()


def rank_of_torch() -> None:
    import torch.distributed as dist

    with stagespan.span("before"):
        pass
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with stagespan.ProfilingContext("stage"):
        pass
    hold(os.getpid())


def stepping() -> None:
    stagespan.set_pipeline_name("wan")
    with stagespan.span("serve"):
        print("ready", flush=True)
        while True:
            with stagespan.span("step"):
                time.sleep(0.001)


def idle_after_requests() -> None:
    with stagespan.span("serve"):
        until_s = time.monotonic() + 0.5
        while time.monotonic() < until_s:
            with stagespan.span("request"):
                time.sleep(0.01)
        hold()


def busy() -> None:
    def work():
        while True:
            with stagespan.span("request"), stagespan.span("decode"):
                time.sleep(0.001)

    threading.Thread(target=work, daemon=True).start()
    with stagespan.span("main"):
        hold()


def long_names() -> None:
    has_run = threading.Event()

    def work():
        while True:
            with stagespan.span("inner " * 20):
                time.sleep(0.001)
            has_run.set()

    threading.Thread(target=work, name="worker " * 9, daemon=True).start()
    with stagespan.span("first " * 20), stagespan.span("second " * 20):
        has_run.wait()
        hold()


def forks() -> None:
    over = threading.Event()

    def write():
        while not over.is_set():
            with stagespan.span("parent"):
                pass

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(20):
        child = os.fork()
        if child == 0:
            for _ in range(i):
                with stagespan.span("child"):
                    pass
            found = {name: stage.count for name, stage in stagespan.stats().items()}
            os._exit(0 if found == ({"child": i} if i else {}) else 1)
        assert os.waitpid(child, 0)[1] == 0
    over.set()
    for thread in threads:
        thread.join()
    print(stagespan.stats()["parent"].count, flush=True)
    os._exit(0)


def calls_exec() -> None:
    with stagespan.span("before"):
        if len(sys.argv) > 1:
            os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])


def calls_exec_once() -> None:
    with stagespan.span(sys.argv[1]):
        if sys.argv[1] == "before":
            os.execv(sys.executable, [sys.executable, "-c", sys.argv[2], "after", ""])
        hold()


def counting_threads() -> None:
    over = threading.Event()
    written = [0] * 3

    def work(i):
        while not over.is_set():
            with stagespan.span("outer"), stagespan.span("inner"):
                pass
            written[i] += 1

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    while not all(written):
        pass
    hold()
    over.set()
    for thread in threads:
        thread.join()
    figures = stagespan.stats()
    hold(sum(written), figures["outer"].count, figures["inner"].count)


def reader() -> None:
    from stagespan import recording

    found = recording.open(int(sys.argv[1]))
    print("ready", flush=True)
    while True:
        found.refresh().spans()


def steps() -> None:
    def work(n):
        for _ in range(n):
            with stagespan.span("step"):
                pass

    n = 0
    with stagespan.span("serve"):
        for line in sys.stdin:
            work(100)
            in_threads(*(partial(work, 100) for _ in range(4)))
            n += 500
            assert stagespan.stats()["step"].count == n
            print(n, flush=True)


def clock_set_back() -> None:
    def spend(seconds):
        end = time.process_time() + seconds  # sleeping would ask the clock
        while time.process_time() < end:
            pass

    with stagespan.request("request"), stagespan.span("outer"):
        with stagespan.span("before"):
            spend(0.05)
        token = stagespan.begin("token")
        with stagespan.span("across"):
            spend(0.1)
            ctypes.CDLL(None).set_clock_back()
            spend(0.1)
        with stagespan.span("after"):
            spend(0.01)
        with stagespan.span("inner"):
            hold()
            os._exit(1)


def fails() -> None:
    for i in range(40):
        with contextlib.suppress(ValueError), stagespan.span("serve"):
            with stagespan.span("tokenize"):
                pass
            with stagespan.span("decode"):
                raise ValueError
    with stagespan.span("idle"):
        hold()


def earlier_spans() -> None:
    now = time.time_ns()
    for i in range(100):
        stagespan.record("earlier", now - 60_000_000_000 - 1000 * i, now - 50_000_000_000)
    for i in range(20):
        stagespan.record("latest", now - 2_000_000_000, now - 1_000_000_000)
    with stagespan.span("serve"):
        hold()


def ten_spans() -> None:
    for i in range(10):
        with stagespan.span("work"):
            pass
    with stagespan.span("serve"):
        hold()


def loaded() -> None:
    received = []
    for i in range(4):
        with stagespan.request(f"r{i}"):
            received.append(stagespan.extract(stagespan.inject(queue="tasks")))
    carrier = {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}
    received.append(stagespan.extract(carrier))  # without a queue of its own
    stop, started = threading.Event(), threading.Semaphore(0)

    def wait():
        with stagespan.request("w"), stagespan.queued("replica"):
            started.release()
            stop.wait()

    def work():
        with stagespan.queued("scheduler"), stagespan.span("done"):
            pass
        with stagespan.batch("forward", []), stagespan.span("inner"):
            started.release()
            stop.wait()

    for function in (wait, wait, work):
        threading.Thread(target=function, daemon=True).start()
        started.acquire()
    with received[3]:
        pass
    with received[0]:
        hold()


def wide() -> None:
    stagespan.set_pipeline_name("a pipeline with a long name")
    with stagespan.request("request 1"):
        for i in range(30):
            with stagespan.span("preprocess images"), stagespan.span("tokenize prompts"):
                time.sleep(0.001)
            with stagespan.span("denoise latents of the video") as span:
                span.add(tokens=1000)
        with stagespan.span("serve requests"), stagespan.span("decode latents to frames"):
            os.kill(os.getpid(), signal.SIGKILL)


def request_of_two_stages() -> None:
    with stagespan.request(sys.argv[2]) as request, stagespan.queued("scheduler"):
        with stagespan.span(sys.argv[1]):
            time.sleep(0.01)
    hold()


def rank_with_a_slow_stage() -> None:
    slow, others = sys.argv[1], sys.argv[2].split(",")
    for step in range(20):
        at_ns = int(sys.argv[3]) + step * 100_000_000
        for name in others:
            end_ns = at_ns + (15 if name == slow else 1) * 1_000_000
            stagespan.record(name, at_ns, end_ns)
            at_ns = end_ns
    with stagespan.span("serve"):
        hold()


def stage_and_inner() -> None:
    with stagespan.span(sys.argv[1]):
        with stagespan.span("inner"):
            time.sleep(0.01)
        hold(os.getpid())
        if len(sys.argv) > 2:
            from stagespan import recording

            mine = recording.open(os.getpid())
            hold(mine.state, *[span["stage"] for span in mine.open_spans()])


def without_a_recording() -> None:
    from stagespan import recording

    hold(os.getpid())
    try:
        print(recording.open(os.getpid()), flush=True)
    except Exception as error:
        print(error, flush=True)
    sys.stdin.readline()


def place() -> None:
    logging.basicConfig()
    with stagespan.span("outer"):
        for _ in range(50):
            with stagespan.span("inner"):
                pass
        place = _core.recording_place()
        print(json.dumps({**place, "count": stagespan.stats()["inner"].count}), flush=True)
        time.sleep(float(sys.argv[1]))


def sixty_threads() -> None:
    gate = threading.Barrier(60)

    def work():
        gate.wait()
        for _ in range(500):
            with stagespan.span("work"):
                pass
        gate.wait()

    in_threads(*[work] * 60)
    place = _core.recording_place()
    print(json.dumps({**place, "count": stagespan.stats()["work"].count}), flush=True)
    os._exit(0)


def nested() -> None:
    for at in range(3):
        with stagespan.request(f"r{at}"), stagespan.span("outer"), stagespan.span("inner"):
            time.sleep(0.01)
    hold()


def inner_spans() -> None:
    with stagespan.request("r"), stagespan.span("outer"):
        wait = stagespan.begin("jobs", kind="queue")
        with stagespan.batch("forward", [stagespan.extract({})]):
            print("ready", flush=True)
            for line in sys.stdin:
                with stagespan.span("inner"):
                    pass
                print("done", flush=True)


def growing() -> None:
    spans = [stagespan.span(f"stage{i}") for i in range(6)]
    begin, sent, most = time.perf_counter(), 0, float(sys.argv[1])
    print("ready", flush=True)
    while (now := time.perf_counter() - begin) < 6:
        # The pace grows for some seconds, so that it is known before it matters.
        due = min(100 * 2 ** (2 * now) / 1.386, 1e9) if now < 3 else 4617 + most * (now - 3)
        for _ in range(max(min(int(due) - sent, 200), 0)):
            with stagespan.request("r"):
                for one in spans:
                    with one:
                        pass
            sent += 1
        time.sleep(0.001)
    print(sent, flush=True)
    input()


def five_steps() -> None:
    for i in range(5):
        with stagespan.span("step"), stagespan.span("forward"):
            time.sleep(0.002)
    with stagespan.span("serve"):
        hold()


def names_of_all_kinds() -> None:
    def work(name):
        with stagespan.request(name), stagespan.span(name):
            pass

    for name in json.loads(sys.argv[1]):
        thread = threading.Thread(target=work, args=(name,), name=name)
        thread.start()
        thread.join()
    with stagespan.span("open"):
        print("ready", flush=True)
        threading.Event().wait()


def long_chain() -> None:
    spans = [stagespan.span(f"stage {depth}") for depth in range(1500)]
    for span in spans:
        span.__enter__()
    for span in reversed(spans):
        span.__exit__(None, None, None)
    print(stagespan._core.recording_place()["path"], flush=True)
    os._exit(0)


def first_stage() -> None:
    with stagespan.span("whole program"):
        for name in ("load", "serve"):
            with stagespan.span(name), stagespan.span(f"inside {name}"):
                pass
        hold()


def steps_and_a_report() -> None:
    for _ in range(4):
        with stagespan.span("step"):
            with stagespan.span("augment"):
                time.sleep(float(os.environ.get("SLEEP", "0.005")))
            with stagespan.span("forward"):
                time.sleep(0.001)
    stagespan.dump_timing_report(sys.argv[1])
    hold()


def spans_of_all_kinds() -> None:
    async def serve(i):
        with stagespan.request(f"request {i}"):
            for step in range(3):
                with stagespan.span("step"):
                    await asyncio.sleep(0.001 * (i + 1))

    async def main():
        await asyncio.gather(*(serve(i) for i in range(4)))

    def work():
        for _ in range(20):
            with stagespan.request("of threads"), stagespan.span("outer"):
                with stagespan.span("inner"):
                    pass

    asyncio.run(main())
    workers = [threading.Thread(target=work, name=name) for name in ("w", '"w" \u00e9')]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    token = stagespan.begin("token")
    with stagespan.span("around the end of the token"):
        stagespan.end(token)
    stagespan.record("earlier", time.time_ns() - 10**9, time.time_ns())
    try:
        with stagespan.span("failed"):
            raise ValueError
    except ValueError:
        pass
    left_open = stagespan.begin("token that is open")
    with stagespan.span("main"), stagespan.span("inside"):
        hold()


if __name__ == "__main__":
    globals()[sys.argv.pop(1)]()
