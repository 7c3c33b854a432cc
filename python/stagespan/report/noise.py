"""Decides whether two medians differ by more than their noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.999
"""Confidence of the intervals: high, because a gate compares many stages many times a day."""
FEWEST_RUNS = 5
"""With fewer runs, the noise is unknown."""
_COMPUTING = 0.9  # the part of the runs in which the thread computes, see `relative_times`
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
_Z = statistics.NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
# The standard error of a median of normally distributed times, from their quartiles.
_QUARTILES_APART = 2 * statistics.NormalDist().inv_cdf(0.75)
_PER_QUARTILES = math.sqrt(math.pi / 2) / _QUARTILES_APART
_SHORTEST_MS = 1e-9  # less than any clock can measure, so that times have logarithms
_HISTOGRAM_ERROR = 0.021  # figures from histograms differ from the true ones by at most this part


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
    than the processor's speed decide the time of the runs.
    """
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
            mean_ms=statistics.fmean(samples_ms),
        )

    @classmethod
    def of_runs(cls, measurements: Sequence[Times]) -> Times:
        """Return the figures of all runs of one or more measurements."""
        flags = [each.disturbed for each in measurements]
        known = [each.fixed_ns for each in measurements if each.fixed_ns is not None]
        has_ratios = all(each.relative for each in measurements)
        return cls.of(
            [sample for each in measurements for sample in each.samples_ms],
            True if any(flags) else None if None in flags else False,
            min(known, default=None),
            [ratio for each in measurements for ratio in each.relative] if has_ratios else (),
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
        if len(self.relative) < FEWEST_RUNS:
            return None
        return Times.of_sessions(
            [
                Times.of(
                    [ratio * fixed_ns / 1e6 for ratio in session.relative],
                    session.disturbed,
                    fixed_ns,
                )
                for session in self.each_session
            ]
        )

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
    if cpu_ms < _COMPUTING * sum(times_ms) or min(fixed_ns, default=0) <= 0:
        return ()
    return tuple(
        time_ms * 2e6 / (before_ns + after_ns)
        for time_ms, before_ns, after_ns in zip(times_ms, fixed_ns, fixed_ns[1:], strict=False)
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
        random = np.random.default_rng(_SEED)
        # Logarithms, because a time that varies widely has no symmetrical noise.
        drawn = [
            [np.log(_resampled(session, quantile, random)) for session in times.each_session]
            for times in (before, after)
        ]
        old, new = (np.mean(side, axis=0) for side in drawn)
        between = _between_processes(before, after, drawn)
        change = np.exp(new - old + between * random.standard_normal(_RESAMPLES)) - 1
        before_ms = math.exp(float(np.mean(old)))
        tail = (1 - CONFIDENCE) / 2
        low, high = before_ms * np.quantile(change, (tail, 1 - tail))
        return float(low), float(high)
    errors = _standard_error(before), _standard_error(after)
    if errors[0] is None or errors[1] is None:
        return None
    between_ms = _between_processes(before, after) * before.median_ms
    change_ms = after.median_ms - before.median_ms
    rounded_ms = [_HISTOGRAM_ERROR * t.median_ms for t in (before, after) if not t.samples_ms]
    bound = math.hypot(_Z * math.hypot(errors[0], errors[1], between_ms), *rounded_ms)
    return change_ms - bound, change_ms + bound


def _between_processes(
    before: Times, after: Times, drawn: Sequence[Sequence[NDArray[np.float64]]] = ()
) -> float:
    """Return the standard error of a relative change that comes from the choice of processes.

    The spread between processes is estimated from that of the sessions, and from the usual one for
    runs that vary like these. ``drawn`` contains the logarithms of the resampled figure of each
    session, before and after; the spread within a session is not counted twice.
    """
    sides = before.each_session, after.each_session
    varying = statistics.median(_spread_of_runs(session) for side in sides for session in side)
    weight, squares = (
        _USUAL_SESSIONS,
        _USUAL_SESSIONS * max(LEAST_SPREAD, SPREAD_OF_RUNS * varying) ** 2,
    )
    for side in drawn:
        if len(side) > 1:
            within = float(np.mean([np.var(session) for session in side]))
            measured = float(np.var([np.mean(session) for session in side], ddof=1))
            weight += len(side) - 1
            squares += (len(side) - 1) * max(measured - within, 0.0)
    return math.sqrt(squares / weight * sum(1 / len(side) for side in sides))


def _spread_of_runs(times: Times) -> float:
    """Return the standard deviation of the runs' logarithms, from the quartiles; 0 if unknown."""
    low, high = times.quartiles_ms or (0.0, 0.0)
    return math.log(high / low) / _QUARTILES_APART if 0 < low <= high else 0.0


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(max(value, _SHORTEST_MS)) for value in values))


def relative_noise(times: Times) -> float | None:
    """Return half the width of the median's interval, divided by the median; None if unknown."""
    error = _standard_error(times)
    return None if error is None or times.median_ms <= 0 else _Z * error / times.median_ms


def _resampled(times: Times, quantile: float, random: np.random.Generator) -> NDArray[np.float64]:
    # The rank of a quantile among n numbers drawn at random follows a beta distribution, so drawing
    # the rank replaces drawing n numbers.
    ordered = np.maximum(np.sort(np.asarray(times.samples_ms, dtype=np.float64)), _SHORTEST_MS)
    count = len(ordered)
    rank = quantile * (count - 1) + 1
    places = random.beta(rank, count - rank + 1, _RESAMPLES) * count - 0.5
    return np.interp(places, np.arange(count), ordered)


def _standard_error(times: Times) -> float | None:
    if times.basis == "nothing" or times.quartiles_ms is None or not times.count:
        return None
    low, high = times.quartiles_ms
    return _PER_QUARTILES * (high - low) / math.sqrt(times.count)
