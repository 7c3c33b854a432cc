"""Running a step again and again. Needs torch alone: the harness's scripts hold this text."""

from __future__ import annotations

import contextlib
import random
import statistics
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

# How many timed iterations, unless told: as many as fit into the seconds, within these bounds.
FEWEST_TIMED = 3
MOST_TIMED = 20
SECONDS_TIMED = 5.0


class Replay:
    """Runs one step, each time from the same state: inputs, random numbers, scheduler.

    ``make_inputs`` gives the inputs by name, ``make_step`` turns them into a step: a callable, with
    a ``reset`` method if it keeps state. ``context`` is how torch was set when the stage was
    captured: ``grad``, ``inference``, ``autocast`` by kind of device. ``device`` is waited for
    around every run.
    """

    def __init__(
        self,
        make_inputs: Callable[[], dict[str, Any]],
        make_step: Callable[[dict[str, Any]], Callable[[], Any]],
        *,
        context: Mapping[str, Any] | None = None,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        self.make_inputs = make_inputs
        self.make_step = make_step
        self.context = dict(context or {})
        self.seed = seed
        self.device = device
        self.inputs = make_inputs()
        self.step = make_step(self.inputs)
        self._state = state_of(self.inputs)
        self._changes_inputs = False

    def prepare(self) -> Callable[[], Any]:
        """A step that is ready to run; inputs that the last run has written to are made anew."""
        if state_of(self.inputs) != self._state:
            self._changes_inputs = True
            self.inputs = self.make_inputs()
            self.step = self.make_step(self.inputs)
            self._state = state_of(self.inputs)
        return self._ready(self.step)

    def prepare_several(self, count: int) -> list[Callable[[], Any]]:
        """Steps that are ready to run one after the other, nothing between them."""
        steps = [self.prepare()]
        while len(steps) < count:
            inputs = self.make_inputs() if self._changes_inputs else self.inputs
            steps.append(self._ready(self.make_step(inputs)))
        return steps

    def _ready(self, step: Callable[[], Any]) -> Callable[[], Any]:
        with run_context(self.context):
            getattr(step, "reset", lambda: None)()
        return step

    def run(self, step: Callable[[], Any]) -> float:
        """Run a step that is ready; returns its milliseconds, its device's work included."""
        seed_all(self.seed)
        with run_context(self.context):
            synchronize(self.device)
            begin = time.perf_counter_ns()
            step()
            synchronize(self.device)
            end = time.perf_counter_ns()
        return (end - begin) / 1e6

    def measure(
        self, iterations: int | None = None, progress: Callable[[int], None] = lambda done: None
    ) -> list[float]:
        """Times of several runs in milliseconds; ``progress`` is told how many are done."""
        times: list[float] = []
        while not _enough(times, iterations):
            times.append(self.run(self.prepare()))
            progress(len(times))
        return times


def _enough(times: list[float], iterations: int | None) -> bool:
    if iterations is not None:
        return len(times) >= iterations
    if len(times) < FEWEST_TIMED:
        return False
    return len(times) >= MOST_TIMED or sum(times) > SECONDS_TIMED * 1000


def summary(times: list[float]) -> dict[str, Any]:
    """Mean, min, max and p50 in milliseconds, and how many runs there were; None without any."""
    if not times:
        return {"mean": None, "min": None, "max": None, "p50": None, "iterations": 0}
    return {
        "mean": statistics.fmean(times),
        "min": min(times),
        "max": max(times),
        "p50": statistics.median(times),
        "iterations": len(times),
    }


def synchronize(device: str = "cpu") -> None:
    """Wait for the device of the inputs and the current ones; makes no device context."""
    for kind in ("cuda", "xpu", "npu"):
        module = getattr(torch, kind, None)
        if module is not None and getattr(module, "is_initialized", lambda: False)():
            module.synchronize()
            if device.startswith(f"{kind}:"):
                module.synchronize(device)


def seed_all(seed: int) -> None:
    """Seed every generator that a stage may draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % (1 << 32))


@contextlib.contextmanager
def random_state_kept() -> Iterator[None]:
    """Put the program's own random state back afterwards."""
    numpy = sys.modules.get("numpy")
    before = random.getstate()
    numpy_before = numpy.random.get_state() if numpy is not None else None
    accelerators = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=accelerators):
        try:
            yield
        finally:
            random.setstate(before)
            if numpy is not None and numpy_before is not None:
                numpy.random.set_state(numpy_before)


@contextlib.contextmanager
def run_context(context: Mapping[str, Any]) -> Iterator[None]:
    """Set torch as it was at the capture; without gradients where that is not known."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(bool(context.get("grad", False))))
        if context.get("inference"):
            stack.enter_context(torch.inference_mode())
        autocast = context.get("autocast")
        for device, name in (autocast if isinstance(autocast, dict) else {}).items():
            dtype = getattr(torch, str(name), None)
            if isinstance(dtype, torch.dtype) and device in ("cpu", "cuda", "xpu", "npu"):
                stack.enter_context(torch.autocast(device_type=device, dtype=dtype))
        yield


def state_of(value: Any) -> list[Any]:
    """What tells whether a run has changed its inputs: writes to tensors, lengths, plain values."""
    if isinstance(value, torch.Tensor):
        return [] if value.is_inference() else [value._version]
    if isinstance(value, torch.Generator):
        return [zlib.crc32(value.get_state().numpy().tobytes())]
    if isinstance(value, (bool, int, float, str)):
        return [repr(value)]
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, Mapping):
        value = [getattr(value, name, None) for name in value.__dataclass_fields__]
    if isinstance(value, Mapping):
        value = [part for pair in value.items() for part in pair]
    if isinstance(value, (list, tuple)):
        return [len(value), *(state for item in value for state in state_of(item))]
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray) and value.nbytes <= 1 << 20:
        return [zlib.crc32(value.tobytes())]
    return []
