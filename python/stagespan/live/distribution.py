"""The interface of a distribution of durations."""

from __future__ import annotations

from typing import Protocol


class Distribution(Protocol):
    """The durations of at least one run, in ns."""

    @property
    def count(self) -> int:
        """The number of runs with a known duration; at least 1."""

    @property
    def total_ns(self) -> int: ...
    @property
    def mean_ns(self) -> float: ...
    @property
    def min_ns(self) -> int: ...
    @property
    def max_ns(self) -> int: ...
    @property
    def p50_ns(self) -> float: ...
    @property
    def p95_ns(self) -> float: ...
    @property
    def p99_ns(self) -> float: ...
