"""The kinds of columns that traces and analyses are made of."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int32]
"""Indices into a list of names."""
Numbers = NDArray[np.int64]
"""Times in ns, ids, counts."""
Mask = NDArray[np.bool_]
"""Which rows are meant."""


def by_group(group: Numbers, count: int) -> list[NDArray[np.intp]]:
    """Of each of `count` groups the indices of its elements, in one pass over all."""
    order = np.argsort(group, kind="stable")
    return np.split(order, np.searchsorted(group[order], np.arange(1, count + 1)))[:count]
