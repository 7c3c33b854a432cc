"""Columns that take few bits, or are computed, have the same values as whole ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stagespan.trace.derived.threads import Axis, quiet_stretches
from stagespan.trace.read.groups import pairs
from stagespan.trace.read.intervals import Cover, merged
from stagespan.trace.read.model import MISSING, IdColumn, id_pairs
from stagespan.trace.read.reader import read_trace


@pytest.mark.parametrize("count", [1, 127, 128, 129, 32_767, 32_768, 33_000])
def test_any_number_of_different_ids(count: int, tmp_path: Path) -> None:
    # GIVEN a trace with so many threads and categories, each in two events, of two processes
    events = [
        {
            "ph": "X",
            "name": "n",
            "cat": f"c{number}",
            "ts": number,
            "dur": 2,
            "pid": number % 2,
            "tid": 7 * number,
            "args": {"device": number} if number else {},
        }
        for number in [*range(count), *range(count)]
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(events))
    # THEN every event has its own
    trace = read_trace(path)
    table = trace.events
    assert table.tid.tolist() == [event["tid"] for event in events]
    assert [trace.categories[code] for code in table.category] == [each["cat"] for each in events]
    devices = [event["args"].get("device", MISSING) for event in events]
    assert table.device.tolist() == devices
    assert table.device.exist().tolist() == [each != MISSING for each in devices]
    assert (
        np.flatnonzero(table.tid.having([0, 7])).tolist()
        == np.flatnonzero(np.isin(table.tid, [0, 7])).tolist()
    )
    assert table.end_ns[:1].tolist() == table.end_ns.tolist()[:1] == [2_000]
    # AND pairs are numbered as those of whole columns
    rows = np.arange(len(events))[::-1]
    expected, of_expected = pairs(table.pid[rows], table.tid[rows])
    for second in (table.tid, IdColumn(table.tid.all())):
        different, of = id_pairs(table.pid, second, rows)
        assert different.tolist() == expected.tolist()
        assert of.tolist() == of_expected.tolist()


def test_unions_and_quiet_times_of_many_intervals() -> None:
    # GIVEN more intervals than one part has, in any order
    source = np.random.default_rng(3)
    begin = source.integers(0, 10**8, 200_000)
    end = begin + source.integers(0, 300, len(begin))
    which = source.random(len(begin)) < 0.1
    # WHEN some are united
    starts, stops = merged(begin, end, which=which)
    # THEN it is the union: edges of all that lie in no interval
    order = np.argsort(begin[which], kind="stable")
    first, last = begin[which][order], end[which][order]
    reach = np.maximum.accumulate(last)
    opens = np.append(True, first[1:] > reach[:-1])
    assert starts.tolist() == first[opens].tolist()
    closes = np.append(opens[1:], True)
    assert stops.tolist() == reach[closes].tolist()
    # AND quiet times are those between edges that are far apart
    quiet = quiet_stretches(Axis(0, 2 * 10**8, 1), begin, end, which, 2_000)
    edges = np.sort(np.concatenate(([0], first, last, [2 * 10**8])))
    far = np.flatnonzero(np.diff(edges) > 2_000)
    expected = Cover(edges[far], edges[far + 1])
    assert quiet.begin.tolist() == expected.begin.tolist()
    assert quiet.end.tolist() == expected.end.tolist()
