"""What is known of the distribution of a time, whoever computed it."""

from __future__ import annotations

from typing import Protocol


class Distribution(Protocol):
    """A time in ns; its figures are None where `count` is 0."""

    @property
    def count(self) -> int:
        """Runs of which it is known."""

    @property
    def total_ns(self) -> int: ...
    @property
    def mean_ns(self) -> float | None: ...
    @property
    def min_ns(self) -> int | None: ...
    @property
    def max_ns(self) -> int | None: ...
    @property
    def p50_ns(self) -> float | None: ...
    @property
    def p95_ns(self) -> float | None: ...
    @property
    def p99_ns(self) -> float | None: ...
