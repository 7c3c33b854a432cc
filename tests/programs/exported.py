"""Programs whose recordings are exported."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import random
import signal
import sys
import threading
import time
from functools import partial
from itertools import count
from typing import Any

from shared import hold, in_threads

import stagespan


def runs() -> None:
    """Run a stage as many times as the argument says; then end as the second one says."""
    for _ in range(int(sys.argv[1])):
        with stagespan.span("decode"):
            pass
    hold()
    if sys.argv[2:] == ["kill"]:
        os.kill(os.getpid(), signal.SIGKILL)


def stages() -> None:
    for number in range(int(sys.argv[1])):
        with stagespan.span(f"stage{number}"):
            pass
    hold()


def bursts() -> None:
    print("ready", flush=True)
    while input() != "end":
        now = time.time_ns()
        for n in range(20_000):
            stagespan.record("s", now - (10_000 if n % 2 else 10_000_000), now)
        print("done", flush=True)


def answered() -> None:
    import multiprocessing

    def worker(tasks, replies):
        while (carrier := tasks.get()) is not None:
            with stagespan.extract(carrier) as remote:
                replies.put(remote.inject(queue="replies"))

    context = multiprocessing.get_context("fork")
    tasks, replies = context.SimpleQueue(), context.SimpleQueue()
    child = context.Process(target=worker, args=(tasks, replies))
    child.start()
    stagespan.request()  # this process has a number that no row shows
    print("ready", flush=True)
    while line := sys.stdin.readline().split():
        number, seconds = int(line[0]), float(line[1])
        for _ in range(number):
            with stagespan.request():
                tasks.put(stagespan.inject(queue="tasks"))
                with stagespan.extract(replies.get()):
                    pass
                time.sleep(seconds)
        print("done", flush=True)
    tasks.put(None)
    child.join()


def idle() -> None:
    def run(what):
        if what == "span":
            with stagespan.span("decode"):
                pass
        elif what == "request":
            with stagespan.request("r"), stagespan.span("decode"):
                pass
        elif what == "work":
            stagespan.span("decode").add(tokens=1)
        elif what == "open":
            tokens.append(stagespan.begin("wait", kind="queue"))
        elif what == "close":
            stagespan.end(tokens.pop())
        elif what == "enter":
            requests.append(stagespan.request("open"))
            requests[-1].__enter__()
        elif what == "chunk":
            requests[-1].chunk(tokens=2)
        elif what == "leave":
            requests.pop().__exit__(None, None, None)

    tokens: list[Any] = []
    requests: list[Any] = []
    run("span")
    print("ready", flush=True)
    while line := sys.stdin.readline():
        run(line.strip())
        print("done", flush=True)


def numbers_of_requests() -> None:
    print("ready", flush=True)
    while line := sys.stdin.readline():
        for _ in range(int(line)):
            with stagespan.request(), stagespan.span("decode"):
                pass
        print("done", flush=True)


def request_that_goes_on() -> None:
    import multiprocessing

    def worker(carrier):
        with stagespan.extract(carrier):
            pass

    context = multiprocessing.get_context("fork")
    with stagespan.request("r") as request:
        child = context.Process(target=worker, args=(stagespan.inject(queue="tasks"),))
        child.start()
        child.join()
        hold()
        request.set_status("error")
    print("done", flush=True)
    input()


def span_a_line() -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        with stagespan.span("decode"):
            pass
        print("done", flush=True)


def decoding() -> None:
    for n in range(100):
        with stagespan.span("decode") as span:
            span.add(tokens=3)
    with stagespan.request("r"), stagespan.span("outer"), stagespan.queued("replica"):
        hold()


def late_span() -> None:
    with stagespan.request("r"), stagespan.span("outer"):
        hold()
    with stagespan.span("late"):
        pass
    print("done", flush=True)
    input()


def three_thousand_waits() -> None:
    for n in range(3000):
        with stagespan.span("decode"), stagespan.queued("replica"):
            pass
    hold()


def serving_itself() -> None:
    from prometheus_client import CollectorRegistry, start_http_server

    from stagespan.export import prometheus

    registry = CollectorRegistry()
    prometheus.register(registry, buckets="fine")
    server, _ = start_http_server(0, "127.0.0.1", registry)
    drawn, now = random.Random(5), time.time_ns()
    for _ in range(5000):
        stagespan.record("decode", now - int(drawn.lognormvariate(15, 1)), now)
    print(server.server_port, flush=True)
    input()


def collecting_itself() -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    from stagespan.export import prometheus

    registry = CollectorRegistry()
    collector = prometheus.register(registry)
    assert generate_latest(registry)
    for n in range(10):
        with stagespan.span("decode"):
            pass
    count = "stagespan_stage_duration_seconds_count"
    labels = {"stage": "decode", "service": "svc", "pipeline": "default", "rank": ""}
    # WHEN it is asked THEN counts equal those of the process
    assert registry.get_sample_value(count, labels) == stagespan.stats()["decode"].count == 10
    child = os.fork()
    if child == 0:
        with stagespan.span("decode"):
            pass
        os._exit(0 if registry.get_sample_value(count, labels) == 1 else 1)
    print("child", os.waitpid(child, 0)[1])
    registry.unregister(collector)
    assert registry.get_sample_value(count, labels) is None


def amount() -> None:
    with stagespan.span("copy") as span:
        span.add(bytes=float(sys.argv[1]))


def requests_twice() -> None:
    def work():
        for n in range(2000):
            with stagespan.request("r"), stagespan.span("decode"):
                pass

    work()
    hold()
    os.getppid()
    work()
    os.getppid()


def large_batch() -> None:
    remotes = [stagespan.extract({}) for _ in range(1000)]
    with stagespan.batch("forward", remotes):
        with stagespan.span("kernel"):
            pass
    for remote in remotes:
        with remote:
            pass
    hold()


def batches_of_threads() -> None:
    all_run = threading.Barrier(100)

    def serve(remotes):
        with stagespan.span("waits"):
            all_run.wait()
        for remote in remotes:
            with stagespan.batch("forward", [remote]):
                pass
            with stagespan.batch("empty", []):
                pass

    remotes = [stagespan.extract({}) for _ in range(200)]
    served: list[Any] = [*[[]] * 98, remotes[:100], remotes[100:]]
    in_threads(*(partial(serve, some) for some in served))
    for remote in remotes:
        with remote:
            pass
    hold()


def working() -> None:
    EXACT = 2**53 + 1

    async def child(outer, n):
        with stagespan.span("inner") as inner:
            inner.add(tokens=n)
            await asyncio.sleep(0)
            inner.add(tokens=1, seconds=0.25)
            outer.add(images=1)

    async def handle(n):
        with stagespan.request(f"req-{n}"), stagespan.span("outer") as outer:
            await asyncio.gather(child(outer, n), child(outer, 100 + n))
            await asyncio.to_thread(outer.add, images=n)
            outer.add(bytes=EXACT + n, images=1.0)
        outer.add(images=1000)  # counts for the stage, as the span has ended

    async def main():
        await asyncio.gather(*(handle(n) for n in range(20)))

    def serve():
        asyncio.run(main())
        remotes = [stagespan.extract({}) for _ in range(3)]
        with stagespan.batch("forward", remotes) as forward:
            forward.add(images=3)
            with stagespan.span("kernel") as kernel:
                kernel.add(flops=1e12)
        for remote in remotes:
            with remote:
                pass

    if os.fork() == 0:
        serve()
        if sys.argv[1] == "exit":
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    serve()
    os.wait()
    hold()


def many_amounts() -> None:
    for n in range(2):
        with stagespan.request(f"req-{n}"), stagespan.span("outer") as outer:
            outer.add(tokens=1)
            for i in range(600 if n == 0 else 10):
                with stagespan.span("inner") as inner:
                    inner.add(tokens=i)
    hold()


def sampled() -> None:
    for n in range(200):
        with stagespan.request(f"plain {n}"), stagespan.span("plain"):
            pass
    for n in range(3):
        try:
            with stagespan.request(f"failed {n}"), stagespan.span("failed"):
                raise ValueError
        except ValueError:
            pass
    with stagespan.request("slow"), stagespan.span("slow"):
        time.sleep(0.2)
    for n in range(20):
        unwanted = stagespan.extract({"traceparent": f"00-{n + 1:032x}-{n + 1:016x}-00"})
        wanted = stagespan.extract({"traceparent": f"00-{n + 101:032x}-{n + 1:016x}-03"})
        with unwanted, stagespan.span("unwanted"):
            pass
        with wanted, stagespan.span("wanted"):
            pass
    hold()


def chunks() -> None:
    for n in range(5):
        with stagespan.request("r") as request:
            time.sleep(0.02)
            for _ in range(3):
                request.chunk(2)
    try:
        with stagespan.request("failed"):
            raise ValueError
    except ValueError:
        pass
    hold()


def sending_itself() -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    from stagespan.export import otlp

    before = trace.get_tracer_provider()
    tracer = TracerProvider().get_tracer("app")

    def is_parent():
        with stagespan.request("with a client") as request:
            with tracer.start_as_current_span("SELECT") as span:
                return f"{span.get_span_context().trace_id:032x}" == request.trace_id

    # A parent that nobody gets would break the traces of the SDK.
    sampled = otlp.start(sys.argv[1], one_in=2)
    assert not is_parent()
    sampled.close()
    running = otlp.start(sys.argv[1])
    assert is_parent()
    for n in range(10):
        with stagespan.request(f"r{n}"), stagespan.span("decode"):
            pass
    running.close()
    assert not is_parent()
    assert trace.get_tracer_provider() is before


def sending_child() -> None:
    from stagespan.export import otlp

    running = otlp.start(sys.argv[1])
    with stagespan.request("parent"):
        pass
    if os.fork() == 0:
        # WHEN a child has only spans THEN it has no thread, also if it calls `start` itself
        with stagespan.span("of the child"):
            pass
        assert otlp.start(sys.argv[1]) is running
        assert threading.active_count() == 1, threading.enumerate()
        # WHEN it has had a request THEN it has
        with stagespan.request("child"):
            pass
        assert threading.active_count() > 1
        sys.exit(3)
    _, status = os.wait()
    assert os.waitstatus_to_exitcode(status) == 3
    assert running.lost() == dict.fromkeys(running.lost(), 0)


def sending_three() -> None:
    from stagespan.export import otlp

    otlp.start(sys.argv[1])
    for n in range(3):
        with stagespan.request(f"r{n}"):
            pass
    hold()


def starting_twice() -> None:
    from stagespan.export import otlp

    running = otlp.start(sys.argv[1])
    for url in (sys.argv[1] + "/", sys.argv[1] + "/v1/traces", None):
        assert otlp.start(url) is running
    with stagespan.request("r"):
        pass
    # WHEN it is closed THEN it can be started again
    running.close()
    assert otlp.start(sys.argv[1]) is not running
    # AND with other options, a line says that those of the first call hold
    again = otlp.start(sys.argv[1], one_in=10)
    with stagespan.request("again"):
        pass
    # AND if it was closed, they hold for what was not sent yet
    again.close()
    with stagespan.request("while nothing is sent"):
        pass
    otlp.start(sys.argv[1], one_in=0)
    with contextlib.suppress(ValueError), stagespan.request("failed"):
        raise ValueError


def disabled_sdk() -> None:
    from stagespan.export import otlp

    running = otlp.start(sys.argv[1])
    with stagespan.request("r"), stagespan.span("s"):
        pass
    if os.fork() == 0:
        with stagespan.request("child"):
            pass
        sys.exit()
    os.wait()
    assert running.lost() == {}
    running.close()


def busy() -> None:
    parent = os.getpid()
    for _ in range(4):
        if os.fork() == 0:
            while os.getppid() == parent:
                with stagespan.request(), stagespan.span("busy"):
                    time.sleep(0.002)
            os._exit(0)
    print("ready", flush=True)
    sys.stdin.read()


def stuck() -> None:
    from stagespan.export.ending import Ending

    ending = Ending()
    ending.limit(lambda longest_s: pathlib.Path(sys.argv[1]).write_text("saved"))
    print("ready", flush=True)
    while True:
        time.sleep(0.01)


def slow_to_save() -> None:
    from stagespan.export.ending import Ending

    def save(longest_s):
        assert longest_s > 2
        time.sleep(2)
        pathlib.Path(sys.argv[1]).write_text("saved")

    ending = Ending()
    ending.limit(save)
    print("ready", flush=True)
    while not ending.wait(60):
        pass
    ending.allow_work()
    ending.end()


def failing_clock() -> None:
    from stagespan.export import otlp

    otlp.start(sys.argv[1])
    now_ns = time.time_ns

    def fails():
        raise RuntimeError("the clock is replaced")

    time.time_ns = fails
    time.sleep(1.5)
    time.time_ns = now_ns
    with stagespan.request("r"), stagespan.span("decode"):
        pass
    hold()


def worker() -> None:
    stage = stagespan.span("decode")
    print("ready", flush=True)
    for line in sys.stdin:
        for _ in range(int(line)):
            with stage as span:
                span.add(tokens=2)
        print("done", flush=True)


def plenty() -> None:
    for n in range(60):
        with stagespan.request(f"session-{n % 3}/{n}") as request, stagespan.span("decode"):
            time.sleep(0.001 * (n % 7))
        if n % 10 == 0:
            request.set_status("cancelled")
    hold()


def crowded() -> None:
    for n in range(20):
        remotes = [stagespan.extract({}) for _ in range(1 + n % 3)]
        with stagespan.batch("forward", remotes):
            time.sleep(0.001 * (n % 5))
        for remote in remotes:
            with remote, stagespan.span("send"):
                time.sleep(0.001 * (n % 4))
    hold()


def open_request() -> None:
    with stagespan.request("r"):
        hold()


def everything_shown() -> None:
    def hold():
        with stagespan.batch("held", [stagespan.extract({})]):
            time.sleep(3600)

    threading.Thread(target=hold, daemon=True).start()
    stagespan.begin("replica", kind="queue")
    stagespan.begin("step")
    print("ready", flush=True)
    for n in count():
        remote = stagespan.extract({})
        with stagespan.batch("forward", [remote]):
            pass
        with remote, stagespan.span("step") as step, stagespan.queued("replica"):
            step.add(tokens=2)
            time.sleep(0.01)
        # Of a chunk of the remote part, it is not known how long after the request it came.
        with stagespan.request() as request:
            request.chunk(1)
            request.chunk(1)
        stagespan.gauge("blocks_free", n)


def service() -> None:
    print("ready", flush=True)
    token = stagespan.begin("a stage with <b>a name</b> that is as long as names of stages can be")
    for n in count():
        with stagespan.request(f"r{n}"), stagespan.span("decode"), stagespan.queued("replica"):
            time.sleep(0.01)


def crossing() -> None:
    with stagespan.request("sent"):
        carrier = stagespan.inject(queue="tasks")
    with stagespan.extract(carrier):
        pass
    waiting = stagespan.extract(carrier)
    with stagespan.request("oldest"), stagespan.span("outer"), stagespan.span("inner"):
        hold()


def batches_and_spans() -> None:
    for _ in range(5):
        with stagespan.batch("forward", []):
            pass
    with stagespan.span("forward"):
        pass
    with stagespan.batch("forward", []):
        hold()


def displaced_requests() -> None:
    def work(n):
        for i in range(n):
            with stagespan.request(f"r{i}"), stagespan.span("s"):
                pass

    work(10)
    hold()
    for _ in range(4):
        work(600)
        time.sleep(0.3)
    hold("done")


def numbers_of_spans() -> None:
    def work(n):
        for _ in range(n):
            with stagespan.span("s"):
                pass

    work(10)
    print("ready", flush=True)
    while (line := sys.stdin.readline()).strip():
        work(int(line))
        print("done", flush=True)


def hand_offs() -> None:
    for n in range(70):
        carriers = []
        with stagespan.request("r"):
            carriers.append(stagespan.inject(queue="tasks"))
            if n % 2:
                carriers.append(stagespan.inject(queue="saving"))
        for carrier in carriers:
            with stagespan.extract(carrier):
                pass
    hold()


def million_spans() -> None:
    for _ in range(1 << 20):
        with stagespan.span("decode"):
            pass


def worker_with_child() -> None:
    def work():
        with stagespan.span("work"):
            pass

    work()
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    os.waitpid(pid, 0)
    work()


def growing_names() -> None:
    def work(n):
        with stagespan.span(f"work {n}"):
            pass

    work(0)
    hold()
    for n in range(1, 40):
        work(n)
    print("done", flush=True)
    input()


def one_slow_request() -> None:
    for n in range(150):
        with stagespan.request(f"usual-{n}"), stagespan.span("work"):
            time.sleep(0.001)
    with stagespan.request("slow"), stagespan.span("work"):
        time.sleep(2)
    hold()


def two_hundred_processes() -> None:
    pids = []
    for n in range(200):
        pid = os.fork()
        if pid == 0:
            for _ in range(10):
                with stagespan.request("r"), stagespan.span("decode"):
                    pass
            os.write(1, b".")
            signal.pause()
        pids.append(pid)
    os.write(1, b"\n")
    sys.stdin.readline()
    for n, pid in enumerate(pids):
        os.kill(pid, signal.SIGKILL if n % 2 else signal.SIGTERM)
        os.waitpid(pid, 0)
    hold("ended")


def keeping_itself() -> None:
    from stagespan.export.kept import Keeper
    from stagespan.export.this_process import ThisProcess
    from stagespan.export.traces import Rules

    form, folder, *numbers = sys.argv[1:]
    for n in range(max(map(int, numbers))):
        with stagespan.request(f"r{n}") as request:
            with stagespan.queued("replica"):
                pass
            with stagespan.span("encode") as span:
                span.add(tokens=n)
                carrier = stagespan.inject(queue="tasks")
            with stagespan.extract(carrier) as remote, stagespan.span("decode"):
                with stagespan.batch("forward", [remote]):
                    pass
            request.chunk(tokens=2)
    own = ThisProcess(Rules())
    own.read(at_end=True)
    requests = own.complete(at_end=True)
    for number in numbers:
        keeper = Keeper(f"{folder}/{number}", 1 << 30, parquet=form == "parquet")
        keeper.put(requests[: int(number)])
        keeper.close()
    hold()


if __name__ == "__main__":
    globals()[sys.argv.pop(1)]()
