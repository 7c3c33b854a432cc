"""Quantiles of lists and of sums of histograms, by the rule of the recorder's own summaries.

The ``q`` quantile of n values is the smallest of them that is not exceeded by at least q * n values
(the nearest rank), so it is always a value that occurred. `Distribution::quantile_ticks` in
csrc/stagespan/snapshot.cpp has the same rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

_T = TypeVar("_T", int, float)


def rank(q: float, count: int) -> int:
    """Return the place of the ``q`` quantile among ``count`` values in ascending order, from 1.

    Raises ValueError if ``q`` is not from 0 to 1.
    """
    if not 0 <= q <= 1:
        raise ValueError(f"a quantile must be from 0 to 1, not {q}")
    return max(math.ceil(q * count), 1)


def quantile(ordered: Sequence[_T], q: float) -> _T:
    """Return the ``q`` quantile of values in ascending order; there is at least one.

    Raises ValueError if ``q`` is not from 0 to 1.
    """
    return ordered[rank(q, len(ordered)) - 1]
