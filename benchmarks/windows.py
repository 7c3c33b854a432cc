"""Measures what the end of a profiler's window costs a running program.

    python -m benchmarks.windows [--calls N ...] [--rounds N]

The end of a window is `Window.stop` and `Window.export`. Its CPU time in the calling thread is
independent of other load. Meanwhile, another thread takes the time whenever it can run, which
shows for how long Python stops all threads; this depends on the load. A figure is the median over
the rounds, in one process with one thread of torch, after the first start of the profiler. Needs
torch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from stagespan import profile_window
from stagespan.profiling.counting import OperatorCounter

_TICK_S = 0.001
CASES: dict[str, dict[str, bool]] = {
    "with sums of events": {},
    "trace only": {"trace_only": True},
    "trace only, all threads": {"trace_only": True, "all_threads": True},
    "trace only, shapes": {"trace_only": True, "record_shapes": True},
    "trace only, memory": {"trace_only": True, "profile_memory": True},
    "stacks": {"with_stack": True},
}


class Cost(NamedTuple):
    """The cost of one window."""

    events: int
    """The operators that it recorded, including nested ones, in whole blocks."""
    stop_ms: float
    """CPU time of the calling thread."""
    export_ms: float
    pause_ms: float
    """The longest time for which another thread could not run."""
    megabytes: float
    """Size of the compressed trace."""


class _Ticker(threading.Thread):
    """Finds the longest time in which it could not run."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.longest_ms = 0.0
        self._is_over = threading.Event()

    def run(self) -> None:
        last_s = time.monotonic()
        while not self._is_over.wait(_TICK_S):
            now_s = time.monotonic()
            self.longest_ms = max(self.longest_ms, (now_s - last_s) * 1e3)
            last_s = now_s

    def end(self) -> None:
        self._is_over.set()
        self.join()


def cost(model: torch.nn.Module, batch: torch.Tensor, calls: int, options: dict[str, bool]) -> Cost:
    """Run the model in a window, and return what the end of the window costs."""
    counter = OperatorCounter()
    window = profile_window("benchmark", max_events=float("inf"), **options)
    window.start()
    counter.start()
    with torch.inference_mode():
        for _ in range(calls):
            model(batch)
    events = counter.count() or 0
    ticker = _Ticker()
    ticker.start()
    time.sleep(10 * _TICK_S)
    began_ns = time.thread_time_ns()
    window.stop()
    stopped_ns = time.thread_time_ns()
    with tempfile.TemporaryDirectory() as folder:
        path = window.export(Path(folder, "trace.json.gz"))
        exported_ns = time.thread_time_ns()
        megabytes = path.stat().st_size / 1e6
    ticker.end()
    stop_ms, export_ms = (stopped_ns - began_ns) / 1e6, (exported_ns - stopped_ns) / 1e6
    return Cost(events, stop_ms, export_ms, ticker.longest_ms, megabytes)


def _measured(calls: int, rounds: int) -> Iterator[tuple[str, list[Cost]]]:
    """Yield the costs of the windows of each case."""
    torch.set_num_threads(1)
    model = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()
    batch = torch.ones(1, 4, 64)
    with profile_window("warm-up"):
        model(batch)
    for case, options in CASES.items():
        yield case, [cost(model, batch, calls, options) for _ in range(rounds)]


def main() -> None:
    """Measure, and print a row for each case and number of calls."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.windows", description=__doc__)
    parser.add_argument("--calls", type=int, nargs="+", default=[50, 500], help="of the model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="the raw figures of the most calls")
    arguments = parser.parse_args()
    if arguments.json:
        print(json.dumps(dict(_measured(max(arguments.calls), arguments.rounds))))
        return
    head = (
        f"{'':26}{'events':>9}{'stop':>10}{'export':>10}{'an event':>11}{'pause':>10}{'trace':>10}"
    )
    print(head)
    for calls in arguments.calls:
        for case, rounds in _measured(calls, arguments.rounds):
            cost = Cost(*map(statistics.median, zip(*rounds, strict=True)))
            us = (cost.stop_ms + cost.export_ms) * 1e3 / max(cost.events, 1)
            print(
                f"{case:26}{cost.events:9,.0f}{cost.stop_ms:7.0f} ms{cost.export_ms:7.0f} ms"
                f"{us:8.1f} µs{cost.pause_ms:7.0f} ms{cost.megabytes:7.2f} MB"
            )


if __name__ == "__main__":
    main()
