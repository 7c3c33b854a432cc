"""Requests to a worker whose CLOCK_MONOTONIC is hours ahead, as on another host."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from recorded_process import recordings_in, skip_unless_works

from running import PROGRAMS, ran
from stagespan import recording
from stagespan.recording.timelines import Timeline, timelines

AHEAD_S = 36_000
AHEAD_NS = AHEAD_S * 10**9
CLOCK_ERROR_NS = 20_000
_IN_NAMESPACE = ("unshare", "--time", f"--monotonic={AHEAD_S}")

ROUND_TRIPS = PROGRAMS / "round_trips.py"

Pair = tuple[int, int]


class Stamps(NamedTuple):
    """Ns before and after each call, each on the clock of its process."""

    sent: Pair
    received_there: Pair
    sent_back: Pair
    received: Pair

    def out(self) -> Pair:
        """The least and the longest time that the hand-off to the worker can have taken."""
        (first, last), (sent, sent_last) = self.received_there, self.sent
        return first - AHEAD_NS - sent_last, last - AHEAD_NS - sent

    def back(self) -> Pair:
        """The least and the longest time that the hand-off of the reply can have taken."""
        (first, last), (sent, sent_last) = self.received, self.sent_back
        return first + AHEAD_NS - sent_last, last + AHEAD_NS - sent


@pytest.fixture
def trips(folder: Path) -> list[tuple[Timeline, Stamps]]:
    """Return each request with the stamps of its round trip."""
    skip_unless_works(*_IN_NAMESPACE, "true")
    worker = [*_IN_NAMESPACE, sys.executable, ROUND_TRIPS, "worker"]
    front = [sys.executable, ROUND_TRIPS, "front", "8", "1"]
    done = ran([*front, *worker], status=0, STAGESPAN_RECORDING="keep")
    stamps = [Stamps(*json.loads(line)) for line in done.stdout.splitlines()]
    found = timelines(recording.open(one.path) for one in recordings_in(folder))
    return list(zip(found, stamps, strict=True))


def _is_within(found_ns: int, limits: Pair, error_ns: int) -> bool:
    return limits[0] - error_ns <= found_ns <= limits[1] + error_ns


def test_hand_offs_between_two_clocks(trips: list[tuple[Timeline, Stamps]]) -> None:
    for one, stamps in trips:
        assert one.causes == []
        assert sum(one.where.values()) == one.total_ns
        (both_ns,) = one.out_and_back_ns
        limits = tuple(map(sum, zip(stamps.out(), stamps.back(), strict=True)))
        assert _is_within(both_ns, (limits[0], limits[1]), 2 * CLOCK_ERROR_NS)
        assert [(hop.queue, hop.is_return) for hop in one.hops] == [
            ("tasks", False),
            ("replies", True),
        ]
        for hop, part in zip(one.hops, (stamps.out(), stamps.back()), strict=True):
            assert hop.hand_off_ns is not None
            assert 0 < hop.error_ns <= both_ns // 2 + 1
            assert _is_within(hop.hand_off_ns, part, hop.error_ns + CLOCK_ERROR_NS)
        assert one.where["queue", "tasks"] >= 1_000_000 - CLOCK_ERROR_NS
        assert one.where["execution", "work"] >= 2_000_000 - CLOCK_ERROR_NS
