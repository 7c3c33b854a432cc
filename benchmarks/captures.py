"""Compares the pauses of a capture with those of the same window by hand with torch.profiler.

    python -m benchmarks.captures [--calls N] [--rounds N]

A thread runs a stage of N calls of an operator again and again, and another thread takes the time
whenever it can run. In turns, in one process with one thread of torch, one run is captured, with a
bound of events that is larger, and the same calls are recorded with torch.profiler by hand, whose
trace is exported in a thread. Then the captures have the default bound, and the window by hand has
50,000 calls. Printed are the medians and their ratios. Needs torch.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

import stagespan

_TICK_S = 0.001
_LEAST_PAUSE_S = 0.01
"""Shorter than this, a thread may have waited for its turn."""
_MANY_CALLS = 50_000
MOST_SUM, MOST_LONGEST, MOST_BOUNDED = 0.55, 0.7, 0.3


class Pauses(NamedTuple):
    """The pauses of a Python thread."""

    longest_s: float
    sum_s: float


def _run_delay_s() -> float:
    """Return for how long this thread could run and had no processor, until now."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


class Ticker(threading.Thread):
    """Takes the time whenever it can run. What it waited for a processor is no pause."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._pauses_s = [0.0]
        self._is_over = threading.Event()

    def run(self) -> None:
        last_s, last_delay_s = time.monotonic(), _run_delay_s()
        while not self._is_over.wait(_TICK_S):
            now_s, delay_s = time.monotonic(), _run_delay_s()
            pause_s = now_s - last_s - (delay_s - last_delay_s) - _TICK_S
            if pause_s > _LEAST_PAUSE_S:
                self._pauses_s.append(pause_s)
            last_s, last_delay_s = now_s, delay_s

    def end(self) -> Pauses:
        """Return the pauses since the start."""
        self._is_over.set()
        self.join()
        return Pauses(max(self._pauses_s), sum(self._pauses_s))


class _Worker(threading.Thread):
    """Runs what it is given, as the thread of a service does."""

    def __init__(self, calls: int) -> None:
        super().__init__(daemon=True)
        self.calls = calls
        self.by_hand: Callable[[], None] | None = None
        self.is_done = threading.Event()
        self.is_over = False
        self._values = torch.randn(8)

    def work(self) -> None:
        """Call the operator."""
        with torch.inference_mode():
            for _ in range(self.calls):
                torch.neg(self._values)

    def run(self) -> None:
        while not self.is_over:
            if self.by_hand is not None:
                self.by_hand()
                self.by_hand = None
                self.is_done.set()
            else:
                with stagespan.span("benchmark"):
                    self.work()
            time.sleep(0.005)


def _captured(worker: _Worker, folder: Path, max_events: float) -> tuple[Pauses, bool]:
    """Capture one run. Returns the pauses, and whether threads went on at its end."""
    ticker = Ticker()
    ticker.start()
    capture = stagespan.capture(
        "benchmark", max_events=max_events, output=folder / "capture.json.gz", probe=False
    )
    result = capture.wait()
    return ticker.end(), result.in_place is None


def _by_hand(worker: _Worker, folder: Path) -> Pauses:
    """Record the same with torch.profiler, and export the trace in this thread."""
    recorded = profile(activities=[ProfilerActivity.CPU])

    def record() -> None:
        with recorded:
            worker.work()

    ticker = Ticker()
    ticker.start()
    worker.is_done.clear()
    worker.by_hand = record
    worker.is_done.wait()
    recorded.export_chrome_trace(str(folder / "by_hand.json.gz"))
    return ticker.end()


def _median(pauses: list[Pauses]) -> Pauses:
    return Pauses(*(statistics.median(figures) for figures in zip(*pauses, strict=True)))


def _compare(worker: _Worker, rounds: int, folder: Path, calls: int, most: float) -> None:
    captured, by_hand, went_on = [], [], 0
    for _ in range(rounds + 1):  # the first round warms up
        worker.calls = calls
        by_hand.append(_by_hand(worker, folder))
        pauses, is_unstopped = _captured(worker, folder, most)
        captured.append(pauses)
        went_on += is_unstopped
    ours, theirs = _median(captured[1:]), _median(by_hand[1:])
    is_bounded = most < calls
    print(f"{calls:,} calls, max_events {most:,}, {went_on} of {rounds + 1} traces without a stop")
    for name, figure, other, bound in (
        ("longest pause", ours.longest_s, theirs.longest_s, MOST_LONGEST),
        ("sum of pauses", ours.sum_s, theirs.sum_s, MOST_SUM),
    ):
        wanted = MOST_BOUNDED if is_bounded else bound
        judged = "ok" if figure <= wanted * other else "TOO MUCH"
        print(
            f"  {name}: {1e3 * figure:7.1f} ms captured, {1e3 * other:7.1f} ms by hand:"
            f" {figure / other:.2f} x, at most {wanted:g} x: {judged}"
        )


def main() -> None:
    """Print both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=15_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    worker = _Worker(options.calls)
    worker.start()
    with tempfile.TemporaryDirectory() as folder:
        _compare(worker, options.rounds, Path(folder), options.calls, 10 * options.calls)
        _compare(worker, options.rounds, Path(folder), _MANY_CALLS, 20_000)
    worker.is_over = True
    worker.join()


if __name__ == "__main__":
    main()
