"""Measures the host's cost of timing a device: a span, two bare event records, and other ways.

    python benchmarks/device.py [--json FILE]        on a GPU
    python benchmarks/device.py --stand-in FOLDER    on threads that simulate an accelerator

Without a GPU, it prints a message and no figures. The figures of the stand-in show the cost of the
code around the events of torch.Event, but not that of a real device.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROUNDS, CALLS = 15, 300
BARE, SPAN = "two bare records of pooled events", "span, device time on"
MANY_STREAMS = 8
LIMIT_NS = 200
"""The most that a span may cost on a GPU beyond two bare records, in ns."""

Body = Callable[[], None]


class Cost(NamedTuple):
    """What one call costs, in ns."""

    host_ns: float
    others_ns: float
    """The CPU time of the other threads of the process, such as the one that reads the events."""


def costs(ways: dict[str, Body], settle: Body, streams: Sequence[Any]) -> dict[str, Cost]:
    """Measure some ways in turns, each round on the next stream, with pauses for the device.

    Returns the median of the rounds.
    """
    costs_by_way: dict[str, list[Cost]] = {name: [] for name in ways}
    for i in range(-1, ROUNDS):  # the first round warms up
        with streams[i % len(streams)] if streams else contextlib.nullcontext():
            for name, body in ways.items():
                others_ns = time.process_time_ns() - time.thread_time_ns()
                began_ns = time.perf_counter_ns()
                for _ in range(CALLS):
                    body()
                host_ns = (time.perf_counter_ns() - began_ns) / CALLS
                settle()
                others_ns = time.process_time_ns() - time.thread_time_ns() - others_ns
                if i >= 0:
                    costs_by_way[name].append(Cost(host_ns, others_ns / CALLS))
    return {
        name: Cost(*map(statistics.median, zip(*each, strict=True)))
        for name, each in costs_by_way.items()
    }


def ways(torch: Any, kind: str, synchronize: Body) -> dict[str, Body]:
    """Return each way to time an empty stage on the device."""
    import stagespan

    reused = stagespan.span("benchmark")
    pool = [torch.Event(kind, enable_timing=True) for _ in range(2)]

    def bare() -> None:
        stream = torch.accelerator.current_stream()
        pool[0].record(stream)
        pool[1].record(stream)

    def span() -> None:
        with reused:
            pass

    def synchronising() -> None:
        synchronize()
        began = time.perf_counter()
        synchronize()
        time.perf_counter() - began

    def pair() -> None:
        begin, end = (torch.Event(kind, enable_timing=True) for _ in range(2))
        begin.record()
        end.record()

    ways_by_name = {
        BARE: bare,
        SPAN: span,
        "timer that synchronises at both ends": synchronising,
        "torch.Event pair, made each time": pair,
    }
    if kind == "cuda":
        # Without a look for the current stream, which the span has to do.
        stream = torch.cuda.current_stream()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def cuda_bare() -> None:
            begin.record(stream)
            end.record(stream)

        def cuda_pair() -> None:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            end.record()

        ways_by_name[BARE] = cuda_bare
        ways_by_name["torch.cuda.Event pair, made each time"] = cuda_pair
    return ways_by_name


def host_costs(torch: Any, kind: str, synchronize: Body, count: int) -> dict[str, Any]:
    """Print the cost of each way on a number of streams, and of a span with device time off."""
    import stagespan
    from stagespan import _core

    def settle() -> None:
        synchronize()
        if not stagespan.flush(30):
            sys.exit("the device's results did not come back in 30 s")

    streams = [torch.Stream(kind) for _ in range(count)] if count > 1 else []
    print(f"{count} stream{'s' if count > 1 else ''}:")
    by_way = costs(ways(torch, kind, synchronize), settle, streams)
    _core.device_every(0)
    by_way["span, device time off"] = costs(
        {SPAN: ways(torch, kind, synchronize)[SPAN]}, settle, streams
    )[SPAN]
    _core.device_every(1)
    for name, cost in by_way.items():
        print(f"{cost.host_ns:10,.0f} ns  {name} (other threads: {cost.others_ns:,.0f} ns)")
    above_ns = by_way[SPAN].host_ns - by_way[BARE].host_ns
    print(f"{above_ns:+10,.0f} ns  span beyond the two bare records")
    lost = {cause: n for cause, n in stagespan.lost().items() if n}
    print("not kept: " + (", ".join(f"{cause} {n:,}" for cause, n in lost.items()) or "nothing"))
    return {
        "streams": count,
        "host_ns": {name: cost.host_ns for name, cost in by_way.items()},
        "other_threads_ns": {name: cost.others_ns for name, cost in by_way.items()},
        "above_two_records_ns": above_ns,
        "lost": lost,
    }


def model_step(torch: Any) -> dict[str, float]:
    """Print the additional time of a small model's step with a span around each layer.

    Returns the time of a step in us, by what the spans record.
    """
    import stagespan
    from stagespan import _core

    layers = [torch.nn.Linear(512, 512).cuda() for _ in range(24)]
    spans = [stagespan.span(f"layer {i}") for i in range(len(layers))]
    x = torch.randn(64, 512, device="cuda")

    def step() -> None:
        y = x
        for layer, span in zip(layers, spans, strict=True):
            with span:
                y = torch.relu(layer(y))

    def one_s(steps: int = 50) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / steps

    def on(every: int) -> Callable[[], None]:
        def set_mode() -> None:
            stagespan.enable()
            _core.device_every(every)

        return set_mode

    modes = {"off": stagespan.disable, "host time": on(0), "device time": on(1)}
    times_s: dict[str, list[float]] = {name: [] for name in modes}
    with torch.no_grad():
        one_s()
        for _ in range(ROUNDS):  # alternately, so that a drift of the clocks affects all of them
            for name, set_mode in modes.items():
                set_mode()
                times_s[name].append(one_s())
                stagespan.flush(30)
    off_s = statistics.median(times_s["off"])
    for name, times in times_s.items():
        median_s = statistics.median(times)
        change = f"{100 * (median_s / off_s - 1):+.2f} %"
        print(
            f"{median_s * 1e6:10,.1f} us  a step of {len(layers)} layers, spans: {name} ({change})"
        )
    return {name: statistics.median(times) * 1e6 for name, times in times_s.items()}


def over_limit(figures: dict[str, Any]) -> str | None:
    """Return what costs more than `LIMIT_NS`, as a sentence; None if nothing does."""
    over = [
        f"{found['above_two_records_ns']:,.0f} ns (streams: {found['streams']})"
        for found in figures.values()
        if found.get("above_two_records_ns", 0.0) > LIMIT_NS
    ]
    if not over:
        return None
    return f"a span costs {', '.join(over)} beyond two event records; the limit is {LIMIT_NS} ns"


def on_gpu(output: Path | None) -> int:
    """Measure on the GPU that torch finds, and write the figures.

    Returns 1 if a span costs too much or has no device time there, and 0 without a GPU.
    """
    try:
        import torch
    except ImportError:
        print("No GPU: torch is not installed. Nothing was measured.")
        return 0
    if not torch.backends.cuda.is_built() or not torch.cuda.is_available():
        print("No GPU: torch sees none. Nothing was measured.")
        return 0
    from stagespan import _core
    from stagespan.device import times as wiring

    torch.cuda.init()
    torch.cuda.synchronize()
    wiring.watch()
    if not wiring.is_attached():
        print(f"Device time does not work here: {_core.device_info()['reason']}", file=sys.stderr)
        return 1
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    figures: dict[str, Any] = {
        f"streams_{count}": host_costs(torch, "cuda", torch.cuda.synchronize, count)
        for count in (1, MANY_STREAMS)
    }
    figures["model_step_us"] = model_step(torch)
    write(figures, output)
    if (reason := over_limit(figures)) is not None:
        print(f"error: {reason}")
    return int(reason is not None)


def write(figures: dict[str, Any], output: Path | None) -> None:
    """Write the figures as JSON to a file, if there is one."""
    if output is not None:
        output.write_text(json.dumps({**figures, "limit_ns": LIMIT_NS}))


def on_standin(folder: Path, output: Path | None) -> int:
    """Measure on threads that simulate an accelerator, whose own costs have no limit."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "npu_standin"))
    import standin
    import torch

    from stagespan.device import times as wiring

    reason = standin.missing()
    if reason is not None:
        print(f"The stand-in cannot be built: {reason}. Nothing was measured.")
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    made = standin.build(folder)
    device = standin.Standin(str(made.device), str(made.ascend), "npu")
    device.set_up()
    wiring.watch()
    print(f"STAND-IN that runs on threads: torch {torch.__version__}, through torch.Event")
    figures = {
        f"streams_{count}": host_costs(torch, "npu", device.synchronize, count)
        for count in (1, MANY_STREAMS)
    }
    write(figures, output)
    return 0


def main() -> int:
    """Measure on the GPU or the stand-in."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--stand-in", metavar="FOLDER", type=Path, help="where to build it")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures")
    options = parser.parse_args()
    if options.stand_in is not None:
        return on_standin(options.stand_in, options.json)
    return on_gpu(options.json)


if __name__ == "__main__":
    sys.exit(main())
