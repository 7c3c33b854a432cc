"""Runs a step many times and measures it."""

from __future__ import annotations

import collections
import statistics
import sys
import time
import types
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import torch

from stagespan.harness.standalone.figures import Run, times_of
from stagespan.harness.standalone.machine import (
    Stamp,
    fixed_computation_ns,
    open_schedstat,
    stamp,
    taken,
)
from stagespan.harness.standalone.torch_state import (
    run_context,
    seed_all,
    synchronize,
    waits_for,
)

# Without a given number of iterations, `Replay.measure` ends after USUALLY_TIMED runs and
# USUAL_SECONDS, or LEAST_SECONDS if the intervals of 95 % of the medians of wall and CPU time are
# not wider than SETTLED_WITHIN; they reach over the root of the number of runs to both sides. It
# ends earlier, after at least FEWEST_TIMED runs, once SECONDS_TIMED are measured or SECONDS_IN_ALL
# have passed, and at the latest after MOST_TIMED runs.
FEWEST_TIMED, USUALLY_TIMED, MOST_TIMED = 3, 20, 1000
LEAST_SECONDS, USUAL_SECONDS, SECONDS_TIMED, SECONDS_IN_ALL = 0.2, 1.0, 5.0, 20.0
# Without a given number of iterations, `Replay.warm_up` ends when the medians of the last
# SETTLED_RUNS runs and of those before them differ by at most this part.
SETTLED_RUNS, SETTLED_WITHIN = 3, 0.02
MOST_WARM_UP, SECONDS_WARM_UP = 30, 5.0
FIXED_RUNS = 50  # how often the fixed computation runs at the start
MOST_ROTATED_BYTES = 1 << 28  # larger inputs are not rotated, because they exceed any cache
MOST_LOOKED_AT = 10_000  # the most values examined to find out whether a run changed its inputs
SHORT_MS = 5.0  # a run of at most this time directly follows an untimed one, see `Replay.run`
# A profiled iteration that took more than FAR_FROM_MEDIAN x the median is repeated.
MOST_PROFILED, FAR_FROM_MEDIAN = 5, 1.5
SETS_AT_ONCE, MOST_SETS_BYTES = 4, 1 << 28  # inputs that are made before several runs


T = TypeVar("T")


class Replay:
    """Runs one step, each time from the same state of inputs, random numbers and scheduler.

    Args:
        make_inputs: Returns new inputs by name.
        make_step: Returns a step for given inputs. A step is a callable. If it keeps state, it has
            a method ``reset()``. If only a part of what it runs is measured, it has a method
            ``run_between(begin, end, count)``.
        context: The settings of torch when the stage was captured: ``grad``, ``inference``,
            ``autocast`` by kind of device, and those of `kernel_settings`.
        seed: Seed of the random numbers of each run.
        device: The device to wait for before and after each run.
    """

    fastest_in_process_ns: ClassVar[int | None] = None
    """The fastest time of `fixed_computation_ns` in all replays of this process."""

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
        self._next: list[dict[str, Any]] = []
        self._are_independent = True  # whether two sets of inputs share nothing that can change
        self._cache = DeviceCache(device)
        self._other: tuple[dict[str, Any], Callable[[], Any], list[Any]] | None = None
        self.fastest_fixed_ns: int | None = None
        """The fastest time of `fixed_computation_ns` in this replay so far."""
        self.clocks_mhz: list[int | None] = []
        """The device's clock in MHz before and after `measure`; None if it is not known."""
        self._last_ms: float | None = None
        self.profiled_ms: float | None = None
        """Time of one iteration in the last `run_between`; None before, and if nothing ended."""
        self.all_profiled_ms: list[float] = []
        """Those of all runs of `profile_nearest`."""

    def prepare(self) -> Callable[[], Any]:
        """Return a step that is ready to run, with new inputs if the last run modified them."""
        if state_of(self.inputs) != self._state:
            self._changes_inputs = True
            self._other = None
            self.inputs = self._next_inputs()
            self.step = self._another(self.inputs)
            self._state = state_of(self.inputs)
        elif self._cache.needs_rotation(self.inputs):
            self._rotate()
        return self._ready(self.step)

    def _next_inputs(self) -> dict[str, Any]:
        """Return new inputs. If they are small, several sets are made at once.

        Making inputs displaces the stage's code and weights from the caches of the processor. After
        a run that directly follows another run, they are still there, as in a loop of the program.
        """
        if not self._next:
            self._next = [self.make_inputs()]
            if self._can_be_several(self._next[0]):
                self._next += [self.make_inputs() for _ in range(SETS_AT_ONCE - 1)]
                if not changeable(self._next[0]).isdisjoint(changeable(self._next[-1])):
                    # The user's function returns the same cache each time, emptied.
                    self._are_independent = False
                    del self._next[:-1]
        return self._next.pop()

    def _rotate(self) -> None:
        """Switch to the other set of inputs, because the last run left its own in the cache."""
        if self._other is None:
            inputs = self.make_inputs()
            self._other = inputs, self._another(inputs), state_of(inputs)
        last = self.inputs, self.step, self._state
        (self.inputs, self.step, self._state), self._other = self._other, last

    def remake(self) -> None:
        """Create the inputs and the step again, without the state of the last step."""
        self._other = None
        self._next.clear()
        self.inputs = self.make_inputs()
        self.step = self.make_step(self.inputs)
        self._state = state_of(self.inputs)

    def prepare_several(self, count: int) -> list[Callable[[], Any]]:
        """Return steps that can run one directly after the other."""
        steps = [self.prepare()]
        for _ in range(count - 1):
            inputs = self.make_inputs() if self._changes_inputs else self.inputs
            steps.append(self._ready(self._another(inputs)))
        return steps

    def _another(self, inputs: dict[str, Any]) -> Callable[[], Any]:
        step = self.make_step(inputs)
        getattr(step, "learn_from", lambda _: None)(self.step)
        return step

    def _ready(self, step: Callable[[], Any]) -> Callable[[], Any]:
        with run_context(self.context):
            getattr(step, "reset", lambda: None)()
        return step

    def _prepare_before(self) -> Callable[[], Any] | None:
        """Return a step to run directly before the measured one; None if it would not help.

        What a replay does between two runs displaces the code and data of the stage from the caches
        of the processor, which makes a short run up to several times longer. In a program, such a
        stage usually runs in a loop.
        """
        is_short = self._last_ms is not None and self._last_ms <= SHORT_MS
        if not is_short or self._cache.is_accelerator or hasattr(self.step, "run_between"):
            return None
        if not self._changes_inputs:
            return self.step
        if not self._can_be_several(self.inputs):
            return None
        return self._ready(self._another(self._next_inputs()))

    def _can_be_several(self, inputs: dict[str, Any]) -> bool:
        return self._are_independent and SETS_AT_ONCE * bytes_in(inputs) <= MOST_SETS_BYTES

    def run(self, step: Callable[[], Any], before: Callable[[], Any] | None = None) -> Run:
        """Run a step from `prepare` once and measure it, including its work on the device.

        ``before`` is a step that runs directly before it and is not measured.
        """
        stamps: list[Stamp] = []
        waits = waits_for(self.device)

        def begin() -> None:
            for wait in waits:
                wait()
            stamps[1:] = [stamp(schedstat)]

        def end() -> None:
            for wait in waits:
                wait()
            stamps.append(stamp(schedstat, at_end=True))
            if len(waits_for(self.device)) > len(waits):  # this run was the first to use the device
                synchronize(self.device)
                stamps[-1] = stamp(schedstat, at_end=True)

        fixed_ns = self._run_fixed_computation()
        self._cache.flush()
        synchronize(self.device)
        with open_schedstat() as schedstat:
            stamps.append(stamp(schedstat))
            self._between([step], begin, end, before=before)
        called, began, ended = stamps
        took, before_it = taken(began, ended), taken(called, began)
        self._last_ms = took.wall_ms
        return Run(*took[:3], before_it.wall_ms, fixed_ns, before_it.cpu_ms, took.others_ms)

    def _run_fixed_computation(self) -> int:
        took_ns = fixed_computation_ns()
        self.fastest_fixed_ns = min(self.fastest_fixed_ns or took_ns, took_ns)
        Replay.fastest_in_process_ns = min(Replay.fastest_in_process_ns or took_ns, took_ns)
        return took_ns

    def run_between(self, count: int, begin: Callable[[], None], end: Callable[[], None]) -> int:
        """Run several steps, and call ``begin`` before the first and ``end`` after the last.

        Waits for the device before both. Returns the number of steps that ran; a loop may have
        fewer than ``count``.
        """
        is_loop = hasattr(self.step, "run_between")
        stamps_ns: list[int] = []

        def begin_timed() -> None:
            synchronize(self.device)
            begin()
            stamps_ns[:] = [time.perf_counter_ns()]

        def end_timed() -> None:
            synchronize(self.device)
            stamps_ns[1:] = [time.perf_counter_ns()]
            self.profiled_ms = (stamps_ns[1] - stamps_ns[0]) / 1e6 / count
            end()

        self.profiled_ms = None
        self._cache.flush()
        steps = self.prepare_several(1 if is_loop else count)
        done = self._between(steps, begin_timed, end_timed, count)
        if len(stamps_ns) == 2 and done:
            self.profiled_ms = (stamps_ns[1] - stamps_ns[0]) / 1e6 / done
        return done

    def profile_nearest(self, profile: Callable[[], T], median_ms: float | None) -> tuple[T, int]:
        """Profile an iteration, again while it took far longer than the median, and keep one.

        ``profile`` calls `run_between` and returns what was recorded. Returns that of the iteration
        nearest to the median, and its number; `profiled_ms` is its time, and `all_profiled_ms` the
        times of all.
        """
        nearest: tuple[float, float, T, int] | None = None  # only one, because each needs memory
        times_ms: list[float] = []
        self.all_profiled_ms = times_ms
        while True:
            recorded, took_ms = profile(), self.profiled_ms
            if took_ms is None or not median_ms:
                return recorded, len(times_ms) + 1
            times_ms.append(took_ms)
            distance_ms = abs(took_ms - median_ms)
            if nearest is None or distance_ms < nearest[0]:
                nearest = distance_ms, took_ms, recorded, len(times_ms)
            if len(times_ms) == MOST_PROFILED or took_ms <= FAR_FROM_MEDIAN * median_ms:
                _, self.profiled_ms, recorded, number = nearest
                return recorded, number

    def _between(
        self,
        steps: list[Callable[[], Any]],
        begin: Callable[[], None],
        end: Callable[[], None],
        count: int = 1,
        *,
        before: Callable[[], Any] | None = None,
    ) -> int:
        seed_all(self.seed, again=self._last_ms is not None)
        with run_context(self.context):
            synchronize(self.device)
            in_loop = getattr(steps[0], "run_between", None)
            if in_loop is not None:
                return int(in_loop(begin, end, count))
            if before is not None:
                before()
                if before is steps[0]:
                    getattr(before, "reset", lambda: None)()
                seed_all(self.seed, again=True)
            begin()
            for done, step in enumerate(steps):
                if done:
                    seed_all(self.seed, again=True)
                step()
            end()
        return len(steps)

    def _run_next(
        self, runs: list[Run], iterations: int | None, progress: Callable[[int], None]
    ) -> None:
        step = self.prepare()
        runs.append(self.run(step, self._prepare_before() if iterations is None else None))
        progress(len(runs))

    def warm_up(
        self, iterations: int | None = None, progress: Callable[[int], None] = lambda done: None
    ) -> list[Run]:
        """Run several times, or until the times settle.

        ``progress`` is called with the number of runs so far.
        """
        runs: list[Run] = []
        for _ in range(FIXED_RUNS):
            self._run_fixed_computation()
        deadline = time.perf_counter() + SECONDS_WARM_UP
        while len(runs) < iterations if iterations is not None else not is_settled(runs):
            late = len(runs) >= MOST_WARM_UP or time.perf_counter() > deadline
            if iterations is None and len(runs) > 1 and late:
                break
            self._run_next(runs, iterations, progress)
        return runs

    def measure(
        self, iterations: int | None = None, progress: Callable[[int], None] = lambda done: None
    ) -> list[Run]:
        """Run several times, or as often as the limits above say, and return what each run took.

        ``progress`` is called with the number of runs so far.
        """
        runs: list[Run] = []
        began = time.perf_counter()
        before_mhz = clock_mhz(self.device)
        while not _enough(runs, iterations, time.perf_counter() - began):
            self._run_next(runs, iterations, progress)
        self.clocks_mhz = [before_mhz, clock_mhz(self.device)]
        return runs


class DeviceCache:
    """The last cache of an accelerator.

    In a pipeline, other stages have overwritten the cache before a stage runs, so `flush` does the
    same before each run. If the size of the cache is not known, runs alternate between two sets of
    inputs instead (`needs_rotation`). Does nothing on a CPU.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.is_accelerator = device.partition(":")[0] not in ("cpu", "meta")
        self.bytes = cache_bytes(device) if self.is_accelerator else None
        self._buffer: Any = None

    def flush(self) -> None:
        """Overwrite the cache if its size is known."""
        if not self.bytes:
            return
        if self._buffer is None:
            try:
                self._buffer = torch.empty(2 * self.bytes, dtype=torch.uint8, device=self.device)
            except RuntimeError:  # no memory is left: then the stage itself overwrites the cache
                self.bytes = None
                return
        self._buffer.zero_()

    def needs_rotation(self, inputs: Mapping[str, Any]) -> bool:
        """Whether small inputs would stay in the cache from one run to the next."""
        return self.is_accelerator and not self.bytes and 0 < bytes_in(inputs) < MOST_ROTATED_BYTES


def cache_bytes(device: str) -> int | None:
    """Return the size of the last cache of a device in bytes; None if it is not known."""
    try:
        module = getattr(torch, device.partition(":")[0])
        return int(module.get_device_properties(torch.device(device)).L2_cache_size) or None
    except Exception:  # there is no such device, or this torch does not tell
        return None


def clock_mhz(device: str) -> int | None:
    """Return the current clock of a device in MHz; None if it is not known, as on a CPU."""
    try:
        module = getattr(torch, device.partition(":")[0])
        return int(module.clock_rate(torch.device(device)))
    except Exception:  # it has no clock, or the library that reads the clock is missing
        return None


def is_settled(runs: Sequence[Run]) -> bool:
    """Whether the median of the last runs is close to that of the runs before them."""
    if len(runs) < 1 + 2 * SETTLED_RUNS:  # the first run is not compared
        return False
    halves = times_of(runs[-2 * SETTLED_RUNS : -SETTLED_RUNS]), times_of(runs[-SETTLED_RUNS:])
    # On a busy machine, only the CPU time may settle.
    for before, after in zip(*halves, strict=True):
        median = statistics.median(before)
        if abs(statistics.median(after) - median) <= SETTLED_WITHIN * median:
            return True
    return False


def _enough(runs: Sequence[Run], iterations: int | None, elapsed: float) -> bool:
    if iterations is not None:
        return len(runs) >= iterations
    if len(runs) < FEWEST_TIMED:
        return False
    measured = sum(times_of(runs)[0]) / 1000
    if measured >= SECONDS_TIMED or elapsed >= SECONDS_IN_ALL or len(runs) >= MOST_TIMED:
        return True
    if len(runs) < USUALLY_TIMED or elapsed < LEAST_SECONDS:
        return False
    middle, reach = len(runs) // 2, round(len(runs) ** 0.5)
    return elapsed >= USUAL_SECONDS or all(
        times[middle + reach] - times[middle - reach] <= SETTLED_WITHIN * times[middle]
        for times in map(sorted, times_of(runs))
    )


def step_of(step: Any, runs: Sequence[Run] = ()) -> dict[str, Any] | None:
    """Return which step of a loop was run, or None if there is no loop."""
    place_in_loop = getattr(step, "place_in_loop", None)
    return None if place_in_loop is None else place_in_loop(runs)


def bytes_in(value: Any) -> int:
    """Return the bytes of the elements of all tensors that `state_of` examines in a value."""
    tensors = [part for part in parts_within(value) if isinstance(part, torch.Tensor)]
    return int(sum(tensor.numel() * tensor.element_size() for tensor in tensors))


def changeable(value: Any) -> set[int]:
    """Return the identities of what a run could modify in a value: tensors, containers, objects."""
    return {id(part) for part in parts_within(value) if is_changeable(part)}


def parts_within(value: Any) -> list[Any]:
    """Return the objects that `state_of` examines in a value."""
    seen: dict[int, Any] = {}
    state_of(value, seen)
    return list(seen.values())


def is_changeable(value: Any) -> bool:
    """Whether a run could modify a value, rather than only what it contains."""
    if isinstance(value, (torch.Tensor, torch.Generator, Mapping, list, collections.deque)):
        return True
    if type(value).__module__ == "numpy":
        return True
    fixed = isinstance(value, (type, types.ModuleType, torch.nn.Module)) or callable(value)
    return not fixed and isinstance(getattr(value, "__dict__", None), dict)


def state_of(value: Any, seen: dict[int, Any] | None = None) -> list[Any]:
    """Return a list that differs from the earlier one if a run has modified its inputs.

    It covers tensors (both writes and replacements), lengths, plain values and attributes, but at
    most `MOST_LOOKED_AT` objects. Torch modules are not examined.
    """
    seen = {} if seen is None else seen
    if isinstance(value, (bool, int, float, str)):
        return [repr(value)]
    if value is None or id(value) in seen or len(seen) > MOST_LOOKED_AT:
        return []
    seen[id(value)] = value
    if isinstance(value, torch.Tensor):
        return [id(value), *([] if value.is_inference() else [value._version])]
    if isinstance(value, torch.Generator):
        return [zlib.crc32(value.get_state().numpy().tobytes())]
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return [zlib.crc32(value.tobytes())] if value.nbytes <= 1 << 20 else []
    parts: list[Any] = []
    if isinstance(value, Mapping):
        parts += [part for pair in value.items() for part in pair]
    elif isinstance(value, (list, tuple, collections.deque)):
        parts += value
    state: list[Any] = [len(parts)]
    if is_changeable(value):
        parts += getattr(value, "__dict__", {}).values()
    return state + [found for part in parts for found in state_of(part, seen)]
