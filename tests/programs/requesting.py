"""Programs that make requests, and hand them on."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import json
import mmap
import os
import resource
import sys
import threading
import time
from collections import Counter
from typing import Any

from shared import hold, in_threads

import stagespan
from stagespan import span


def many() -> None:
    remotes = []
    for i in range(8):
        with stagespan.request(f"id-{i}"), stagespan.span("a") as a:
            a.add(items=i)
            here, there = stagespan.inject(queue="q"), stagespan.inject(queue="p")
            with stagespan.queued("w"):
                pass
            with stagespan.extract(here), stagespan.span("b") as b:
                b.add(items=0.1, bytes=i)
        remotes.append(stagespan.extract(there))
    with stagespan.batch("f", remotes):
        pass
    for remote in remotes[:4]:
        with remote:
            remote.chunk()
    left_open = stagespan.request("id-open")
    left_open.__enter__()
    print(stagespan._core.recording_place()["path"], flush=True)
    os._exit(0)


def left_open() -> None:
    with stagespan.request("never ends"), stagespan.span("waits"):
        stagespan.inject(queue="nowhere")
        received = stagespan.extract({"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"})
        hold()


def many_alike() -> None:
    for i in range(3000):
        with stagespan.request(f"id-{i}"), stagespan.span(f"stage {i % 7}") as span:
            span.add(items=i)
            with stagespan.extract(stagespan.inject(queue="q")), stagespan.span("inner"):
                pass
    hold()


def crowd() -> None:
    opened = [stagespan.request(f"q{i}") for i in range(200)]
    for one in opened:
        one.__enter__()
    for one in reversed(opened):
        one.__exit__()
    ended = opened[0]
    for i in range(3):
        with stagespan.batch("b", [ended] * 200):
            pass
    print(stagespan._core.recording_place()["path"], flush=True)
    os._exit(0)


def with_fields() -> None:
    for n in range(6):
        fields: dict[str, Any] = {
            "steps": 60 if n % 2 else 20,
            "model": f"wan-{n % 3}",
            "prompt": "a secret text",
        }
        request = stagespan.request(f"r{n}", **fields)
        request.pipeline = "video" if n < 4 else "image"
        with request, stagespan.span("denoise"):
            pass
    hold()


def values_of_fields() -> None:
    from stagespan import recording

    stagespan.record_request_fields("x", "x")
    values = [7, -(2**63), 2**70, True, 1.5, float("nan"), float("inf"), "é" * 100, ""]
    values += ["\ud800", "m" * (1 << 20), None, [1], b"bytes"]
    found = []
    for value in values:
        with stagespan.request(x=value, y=1):
            pass
        found.append(recording.open(os.getpid()).segments()[-1]["fields"])
    print(json.dumps(found))


def secret_fields() -> None:
    from stagespan import recording

    with stagespan.request(api_key="sk-1", token=5, model="m"):
        pass
    print(json.dumps(recording.open(os.getpid()).segments()[-1]["fields"]))


def limits_of_fields() -> None:
    found = []
    for name in ["", "x" * 33, *map(str, range(9))]:
        try:
            stagespan.record_request_fields(name)
        except ValueError as error:
            found.append(str(error))
    print(json.dumps(found))


def changed_fields() -> None:
    from stagespan import recording

    def last():
        return recording.open(os.getpid()).segments()[-1]["fields"]

    stagespan.record_request_fields("steps", "user")
    with stagespan.request(steps=1) as request:
        print(json.dumps(last()), flush=True)
        request.metadata["steps"] = 2
        carrier = request.inject()
    print(json.dumps(last()), flush=True)
    if os.fork() == 0:
        with stagespan.extract(carrier) as remote:
            remote.metadata["user"] = "u"
        print(json.dumps(last()), flush=True)
        os._exit(0)
    os.wait()


def many_exceptions() -> None:
    from stagespan import recording

    for n in range(300):
        kind = type(f"E{n}", (Exception,), {"__module__": "many"})
        try:
            with stagespan.span("s"):
                raise kind("é" * 300)
        except Exception:
            pass
    failures = recording.open(os.getpid()).failures()
    kinds = Counter(kind for kind, _ in failures.values())
    print(json.dumps([len(failures), len(kinds), kinds["(other)"], kinds["many.E0"]]))
    print(json.dumps(sorted({str(message) for _, message in failures.values()})))
    with stagespan.span("a stage after them"):
        pass
    print(json.dumps(stagespan.lost()["names"]))


def of_two_pipelines() -> None:
    for n in range(int(sys.argv[1])):
        request = stagespan.request(f"r{n}")
        request.pipeline = "even" if n % 2 == 0 else "odd"
        with request:
            if n % 10 == 0:
                request.set_status("cancelled")
    print("ready", flush=True)
    while what := sys.stdin.readline().strip():
        if what == "open":
            open_ = [stagespan.request("open"), stagespan.extract({})]
            for one in open_:
                one.__enter__()
            time.sleep(0.05)
            with stagespan.span("work"):
                pass
        print("done", flush=True)


def many_pipelines() -> None:
    for n in range(6000):
        request = stagespan.request()
        request.pipeline = f"p{n}"
        with request:
            request.chunk()
    with stagespan.span("a stage"):
        pass
    stats = [
        stagespan.stats(kind="request"),
        stagespan.stats(kind="part_first_chunk"),
        stagespan.stats(kind="execution"),
    ]
    print(json.dumps([{name: of.count for name, of in one.items()} for one in stats]))


def pushed_at_exit() -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    from stagespan.export import prometheus

    registry = CollectorRegistry()
    prometheus.register(registry)

    def pushed():
        for line in generate_latest(registry).decode().splitlines():
            if line.startswith("stagespan_request_duration_seconds_count"):
                print('"error"' in line, float(line.split()[-1]))

    atexit.register(pushed)

    def serve():
        for n in range(3_000):
            with stagespan.request() as request, stagespan.span("decode"):
                if n % 3 == 0:
                    request.set_status("error")

    in_threads(*[serve] * 4)


def endless_requests() -> None:
    def serve():
        while True:
            with stagespan.request("r"):
                pass
            os.write(1, b".")

    os.write(1, b"ready\n")
    for _ in range(2):
        threading.Thread(target=serve).start()


def many_queues() -> None:
    for n in range(4200):
        parent = f"00-{n + 1:032x}-{n + 1:016x}-01"
        own = "1;id;" + 4 * "0000000000000001;" + f"reply-{n};1;"
        carrier = {"traceparent": parent, "stagespan": own}
        with stagespan.extract(carrier, size_bytes=10) as remote:
            assert remote.queue == f"reply-{n}"
    # WHEN the process names stages itself, also one that a peer has named
    for n in range(100):
        with stagespan.span(f"own-{n}"):
            pass
    with stagespan.queued("reply-4000"):
        pass
    # THEN they have their names, and so do the first ones of the peer
    assert all(stagespan.stats()[f"own-{n}"].count == 1 for n in range(100))
    waits = stagespan.stats(kind="queue")
    assert waits["reply-0"].count == 1
    assert waits["reply-0"].work == {"bytes": 10}
    assert waits["reply-4000"].count == 1
    assert len(waits) + len(stagespan.stats(kind="remote")) <= 257
    # AND the others are counted under one name
    assert waits["(other)"].count + sum(name.startswith("reply") for name in waits) == 4201
    assert stagespan.lost()["names"] > 4000


def fork_inside() -> None:
    from stagespan import recording

    with stagespan.request("parent") as parent:
        with stagespan.span("around"):
            for _ in range(2):
                if os.fork() == 0:
                    with stagespan.request("child") as own, stagespan.span("work"):
                        carrier = stagespan.inject()
                    with stagespan.extract(carrier), stagespan.span("work"):
                        pass
                    found = recording.open(os.getpid())
                    ids = [one["id"] for one in found.segments()]
                    print(json.dumps([own.trace_id, ids, len(found.spans())]), flush=True)
                    os._exit(0)
                os.wait()
        print(json.dumps([parent.trace_id, [], 0]), flush=True)


def hop_to_a_child() -> None:
    with stagespan.request("r"):
        carrier = stagespan.inject()
        if os.fork() == 0:
            with stagespan.extract(carrier), stagespan.span("work"):
                pass
            os._exit(0)
        os.wait()


def keeping_slow_ones() -> None:
    import torch

    from stagespan.export import keeping

    running = keeping.start(sys.argv[1], "3xp50")

    class Stage:
        @stagespan.span("denoise")
        def denoise(self, latents, *, scale=1.0):
            for _ in range(len(latents)):
                with stagespan.span("step"):
                    latents = latents + scale
            return latents

    stage = Stage()
    _torch = torch.zeros(1)

    def serve(name, size):
        with stagespan.request(name):
            stage.denoise(torch.zeros(size, 2))

    import gc

    while not gc.callbacks:
        serve("usual", 20)
    for n in range(150):
        serve("usual", 20)
    serve("large", 5000)
    with stagespan.request("block"), stagespan.span("waits"):
        time.sleep(0.2)
    running.close()


def asked_for_a_signature() -> None:
    @stagespan.span("tokenize")
    def tokenize(texts, *, longest=512):
        return len(texts)

    hold()
    with stagespan.request("asked"):
        tokenize(["a secret", "text"], longest=1024)
    stagespan.flush()
    print(int(stagespan.spans()["id"][-1]), flush=True)
    sys.stdin.readline()


def planted_causes() -> None:
    from stagespan.export import keeping

    running = keeping.start(sys.argv[1], "3xp50")
    gc.disable()
    garbage = [[n] for n in range(400_000)]
    # Of two causes, each is long enough to be one, however busy the machine is.
    began_s = time.perf_counter()
    gc.collect()
    collection_s = time.perf_counter() - began_s

    def compute(times):
        for _ in range(times):
            sum(range(20_000))

    def serve(name, causes=()):
        with stagespan.request(name), stagespan.span("answer") as answer:
            more = 40 if "more_work" in causes else 1
            answer.add(tokens=10 * more)
            compute(more)
            if "nothing" in causes:
                compute(40)
            if "collection" in causes:
                gc.collect()
            if "page_faults" in causes:
                with stagespan.span("allocates"), mmap.mmap(-1, 64 << 20) as memory:
                    memory.madvise(mmap.MADV_NOHUGEPAGE)
                    for begin in range(0, len(memory), mmap.PAGESIZE):
                        memory[begin] = 1
            if "waited" in causes:
                with stagespan.span("waits"):
                    time.sleep(collection_s)

    for n in range(120):
        serve("usual")
    while not gc.callbacks:
        serve("usual")
    for planted in sys.argv[2:]:
        for n in range(10):
            serve("usual")
        serve(planted, planted.split("+"))
    with stagespan.request("beside"):
        slow = threading.Thread(target=serve, args=("neighbour", ["nothing"]))
        slow.start()
        slow.join()
    running.close()


def gauges() -> None:
    stagespan.gauge("kv_blocks_free", 7)
    stagespan.gauge("kv_blocks_free", 1204.5)
    hold()


def many_gauges() -> None:
    from stagespan import recording

    for n in range(100):
        stagespan.gauge(f"g{n}", n)
    stagespan.gauge("g0", float("nan"))
    stagespan.gauge("x" * 99, 1)
    found = recording.open(os.getpid()).gauges()
    print(json.dumps([len(found), found["g0"], stagespan.lost()["work"]]))


def sdk() -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    tracer = TracerProvider().get_tracer("app")

    def inside(request):
        span: Any
        with tracer.start_as_current_span("SELECT") as span:
            context = span.get_span_context()
            parent = span.parent and f"{span.parent.span_id:016x}"
            return f"{context.trace_id:032x}" == request.trace_id, parent is not None

    async def cancelled():
        async def work():
            async with stagespan.request("cancelled"):
                await asyncio.sleep(10)

        task = asyncio.create_task(work())
        await asyncio.sleep(0.01)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return trace.get_current_span().get_span_context().is_valid

    with stagespan.request("r") as request, stagespan.span("s"):
        first = inside(request)
        with stagespan.request("inner") as inner:
            second = inside(inner)
        third = inside(request)
    outside = trace.get_current_span().get_span_context().is_valid
    print(json.dumps([first, second, third, outside, asyncio.run(cancelled())]))


def front() -> None:
    print("ready", flush=True)
    opened = {}
    for line in sys.stdin:
        what, name, *queue = line.split()
        if what == "send":  # in a request of its own, which stays open
            opened[name] = one = stagespan.request(name, new=True)
            one.__enter__()
            carrier = one.inject(queue=queue[0])
        elif what == "again":  # writes the same message again, before it is sent
            carrier = opened[name].inject(json.loads(queue[1]), queue=queue[0])
        else:
            opened.pop(name).__exit__(None, None, None)
            carrier = {}
        print(json.dumps(carrier).replace(" ", ""), flush=True)


def worker() -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        with stagespan.extract(json.loads(line)):
            print("done", flush=True)


def many_hops() -> None:
    with stagespan.request("long", new=True) as long:
        for _ in range(300):
            carrier = long.inject(queue="tasks")
            with stagespan.extract(carrier):
                pass
        hold()


def invalid_names() -> None:
    names: list[Any] = [None, "", 42, None]
    for name in names:
        with stagespan.span(name):
            pass
    print(stagespan.lost()["invalid_names"])


def endless_names() -> None:
    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

    def run(first):
        for i in range(first, first + 500):
            with stagespan.span("x" * 1_000_000 + str(i)):
                pass

    run(0)
    before = peak()
    run(500)
    print(peak() - before, sum(s.count for s in stagespan.stats().values()))


def ten_thousand_names() -> None:
    for _ in range(2):
        for i in range(10_000):
            with span(f"stage {i}") as context:
                assert context.name == f"stage {i}"
    with span("stage 0"), span("stage 9999"):
        pass
    stats = stagespan.stats()
    own = {n: s for n, s in stats.items() if n != "(overflow)"}
    assert sum(s.count for s in stats.values()) == 20_002
    assert own["stage 0"].count == 3
    assert all(s.count in (2, 3) for s in own.values())
    assert stats["(overflow)"].count + sum(s.count for s in own.values()) == 20_002
    assert stats.lost["names"] == stats["(overflow)"].count
    assert stagespan.spans()["stage"].max() < len(stagespan.stage_names())
    print(len(own), "names" in str(stats))


if __name__ == "__main__":
    globals()[sys.argv.pop(1)]()
