"""Whether two medians differ by more than their noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.999
"""Of the intervals; a gate judges many stages, many times a day."""
FEWEST_RUNS = 5
"""With fewer runs nothing is said about their noise."""
_FEWEST_FOR_BEST = 20
BEST = 0.02
"""Part of the runs that the fastest ones are."""
_RESAMPLES = 20_000
_SEED = 20_260_101
_Z = statistics.NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
# The standard error of a median of normally distributed times, from their quartiles.
_PER_QUARTILES = math.sqrt(math.pi / 2) / (2 * statistics.NormalDist().inv_cdf(0.75))
_LEAST_RELATIVE_ERROR = 0.01  # figures that come from histograms are at most 3 % off


@dataclass(frozen=True)
class Times:
    """What is known of the times of several runs."""

    median_ms: float
    count: int | None = None
    quartiles_ms: tuple[float, float] | None = None
    samples_ms: tuple[float, ...] = ()
    disturbed: bool | None = None
    """Whether other programs used the machine meanwhile; None if that is not known."""

    @classmethod
    def of(cls, samples_ms: Sequence[float], disturbed: bool | None = None) -> Times:
        """The times of single runs, at least one."""
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
        )

    @property
    def best_ms(self) -> float | None:
        """The time that the fastest runs take; None with too few runs.

        Of all figures it changes least if other programs use the machine.
        """
        if len(self.samples_ms) < _FEWEST_FOR_BEST:
            return None
        return float(np.quantile(self.samples_ms, BEST))

    @property
    def basis(self) -> str:
        """What the noise is known from: ``samples``, ``quartiles``, or ``nothing``."""
        if (self.count or 0) < FEWEST_RUNS:
            return "nothing"
        if len(self.samples_ms) >= FEWEST_RUNS:
            return "samples"
        return "nothing" if self.quartiles_ms is None else "quartiles"


def interval_of_change(
    before: Times, after: Times, quantile: float = 0.5
) -> tuple[float, float] | None:
    """Bounds in ms of the change of a quantile, by default the median.

    They hold with the probability `CONFIDENCE`.

    By bootstrap if both have samples; else of the median, from the quartiles. None if the noise of
    one of them is not known. The same times always give the same bounds.
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
    """Half the width of the interval of the median, as a part of it; None if it is not known."""
    error = _standard_error(times)
    return None if error is None or times.median_ms <= 0 else _Z * error / times.median_ms


def _resampled(times: Times, quantile: float, random: np.random.Generator) -> NDArray[np.float64]:
    # A quantile of n numbers drawn at random has a place in their order that follows a beta
    # distribution, so that drawing the place stands for drawing the numbers.
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
