"""Runs a step many times and measures it.

The generated scripts contain the source of this module, so it needs only torch.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import random
import statistics
import sys
import time
import types
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from stagespan.device_table import DEVICE_TYPES
from stagespan.environment import fixed_computation_ns

# Without a given number of iterations, `Replay.measure` ends after USUALLY_TIMED runs and
# LEAST_SECONDS. It ends earlier, after at least FEWEST_TIMED runs, once SECONDS_TIMED are measured
# or SECONDS_IN_ALL have passed, and at the latest after MOST_TIMED runs.
FEWEST_TIMED, USUALLY_TIMED, MOST_TIMED = 3, 20, 1000
LEAST_SECONDS, SECONDS_TIMED, SECONDS_IN_ALL = 1.0, 5.0, 20.0
# Without a given number of iterations, `Replay.warm_up` ends when the medians of the last
# SETTLED_RUNS runs and of those before them differ by at most this part.
SETTLED_RUNS, SETTLED_WITHIN = 3, 0.02
MOST_WARM_UP, SECONDS_WARM_UP = 30, 5.0
BUSY_WAITS = 0.1  # the part of the time waiting for a core from which a machine counts as busy
IDLE = 0.5  # the part of the time from which an idle thread is reported
SLOWED = 1.1  # the ratio of the fixed computation's mean to its fastest time that is reported
FIXED_RUNS = 50  # how often the fixed computation runs at the start
CLOCK_CHANGE = 0.05  # the relative change of the device's clock that is reported
MOST_ROTATED_BYTES = 1 << 28  # larger inputs are not rotated, because they exceed any cache
MOST_LOOKED_AT = 10_000  # the most values examined to find out whether a run changed its inputs
SHORT_MS = 5.0  # a run of at most this time directly follows an untimed one, see `Replay.run`
SETS_AT_ONCE, MOST_SETS_BYTES = 4, 1 << 28  # inputs that are made before several runs


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
        """The fastest time of `fixed_computation_ns` so far."""
        self.clocks_mhz: list[int | None] = []
        """The device's clock in MHz before and after `measure`; None if it is not known."""
        self._last_ms: float | None = None
        self.profiled_ms: float | None = None
        """Time of one iteration in the last `run_between`; None before, and if nothing ended."""

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
            is_small = SETS_AT_ONCE * bytes_in(self._next[0]) <= MOST_SETS_BYTES
            if self._are_independent and is_small:
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
        mine = self.inputs, self.step, self._state
        self.inputs, self.step, self._state = self._other
        self._other = mine

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
        while len(steps) < count:
            inputs = self.make_inputs() if self._changes_inputs else self.inputs
            steps.append(self._ready(self._another(inputs)))
        return steps

    def _another(self, inputs: dict[str, Any]) -> Callable[[], Any]:
        step = self.make_step(inputs)
        learn_from = getattr(step, "learn_from", None)
        if learn_from is not None:
            learn_from(self.step)
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
        is_small = SETS_AT_ONCE * bytes_in(self.inputs) <= MOST_SETS_BYTES
        if not self._are_independent or not is_small:
            return None
        return self._ready(self._another(self._next_inputs()))

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
        self._last_ms = (ended.wall_ns - began.wall_ns) / 1e6
        return Run(
            wall_ms=self._last_ms,
            cpu_ms=(ended.cpu_ns - began.cpu_ns) / 1e6,
            waited_ms=None
            if ended.waited_ns is None or began.waited_ns is None
            else (ended.waited_ns - began.waited_ns) / 1e6,
            before_ms=(began.wall_ns - called.wall_ns) / 1e6,
            fixed_ns=fixed_ns,
        )

    def _run_fixed_computation(self) -> int:
        took_ns = fixed_computation_ns()
        self.fastest_fixed_ns = min(self.fastest_fixed_ns or took_ns, took_ns)
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
            end()

        self.profiled_ms = None
        self._cache.flush()
        steps = self.prepare_several(1 if is_loop else count)
        done = self._between(steps, begin_timed, end_timed, count)
        if len(stamps_ns) == 2 and done:
            self.profiled_ms = (stamps_ns[1] - stamps_ns[0]) / 1e6 / done
        return done

    def _between(
        self,
        steps: list[Callable[[], Any]],
        begin: Callable[[], None],
        end: Callable[[], None],
        count: int = 1,
        *,
        before: Callable[[], Any] | None = None,
    ) -> int:
        seed_all(self.seed)
        with run_context(self.context):
            synchronize(self.device)
            in_loop = getattr(steps[0], "run_between", None)
            if in_loop is not None:
                return int(in_loop(begin, end, count))
            if before is not None:
                before()
                if before is steps[0]:
                    getattr(before, "reset", lambda: None)()
                seed_in_use(self.seed)
            begin()
            for done, step in enumerate(steps):
                if done:
                    seed_all(self.seed)
                step()
            end()
        return len(steps)

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
            step = self.prepare()
            before = self._prepare_before() if iterations is None else None
            runs.append(self.run(step, before))
            progress(len(runs))
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
            step = self.prepare()
            before = self._prepare_before() if iterations is None else None
            runs.append(self.run(step, before))
            progress(len(runs))
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
        if not self.is_accelerator or self.bytes:
            return False
        return 0 < bytes_in(inputs) < MOST_ROTATED_BYTES


def cache_bytes(device: str) -> int | None:
    """Return the size of the last cache of a device in bytes; None if it is not known."""
    try:
        module = getattr(torch, device.partition(":")[0])
        return int(module.get_device_properties(torch.device(device)).L2_cache_size) or None
    except (AttributeError, RuntimeError, ValueError, TypeError, AssertionError):
        return None


def clock_mhz(device: str) -> int | None:
    """Return the current clock of a device in MHz; None if it is not known, as on a CPU."""
    kind = device.partition(":")[0]
    read = getattr(getattr(torch, kind, None), "clock_rate", None)
    if kind == "cpu" or read is None:
        return None
    try:
        return int(read(torch.device(device)))
    except Exception:  # the library that reads the clock is missing or fails
        return None


class Stamp(NamedTuple):
    """The clocks at one moment, in ns: wall time, CPU time of the thread, and `waited_ns`."""

    wall_ns: int
    cpu_ns: int
    waited_ns: int | None


class Run(NamedTuple):
    """The times of one run in ms."""

    wall_ms: float
    cpu_ms: float
    """CPU time of the thread that ran it."""
    waited_ms: float | None
    """Part of the wall time in which the thread waited for a core; None if unknown."""
    before_ms: float
    """From the call of the step to the start of the measured part."""
    fixed_ns: int | None = None
    """The time of `fixed_computation_ns` before this run."""


def stamp(schedstat: int | None, at_end: bool = False) -> Stamp:
    """Read the clocks: the wall clock last at the start of a measurement, and first at its end.

    ``schedstat`` is the result of `open_schedstat`.
    """
    if at_end:
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        return Stamp(wall, cpu, waited_ns(schedstat))
    waited, cpu = waited_ns(schedstat), time.thread_time_ns()
    return Stamp(time.perf_counter_ns(), cpu, waited)


@contextlib.contextmanager
def open_schedstat() -> Iterator[int | None]:
    """Open the file with the waiting times of this thread; None if there is no such file.

    It stays open, because opening it directly before a measured run makes the run slower.
    """
    try:
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        yield file
    finally:
        os.close(file)


def waited_ns(schedstat: int | None) -> int | None:
    """Return for how long this thread has waited for a core so far; None if it is not known."""
    if schedstat is None:
        return None
    try:
        return int(os.pread(schedstat, 256, 0).split()[1])
    except (OSError, ValueError, IndexError):
        return None


def is_settled(runs: Sequence[Run]) -> bool:
    """Whether the median of the last runs is close to that of the runs before them."""
    if len(runs) < 1 + 2 * SETTLED_RUNS:  # the first run is not compared
        return False
    halves = runs[-2 * SETTLED_RUNS : -SETTLED_RUNS], runs[-SETTLED_RUNS:]
    for name in ("wall_ms", "cpu_ms"):  # on a busy machine, only the CPU time may settle
        before, after = (statistics.median(getattr(run, name) for run in half) for half in halves)
        if abs(after - before) <= SETTLED_WITHIN * before:
            return True
    return False


def _enough(runs: Sequence[Run], iterations: int | None, elapsed: float) -> bool:
    if iterations is not None:
        return len(runs) >= iterations
    if len(runs) < FEWEST_TIMED:
        return False
    measured = sum(run.wall_ms for run in runs) / 1000
    if measured >= SECONDS_TIMED or elapsed >= SECONDS_IN_ALL or len(runs) >= MOST_TIMED:
        return True
    return len(runs) >= USUALLY_TIMED and elapsed >= LEAST_SECONDS


def summary(
    runs: Sequence[Run],
    device: str = "cpu",
    clocks_mhz: Sequence[int | None] = (),
    fastest_fixed_ns: int | None = None,
) -> dict[str, Any]:
    """Return the `figures` of several runs, and their clocks, CPU times and waiting times.

    ``slowdown`` is the mean of their fixed computations divided by the fastest one, whose time is
    ``fixed_ns``. All figures are None if there are no runs.
    """
    found: dict[str, Any] = figures([run.wall_ms for run in runs])
    found["clocks_mhz"] = list(clocks_mhz) if all(clocks_mhz) and clocks_mhz else None
    found["cpu"] = figures([run.cpu_ms for run in runs])
    found["waited_ms"] = waited_ms(runs)
    found["fixed_ns"] = fastest_fixed_ns
    found["slowdown"] = slowdown(runs, fastest_fixed_ns)
    found["busy"] = busy(runs, device, found["slowdown"])
    return found


def figures(times: list[float]) -> dict[str, Any]:
    """Median, quartiles, mean, min and max in milliseconds, and the number of runs."""
    if not times:
        names = ("p50", "p25", "p75", "mean", "min", "max")
        return {**dict.fromkeys(names), "iterations": 0}
    ordered = sorted(times)
    quartiles = statistics.quantiles(ordered, method="inclusive") if len(ordered) > 1 else None
    return {
        "p50": statistics.median(ordered),
        "p25": ordered[0] if quartiles is None else quartiles[0],
        "p75": ordered[0] if quartiles is None else quartiles[2],
        "mean": statistics.fmean(ordered),
        "min": ordered[0],
        "max": ordered[-1],
        "iterations": len(ordered),
    }


def waited_ms(runs: Sequence[Run]) -> float | None:
    """Return the total time in ms that several runs waited for a core; None if unknown."""
    waits = [run.waited_ms for run in runs if run.waited_ms is not None]
    return sum(waits) if waits and len(waits) == len(runs) else None


def slowdown(runs: Sequence[Run], fastest_ns: int | None) -> float | None:
    """Return the mean time of the fixed computation, divided by its fastest time, if known.

    The slowest 5 % are left out, because interrupts make single ones much longer.
    """
    times = sorted(run.fixed_ns for run in runs if run.fixed_ns is not None)
    kept = times[: max(len(times) * 95 // 100, 1)]
    return statistics.fmean(kept) / fastest_ns if kept and fastest_ns else None


def busy(runs: Sequence[Run], device: str = "cpu", slowed_by: float | None = None) -> str | None:
    """Return a sentence if the runs waited for a core, or if the processor was slowed down.

    None if neither happened, or if it is not known. ``slowed_by`` is the result of `slowdown`.
    """
    wall = sum(run.wall_ms for run in runs)
    if not wall:
        return None
    share = sum(run.cpu_ms for run in runs) / wall
    waits = waited_ms(runs)
    if waits is not None and waits / wall >= BUSY_WAITS:
        return (
            f"The machine was busy: the thread had {share:.0%} of a core and waited for one "
            f"{waits / wall:.0%} of the time, so compare CPU times."
        )
    if slowed_by is not None and slowed_by >= SLOWED:
        return (
            f"The machine was busy: a fixed computation took {slowed_by:.2f} x its fastest time on "
            f"average, so other programs, or other guests of the host, slowed the processor down."
        )
    if waits is not None or not device.startswith("cpu") or share > 1 - BUSY_WAITS:
        return None
    return (
        f"The thread ran only {share:.0%} of the time: the machine was busy, or the stage waits "
        f"for something; compare CPU times."
    )


def spread(found: Mapping[str, Any]) -> str:
    """Return the median and the middle half of `figures` as text."""
    return f"{found['p50']:,.2f} ms (middle half {found['p25']:,.2f} to {found['p75']:,.2f})"


def profiled_ratio(profiled_ms: float | None, timing: Mapping[str, Any]) -> float | None:
    """Return how many times the measured median a profiled iteration took; None if not known."""
    if profiled_ms is None or not timing["p50"]:
        return None
    return float(profiled_ms / timing["p50"])


def profiled_line(found: Mapping[str, Any]) -> str | None:
    """A sentence about ``profiled_ms`` and ``profiled_ratio``; None if they are not known."""
    if found["profiled_ratio"] is None:
        return None
    return (
        f"The profiled run took {found['profiled_ratio']:.2f} x the median "
        f"({found['profiled_ms']:,.2f} ms for each iteration)."
    )


def idle(timing: Mapping[str, Any], device: str = "cpu") -> str | None:
    """Return a sentence if the thread neither ran nor waited for a core most of the time.

    None if an accelerator is in use, for which the thread waits, and if the times are not known.
    """
    if not timing["mean"] or timing["waited_ms"] is None or not device.startswith("cpu"):
        return None
    if any(is_initialized(kind) for kind in DEVICE_TYPES):
        return None
    waited_ms = timing["waited_ms"] / timing["iterations"]
    share = 1 - (timing["cpu"]["mean"] + waited_ms) / timing["mean"]
    if share < IDLE:
        return None
    return (
        f"The thread was idle {share:.0%} of the time: the stage waits, for example for other "
        f"threads or processes, whose work is not in the breakdown."
    )


def clock_change(timing: Mapping[str, Any]) -> str | None:
    """Return a sentence if the device's clock changed during the measurement; otherwise None."""
    before, after = timing["clocks_mhz"] or (None, None)
    if not before or not after or abs(after - before) <= CLOCK_CHANGE * before:
        return None
    return (
        f"The device's clock changed from {before:,} to {after:,} MHz meanwhile, so times may not "
        f"be comparable: fix the clocks, or measure for longer."
    )


def step_of(step: Any, runs: Sequence[Run] = ()) -> dict[str, Any] | None:
    """Return which step of a loop was run, or None if there is no loop."""
    if not hasattr(step, "run_between") or not hasattr(step, "total"):
        return None
    shortened = step.shortened
    return {
        "number": step.number,
        "of": step.total if step.total is not None else step.expected,
        "before_ms": statistics.median(run.before_ms for run in runs) if runs else None,
        "run_with": {} if shortened is None else {shortened[0]: shortened[2]},
    }


def synchronize(device: str = "cpu") -> None:
    """Wait for ``device`` and for the current device of each kind; creates no device context."""
    for wait in waits_for(device):
        wait()


def waits_for(device: str) -> list[Callable[[], Any]]:
    """Return functions that wait for ``device`` and the current devices that are in use."""
    found: list[Callable[[], Any]] = []
    for kind in filter(is_initialized, DEVICE_TYPES):
        module = getattr(torch, kind)
        found.append(module.synchronize)
        if device.startswith(f"{kind}:"):
            found.append(functools.partial(module.synchronize, device))
    return found


def is_initialized(kind: str) -> bool:
    """Whether this process uses devices of a kind."""
    return bool(getattr(getattr(torch, kind, None), "is_initialized", lambda: False)())


def seed_all(seed: int) -> None:
    """Seed the generators of torch, Python and numpy."""
    torch.manual_seed(seed)
    seed_others(seed)


def seed_others(seed: int) -> None:
    """Seed the generators of Python and numpy."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % (1 << 32))


def seed_in_use(seed: int) -> None:
    """Seed the generators again after `seed_all`, except those of devices that are not in use."""
    torch.default_generator.manual_seed(seed)
    for kind in DEVICE_TYPES:
        module = getattr(torch, kind, None)
        if module is not None and getattr(module, "is_initialized", lambda: False)():
            module.manual_seed_all(seed)
    seed_others(seed)


@contextlib.contextmanager
def random_state_kept() -> Iterator[None]:
    """Restore the program's own random state at the end of the block."""
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
def threads_set(wanted: int | str | None, captured: Any) -> Iterator[str | None]:
    """Set the number of torch's threads in the block, see `HarnessConfig.threads`.

    ``captured`` is the number in the live runs; anything but an int if it is not known. Yields a
    sentence if the number was changed, or could not be that of the live runs; otherwise None.
    """
    before, number = torch.get_num_threads(), None
    if isinstance(wanted, int):
        number = wanted
    elif wanted == "captured" and type(captured) is int and not os.environ.get("OMP_NUM_THREADS"):
        number = captured
    if number is None or number == before or number < 1:
        yield None
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if not isinstance(wanted, int) and number > (cores or 1):
        yield (
            f"torch uses {_threads(before)}: it used {number} in the live runs, which is more than "
            f"the {cores} cores available here."
        )
        return
    torch.set_num_threads(number)
    try:
        as_live = ", as in the live runs" if number == captured else ""
        yield (
            f"torch uses {_threads(number)}{as_live}. The default here is {before} (--threads "
            f"machine)."
        )
    finally:
        torch.set_num_threads(before)


def _threads(number: int) -> str:
    return f"{number} thread{'' if number == 1 else 's'}"


@contextlib.contextmanager
def run_context(context: Mapping[str, Any]) -> Iterator[None]:
    """Set torch as it was at the capture; gradients are off if that is not known."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(bool(context.get("grad", False))))
        if context.get("inference"):
            stack.enter_context(torch.inference_mode())
        autocast = context.get("autocast")
        for device, name in (autocast if isinstance(autocast, dict) else {}).items():
            dtype = getattr(torch, str(name), None)
            if isinstance(dtype, torch.dtype) and device in ("cpu", *DEVICE_TYPES):
                stack.enter_context(torch.autocast(device_type=device, dtype=dtype))
        for is_set, set_to, captured in kernel_settings(context):
            before = is_set()
            if before != captured:
                stack.callback(set_to, before)
                set_to(captured)
        yield


def kernel_settings(context: Mapping[str, Any]) -> list[tuple[Any, Any, Any]]:
    """Return (getter, setter, captured value) of each captured setting that selects kernels."""
    found: list[tuple[Any, Any, Any]] = []
    sdpa = context.get("sdpa")
    backends = torch.backends.cuda
    enabled_then = sdpa if isinstance(sdpa, list) else None
    for name in ("flash", "mem_efficient", "math", "cudnn") if enabled_then is not None else ():
        enabled = getattr(backends, f"{name}_sdp_enabled", None)
        enable = getattr(backends, f"enable_{name}_sdp", None)
        if enabled is not None and enable is not None:
            found.append((enabled, enable, name in (enabled_then or ())))
    precision = context.get("matmul_precision")
    if precision in ("highest", "high", "medium"):
        setter = torch.set_float32_matmul_precision
        found.append((torch.get_float32_matmul_precision, setter, precision))
    if isinstance(context.get("deterministic"), bool):
        is_on = torch.are_deterministic_algorithms_enabled
        # The capture shows that no operator raised an exception, so a warning is enough here.
        only_warns = not is_on() or torch.is_deterministic_algorithms_warn_only_enabled()

        def set_deterministic(on: bool) -> None:
            torch.use_deterministic_algorithms(on, warn_only=on and only_warns)

        found.append((is_on, set_deterministic, context["deterministic"]))
    return found


def bytes_in(value: Any) -> int:
    """Return the bytes of the elements of all tensors that `state_of` examines in a value."""
    seen: dict[int, Any] = {}
    state_of(value, seen)
    tensors = [each for each in seen.values() if isinstance(each, torch.Tensor)]
    return int(sum(each.numel() * each.element_size() for each in tensors))


def changeable(value: Any) -> set[int]:
    """Return the identities of what a run could modify in a value: tensors, containers, objects."""
    seen: dict[int, Any] = {}
    state_of(value, seen)
    return {key for key, each in seen.items() if is_changeable(each)}


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
