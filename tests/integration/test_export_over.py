"""Tests of `stagespan export --over`: requests that took too long beside others."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exporting import exporter
from recorded_process import command_here, started

from recorded import part_of, read_spans, segment_of, span_rows
from running import PROGRAMS, end, until
from stagespan.export.kept import Keeper
from stagespan.export.parts import Batch, Part
from stagespan.export.traces import Over, Pending, Rules
from stagespan.recording.slowness import Limit, Slowness
from stagespan.recording.spans import Span

EXPORTED = PROGRAMS / "exported.py"

RULES = Rules(one_in=0, failed=False, over=Over(2.0, 0.99))


def request(number: int, length_ns: int, pipeline: str = "default") -> Part:
    """Return a request that took so long."""
    segment = segment_of(number, pipeline=pipeline)
    return part_of({**segment, "end_ns": segment["begin_ns"] + length_ns})


def chosen(requests: list[Part], rules: Rules = RULES) -> list[int]:
    """Return the numbers of the requests that are chosen, which end one after another."""
    pending = Pending(rules)
    found: list[int] = []
    for one in requests:
        pending.add([one])
        complete = pending.complete((), one.end_ns)
        found += [part.segment["number"] for parts in complete for part in parts]
    return found


def test_only_requests_beyond_the_limit_are_chosen() -> None:
    usual = [request(n, 1_000 + n % 7) for n in range(1, 201)]
    slow = [request(1000, 2 * 1_006), request(1001, 2 * 1_006 + 1), request(1002, 9_000)]
    assert chosen([*usual, *slow]) == [1001, 1002]


def test_none_is_chosen_before_there_are_a_hundred() -> None:
    usual = [request(n, 1_000) for n in range(1, 100)]
    assert chosen([*usual, request(1000, 50_000)]) == []
    assert chosen([*usual, request(999, 1_000), request(1000, 50_000)]) == [1000]


def test_each_pipeline_is_compared_with_itself() -> None:
    fast = [request(n, 1_000, "fast") for n in range(1, 151)]
    slow = [request(n, 90_000, "slow") for n in range(201, 351)]
    assert chosen([*fast, *slow]) == []
    more = [request(1000, 5_000, "fast"), request(1001, 100_000, "slow")]
    assert chosen([*fast, *slow, *more]) == [1000]


def test_a_pipeline_that_becomes_slower_is_the_new_usual() -> None:
    before = [request(n, 1_000) for n in range(1, 1001)]
    after = [request(n, 10_000) for n in range(2001, 3101)]
    numbers = chosen([*before, *after])
    assert numbers
    assert max(numbers) < 2100
    assert chosen([*before, *after, request(5000, 15_000)])[-1] != 5000


@pytest.mark.slow
def test_an_exporter_keeps_what_was_too_slow(folder: Path, tmp_path: Path) -> None:
    process = started(EXPORTED, "one_slow_request")
    place = tmp_path / "kept"
    with exporter("--keep", str(place), "--sample", "0", "--over", "3xp90") as (_, _):
        until(lambda: list(place.glob("requests-*")), 60)
    end(process)
    page = json.loads(command_here("requests", str(place), "--json").stdout)
    (slow,) = (one for one in page["requests"] if one["total_ns"] > 1e9)
    assert slow["request_id"] == "slow"
    assert page["count"] < 15
    why = slow["slow"]
    assert why["limit"]["compared"] >= 100
    assert why["ratio"] == pytest.approx(slow["total_ns"] / why["limit"]["percentile_ns"])
    assert why["causes"] == []
    assert slow["open_meanwhile"] == 0
    # THEN the process, which waits for a line, could not be asked, and the page says so
    assert "is not listening" in why["missing"][0]
    (span,) = slow["segments"][0]["spans"]
    assert span["median_ns"] < 1e9
    words = " ".join(command_here("requests", str(place), "--id", "slow").stdout.split())
    assert f"slow: {why['ratio']:.1f} x its p90" in words
    assert "not known: collections of garbage, and signatures: The process" in words


def kept_in(folder: Path, part: Part) -> Any:
    """Keep a part of a slow request, and return it as it was kept, which takes about 64 KiB."""
    keeper = Keeper(folder, 1 << 20)
    keeper.put([[part]])
    keeper.close()
    (path,) = folder.iterdir()
    line = gzip.decompress(path.read_bytes())
    assert 40 << 10 < len(line) <= 64 << 10
    (kept,) = json.loads(line)["parts"]
    return kept


def test_a_slow_request_has_at_most_64_kb(tmp_path: Path) -> None:
    # GIVEN a slow request with more spans than that
    ids = np.arange(1, 5001)
    rows = span_rows(5000, id=ids, begin_ns=10**18, end_ns=10**18 + ids)
    part = part_of(segment_of(1, id="slow"), read_spans("stage", rows=rows))
    part.slowness = Slowness(Limit(2.0, 0.99, 100, 10, 1000))
    # THEN the shortest of its spans are left out, and that is said
    kept_in(tmp_path, part)
    page = json.loads(command_here("requests", str(tmp_path), "--json").stdout)
    (request,) = page["requests"]
    left = request["segments"][0]["spans"]
    assert min(span["duration_ns"] for span in left) == 5001 - len(left)
    assert f"the shortest {5000 - len(left):,} spans" in request["slow"]["missing"][-1]


def test_a_slow_request_of_many_batches_has_at_most_64_kb(tmp_path: Path) -> None:
    # GIVEN a slow request that an engine served in 3,000 steps
    batches = [
        Batch(Span(n, 0, "step", "batch", 10**18, 10**18 + n, 1, False, 0, 0, None), [], [], 8)
        for n in range(1, 3001)
    ]
    part = part_of(segment_of(1), batches=batches)
    part.slowness = Slowness(Limit(2.0, 0.99, 100, 10, 1000))
    # THEN the shortest steps are left out, and that is said
    kept = kept_in(tmp_path, part)
    assert [span[0] for span, _ in kept["batches"]] == [*range(3001 - len(kept["batches"]), 3001)]
    assert f"the shortest {3000 - len(kept['batches']):,} spans" in kept["slowness"]["missing"][-1]


def test_a_limit_that_says_nothing_is_refused() -> None:
    for over in ("2", "p99", "2xp", "0xp99", "2xp999", "-1xp99"):
        done = command_here("export", "--keep", "unused", "--over", over)
        assert done.returncode == 2
        assert "such as 2.0xp99" in " ".join(done.stderr.split())
