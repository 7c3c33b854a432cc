"""Measures what torch.profiler costs, and what spans cost that appear in its traces.

    python -m benchmarks.profiler [--rounds N] [--calls N]

All cases take turns in one process, and torch has one thread. A figure is the median over the
rounds. The profiler starts and ends outside of the measured time. Needs torch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Callable

import torch

import stagespan

_CPU = [torch.profiler.ProfilerActivity.CPU]


def per_call_us(body: Callable[[], object], calls: int) -> float:
    """Return the time of one call in µs."""
    began_ns = time.perf_counter_ns()
    for _ in range(calls):
        body()
    return (time.perf_counter_ns() - began_ns) / calls / 1000


def measure(rounds: int, calls: int) -> dict[str, float]:
    """Return the median of each case in µs per call."""
    stagespan.annotate("named")
    named, other = stagespan.span("named"), stagespan.span("other")
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
    batch = torch.ones(8, 64)

    def block_of(context: stagespan.Span) -> Callable[[], None]:
        def block() -> None:
            with context:
                pass

        return block

    def bare() -> None:
        pass

    @torch.inference_mode()
    def forward() -> None:
        model(batch)

    def plain() -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()

    def profiler() -> contextlib.AbstractContextManager[object]:
        return torch.profiler.profile(activities=_CPU)

    def with_shapes() -> contextlib.AbstractContextManager[object]:
        return torch.profiler.profile(activities=_CPU, record_shapes=True)

    cases = {
        "bare call": (plain, bare),
        "decorated call": (plain, stagespan.span("decorated")(bare)),
        "span": (plain, block_of(other)),
        "span, named for annotate": (plain, block_of(named)),
        "span under the profiler": (profiler, block_of(other)),
        "span, named for annotate, under the profiler": (profiler, block_of(named)),
        "model": (plain, forward),
        "model under the profiler": (profiler, forward),
        "model under the profiler with shapes": (with_shapes, forward),
    }
    figures_of: dict[str, list[float]] = {case: [] for case in cases}
    for number in range(1 + rounds):
        for case, (around, body) in cases.items():
            with around():
                figure = per_call_us(body, calls)
            if number:  # the first round is the warm-up
                figures_of[case].append(figure)
    return {case: statistics.median(figures) for case, figures in figures_of.items()}


def main() -> None:
    """Measure, and print the figures and their ratios."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiler", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=500, help="in each round")
    parser.add_argument("--json", action="store_true", help="print the medians in us as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    medians_us = measure(arguments.rounds, arguments.calls)
    if arguments.json:
        print(json.dumps(medians_us))
        return
    for case, us in medians_us.items():
        ratio = f"{us / medians_us['model']:7.2f} x the model" if case.startswith("model ") else ""
        print(f"{case:46}{us:10.2f} µs{ratio}")


if __name__ == "__main__":
    main()
