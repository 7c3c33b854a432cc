"""Decides whether two medians differ by more than their noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

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
_RESAMPLES = 20_000
_SEED = 20_260_101
_Z = statistics.NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
# The standard error of a median of normally distributed times, from their quartiles.
_PER_QUARTILES = math.sqrt(math.pi / 2) / (2 * statistics.NormalDist().inv_cdf(0.75))
_LEAST_RELATIVE_ERROR = 0.01  # figures from histograms have an error of at most 3 %


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
        )

    def at_speed(self, fixed_ns: float) -> Times | None:
        """Return the times on a processor on which the fixed computation takes ``fixed_ns``.

        None if the times do not depend on the processor's speed alone, or if that is not known.
        """
        if len(self.relative) < FEWEST_RUNS:
            return None
        return Times.of([ratio * fixed_ns / 1e6 for ratio in self.relative], False, fixed_ns)

    @property
    def best_ms(self) -> float | None:
        """The time of the fastest runs; None with too few runs.

        It changes least of all figures if other programs use the machine.
        """
        if len(self.samples_ms) < _FEWEST_FOR_BEST:
            return None
        return float(np.quantile(self.samples_ms, BEST))

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

    The change is within the bounds with the probability `CONFIDENCE`. If both have samples, the
    bounds come from a bootstrap, otherwise they are those of the median, from the quartiles.
    Returns None if the noise of one of them is not known. The same times always give the same
    bounds.
    """
    if before.basis == after.basis == "samples":
        random = np.random.default_rng(_SEED)
        change = _resampled(after, quantile, random) - _resampled(before, quantile, random)
        tail = (1 - CONFIDENCE) / 2
        low, high = np.quantile(change, (tail, 1 - tail))
        return float(low), float(high)
    errors = [_standard_error(times) for times in (before, after)]
    if errors[0] is None or errors[1] is None:
        return None
    change_ms, bound = after.median_ms - before.median_ms, _Z * math.hypot(errors[0], errors[1])
    return change_ms - bound, change_ms + bound


def relative_noise(times: Times) -> float | None:
    """Return half the width of the median's interval, divided by the median; None if unknown."""
    error = _standard_error(times)
    return None if error is None or times.median_ms <= 0 else _Z * error / times.median_ms


def _resampled(times: Times, quantile: float, random: np.random.Generator) -> NDArray[np.float64]:
    # The rank of a quantile among n numbers drawn at random follows a beta distribution, so drawing
    # the rank replaces drawing n numbers.
    ordered = np.sort(np.asarray(times.samples_ms, dtype=np.float64))
    count = len(ordered)
    rank = quantile * (count - 1) + 1
    places = random.beta(rank, count - rank + 1, _RESAMPLES) * count - 0.5
    return np.interp(places, np.arange(count), ordered)


def _standard_error(times: Times) -> float | None:
    if times.basis == "nothing" or times.quartiles_ms is None or not times.count:
        return None
    low, high = times.quartiles_ms
    error = _PER_QUARTILES * (high - low) / math.sqrt(times.count)
    if times.samples_ms:
        return error
    return max(error, _LEAST_RELATIVE_ERROR * times.median_ms)
