"""Programs that are processes of jobs."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time

from shared import hold

import stagespan


def serve() -> None:
    def run(count, length_ns):
        for i in range(count):
            end_ns = time.time_ns()
            stagespan.record("decode", end_ns - length_ns * (1 + i % 7), end_ns)
            try:
                with stagespan.span("check") as span:
                    span.add(tokens=3)
                    if i % 10 == 0:
                        raise KeyError
            except KeyError:
                pass

    run(int(sys.argv[1]), int(sys.argv[2]))
    print("ready", flush=True)
    for line in sys.stdin:
        run(*map(int, line.split()))
        print("done", flush=True)


def forked_ranks() -> None:
    for rank in range(2):
        if rank == 0:
            os.environ["RANK"] = "0"
        if os.fork() == 0:
            os.environ["RANK"] = str(rank)
            with stagespan.span("step"):
                os.write(1, b"ready\n")
                time.sleep(60)
            os._exit(0)
    time.sleep(60)


def worker() -> None:
    carrier = json.loads(sys.argv[1])
    with stagespan.extract(carrier), stagespan.span("work"):
        pass
    print("ready", flush=True)


def front() -> None:
    with stagespan.request("r"):
        print(json.dumps(stagespan.inject()), flush=True)
        sys.stdin.readline()
    hold("done")


def front_of_batches() -> None:
    for n in range(4):
        with stagespan.request(f"{sys.argv[1]}-{n}"), stagespan.queued("answer"):
            print(json.dumps(stagespan.inject(queue="batches")), flush=True)
            sys.stdin.readline()
    hold("done")


def batcher() -> None:
    print("ready", flush=True)
    while line := sys.stdin.readline():
        remotes = [stagespan.extract(carrier) for carrier in json.loads(line)]
        with stagespan.batch("forward", remotes):
            pass
        for remote in remotes:
            with remote:
                pass
        print("ready", flush=True)


def many_links() -> None:
    with stagespan.request("many") as many:
        for _ in range(3):
            with stagespan.batch("b", [many] * 300):
                pass
    hold()


def one_request() -> None:
    with stagespan.request(sys.argv[1]), stagespan.span("work"):
        pass
    hold(stagespan._core.recording_place()["kind"])


def open_requests() -> None:
    requests = [stagespan.request(f"r{n}", new=True) for n in range(150)]
    for one in requests:
        one.__enter__()
    hold()


def failing_batches() -> None:
    for n in range(30):
        with contextlib.suppress(ValueError), stagespan.batch("forward", []):
            if n % 10 == 0:
                raise ValueError
    print("ready", flush=True)
    while True:
        with stagespan.batch("forward", []):
            time.sleep(0.002)


def rank_of_two_stages() -> None:
    slow, stages = sys.argv[1], sys.argv[2].split(",")
    begin_ns = time.time_ns() // 10**9 * 10**9 - 20 * 10**9
    for step in range(40):
        at_ns = begin_ns + step * 100 * 10**6
        for stage, ms in zip(stages, (30, 70) if slow == "slow" else (10, 90), strict=True):
            # The second stage ends together with that of the other rank.
            stagespan.record(stage, at_ns, at_ns + ms * 10**6)
            at_ns += ms * 10**6
    stagespan.flush()
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    globals()[sys.argv.pop(1)]()
