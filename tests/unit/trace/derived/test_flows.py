"""Flows are joined by id, and by time if several have the same id."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stagespan.trace import Trace, read_trace
from stagespan.trace.derived.flows import joined_flows

Write = Callable[..., Path]
Edge = tuple[str, int, float]
"""Phase (s or f), id and time."""


def edge(phase: str, number: int, ts: float, cat: str = "fwdbwd") -> dict[str, Any]:
    return {"ph": phase, "cat": cat, "name": cat, "id": number, "ts": ts, "pid": 1, "tid": 1}


def joined(trace: Trace) -> set[tuple[int, float, float]]:
    """The id, and the times of both ends in µs."""
    flows = trace.flows
    starts, ends = joined_flows(trace, "fwdbwd")
    assert flows.id[starts].tolist() == flows.id[ends].tolist()
    times = zip(flows.begin_ns[starts].tolist(), flows.begin_ns[ends].tolist(), strict=True)
    ids = flows.id[starts].tolist()
    return {
        (number, *(time / 1e3 for time in both)) for number, both in zip(ids, times, strict=True)
    }


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        # Each id once, one of them without an end, one without a start, and one with two ends.
        (
            [
                ("s", 2, 10),
                ("f", 2, 20),
                ("s", 1, 11),
                ("f", 1, 21),
                ("f", 1, 22),
                ("s", 5, 1),
                ("f", 6, 2),
            ],
            {(2, 10, 20), (1, 11, 21), (1, 11, 22)},
        ),
        # An id that is used again, in any order.
        (
            [("s", 7, 30), ("f", 7, 40), ("f", 7, 20), ("s", 7, 10), ("s", 8, 15), ("f", 8, 35)],
            {(7, 30, 40), (7, 10, 20), (8, 15, 35)},
        ),
        # An end at the time of its start, and one before all starts of its id.
        (
            [("s", 7, 10), ("f", 7, 30), ("s", 7, 30), ("f", 7, 5), ("s", 3, 1), ("f", 3, 9)],
            {(7, 30, 30), (7, 10, 5), (3, 1, 9)},
        ),
        ([("s", 1, 10)], set()),
        ([("f", 1, 10)], set()),
        ([], set()),
    ],
)
def test_starts_and_ends(
    edges: list[Edge], expected: set[tuple[int, float, float]], write_trace: Write
) -> None:
    # GIVEN flows, and others of another category with the same ids
    entries = [edge(*each) for each in edges] + [edge("s", 7, 19, "ac2g"), edge("f", 7, 21, "ac2g")]
    assert joined(read_trace(write_trace(entries))) == expected
