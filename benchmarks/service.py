"""Measures a service of four processes without records, with stagespan, and with OpenTelemetry.

    python -m benchmarks.service [--turns 21] [--requests 200] [--json FILE]

The engine of tests/served_engine.py (a web server, a scheduler and two workers, through ZeroMQ)
runs once for each case. All engines run at once and take turns to serve the same number of
requests, in random order, so that a drift of the machine affects all of them. Each request has
eight steps of 1 ms, in which a worker sleeps, as if it waited for a device. Each ratio compares two
turns, one after the other; the table has their median and quartiles.
"""

from __future__ import annotations

import argparse
import ast
import http.client
import importlib
import importlib.util
import inspect
import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from stagespan import recording
from stagespan.text.tables import Column, plain_table

ROOT = Path(__file__).parent.parent
PATHS = (ROOT, ROOT / "tests", ROOT / "tests" / "integration")
BARE, ON, PEER = "no records", "stagespan", "OpenTelemetry"
CASES = {
    BARE: "served_engine:Calls",
    "stagespan, off": "engine_calls:WithStagespanOff",
    ON: "engine_calls:WithStagespan",
    PEER: "benchmarks.service_calls:WithOpenTelemetry",
}
CLIENTS = 8
STEPS = 8
_WARM_UP = 40


class Turn(NamedTuple):
    """The figures of one turn."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    """CPU time of the four processes, a request."""


class Engine:
    """A running engine."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process, self.folder = process, folder
        assert process.stdout is not None
        self._port = int(process.stdout.readline().split()[0])
        self._ids = itertools.count()
        self.served = 0

    def _get(self, client: http.client.HTTPConnection) -> float:
        begin_s = time.perf_counter()
        client.request("GET", f"/plain/{STEPS}/r{next(self._ids)}")
        answer = client.getresponse().read()
        if not answer.endswith(b"."):
            sys.exit("A request got no answer.")
        return (time.perf_counter() - begin_s) * 1e3

    def _ask(self, requests: int) -> list[float]:
        client = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        found = [self._get(client) for _ in range(requests)]
        client.close()
        return found

    def serve(self, requests: int) -> Turn:
        """Serve a number of requests from several clients."""
        cpu_ns, begin_s = self._cpu_ns(), time.perf_counter()
        with ThreadPoolExecutor(CLIENTS) as pool:
            asked = pool.map(self._ask, [requests // CLIENTS] * CLIENTS)
            times = sorted(itertools.chain.from_iterable(asked))
        wall_s = time.perf_counter() - begin_s
        self.served += len(times)
        return Turn(
            len(times) / wall_s,
            times[len(times) // 2],
            times[int(len(times) * 0.99)],
            (self._cpu_ns() - cpu_ns) / 1e6 / len(times),
        )

    def _cpu_ns(self) -> int:
        """The CPU time of all threads of all processes so far."""
        found, pids = 0, [self._process.pid]
        for pid in pids:  # grows
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += int((task / "schedstat").read_text().split()[0])
                pids += [int(child) for child in (task / "children").read_text().split()]
        return found

    def end(self) -> None:
        """End all its processes."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


@contextmanager
def engine(case: str) -> Iterator[Engine]:
    """Start the engine of a case, which has served some requests."""
    with tempfile.TemporaryDirectory() as sockets:
        folder = Path(tempfile.mkdtemp(prefix="stagespan-benchmark-", dir="/dev/shm"))
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "served_engine.py"), sockets, CASES[case]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(map(str, PATHS)),
                "STAGESPAN_RECORDING_DIR": str(folder),
            },
        )
        try:
            started = Engine(process, folder)
            started.serve(_WARM_UP)
            yield started
            if case == ON:
                _check(started)
            started.end()
        finally:
            process.kill()
            process.wait()
            shutil.rmtree(folder, ignore_errors=True)


def _check(started: Engine) -> None:
    """Exit with a message unless each request and each of its chunks was recorded."""
    os.environ["STAGESPAN_RECORDING_DIR"] = str(started.folder)
    mine = [one for one in recording.recordings() if Path(one.path).parent == started.folder]
    for kind, stage, expected in (
        ("execution", "parse", started.served),
        ("queue", "waiting", started.served),
        ("execution", "prefill", started.served),
        ("handoff", "replies", started.served),
        ("between_chunks", "default", started.served * (STEPS - 1)),
    ):
        stats = [one.stats(kind=kind) for one in mine]  # type: ignore[arg-type]
        count = sum(found[stage].count for found in stats if stage in found)
        if count != expected:
            sys.exit(f"stagespan has {count:,} records of {kind} {stage} instead of {expected:,}.")


def lines(case: str) -> int:
    """Return how many lines the bodies of the methods of a case have."""
    module, _, name = CASES[case].partition(":")
    source = inspect.getsource(getattr(importlib.import_module(module), name))
    return sum(
        (function.body[-1].end_lineno or 0) - function.body[0].lineno + 1
        for function in ast.walk(ast.parse(source))
        if isinstance(function, ast.FunctionDef)
    )


def _has_peer() -> bool:
    try:
        return importlib.util.find_spec("opentelemetry.sdk") is not None
    except ModuleNotFoundError:
        return False


def measure(turns: int, requests: int) -> dict[str, list[Turn]]:
    """Run all engines in turns."""
    with ExitStack() as stack:
        order = [case for case in CASES if case != PEER or _has_peer()]
        engines = {case: stack.enter_context(engine(case)) for case in order}
        found: dict[str, list[Turn]] = {case: [] for case in order}
        shuffle = random.Random(turns).shuffle
        for _ in range(turns):
            shuffle(order)
            for case in order:
                found[case].append(engines[case].serve(requests))
    return found


def _ratio(found: dict[str, list[Turn]], case: str, figure: int) -> str:
    ratios = [
        own[figure] / bare[figure] for own, bare in zip(found[case], found[BARE], strict=True)
    ]
    low, middle, high = (
        statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    )
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def show(found: dict[str, list[Turn]]) -> None:
    """Print the medians, and the ratios with their quartiles."""
    figures = ("requests/s", "p50 ms", "p99 ms", "CPU ms")
    medians = [
        [f"{statistics.median(turn[i] for turn in turns):.2f}" for turns in found.values()]
        for i in range(len(figures))
    ]
    written = [str(lines(case)) if case in (ON, PEER) else "" for case in found]
    columns = [Column("", list(found)), *map(_figures, figures, medians)]
    print(plain_table([*columns, _figures("lines", written)]))
    compared = [case for case in found if case != BARE]
    ratios = [[_ratio(found, case, i) for case in compared] for i in range(len(figures))]
    print(f"\nIn times of {BARE}, median and quartiles:\n")
    print(plain_table([Column("", compared), *map(_figures, figures, ratios)]))
    if PEER not in found:
        print("\nSkipped: OpenTelemetry (opentelemetry-sdk is not installed)")


def _figures(title: str, cells: list[str]) -> Column:
    return Column(title, cells, is_number=True)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.service", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--turns", type=int, default=21)
    parser.add_argument("--requests", type=int, default=200, help="in a turn, of 8 clients")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw figures there")
    given = parser.parse_args()
    sys.path[:0] = map(str, PATHS)
    found = measure(given.turns, given.requests)
    if given.json is not None:
        raw = {case: [turn._asdict() for turn in turns] for case, turns in found.items()}
        given.json.write_text(json.dumps(raw, indent=1))
    show(found)


if __name__ == "__main__":
    main()
