"""A claim, and the checks that yield claims of one kind.

A claim is a number or a cause that a page states. Each is "right", "wrong", or "unchecked" if the
raw events cannot decide it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from raw_trace import Interval, RawTrace

RIGHT, WRONG, UNCHECKED = "right", "wrong", "unchecked"


@dataclass(frozen=True)
class Claim:
    """One claim, and what the raw events say."""

    kind: str
    text: str
    found: str
    state: str


@dataclass(frozen=True)
class Page:
    """What is claimed: the JSON of the page, and the raw events below it."""

    name: str
    told: dict[str, Any]
    raw: RawTrace

    @property
    def base(self) -> Interval | None:
        """The range that shares refer to, as the page states it, in ns after the first event."""
        base = self.told["verdict"].get("base")
        if base is None:
            return None
        begin = round(base["time_us"] * 1000)
        return begin, begin + round(base["whole_us"] * 1000)


Check = Callable[[Page], Iterator[Claim]]
CHECKS: dict[str, Check] = {}


def check(kind: str) -> Callable[[Check], Check]:
    """Register a check by the kind of its claims."""

    def add(function: Check) -> Check:
        CHECKS[kind] = function
        return function

    return add


def equals(kind: str, text: str, told: float, found: float, within: float) -> Claim:
    """Return the claim that a number is the one that was found; it may differ by `within`."""
    state = RIGHT if abs(told - found) <= within else WRONG
    return Claim(kind, f"{text}: {told:,.3f}", f"{found:,.3f}", state)


def lies_between(
    kind: str, text: str, told: float, least: float, most: float, within: float
) -> Claim:
    """Return the claim that a number is at least `least` and at most `most`."""
    state = RIGHT if least - within <= told <= most + within else WRONG
    return Claim(kind, f"{text}: {told:,.3f}", f"{least:,.3f} to {most:,.3f}", state)
