"""Decides whether two medians differ by more than their noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.999
"""Confidence of the intervals: high, because a gate compares many stages many times a day."""
FEWEST_RUNS = 5
"""With fewer runs, the noise is unknown."""
COMPUTING = 0.9
"""If the thread computes for this part of the runs, the processor's speed decides their times."""
_FEWEST_FOR_BEST = 20
BEST = 0.02
"""The quantile that stands for the fastest runs."""
LEAST_SPREAD = 0.007
"""How much the medians of an unchanged stage differ between processes, at least.

It is a standard deviation, divided by the median. The placement in memory and the seed of hashes
differ between processes, and so does what else the machine does.
"""
SPREAD_OF_RUNS = 0.3
"""The same, as a part of the standard deviation of the runs in one process.

The more the runs of a stage vary, the more its medians differ between processes. In the series of
`benchmarks.gate_samples`, it was 0.3 to 0.5 times that of Python code, also on a busy machine.
"""
_USUAL_SESSIONS = 6
"""The usual spread counts as much as the spread of this many measured sessions.

With few sessions, their own spread says little: that of three is less than a third of the true one
in 10 % of all cases.
"""
_RESAMPLES = 10_000
_SEED = 20_260_101
Z = statistics.NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
"""Half the width of an interval of this confidence, in standard errors."""
# The standard error of a median of normally distributed times, from their quartiles.
_QUARTILES_APART = 2 * statistics.NormalDist().inv_cdf(0.75)
_PER_QUARTILES = math.sqrt(math.pi / 2) / _QUARTILES_APART
_SHORTEST_MS = 1e-9  # less than any clock can measure, so that times have logarithms
_HISTOGRAM_ERROR = 0.021  # figures from histograms differ from the true ones by at most this part


class Parts(NamedTuple):
    """The two parts of the time of each run, in ms."""

    computing: NDArray[np.float64]
    waiting: NDArray[np.float64]


@dataclass(frozen=True)
class Times:
    """Figures about the times of several runs."""

    median_ms: float
    count: int | None = None
    quartiles_ms: tuple[float, float] | None = None
    samples_ms: tuple[float, ...] = ()
    disturbed: bool | None = None
    """Whether other programs used the machine during the runs; None if that is not known."""
    fixed_ns: float | None = None
    """The fastest time of `fixed_computation_ns` during the measurement; None if unknown."""
    relative: tuple[float, ...] = ()
    """The time of each run, divided by that of the fixed computation next to it.

    These do not depend on the speed of the processor. Empty if they are unknown, or if other things
    than the processor's speed decide the time of the runs. If `cpu_ms` is known, it is the CPU time
    of each run that is divided.
    """
    cpu_ms: tuple[float, ...] = ()
    """The CPU time of each run; the rest of its time is waiting.

    Empty if it is not known, or if other threads or a device did a part of the work.
    """
    tracers: tuple[str, ...] = ()
    """The tracers and profilers that were active during the runs, see `process.tracers`."""
    sessions: tuple[Times, ...] = ()
    """The measurements in several processes that were added up; () if there is only one.

    ``median_ms`` is then the geometric mean of their medians; other figures are of all runs.
    """
    mean_ms: float | None = None
    total_ms: float | None = None
    """The sum over all runs; None for measurements, whose number of runs means nothing."""

    @classmethod
    def of(
        cls,
        samples_ms: Sequence[float],
        disturbed: bool | None = None,
        fixed_ns: float | None = None,
        relative: Sequence[float] = (),
        cpu_ms: Sequence[float] = (),
        tracers: Sequence[str] = (),
    ) -> Times:
        """Return the figures of one or more single runs."""
        low, _, high = (
            statistics.quantiles(samples_ms, n=4, method="inclusive")
            if len(samples_ms) > 1
            else (samples_ms[0],) * 3
        )
        return cls(
            statistics.median(samples_ms),
            len(samples_ms),
            (low, high),
            tuple(samples_ms),
            disturbed,
            fixed_ns,
            tuple(relative),
            tuple(cpu_ms),
            tuple(tracers),
            mean_ms=statistics.fmean(samples_ms),
        )

    @classmethod
    def of_runs(cls, measurements: Sequence[Times]) -> Times:
        """Return the figures of all runs of one or more measurements."""
        flags = [measurement.disturbed for measurement in measurements]
        fixed_ns = [
            measurement.fixed_ns for measurement in measurements if measurement.fixed_ns is not None
        ]
        has_ratios = all(measurement.relative for measurement in measurements)
        has_cpu = all(measurement.cpu_ms for measurement in measurements)
        return cls.of(
            [sample for measurement in measurements for sample in measurement.samples_ms],
            True if any(flags) else None if None in flags else False,
            min(fixed_ns, default=None),
            [ratio for measurement in measurements for ratio in measurement.relative]
            if has_ratios
            else (),
            [cpu_ms for measurement in measurements for cpu_ms in measurement.cpu_ms]
            if has_cpu
            else (),
            tuple(
                dict.fromkeys(name for measurement in measurements for name in measurement.tracers)
            ),
        )

    @classmethod
    def of_sessions(cls, sessions: Sequence[Times]) -> Times:
        """Return the figures of one or more measurements of a stage, each in its own process."""
        if len(sessions) == 1:
            return sessions[0]
        pooled = cls.of_runs(sessions)
        median_ms = _geometric_mean([session.median_ms for session in sessions])
        return replace(pooled, median_ms=median_ms, sessions=tuple(sessions))

    @property
    def each_session(self) -> tuple[Times, ...]:
        """The measurement of each process, at least one."""
        return self.sessions or (self,)

    def at_speed(self, fixed_ns: float) -> Times | None:
        """Return the times on a processor on which the fixed computation takes ``fixed_ns``.

        None if the times do not depend on the processor's speed alone, or if that is not known.
        """
        ratios = [session.relative_whole for session in self.each_session]
        if not all(ratios) or sum(map(len, ratios)) < FEWEST_RUNS:
            return None
        return Times.of_sessions(
            [
                Times.of([ratio * fixed_ns / 1e6 for ratio in own], session.disturbed, fixed_ns)
                for own, session in zip(ratios, self.each_session, strict=True)
            ]
        )

    @property
    def relative_whole(self) -> tuple[float, ...]:
        """The whole time of each run, divided by that of the fixed computation next to it."""
        if not self.cpu_ms:
            return self.relative
        is_aligned = len(self.relative) == len(self.cpu_ms) and min(self.cpu_ms) > 0
        if not is_aligned or sum(self.cpu_ms) < COMPUTING * sum(self.samples_ms):
            return ()
        rows = zip(self.relative, self.samples_ms, self.cpu_ms, strict=True)
        return tuple(ratio * sample_ms / cpu_ms for ratio, sample_ms, cpu_ms in rows)

    def parts_ms(self, fixed_ns: float | None) -> list[Parts] | None:
        """Return the computing and the waiting of each run, by session; None if not known.

        With ``fixed_ns``, the computing is that of a processor on which the fixed computation takes
        so long.
        """
        parts = []
        for session in self.each_session:
            if not FEWEST_RUNS <= len(session.cpu_ms) == len(session.samples_ms):
                return None
            cpu_ms = np.asarray(session.cpu_ms)
            waiting_ms = np.maximum(np.asarray(session.samples_ms) - cpu_ms, 0.0)
            if fixed_ns is not None:
                if len(session.relative) != len(cpu_ms):
                    return None
                cpu_ms = np.asarray(session.relative) * fixed_ns / 1e6
            parts.append(Parts(cpu_ms, waiting_ms))
        return parts

    @property
    def best_ms(self) -> float | None:
        """The time of the fastest runs; None with too few runs.

        It changes least of all figures if other programs use the machine.
        """
        if any(len(session.samples_ms) < _FEWEST_FOR_BEST for session in self.each_session):
            return None
        return _geometric_mean(
            [float(np.quantile(session.samples_ms, BEST)) for session in self.each_session]
        )

    @property
    def basis(self) -> str:
        """The source of the noise: ``samples``, ``quartiles``, or ``nothing`` if it is unknown."""
        if (self.count or 0) < FEWEST_RUNS:
            return "nothing"
        if len(self.samples_ms) >= FEWEST_RUNS:
            return "samples"
        return "nothing" if self.quartiles_ms is None else "quartiles"


def relative_times(
    times_ms: Sequence[float], cpu_ms: float, fixed_ns: Sequence[float]
) -> tuple[float, ...]:
    """Return the time of each run, divided by the mean of the fixed computations next to it.

    ``cpu_ms`` is the CPU time of all runs in the thread, and ``fixed_ns`` the times of the fixed
    computation before the first run and after each run. Returns () if the thread waited for a large
    part of the runs, because then the speed of the processor does not decide their times.
    """
    if cpu_ms < COMPUTING * sum(times_ms) or min(fixed_ns, default=0) <= 0:
        return ()
    return tuple(
        time_ms * 2e6 / (before_ns + after_ns)
        for time_ms, before_ns, after_ns in zip(times_ms, fixed_ns, fixed_ns[1:], strict=False)
    )


class Drawn(NamedTuple):
    """A figure before and after, and what its change can be by chance, in ms."""

    before_ms: float
    after_ms: float
    changes_ms: NDArray[np.float64]
    """The change in each of `_RESAMPLES` draws."""

    @property
    def interval_ms(self) -> tuple[float, float]:
        """Bounds between which the change is with the probability `CONFIDENCE`."""
        tail = (1 - CONFIDENCE) / 2
        low, high = np.quantile(self.changes_ms, (tail, 1 - tail))
        return float(low), float(high)

    def plus(self, other: Drawn) -> Drawn:
        """Return the change of the sum of two figures."""
        return Drawn(
            self.before_ms + other.before_ms,
            self.after_ms + other.after_ms,
            self.changes_ms + other.changes_ms,
        )


def interval_of_change(
    before: Times, after: Times, quantile: float = 0.5
) -> tuple[float, float] | None:
    """Return bounds in ms for the change of a quantile, by default the median.

    The change is within the bounds with the probability `CONFIDENCE`. The noise within a process
    comes from a bootstrap if both have samples; otherwise it is that of the median, from the
    quartiles. The noise between processes is added, see `_between_processes`. Returns None if the
    noise of one of them is not known. The same times always give the same bounds.
    """
    if before.basis == after.basis == "samples":
        sides = [
            [np.asarray(session.samples_ms) for session in times.each_session]
            for times in (before, after)
        ]
        return drawn_change(sides[0], sides[1], quantile).interval_ms
    errors = _standard_error(before), _standard_error(after)
    if errors[0] is None or errors[1] is None:
        return None
    spreads = [[_log_spread(times.quartiles_ms) for times in (before, after)]]
    between_ms = _between_processes(spreads, (1, 1), LEAST_SPREAD) * before.median_ms
    change_ms = after.median_ms - before.median_ms
    rounded_ms = [_HISTOGRAM_ERROR * t.median_ms for t in (before, after) if not t.samples_ms]
    bound = math.hypot(Z * math.hypot(errors[0], errors[1], between_ms), *rounded_ms)
    return max(change_ms - bound, -before.median_ms), change_ms + bound


def drawn_change(
    before: Sequence[NDArray[np.float64]],
    after: Sequence[NDArray[np.float64]],
    quantile: float = 0.5,
    *,
    of_ms: float | None = None,
    seed: int = _SEED,
) -> Drawn:
    """Return the change of a quantile of runs, whose times in ms are given by session.

    Times vary by factors, so their logarithms are compared. A part of a run that can be almost
    nothing varies by amounts instead: then ``of_ms`` is the time by which the least spread between
    processes, `LEAST_SPREAD`, is multiplied.
    """
    random = np.random.default_rng(seed)
    shown = (lambda ms: np.log(np.maximum(ms, _SHORTEST_MS))) if of_ms is None else np.asarray
    sides = [[shown(runs) for runs in side] for side in (before, after)]
    drawn = [[_resampled(runs, quantile, random) for runs in side] for side in sides]
    spreads = [[_spread(runs) for runs in side] for side in sides]
    counts = len(before), len(after)
    least = LEAST_SPREAD * (1.0 if of_ms is None else of_ms)
    between = _between_processes(spreads, counts, least, drawn)
    old, new = (np.mean(side, axis=0) for side in drawn)
    change = new - old + between * random.standard_normal(_RESAMPLES)
    figures = [float(np.mean([np.quantile(runs, quantile) for runs in side])) for side in sides]
    if of_ms is not None:
        return Drawn(figures[0], figures[1], change)
    before_ms = math.exp(float(np.mean(old)))
    return Drawn(math.exp(figures[0]), math.exp(figures[1]), before_ms * (np.exp(change) - 1))


def _between_processes(
    spreads: Sequence[Sequence[float]],
    counts: tuple[int, int],
    least: float,
    drawn: Sequence[Sequence[NDArray[np.float64]]] = (),
) -> float:
    """Return the standard error of a change that comes from the choice of processes.

    The spread between processes is estimated from that of the sessions, and from the usual one for
    runs that vary like these, at least ``least``. ``spreads`` are those of the runs of each
    session, ``counts`` the numbers of sessions before and after, and ``drawn`` the resampled figure
    of each session, before and after; the spread within a session is not counted twice.
    """
    varying = statistics.median(spread for side in spreads for spread in side)
    weight, squares = _USUAL_SESSIONS, _USUAL_SESSIONS * max(least, SPREAD_OF_RUNS * varying) ** 2
    for side in drawn:
        if len(side) > 1:
            within_processes = float(np.mean([np.var(session) for session in side]))
            measured = float(np.var([np.mean(session) for session in side], ddof=1))
            weight += len(side) - 1
            squares += (len(side) - 1) * max(measured - within_processes, 0.0)
    return math.sqrt(squares / weight * sum(1 / count for count in counts))


def _spread(runs: NDArray[np.float64]) -> float:
    """Return the standard deviation of runs from their quartiles."""
    low, high = np.quantile(runs, (0.25, 0.75))
    return float(high - low) / _QUARTILES_APART


def _log_spread(quartiles_ms: tuple[float, float] | None) -> float:
    """Return the standard deviation of the runs' logarithms; 0 if it is unknown."""
    low, high = quartiles_ms or (0.0, 0.0)
    return math.log(high / low) / _QUARTILES_APART if 0 < low <= high else 0.0


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(max(value, _SHORTEST_MS)) for value in values))


def relative_noise(times: Times) -> float | None:
    """Return half the width of the median's interval, divided by the median; None if unknown."""
    error = _standard_error(times)
    return None if error is None or times.median_ms <= 0 else Z * error / times.median_ms


def _resampled(
    runs: NDArray[np.float64], quantile: float, random: np.random.Generator
) -> NDArray[np.float64]:
    # The rank of a quantile among n numbers drawn at random follows a beta distribution, so drawing
    # the rank replaces drawing n numbers.
    ordered = np.sort(runs)
    count = len(ordered)
    rank = quantile * (count - 1) + 1
    places = random.beta(rank, count - rank + 1, _RESAMPLES) * count - 0.5
    return np.interp(places, np.arange(count), ordered)


def _standard_error(times: Times) -> float | None:
    if times.basis == "nothing" or times.quartiles_ms is None or not times.count:
        return None
    low, high = times.quartiles_ms
    return _PER_QUARTILES * (high - low) / math.sqrt(times.count)
