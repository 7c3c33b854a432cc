"""Programs whose greenlets take turns.

They import stagespan after gevent has replaced functions.
"""

from __future__ import annotations

import sys
from collections.abc import Generator


def gevent_jobs() -> None:
    from gevent import monkey

    monkey.patch_all()
    import time

    import gevent

    import stagespan as s

    def job(i):
        with s.request(f"r{i}"), s.span(f"job{i}"):
            for _ in range(3):
                with s.span(f"step{i}"):
                    time.sleep(0.001 * (1 + i % 3))

    with s.span("batch"):
        gevent.joinall([gevent.spawn(job, i) for i in range(20)])
    gevent.spawn(job, 20).join()
    with s.request("outer") as outer, s.span("spawns"):
        gevent.spawn(lambda: s.span("spawned").__enter__().__exit__(None, None, None)).join()
    spans, names = s.spans(), s.stage_names()
    ids = {int(row["id"]): names[row["stage"]] for row in spans}
    parents: dict[str, set[str | None]] = {}
    for row in spans:
        parent = ids.get(int(row["parent"]))
        parents.setdefault(names[row["stage"]], set()).add(parent)
    print(all(parents[f"step{i}"] == {f"job{i}"} for i in range(21)))
    print(all(parents[f"job{i}"] == {"batch"} for i in range(20)), parents["job20"])
    report = s.timing_report()
    print(
        all(
            set(one["stages"]) == {f"job{one['request_id'][1:]}", f"step{one['request_id'][1:]}"}
            for one in report["requests"][:21]
        ),
        len(report["requests"]),
    )
    print(parents["spawned"], sorted(report["requests"][-1]["stages"]))
    print({cause: n for cause, n in s.lost().items() if n})


def gevent_lines() -> None:
    from gevent import monkey

    monkey.patch_all()
    import logging
    import sys

    import gevent

    import stagespan as s

    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
    lines: list[logging.LogRecord] = []

    def kept(record):
        lines.append(record)
        return True

    logging.getLogger().handlers[0].addFilter(kept)

    def job():
        with s.ProfilingContext("stage"):
            gevent.sleep(0.001)

    gevent.joinall([gevent.spawn(job) for _ in range(3)])
    while sum("cost" in line.getMessage() for line in lines) < 3:
        gevent.sleep(0.01)
    for _ in range(30):
        gevent.sleep(0.01)
    print("end")


def gevent_profile() -> None:
    from gevent import monkey

    monkey.patch_all()
    import os

    os.environ["ENABLE_PROFILER_NAMES"] = "stream"
    import gevent
    import torch

    import stagespan as s

    @s.ProfilingContext("stream")
    def stream():
        for _ in range(3):
            yield torch.zeros(4) + 1

    def start():
        started.append(stream())
        next(started[-1])

    def finish():
        list(started[-1])

    started: list[Generator[torch.Tensor]] = []
    for _ in range(4):
        gevent.spawn(start).join()
        gevent.spawn(finish).join()


def greenlet_that_is_imported_late() -> None:
    import stagespan as s

    with s.span("early"):
        pass
    import greenlet

    def work(name):
        with s.span(name):
            greenlet.getcurrent().parent.switch()

    both = [greenlet.greenlet(lambda name=name: work(name)) for name in ("a", "b")]

    for one in both * 2:
        one.switch()

    print(sorted((s.stage_names()[row["stage"]], int(row["parent"])) for row in s.spans()))


if __name__ == "__main__":
    globals()[sys.argv.pop(1)]()
