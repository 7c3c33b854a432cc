"""Captures a stage of a service under load, and compares this with a window by hand.

    python -m benchmarks.capture_service [--rounds N]

A service (uvicorn) has three stages that call an operator of torch about 50,000 times per second
in a thread of its own, and answers other requests meanwhile. Captures of 1, 2 and 5 runs of a stage
are asked for by `stagespan capture`: each has to hold exactly that many. In turns with them, the
same window is recorded with torch.profiler by hand, whose trace is exported in a thread beside. At
last, captures with the default bound of events stand against windows of 50,000 calls by hand.

Printed are the longest time between two answers to other requests, the bound of the pause that was
told before, the pauses of the Python threads of the service and their ratios, and whether all
requests were answered. Needs torch and uvicorn.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import http.client
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

import stagespan
from benchmarks.captures import MOST_BOUNDED, MOST_LONGEST, MOST_SUM, Pauses, Ticker

_ROOT = Path(__file__).parent.parent
_STAGE = "denoise"
_CALLS, _OTHER_CALLS, _MANY_CALLS = 8_000, 400, 50_000
"""Of an operator in the stage, in each of the other two, and in the window without a bound."""
_CALLS_PER_S = 50_000
_RUNS = 1, 2, 5
_ROOM = 1.2
"""Between the bound of events and those of a capture that must be whole."""
_QUIET_S = 2.0


class _Window:
    """A window by hand around some runs of the stage."""

    def __init__(self, runs: int, path: str) -> None:
        self.left = runs
        self.path = path
        self.profile: Any = None
        self.is_done = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def export(self) -> None:
        """Write the trace, in a thread beside."""
        self.profile.export_chrome_trace(self.path)
        self._loop.call_soon_threadsafe(self.is_done.set)


class _Service:
    """Answers requests in a loop, and runs the stages in one other thread."""

    def __init__(self) -> None:
        self._values = torch.randn(8)
        self._executor = ThreadPoolExecutor(1)
        self._calls = _CALLS
        self._window: _Window | None = None
        self._ticker = Ticker()
        self._ticker.start()

    def _call(self, calls: int) -> None:
        with torch.inference_mode():
            for _ in range(calls):
                torch.neg(self._values)

    def _denoise(self) -> None:
        window = self._window
        if window is not None and window.profile is None:
            window.profile = profile(activities=[ProfilerActivity.CPU])
            window.profile.__enter__()
        with stagespan.span(_STAGE):
            self._call(self._calls)
        if window is not None:
            window.left -= 1
            if window.left == 0:
                window.profile.__exit__(None, None, None)
                self._window = None
                threading.Thread(target=window.export).start()

    def _work(self) -> None:
        with stagespan.request():
            with stagespan.span("encode"):
                self._call(_OTHER_CALLS)
            self._denoise()
            with stagespan.span("decode"):
                self._call(_OTHER_CALLS)

    async def _answer(self, path: str, query: str) -> Any:
        if path == "/work":
            await asyncio.get_running_loop().run_in_executor(self._executor, self._work)
        elif path == "/calls":
            self._calls = int(query)
        elif path == "/pauses":
            ended, self._ticker = self._ticker, Ticker()
            self._ticker.start()
            return ended.end()._asdict()
        elif path == "/by_hand":
            runs, _, trace = query.partition(",")
            window = self._window = _Window(int(runs), trace)
            await window.is_done.wait()
        return {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, as ASGI wants it."""
        if scope["type"] != "http":
            return
        answer = await self._answer(scope["path"], scope["query_string"].decode())
        body = json.dumps(answer).encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def serve() -> None:
    """Run the service until it is ended. Prints the port."""
    import socket

    import uvicorn

    torch.set_num_threads(1)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(_Service(), log_level="warning", lifespan="off")
    uvicorn.Server(config).run(sockets=[listener])


class _Client:
    """Sends one request after the other."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self.sent = self.answered = 0

    def get(self, path: str) -> Any:
        """Return the answer. Raises OSError or HTTPException if there is none."""
        self.sent += 1
        self._connection.request("GET", path)
        response = self._connection.getresponse()
        answer = json.loads(response.read())
        self.answered += response.status == 200
        return answer


class _Load:
    """The requests that the service gets all the time."""

    def __init__(self, port: int) -> None:
        self._work, self._other = _Client(port), _Client(port)
        self.calls = _CALLS
        self._is_over = False
        self._answers_s: list[float] = []
        sending = self._send_work, self._send_other
        self._threads = [threading.Thread(target=one) for one in sending]

    def __enter__(self) -> _Load:
        """Begin to send them."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the last answers."""
        self._is_over = True
        for thread in self._threads:
            thread.join()

    def _send_work(self) -> None:
        while not self._is_over:
            began_s = time.monotonic()
            self._work.get("/work")
            each_s = (self.calls + 2 * _OTHER_CALLS) / _CALLS_PER_S
            time.sleep(max(began_s + each_s - time.monotonic(), 0))

    def _send_other(self) -> None:
        while not self._is_over:
            self._other.get("/other")
            self._answers_s.append(time.monotonic())
            time.sleep(0.001)

    def longest_gap_s(self, since_s: float) -> float:
        """Return the longest time between two answers to other requests."""
        times_s = [one for one in self._answers_s if one >= since_s]
        return max((b - a for a, b in itertools.pairwise(times_s)), default=0.0)

    def unanswered(self) -> int:
        """Return how many requests have got no answer."""
        return sum(one.sent - one.answered for one in (self._work, self._other))


class _Captured(NamedTuple):
    """A capture, and what it did to the service."""

    pauses: Pauses
    gap_s: float
    result: dict[str, Any]


class _Bench:
    """Captures and windows of a running service."""

    def __init__(self, pid: int, control: _Client, load: _Load, folder: Path) -> None:
        self._pid, self._control, self._load, self._folder = pid, control, load, folder
        self._began_s = 0.0
        self._quiet_s: list[float] = []
        """The pauses of a second without a window."""
        self.quiet_gap_s = 0.0
        """The longest time between two answers to other requests without a window."""

    def set_calls(self, calls: int) -> None:
        """Let each run of the stage have that many calls from now on."""
        self._control.get(f"/calls?{calls}")
        self._load.calls = calls

    def by_hand(self, runs: int) -> Pauses:
        """Record a window by hand."""
        self._begin()
        self._control.get(f"/by_hand?{runs},{self._folder / 'by_hand.json.gz'}")
        return self._end()

    def measure_load(self) -> None:
        """Measure the pauses without a window, which the load and other processes cause."""
        self._begin()
        time.sleep(_QUIET_S)
        self._quiet_s.append(self._end().sum_s / _QUIET_S)
        self.quiet_gap_s = max(self.quiet_gap_s, self._load.longest_gap_s(self._began_s))

    def _begin(self) -> None:
        self._control.get("/pauses")
        self._began_s = time.monotonic()

    def _end(self) -> Pauses:
        """Return the pauses since then, without the sum of those that come without a window."""
        pauses = Pauses(**self._control.get("/pauses"))
        took_s = time.monotonic() - self._began_s
        quiet_s = took_s * statistics.mean(self._quiet_s) if self._quiet_s else 0.0
        return Pauses(pauses.longest_s, max(pauses.sum_s - quiet_s, 0.0))

    def captured(self, runs: int, *more: str) -> _Captured:
        """Capture some runs from another process."""
        command = [sys.executable, "-m", "stagespan", "capture", str(self._pid), "--json"]
        asked = ["--stage", _STAGE, "--runs", str(runs), "-o", str(self._folder / "ours.json.gz")]
        self._begin()
        done = subprocess.run([*command, *asked, *more], stdout=subprocess.PIPE, check=True)
        gap_s = self._load.longest_gap_s(self._began_s)
        return _Captured(self._end(), gap_s, json.loads(done.stdout))

    def calls_in_trace(self) -> int:
        """Return how many calls of the operator the latest capture holds."""
        trace = json.loads(gzip.decompress((self._folder / "ours.json.gz").read_bytes()))
        return sum(one.get("name") == "aten::neg" for one in trace["traceEvents"])


def _median(pauses: list[Pauses]) -> Pauses:
    return Pauses(*(statistics.median(figures) for figures in zip(*pauses, strict=True)))


def _ratios(ours: list[Pauses], theirs: list[Pauses], bounds: dict[str, float]) -> bool:
    """Print the medians of pauses and their ratios. Returns whether they are as they should be."""
    captured, by_hand = _median(ours), _median(theirs)
    are_good = True
    for field, most in bounds.items():
        figure, other = getattr(captured, field), getattr(by_hand, field)
        is_good = figure <= most * other
        are_good = are_good and is_good
        print(
            f"  {field.removesuffix('_s')} of the pauses: {1e3 * figure:.1f} ms captured,"
            f" {1e3 * other:.1f} ms by hand: {figure / max(other, 1e-9):.2f} x, at most {most:g} x:"
            f" {'ok' if is_good else 'TOO MUCH'}"
        )
    return are_good


def _compare(bench: _Bench, runs: int, rounds: int) -> bool:
    """Compare captures of some runs with windows by hand."""
    print(f"{runs} {'run' if runs == 1 else 'runs'} of {_CALLS:,} calls")
    captured, by_hand, are_good = [], [], True
    calls = runs * _CALLS + (runs - 1) * 2 * _OTHER_CALLS
    for number in range(rounds + 1):
        bench.measure_load()
        by_hand.append(bench.by_hand(runs))
        request = bench.captured(runs, "--max-events", str(round(_ROOM * calls)))
        bound_ns = request.result["pause_bound_ns"]
        is_exact = request.result["runs"] == runs and bench.calls_in_trace() == calls
        is_bounded = bound_ns is None or 1e9 * request.gap_s <= max(
            bound_ns, 1e9 * bench.quiet_gap_s
        )
        if number:  # the first round warms up
            captured.append(request)
            are_good = are_good and is_exact and is_bounded
            bound = "not known" if bound_ns is None else f"{bound_ns / 1e6:.1f} ms"
            print(
                f"  {'exactly these' if is_exact else 'NOT THESE'};"
                f" {'in place' if request.result['in_place'] else 'without a stop'}; longest gap of"
                f" other requests {1e3 * request.gap_s:.1f} ms, bound told before {bound}, without"
                f" a capture {1e3 * bench.quiet_gap_s:.1f} ms: {'ok' if is_bounded else 'TOO LONG'}"
            )
    bounds = {"longest_s": MOST_LONGEST, "sum_s": MOST_SUM}
    return _ratios([one.pauses for one in captured], by_hand[1:], bounds) and are_good


def _compare_bounded(bench: _Bench, rounds: int) -> bool:
    """Compare captures with the default bound with windows by hand that have none."""
    print(f"1 run of {_MANY_CALLS:,} calls, of which a capture takes 20,000 events")
    bench.set_calls(_MANY_CALLS)
    captured, by_hand = [], []
    for _ in range(rounds + 1):
        by_hand.append(bench.by_hand(1))
        captured.append(bench.captured(1).pauses)
    bench.set_calls(_CALLS)
    return _ratios(captured[1:], by_hand[1:], {"longest_s": MOST_BOUNDED})


@contextmanager
def _service() -> Iterator[tuple[int, int]]:
    """Run the service. Yields its process id and its port."""
    command = [sys.executable, "-m", "benchmarks.capture_service", "--serve"]
    service = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_ROOT)
    assert service.stdout is not None
    try:
        yield service.pid, int(service.stdout.readline())
    finally:
        service.terminate()
        service.wait()


def main() -> None:
    """Print all comparisons; exit with 1 if one of them is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    with tempfile.TemporaryDirectory() as folder, _service() as (pid, port):
        with _Load(port) as load:
            bench = _Bench(pid, _Client(port), load, Path(folder))
            are_good = [_compare(bench, runs, options.rounds) for runs in _RUNS]
            are_good.append(_compare_bounded(bench, options.rounds))
        lost = load.unanswered()
        print("all requests were answered" if not lost else f"{lost:,} requests had NO ANSWER")
    sys.exit(not all(are_good) or lost > 0)


if __name__ == "__main__":
    main()
