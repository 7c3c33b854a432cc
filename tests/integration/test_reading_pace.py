"""Tests that exporters read as often as rings and tables need it: nothing is lost uncounted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from exporting import exporter, of, scraped
from recorded_process import started

from running import PROGRAMS, end, ran, until

LIVE = PROGRAMS / "live.py"

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="there is no OTLP exporter")
collector = pytest.importorskip("collector")

pytestmark = pytest.mark.slow

BURSTS = PROGRAMS / "bursts.py"


def bursts(requests: int, stages: int, readings: int, **variables: str) -> dict[str, Any]:
    command = [sys.executable, BURSTS, *map(str, (requests, stages, readings))]
    found: dict[str, Any] = json.loads(ran(command, **variables).stdout)
    return found


@pytest.mark.parametrize(
    ("requests", "stages"), [(300, 6), pytest.param(40, 50, id="few requests"), (900, 1)]
)
def test_what_is_displaced_before_a_request_counts_as_ended_is_kept(
    folder: Path, requests: int, stages: int
) -> None:
    # GIVEN readings that come after half of the ring or of the table of requests was filled, so
    # that each request is displaced within the second after its end
    found = bursts(requests, stages, 20, STAGESPAN_RING_SPANS="4096", STAGESPAN_REQUESTS="2048")
    # THEN each request arrives once, with all of its spans, and is whole
    sent = requests * 20
    assert found["requests"] == found["numbers"] == found["whole"] == sent
    assert found["spans"] == found["ids"] == sent * stages
    assert not any(found["missed"].values())


def test_the_pause_is_half_of_what_fills_the_ring(folder: Path) -> None:
    found = bursts(100, 6, 8, STAGESPAN_RING_SPANS="4096")
    # THEN it is at most that, of the time from reading to reading
    times_s = [took_s for _, took_s in found["pauses"]]
    for i, (pause_s, took_s) in enumerate(found["pauses"][1:]):
        longest_s = (times_s[i] + took_s) * 4096 / (100 * 6) / 2
        assert 0.005 <= pause_s <= max(longest_s, 0.005)


def test_what_a_ring_overwrote_before_it_was_read_is_counted(folder: Path) -> None:
    # GIVEN more spans than the ring has room for between two readings
    found = bursts(300, 20, 5, STAGESPAN_RING_SPANS="4096", STAGESPAN_REQUESTS="2048")
    # THEN all are accounted for, and the requests that lack some say so
    sent = 300 * 20 * 5
    assert found["spans"] + found["missed"]["spans_unread"] == sent
    assert found["missed"]["spans_unread"] > 0
    assert found["requests"] == 1500
    assert found["whole"] < 1500


@pytest.mark.parametrize("pace", [1500, pytest.param(6500, marks=pytest.mark.full)])
def test_all_spans_of_a_fast_thread_arrive_or_losses_are_counted(
    folder: Path, tmp_path: Path, pace: int
) -> None:
    # GIVEN a thread with 9,000 or 40,000 spans a second
    with collector.http() as received:
        options = "--otlp", received.url, "--keep", str(tmp_path / "kept")
        with exporter(*options) as (_, port):
            process = started(LIVE, "growing", str(pace), STAGESPAN_JOB="svc")
            assert process.stdout is not None
            sent = int(process.stdout.readline())

            def is_lost() -> bool:
                found = of(scraped(port), "stagespan_lost_total", service="svc")
                return bool(found)

            def stages() -> int:
                return sum(span.name.startswith("stage") for span in received.spans())

            # THEN all spans arrive; if the machine is too busy for that, losses are counted
            until(lambda: stages() == 6 * sent or is_lost())
            assert stages() <= 6 * sent
            end(process)
