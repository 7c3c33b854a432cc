"""Measures the host's cost of timing a device: a span, two bare event records, and other ways.

    python benchmarks/device.py                      on a GPU
    python benchmarks/device.py --stand-in FOLDER    on threads that simulate an accelerator

Without a GPU, it prints a message and no figures. The figures of the stand-in show the cost of the
code around the events of torch.Event, but not that of a real device.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROUNDS, CALLS = 15, 300


def per_call_ns(body: Callable[[], None], settle: Callable[[], None]) -> float:
    """Return the host time of one call in ns: the median of rounds, with pauses for the device."""
    for _ in range(20):
        body()
    settle()
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        for _ in range(CALLS):
            body()
        found.append((time.perf_counter_ns() - began) / CALLS)
        settle()
    return statistics.median(found)


def ways(torch: Any, kind: str, synchronize: Callable[[], None]) -> dict[str, Callable[[], None]]:
    """Return each way to time an empty stage on the device."""
    import stagespan

    reused = stagespan.span("benchmark")
    pool = [torch.Event(kind, enable_timing=True) for _ in range(2)]
    stream = torch.accelerator.current_stream()

    def bare() -> None:
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

    found = {
        "two bare records of pooled torch.Event": bare,
        "span, device time on": span,
        "timer that synchronises at both ends": synchronising,
        "torch.Event pair, made each time": pair,
    }
    if kind == "cuda":

        def cuda_pair() -> None:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            end.record()

        found["torch.cuda.Event pair, made each time"] = cuda_pair
    return found


def host_costs(torch: Any, kind: str, synchronize: Callable[[], None]) -> None:
    """Print the cost of each way, and a span's with device time off."""
    import stagespan
    from stagespan import _core

    def settle() -> None:
        synchronize()
        if not stagespan.flush(30):
            sys.exit("the device's results did not come back in 30 s")

    found = {
        name: per_call_ns(body, settle) for name, body in ways(torch, kind, synchronize).items()
    }
    _core.device_every(0)
    found["span, device time off"] = per_call_ns(
        ways(torch, kind, synchronize)["span, device time on"], settle
    )
    _core.device_every(1)
    for name, ns in found.items():
        print(f"{ns:10,.0f} ns  {name}")
    above = found["span, device time on"] - found["two bare records of pooled torch.Event"]
    print(f"{above:+10,.0f} ns  span beyond the two bare records")
    lost = {cause: n for cause, n in stagespan.lost().items() if n}
    print("not kept: " + (", ".join(f"{cause} {n:,}" for cause, n in lost.items()) or "nothing"))


def model_step(torch: Any) -> None:
    """Print the additional time of a small model's step with a span around each layer."""
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
    found: dict[str, list[float]] = {name: [] for name in modes}
    with torch.no_grad():
        one_s()
        for _ in range(ROUNDS):  # alternately, so that a drift of the clocks affects all of them
            for name, set_mode in modes.items():
                set_mode()
                found[name].append(one_s())
                stagespan.flush(30)
    off_s = statistics.median(found["off"])
    for name, times in found.items():
        median_s = statistics.median(times)
        change = f"{100 * (median_s / off_s - 1):+.2f} %"
        print(
            f"{median_s * 1e6:10,.1f} us  a step of {len(layers)} layers, spans: {name} ({change})"
        )


def on_gpu() -> int:
    """Measure on the GPU that torch finds. Returns 0, even without a GPU."""
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
    host_costs(torch, "cuda", torch.cuda.synchronize)
    model_step(torch)
    return 0


def on_standin(folder: Path) -> int:
    """Measure on threads that simulate an accelerator."""
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
    host_costs(torch, "npu", device.synchronize)
    return 0


def main() -> int:
    """Measure on the GPU or the stand-in."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--stand-in", metavar="FOLDER", type=Path, help="where to build it")
    folder: Path | None = parser.parse_args().stand_in
    return on_gpu() if folder is None else on_standin(folder)


if __name__ == "__main__":
    sys.exit(main())
