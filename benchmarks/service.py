"""Measures a service of four processes without records, with stagespan, and with OpenTelemetry.

    python -m benchmarks.service [--export] [--turns 21] [--requests 200] [--json FILE]

The engine of tests/served_engine.py (a web server, a scheduler and two workers, through ZeroMQ)
runs once for each case. All engines run at once and take turns to serve the same number of
requests, in random order, so that a drift of the machine affects all of them. Each request has
eight steps of 1 ms, in which a worker sleeps, as if it waited for a device. Each ratio compares two
turns, one after the other; the table has their median and quartiles.

With ``--export``, requests are also sent to a receiver of OTLP: by `stagespan export`, which is
stopped while its engine has no turn, and by the SDK of OpenTelemetry in the service, with the same
shares of the requests. A second engine with stagespan alone shows how much two equal cases differ.
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
import signal
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

from benchmarks import sink
from stagespan import recording
from stagespan.pages.tables import Column, plain_table

ROOT = Path(__file__).parent.parent
PATHS = (ROOT, ROOT / "tests", ROOT / "tests" / "integration")
BARE, OFF, ON, PEER = "no records", "stagespan, off", "stagespan", "OpenTelemetry"


class Case(NamedTuple):
    """How an engine is started."""

    calls: str
    one_in: int = 0
    """One of so many requests is sent; 0 if none is."""
    is_peer: bool = False


_PEER_CALLS = "benchmarks.service_calls:WithOpenTelemetry"
CASES = {
    BARE: Case("served_engine:Calls"),
    OFF: Case("engine_calls:WithStagespanOff"),
    ON: Case("engine_calls:WithStagespan"),
    PEER: Case(_PEER_CALLS, is_peer=True),
}
EXPORTED = {
    **{name: CASES[name] for name in (BARE, OFF, ON)},
    f"{ON}, again": CASES[ON],
    **{
        f"{name}, {100 // one_in} %": Case(calls, one_in, name == PEER)
        for name, calls in ((ON, CASES[ON].calls), (PEER, _PEER_CALLS))
        for one_in in (100, 10, 1)
    },
}
CLIENTS = 8
STEPS = 8
_WARM_UP = 40
_DRAIN_S = 2.5
"""After a turn, for what the side-car has still to send."""
_END_S = 6.0
"""The SDK of OpenTelemetry sends every 5 s, and what is left at the end of a process is lost."""


class Turn(NamedTuple):
    """The figures of one turn."""

    requests_per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    cpu_ms: float
    """CPU time of the four processes, a request."""
    side_car_cpu_ms: float = 0.0
    """CPU time of the side-car, a request."""


class Engine:
    """A running engine."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process, self.folder = process, folder
        assert process.stdout is not None
        self._port = int(process.stdout.readline().split()[0])
        self._ids = itertools.count()
        self.served = 0
        self.side_car: subprocess.Popen[str] | None = None

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
            *(times[int(len(times) * q)] for q in (0.5, 0.95, 0.99)),
            (self._cpu_ns() - cpu_ns) / 1e6 / len(times),
        )

    def take_turn(self, requests: int) -> Turn:
        """Serve requests while the side-car runs, and let it send what is left."""
        side_car = self.side_car
        if side_car is None:
            return self.serve(requests)
        before_ns = _cpu_ns(side_car.pid)
        side_car.send_signal(signal.SIGCONT)
        turn = self.serve(requests)
        time.sleep(_DRAIN_S)
        side_car.send_signal(signal.SIGSTOP)
        took_ms = (_cpu_ns(side_car.pid) - before_ns) / 1e6
        return turn._replace(side_car_cpu_ms=took_ms / requests)

    def _pids(self) -> list[int]:
        pids = [self._process.pid]
        for pid in pids:  # grows
            for task in Path(f"/proc/{pid}/task").iterdir():
                pids += [int(child) for child in (task / "children").read_text().split()]
        return pids

    def _cpu_ns(self) -> int:
        """The CPU time of all processes so far."""
        return sum(map(_cpu_ns, self._pids()))

    def memory_mb(self) -> float:
        """The memory of the four processes in MiB; shared pages count once."""
        return sum(map(_memory_mb, self._pids()))

    def end(self) -> None:
        """End all its processes."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def _cpu_ns(pid: int) -> int:
    """The CPU time of a process, also of its threads that have ended."""
    return time.clock_gettime_ns((~pid << 3) | 2)  # as clock_getcpuclockid(3) returns it


def _memory_mb(pid: int) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(text.split("\nPss:")[1].split()[0]) / 1024


def _name(case: str) -> str:
    """Return the name of a case in addresses."""
    return "".join(filter(str.isalnum, case))


@contextmanager
def _side_car(case: Case, url: str, folder: Path) -> Iterator[subprocess.Popen[str] | None]:
    """Start the side-car of an engine, which is stopped."""
    if case.is_peer or not case.one_in:
        yield None
        return
    process = subprocess.Popen(
        [sys.executable, "-m", "stagespan", "export", "--otlp", url, "--sample", str(case.one_in)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "STAGESPAN_RECORDING_DIR": str(folder)},
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        yield process
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(30)
    finally:
        process.kill()
        process.wait()


@contextmanager
def engine(name: str, case: Case, address: str) -> Iterator[Engine]:
    """Start the engine of a case, which has served some requests."""
    url = f"{address}/{_name(name)}"
    sampled = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": url,
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": str(1 / max(case.one_in, 1)),
    }
    with tempfile.TemporaryDirectory() as sockets, ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="stagespan-benchmark-", dir="/dev/shm"))
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "served_engine.py"), sockets, case.calls],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                **(sampled if case.is_peer and case.one_in else {}),
                "PYTHONPATH": os.pathsep.join(map(str, PATHS)),
                "STAGESPAN_RECORDING_DIR": str(folder),
            },
        )
        try:
            started = Engine(process, folder)
            started.serve(_WARM_UP)
            started.side_car = stack.enter_context(_side_car(case, url, folder))
            yield started
            if case.calls == CASES[ON].calls:
                _check(started)
            started.end()
        finally:
            process.kill()
            process.wait()
            stack.close()
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def receiver() -> Iterator[tuple[str, Path]]:
    """Start a receiver of OTLP; yield its address and its folder."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.sink", folder],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}", Path(folder)
        finally:
            process.kill()
            process.wait()


def _check(started: Engine) -> None:
    """Exit with a message unless each request and each of its chunks was recorded."""
    os.environ["STAGESPAN_RECORDING_DIR"] = str(started.folder)
    started_here = [
        one for one in recording.recordings() if Path(one.path).parent == started.folder
    ]
    for kind, stage, expected in (
        ("execution", "parse", started.served),
        ("queue", "waiting", started.served),
        ("execution", "prefill", started.served),
        ("handoff", "replies", started.served),
        ("between_chunks", "default", started.served * (STEPS - 1)),
    ):
        stats = [one.stats(kind=kind) for one in started_here]  # type: ignore[arg-type]
        count = sum(found[stage].count for found in stats if stage in found)
        if count != expected:
            sys.exit(f"stagespan has {count:,} records of {kind} {stage} instead of {expected:,}.")


def lines(calls: str) -> int:
    """Return how many lines the bodies of the methods of MODULE:CLASS have."""
    module, _, name = calls.partition(":")
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


class Measured(NamedTuple):
    """The figures of a case."""

    turns: list[Turn]
    memory_mb: float
    side_car_mb: float | None
    delivered: float | None
    """Requests that arrived at the receiver, as a share of those that were served."""


def measure(cases: dict[str, Case], turns: int, requests: int) -> dict[str, Measured]:
    """Run all engines in turns."""
    order = [name for name, case in cases.items() if not case.is_peer or _has_peer()]
    turns_of: dict[str, list[Turn]] = {name: [] for name in order}
    with receiver() as (address, folder):
        with ExitStack() as stack:
            engines = {
                name: stack.enter_context(engine(name, cases[name], address)) for name in order
            }
            shuffle = random.Random(turns).shuffle
            for _ in range(turns):
                shuffle(order)
                for name in order:
                    turns_of[name].append(engines[name].take_turn(requests))
            if any(cases[name].one_in for name in order):
                for one in engines.values():
                    if one.side_car is not None:
                        one.side_car.send_signal(signal.SIGCONT)
                time.sleep(_END_S)
            memory = {name: one.memory_mb() for name, one in engines.items()}
            beside = {
                name: None if one.side_car is None else _memory_mb(one.side_car.pid)
                for name, one in engines.items()
            }
        return {
            name: Measured(
                of,
                memory[name],
                beside[name],
                _delivered(folder / _name(name), engines[name]) if cases[name].one_in else None,
            )
            for name, of in turns_of.items()
        }


def _delivered(file: Path, started: Engine) -> float:
    names = list(sink.span_names(file))
    return names.count("parse") / started.served


def _ratio(measured: dict[str, Measured], case: str, base: str, figure: int) -> str:
    ratios = [
        own[figure] / bare[figure]
        for own, bare in zip(measured[case].turns, measured[base].turns, strict=True)
    ]
    low, middle, high = (
        statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    )
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _medians(cases: dict[str, Measured], figure: int) -> list[str]:
    return [f"{statistics.median(turn[figure] for turn in of.turns):.2f}" for of in cases.values()]


def show(cases: dict[str, Case], measured: dict[str, Measured]) -> None:
    """Print the medians, and the ratios with their quartiles."""
    titles = ("requests/s", "p50 ms", "p95 ms", "p99 ms", "CPU ms")
    columns = [_figures(title, _medians(measured, i)) for i, title in enumerate(titles)]
    columns.append(_figures("MB", [f"{of.memory_mb:.0f}" for of in measured.values()]))
    if any(case.one_in for case in cases.values()):
        side_car = [
            "" if of.side_car_mb is None else cpu
            for of, cpu in zip(measured.values(), _medians(measured, len(titles)), strict=True)
        ]
        columns.append(_figures("side-car CPU ms", side_car))
        columns.append(_figures("MB", [_text(of.side_car_mb, ".0f") for of in measured.values()]))
        columns.append(
            _figures("delivered", [_text(of.delivered, ".1%") for of in measured.values()])
        )
    else:
        written = [str(lines(cases[name].calls)) if name in (ON, PEER) else "" for name in measured]
        columns.append(_figures("lines", written))
    print(plain_table([Column("", list(measured)), *columns]))
    bases = (BARE, ON) if f"{ON}, again" in measured else (BARE,)
    for base in bases:
        compared = [name for name in measured if name != base]
        print(f"\nIn times of {base}, median and quartiles:\n")
        ratios = [
            _figures(title, [_ratio(measured, name, base, i) for name in compared])
            for i, title in enumerate(titles)
        ]
        print(plain_table([Column("", compared), *ratios]))
    if not _has_peer():
        print("\nSkipped: OpenTelemetry (opentelemetry-sdk is not installed)")


def _text(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _figures(title: str, cells: list[str]) -> Column:
    return Column(title, cells, is_number=True)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.service", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--export", action="store_true", help="also send requests, by OTLP")
    parser.add_argument("--turns", type=int, default=21)
    parser.add_argument("--requests", type=int, default=200, help="in a turn, of 8 clients")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw figures there")
    given = parser.parse_args()
    sys.path[:0] = map(str, PATHS)
    cases = EXPORTED if given.export else CASES
    measured = measure(cases, given.turns, given.requests)
    if given.json is not None:
        raw = {
            name: {**of._asdict(), "turns": [turn._asdict() for turn in of.turns]}
            for name, of in measured.items()
        }
        given.json.write_text(json.dumps(raw, indent=1))
    show(cases, measured)


if __name__ == "__main__":
    main()
