"""A short test of an installed wheel, which needs nothing but what the wheel requires.

    python tools/smoke.py [VERSION]

It starts no other program, so that it also runs in an emulator. It prints one line of JSON: the
versions of the packages, the clock, and what a span costs.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import stagespan
from stagespan import _core, recording
from stagespan.cli import command

ROUNDS, RUNS = 50, 500
PACKAGES = ("numpy", "msgspec", "rich", "click")


@stagespan.span("decorated")
def decorated(number: int) -> int:
    """Be called as a stage."""
    return number + 1


async def in_tasks() -> None:
    """Enter a span in several tasks at the same time."""

    async def one() -> None:
        async with stagespan.span("task"):
            await asyncio.sleep(0)

    await asyncio.gather(*(one() for _ in range(10)))


def cli(*arguments: str) -> int:
    """Run a command in this process and return its exit status."""
    try:
        command.main(list(arguments), prog_name="stagespan")
    except SystemExit as done:
        return int(done.code or 0)
    return 0


def in_child() -> bool:
    """Fork inside an open span; return whether the child, which ends it, records its own."""
    with stagespan.span("forked"):
        child = os.fork()
        if child:
            return os.waitpid(child, 0)[1] == 0
    with stagespan.span("child"):
        pass
    os._exit(0 if stagespan.stats()["child"].count == 1 else 1)


def ends_while_threads_work() -> bool:
    """Fork; return whether a child ends as usual whose daemon threads read a trace meanwhile.

    Python ends these threads inside the extension, until 3.13 by pthread_exit.
    """
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    events = b'{"ph":"X","name":"work","ts":1,"dur":1,"pid":1,"tid":1},' * 20_000

    def scan() -> None:
        while True:
            _core.TraceScanner().scan(events, 0)

    class Late:
        def __del__(self, sleep: Any = time.sleep) -> None:
            sleep(1)  # Python is ending; all threads have requested its lock by then

    for _ in range(3):
        threading.Thread(target=scan, daemon=True).start()
    sys.modules["late"] = Late()  # type: ignore[assignment]
    sys.exit(0)


def cost_ns(call: Any) -> float:
    """Return the least mean time of a call in ns, over some rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        begin_ns = time.perf_counter_ns()
        call()
        best = min(best, (time.perf_counter_ns() - begin_ns) / RUNS)
    return round(best, 1)


def entered() -> None:
    """Enter a block many times."""
    block = stagespan.span("block")
    for _ in range(RUNS):
        with block:
            pass


def called() -> None:
    """Call a decorated function many times."""
    for number in range(RUNS):
        decorated(number)


def main() -> None:
    """Use each part of the package once. Raises an exception if one of them fails."""
    assert stagespan.is_available()
    versions = {stagespan.__version__, importlib.metadata.version("stagespan"), *sys.argv[1:]}
    assert len(versions) == 1, versions
    with stagespan.request("r"), stagespan.span("outer"), stagespan.span("inner") as inner:
        inner.add(tokens=3)
    thread = threading.Thread(target=decorated, args=(1,))
    thread.start()
    thread.join()
    asyncio.run(in_tasks())
    stats = stagespan.stats()
    counts = {name: stats[name].count for name in stats}
    assert counts == {"outer": 1, "inner": 1, "decorated": 1, "task": 10}, counts
    assert stats["inner"].work == {"tokens": 3}
    assert stats["outer"].total_ns >= stats["inner"].total_ns
    assert (Path(stagespan.get_include()) / "stagespan" / "python.h").is_file()
    place = _core.recording_place()
    if place["kind"] == "file":
        spans = recording.open(place["path"]).spans()
        assert len(spans) == len(stagespan.spans())
    assert in_child()
    assert ends_while_threads_work()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        event = {"ph": "X", "name": "aten::mm", "cat": "cpu_op", "ts": 1, "dur": 2}
        trace.write_text(json.dumps({"traceEvents": [{**event, "pid": 1, "tid": 1}]}))
        sys.stdout, out = open(os.devnull, "w"), sys.stdout  # noqa: SIM115
        assert cli("analyze", str(trace)) == 0
        assert cli("doctor", "--no-device") == 0
        sys.stdout = out
    costs = {"with": cost_ns(entered), "decorated": cost_ns(called)}
    packages = {name: importlib.metadata.version(name) for name in PACKAGES}
    clock = _core.clock_info()["source"]
    print(json.dumps({"python": platform.python_version(), **packages, "clock": clock, **costs}))


if __name__ == "__main__":
    main()
