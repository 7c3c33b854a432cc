"""Counts how often kept slow requests name the cause that was planted.

    python -m benchmarks.slow_causes [--rounds N]

A service on one core answers usual requests, and between them, in turns, slow ones: a collection of
garbage, other processes on its core, memory that is touched for the first time, a lock that another
thread holds, a larger input, two of these at once, and more work that nothing counts, which has no
cause. It keeps them with `stagespan.export.keeping`. In nine of ten rounds, the first causes that
are named have to be the planted ones, and none may be named where there is none.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import stagespan
from stagespan.export import keeping
from stagespan.pages.tables import Column, plain_table

PLANTED = (
    "collection",
    "stolen",
    "page_faults",
    "lock",
    "more_work",
    "collection+lock",
    "page_faults+more_work",
    "nothing",
)
"""Each is named by the code of its cause, or by that of `_CODES`."""
_CODES = {"switched_out": "stolen", "waited": "lock"}
_LEAST_SHARE = 0.9
_USUAL_LOOPS = 10
_TOUCHED_BYTES = 4 << 20
_SLOW = 5
"""How many times the usual time a slow request takes, or a little more."""
_USUAL_BETWEEN = 12
_ON_THE_CORE = 12
"""Other processes."""


def _compute(loops: int) -> None:
    for _ in range(loops):
        sum(range(20_000))


def _touch(size_bytes: int) -> None:
    with mmap.mmap(-1, size_bytes) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for begin in range(0, size_bytes, mmap.PAGESIZE):
            memory[begin] = 1


@contextlib.contextmanager
def _others_on_the_core() -> Iterator[None]:
    command = ["sh", "-c", "echo; while :; do :; done"]
    others = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(_ON_THE_CORE)]
    try:
        for other in others:
            assert other.stdout is not None
            other.stdout.readline()
        yield
    finally:
        for other in others:
            other.kill()
            other.communicate()


class _Service:
    """Answers requests in this thread."""

    def __init__(self) -> None:
        self._garbage = [[n] for n in range(400_000)]
        self._lock = threading.Lock()
        began_s, began_cpu_s = time.perf_counter(), time.thread_time()
        _compute(_SLOW * _USUAL_LOOPS)
        self._slow_s = time.perf_counter() - began_s
        slow_cpu_s = time.thread_time() - began_cpu_s
        began_cpu_s = time.thread_time()
        _touch(_TOUCHED_BYTES)
        times = max(round(slow_cpu_s / (time.thread_time() - began_cpu_s)), 1)
        self._touched_bytes = times * _TOUCHED_BYTES

    def answer(self, name: str, causes: list[str]) -> None:
        """Answer one request."""
        loops = _USUAL_LOOPS * (_SLOW if "more_work" in causes or "nothing" in causes else 1)
        with stagespan.request(name), stagespan.span("answer") as span:
            span.add(tokens=loops if "more_work" in causes else _USUAL_LOOPS)
            with self._lock:
                pass
            _compute(loops)
            if "collection" in causes:
                gc.collect()
            if "page_faults" in causes:
                _touch(self._touched_bytes)

    def slow(self, name: str, causes: list[str]) -> None:
        """Answer one request that is slow for these causes."""
        with contextlib.ExitStack() as stack:
            if "stolen" in causes:
                stack.enter_context(_others_on_the_core())
            if "lock" in causes:
                has_lock = threading.Event()
                holder = threading.Thread(target=self._hold, args=(has_lock,))
                holder.start()
                has_lock.wait()
                stack.callback(holder.join)
            self.answer(name, causes)

    def _hold(self, has_lock: threading.Event) -> None:
        with self._lock:
            has_lock.set()
            time.sleep(2 * self._slow_s)


def serve(folder: str, rounds: int) -> None:
    """Answer usual and slow requests, and keep the slow ones."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    gc.disable()
    service = _Service()
    running = keeping.start(folder, "3xp50")
    usual = 0
    while usual < 300 or not gc.callbacks:  # until collections are noted
        service.answer("usual", [])
        usual += 1
    for number in range(rounds):
        for planted in PLANTED:
            for _ in range(_USUAL_BETWEEN):
                service.answer("usual", [])
            service.slow(f"{number}:{planted}", planted.split("+"))
    running.close()


def _named(slow: dict[str, Any]) -> list[str]:
    """Return the planted causes that a kept request names, the first one first."""
    return [_CODES.get(cause["code"], cause["code"]) for cause in slow["causes"]]


def main() -> None:
    """Print how often each planted cause was named; exit with 1 if one was named too rarely."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.slow_causes", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        serve(given.serve, given.rounds)
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.slow_causes", "--serve", folder]
        subprocess.run(
            [*command, "--rounds", str(given.rounds)],
            check=True,
            env={**os.environ, "STAGESPAN_SYSTEM": "true"},
            cwd=Path(__file__).parent.parent,
        )
        done = subprocess.run(
            [sys.executable, "-m", "stagespan", "requests", folder, "--json", "--slowest", "10000"],
            check=True,
            stdout=subprocess.PIPE,
        )
    named: Counter[str] = Counter()
    beyond: dict[str, Counter[str]] = {planted: Counter() for planted in PLANTED}
    for request in json.loads(done.stdout)["requests"]:
        _, _, planted = request["request_id"].partition(":")
        if planted not in PLANTED or request["slow"] is None:
            continue
        wanted, causes = set(planted.split("+")) - {"nothing"}, _named(request["slow"])
        first = causes[: len(wanted)] if wanted else causes
        named[planted] += set(first) == wanted
        beyond[planted].update(set(causes) - wanted)
    columns = [
        Column("planted", list(PLANTED)),
        Column("named first", [f"{named[one]}/{given.rounds}" for one in PLANTED], is_number=True),
        Column(
            "others named",
            [", ".join(f"{code} {n}" for code, n in beyond[one].items()) for one in PLANTED],
        ),
    ]
    print(plain_table(columns))
    sys.exit(any(named[one] < _LEAST_SHARE * given.rounds for one in PLANTED))


if __name__ == "__main__":
    main()
